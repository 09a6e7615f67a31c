"""Attention reaches the op with everything it needs, and whatever the op cannot honour is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model import attention
from pipeline.model.attention import AttentionCall, observed, off_graph_attention, off_graph_mask
from tests.model.conftest import History, history

CLOSING = ". It cannot be exported with the off-graph cache."


def layer(**changes: Any) -> Any:
    """An attention module, as far as the implementation looks at it."""
    return SimpleNamespace(**{"config": SimpleNamespace(model_type="toy"), "is_causal": True, "layer_idx": 5} | changes)


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = drawn(1, 4, 3, 8, seed=1), drawn(1, 2, 3, 8, seed=2), drawn(1, 2, 3, 8, seed=3)


def attend(module: Any = None, **changes: Any) -> torch.Tensor:
    arguments: dict[str, Any] = {
        "query": Q,
        "key": K,
        "value": V,
        "attention_mask": None,
        "scaling": 0.3,
        "position_ids": torch.tensor([[0, 1, 2]]),
    }
    result, weights = off_graph_attention(layer() if module is None else module, **arguments | changes)
    assert weights is None
    return result


GEOMETRY = CacheGeometry(num_kv_heads=2, head_dim=8, window=0)


@pytest.fixture
def cache() -> Iterator[History]:
    with history([GEOMETRY] * 6) as installed:
        yield installed


def test_the_op_gets_the_layer_its_positions_and_the_scale(cache: History) -> None:
    result = attend(layer(layer_idx=3))
    k, v = (tensor.repeat_interleave(2, dim=1) for tensor in (K, V))
    scores = (Q @ k.transpose(2, 3) * 0.3).masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), -torch.inf)
    expected = (scores.softmax(-1) @ v).transpose(1, 2)
    assert result.shape == (1, 3, 4, 8)
    np.testing.assert_allclose(result.numpy(), expected.numpy(), atol=1e-6)
    assert cache.calls == [(3, [0, 1, 2])]


def test_the_result_has_the_dtype_of_the_query(cache: History) -> None:
    assert attend(query=Q.bfloat16(), key=K.bfloat16(), value=V.bfloat16()).dtype == torch.bfloat16


def test_harmless_arguments_pass(cache: History) -> None:
    attend(
        dropout=0.0,
        use_cache=False,
        output_attentions=False,
        output_router_logits=False,
        is_causal=True,
        cache_position=None,
        past_key_values=None,
        softcap=None,
        anything_else=None,
    )


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "softcap": ({"softcap": 50.0}, {}, "attention passes softcap=50.0, which the off-graph cache op cannot apply"),
    "head_mask": (
        {"head_mask": torch.ones(4)},
        {},
        "attention passes head_mask=a tensor of shape (4,), which the off-graph cache op cannot apply",
    ),
    "sinks": (
        {"s_aux": torch.ones(4)},
        {},
        "attention passes s_aux=a tensor of shape (4,), which the off-graph cache op cannot apply",
    ),
    "an unknown keyword": (
        {"temperature": 2},
        {},
        "attention passes temperature=2, which the off-graph cache op cannot apply",
    ),
    "an unknown flag that is off": (
        {"temperature": False},
        {},
        "attention passes temperature=False, which the off-graph cache op cannot apply",
    ),
    "a known keyword that asks for something": (
        {"output_attentions": True},
        {},
        "attention passes output_attentions=True, which the off-graph cache op would ignore",
    ),
    "a step that is not causal": (
        {"is_causal": False},
        {},
        "attention passes is_causal=False, which the off-graph cache op would ignore",
    ),
    "a cache": (
        {"past_key_values": "cache"},
        {},
        "attention passes past_key_values='cache', which the off-graph cache op would ignore",
    ),
    "a module that is not causal": (
        {},
        {"is_causal": False},
        "an attention module is not causal, and the off-graph cache op always masks causally",
    ),
    "a mask": (
        {"attention_mask": torch.zeros(1, 1, 3, 3)},
        {},
        "attention passes a mask of its own, which the off-graph cache op cannot apply",
    ),
    "dropout": ({"dropout": 0.1}, {}, "attention passes dropout=0.1, which the off-graph cache op cannot apply"),
    "no scaling": (
        {"scaling": None},
        {},
        "attention passes no scaling, and head_dim ** -0.5 would be wrong for models that scale otherwise",
    ),
    "no positions": (
        {"position_ids": None},
        {},
        "attention is not given position_ids, without which tokens cannot be placed in the cache",
    ),
    "a batch of two": (
        {"query": Q.repeat(2, 1, 1, 1), "key": K.repeat(2, 1, 1, 1), "value": V.repeat(2, 1, 1, 1)},
        {},
        "attention runs on a batch of 2, and the off-graph cache holds one sequence",
    ),
    "positions of a batch": (
        {"position_ids": torch.zeros(2, 3, dtype=torch.long)},
        {},
        "attention runs on a batch of 1, and the off-graph cache holds one sequence",
    ),
    "no layer index": (
        {},
        {"layer_idx": None},
        "an attention module has no layer_idx, so its cache cannot be told from the others",
    ),
    "shared K/V": (
        {},
        {"is_kv_shared_layer": True},
        "layer 5 shares another layer's K/V, which this version does not address yet",
    ),
    "keys of another length": (
        {"key": K[:, :, :2], "value": V[:, :, :2]},
        {},
        "layer 5 attends 2 keys with 3 queries, and the off-graph cache op takes this step's keys alone",
    ),
    "another head_dim for V": (
        {"value": V[..., :4]},
        {},
        "layer 5 has head_dim 8 for keys and 4 for values, and a cache holds both with one head_dim",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("while_observed", [True, False])
def test_what_the_op_cannot_honour_is_refused(case: str, while_observed: bool) -> None:
    arguments, module, expected = REFUSED[case]
    message = "^" + re.escape(f"model type 'toy': {expected}{CLOSING}") + "$"
    with observed() if while_observed else nullcontext(), pytest.raises(ExportError, match=message):
        attend(layer(**module), **arguments)


def test_a_module_without_a_configuration_is_named_by_its_class() -> None:
    with pytest.raises(ExportError, match=r"^model type 'SimpleNamespace': attention passes softcap=1\.0"):
        attend(SimpleNamespace(layer_idx=0), softcap=1.0)


def test_observed_calls_are_recorded_and_answered_without_a_cache() -> None:
    with observed() as observation:
        result = attend(layer(layer_idx=0), sliding_window=16)
        attend(layer(layer_idx=1))
    assert result.shape == (1, 3, 4, 8)
    assert not result.any()
    assert observation.calls == [
        AttentionCall(layer_idx=0, num_kv_heads=2, head_dim=8, window=16),
        AttentionCall(layer_idx=1, num_kv_heads=2, head_dim=8, window=0),
    ]


def test_observation_ends_with_its_block(cache: History) -> None:
    with observed() as outer:
        pass
    attend()
    off_graph_mask(mask_function=None)  # type: ignore[arg-type]
    assert outer.calls == []
    assert cache.calls == [(5, [0, 1, 2])]


def window_seen(mask_function: Callable[..., Any], **others: Any) -> set[int]:
    with observed() as observation:
        assert off_graph_mask(1, 2, mask_function=mask_function, **others) is None
    return observation.mask_windows


@pytest.mark.parametrize("window", [1, 2, 3, 8, 512, 4096, 131072, 2**33 + 5])
def test_the_window_of_a_sliding_mask_is_found(window: int) -> None:
    from transformers.masking_utils import sliding_window_causal_mask_function

    assert window_seen(sliding_window_causal_mask_function(window)) == {window}


def test_a_causal_mask_has_no_window() -> None:
    from transformers.masking_utils import causal_mask_function

    assert window_seen(causal_mask_function) == {0}


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
        window_seen(mask_function)


def test_a_padding_mask_is_refused() -> None:
    expected = "the model builds a padding mask for itself; the off-graph cache op cannot apply it."
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        window_seen(lambda *at: True, attention_mask=torch.ones(1, 3))


def test_registering_twice_is_the_same_as_once() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    for _ in range(2):
        attention.register()
    assert ALL_ATTENTION_FUNCTIONS[attention.IMPLEMENTATION] is off_graph_attention
    assert ALL_MASK_ATTENTION_FUNCTIONS[attention.IMPLEMENTATION] is off_graph_mask
