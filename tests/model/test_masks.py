"""The window of a mask function is found, and a mask that no window describes is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.masks import window_of


@pytest.mark.parametrize("window", [1, 2, 3, 8, 512, 4096, 131072, 2**33 + 5])
def test_the_window_of_a_sliding_mask_is_found(window: int) -> None:
    from transformers.masking_utils import sliding_window_causal_mask_function

    assert window_of(sliding_window_causal_mask_function(window)) == window


def test_a_causal_mask_has_no_window() -> None:
    from transformers.masking_utils import causal_mask_function

    assert window_of(causal_mask_function) == 0


NOT_CAUSAL = "the model's attention mask is not causal; the off-graph cache op always masks causally."
UNEVEN = (
    "the model's attention mask reaches back by different lengths from different positions, or with gaps (chunked "
    "attention, attention sinks); the off-graph cache op knows full and sliding-window attention."
)
BY_TOKENS = "the model's attention mask depends on the tokens, not on positions alone; the off-graph cache op masks by "


def chunked(size: int) -> Callable[..., Any]:
    from transformers.masking_utils import chunked_causal_mask_function

    return chunked_causal_mask_function(size, torch.zeros(1, dtype=torch.long))


MASKS: dict[str, tuple[Callable[..., Any], str]] = {
    "bidirectional": (lambda b, h, q, k: q >= 0, NOT_CAUSAL),
    "a window on both sides": (lambda b, h, q, k: abs(q - k) <= 8, NOT_CAUSAL),
    "blind to itself": (lambda b, h, q, k: k < q, NOT_CAUSAL),
    "chunked": (lambda *at: chunked(8)(*at), UNEVEN),
    "chunked by a large odd size": (lambda *at: chunked(8191)(*at), UNEVEN),
    "sinks beside a window": (lambda b, h, q, k: (k <= q) & ((k > q - 8) | (k < 4)), UNEVEN),
    "with a gap": (lambda b, h, q, k: (k <= q) & ((q - k < 8) | (q - k > 4000)), UNEVEN),
    "every other key": (lambda b, h, q, k: (k <= q) & ((q - k) % 2 == 0), UNEVEN),
    "growing with the position": (lambda b, h, q, k: (k <= q) & (q - k <= q // 2), UNEVEN),
    "by token groups": (lambda b, h, q, k: torch.zeros(1, 3)[b, q] == torch.zeros(1, 3)[b, k], BY_TOKENS),
    "by padding": (lambda b, h, q, k: torch.ones(1, 3, dtype=torch.bool)[b, k], BY_TOKENS),
}


@pytest.mark.parametrize("case", MASKS)
def test_a_mask_that_is_neither_causal_nor_a_window_is_refused(case: str) -> None:
    mask_function, expected = MASKS[case]
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}"):
        window_of(mask_function)
