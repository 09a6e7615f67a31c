"""A model borrowed for its own attention is the model loaded for it; renamed windows are its own, narrower."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.eager import KEPT_WINDOW, WindowNames, own_attention
from tests.tiny_models import MIXED, SLIDING, VOCAB_SIZE, model

TEXT = torch.randint(4, VOCAB_SIZE, (1, 30), generator=torch.Generator().manual_seed(1))


def logits(ours: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = ours(input_ids=TEXT, use_cache=False).logits
    return found


@pytest.mark.parametrize(("model_type", "changes"), [("llama", {}), ("mistral", SLIDING), ("qwen2", MIXED)])
def test_the_logits_are_those_of_the_model_loaded_with_eager_attention(
    model_type: str, changes: dict[str, Any]
) -> None:
    ours = model(model_type, IMPLEMENTATION, **changes)
    with own_attention(ours, WindowNames([8])):
        found = logits(ours)
    assert torch.equal(found, logits(model(model_type, **changes)))


def test_a_renamed_window_is_as_narrow_as_its_name_in_the_layers_that_have_it() -> None:
    wide = MIXED | {"sliding_window": 512}
    ours = model("qwen2", IMPLEMENTATION, **wide)
    windows = WindowNames([0, 512])
    with own_attention(ours, windows):
        found = logits(ours)
    narrow = MIXED | {"sliding_window": windows.of(512)}
    assert torch.equal(found, logits(model("qwen2", **narrow)))
    assert not torch.equal(found, logits(model("qwen2", **wide))), "the text reaches beyond the narrow window alone"


def test_the_model_has_its_implementation_back_and_masks_are_the_librarys_again() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    library_mask = ALL_MASK_ATTENTION_FUNCTIONS["eager"]
    ours = model("qwen2", IMPLEMENTATION, **MIXED)

    def fail() -> None:
        with own_attention(ours, WindowNames([])):
            assert ours.config._attn_implementation == "eager"
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert ours.config._attn_implementation == IMPLEMENTATION
    assert ALL_MASK_ATTENTION_FUNCTIONS["eager"] is library_mask


def test_windows_that_are_narrow_keep_their_width_and_wide_ones_get_names_of_their_own() -> None:
    published = [0, 8, 9, KEPT_WINDOW, KEPT_WINDOW + 1, 512, 4096]
    windows = WindowNames(published)
    names = {window: windows.of(window) for window in (*published, 511, 7, 10)}
    assert [names[window] for window in (0, 7, 8, 9, KEPT_WINDOW)] == [0, 7, 8, 9, KEPT_WINDOW]
    assert len(set(names.values())) == len(names), "distinct windows have distinct names"
    assert max(names.values()) < 2 * KEPT_WINDOW
