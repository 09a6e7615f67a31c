"""A model that keeps more than K and V, or counts positions itself, is found out; any other passes in any dtype."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model import rehearsal
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.forward import OffGraphForward
from pipeline.model.geometry import geometry_of
from pipeline.model.rehearsal import rehearse
from tests.tiny_models import MIXED, model

LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
ROBERTA = {"is_decoder": True, "pad_token_id": 3}
CLOSING = " It cannot be exported with the off-graph cache."


def rehearsed(ours: Any, max_context_len: int = 64) -> None:
    rehearse(ours, geometry_of(ours), max_context_len=max_context_len)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("model_type", "changes"), [("llama", {}), ("qwen2", MIXED), ("roberta", ROBERTA)])
def test_a_model_that_keeps_nothing_passes_and_is_left_as_it_was(
    model_type: str, changes: dict[str, Any], dtype: torch.dtype
) -> None:
    ours = model(model_type, IMPLEMENTATION, **changes).to(dtype)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    rehearsed(ours)
    after = ours.state_dict()
    assert all(
        after[name].dtype == tensor.dtype and torch.equal(after[name], tensor) for name, tensor in before.items()
    )


KEPT = {
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}, "conv_states in layer 0 of its cache"),
    "linear attention": ("qwen3_next", LINEAR, "conv_states in layer 0 of its cache"),
}


@pytest.mark.parametrize("case", KEPT)
def test_state_in_the_models_own_cache_is_refused_by_name(case: str) -> None:
    model_type, changes, where = KEPT[case]
    expected = (
        f"model type '{model_type}': {where} is kept from one step to the next, and the off-graph cache holds K and V "
        f"alone.{CLOSING}"
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        rehearsed(model(model_type, IMPLEMENTATION, **changes))


@pytest.mark.parametrize("case", KEPT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_state_is_found_by_its_effect_too(case: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a model may keep it, for the day when it is nowhere that is looked at."""
    model_type, changes, _ = KEPT[case]
    monkeypatch.setattr(rehearsal, "_refuse_kept_state", lambda _: None)
    with pytest.raises(ExportError, match="of their spread when 8 tokens come in three steps instead of one: it keeps"):
        rehearsed(model(model_type, IMPLEMENTATION, **changes).to(dtype))


def keeping(change: Callable[[torch.nn.Module, torch.Tensor], None]) -> Any:
    """A llama whose first layer does something to itself in every pass."""
    ours = model("llama", IMPLEMENTATION)
    layer = ours.model.layers[0]
    layer.register_buffer("total", torch.zeros(64), persistent=False)
    layer.register_forward_pre_hook(lambda module, arguments: change(module, arguments[0]))
    return ours


def set_attribute(layer: Any, hidden: torch.Tensor) -> None:
    layer.last = hidden[:, -1]


def set_list(layer: Any, hidden: torch.Tensor) -> None:
    layer.last = {"of": [hidden[:, -1]]}


def replace_buffer(layer: Any, hidden: torch.Tensor) -> None:
    layer.total = layer.total + 1


def write_buffer(layer: Any, hidden: torch.Tensor) -> None:
    layer.total += 1


@pytest.mark.parametrize(
    ("change", "name"),
    [(set_attribute, "last"), (set_list, "last"), (replace_buffer, "total"), (write_buffer, "total")],
)
def test_state_in_a_module_is_refused_by_name(change: Callable[[Any, torch.Tensor], None], name: str) -> None:
    expected = f"model type 'llama': {name} in 'model.layers.0' is kept from one step to the next"
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}"):
        rehearsed(keeping(change))


def test_numbers_that_a_module_has_and_leaves_alone_are_no_state() -> None:
    ours = model("llama", IMPLEMENTATION)
    ours.model.layers[0].constants = [torch.ones(3), torch.ones(3)]
    rehearsed(ours)


def test_a_count_of_passes_is_found_by_its_effect() -> None:
    ours = model("llama", IMPLEMENTATION)
    ours.model.passes = 0

    def scaled(module: Any, _: Any, output: torch.Tensor) -> torch.Tensor:
        ours.model.passes += 1
        return output * (1 + ours.model.passes)

    ours.lm_head.register_forward_hook(scaled)
    with pytest.raises(ExportError, match="of their spread when 8 tokens come in three steps instead of one"):
        rehearsed(ours)


@pytest.mark.parametrize(
    ("dtype", "factor", "found"),
    [
        (torch.float32, float("nan"), "not finite numbers, with infinities or not-a-numbers in lm_head.weight"),
        (torch.float16, 1e9, "not finite numbers, with infinities or not-a-numbers in lm_head.weight"),
        (torch.float32, 1e38, "not finite numbers"),
        (torch.float32, 0.0, "all equal"),
    ],
)
def test_a_model_whose_logits_tell_nothing_is_refused_for_its_weights(
    dtype: torch.dtype, factor: float, found: str
) -> None:
    ours = model("llama", IMPLEMENTATION)
    with torch.no_grad():
        ours.lm_head.weight.mul_(factor)
    expected = (
        f"model type 'llama': its logits are {found}. Check the checkpoint; where dtype is fp16, which ends at 65504, "
        "choose bf16."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        rehearsed(ours.to(dtype))


def test_positions_that_are_not_the_models_own_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would be, were RoBERTa's offset not known."""
    monkeypatch.setattr("pipeline.model.forward._position_offset", lambda _: 0)
    with pytest.raises(ExportError) as caught:
        rehearsed(model("roberta", IMPLEMENTATION, **ROBERTA))
    assert re.fullmatch(
        r"model type 'roberta': its logits differ by [\d.]+ of their spread when 8 tokens are given positions instead "
        rf"of being counted by the model: it embeds positions in a way of its own\.{re.escape(CLOSING)}",
        str(caught.value),
    )


def test_positions_that_the_model_counts_anew_in_every_step_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As they would be, were a table of positions not told them."""
    monkeypatch.setattr("pipeline.model.forward._position_tables", lambda _: [])
    bart = {"pad_token_id": 1, "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 64, "decoder_ffn_dim": 64}
    with pytest.raises(ExportError, match="come in three steps instead of one"):
        rehearsed(model("bart", IMPLEMENTATION, **bart))


def test_a_position_that_a_table_lacks_is_refused() -> None:
    """RoBERTa with room for 128 positions keeps four of them for padding, whatever the configuration counts."""
    ours = model("roberta", IMPLEMENTATION, **ROBERTA)
    rehearsed(ours, max_context_len=124)
    expected = (
        "max_context_len is 125; the model does not reach position 124. Lower max_context_len. (model type 'roberta': "
        "its forward fails, given positions and no mask: index "
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}"):
        rehearsed(ours, max_context_len=125)


def test_a_model_that_returns_other_rows_than_it_is_asked_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = model("llama", IMPLEMENTATION)
    caches = geometry_of(ours)
    monkeypatch.setattr(OffGraphForward, "forward", lambda *_: torch.zeros(1, 8, 260))
    expected = (
        "model type 'llama': it returns 8 rows of logits and was asked for the last one alone (logits_to_keep=1). It "
        "cannot be exported."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        rehearse(ours, caches, max_context_len=64)


def test_the_text_has_no_padding() -> None:
    ours = model("roberta", IMPLEMENTATION, **ROBERTA)
    assert rehearsal._text(ours).tolist() == [[0, 1, 2, 4, 5, 6, 7, 8]]
