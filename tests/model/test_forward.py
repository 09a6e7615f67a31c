"""One step has the positions it is told, wherever the model would count them itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.contract import LOGITS_MODE
from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION, observed
from pipeline.model.forward import OffGraphForward, failures_explained, keeps_all_rows
from pipeline.model.geometry import geometry_of
from pipeline.model.oracle import OracleCache, active
from tests.tiny_models import MIXED, VOCAB_SIZE, model

BART = {"pad_token_id": 1, "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 64, "decoder_ffn_dim": 64}


@pytest.mark.parametrize(("model_type", "changes", "offset"), [
    ("llama", {}, 0),
    ("bert", {"is_decoder": True, "pad_token_id": 3}, 0),
    ("roberta", {"is_decoder": True, "pad_token_id": 3}, 4),
    ("xlm-roberta", {"is_decoder": True, "pad_token_id": 0}, 1),
])  # fmt: skip
def test_the_offset_is_what_the_model_adds_when_it_counts(
    model_type: str, changes: dict[str, Any], offset: int
) -> None:
    assert OffGraphForward(model(model_type, IMPLEMENTATION, **changes)).position_offset == offset


def test_a_table_whose_model_counts_is_looked_up_at_the_positions_of_the_step() -> None:
    bart = model("bart", IMPLEMENTATION, **BART)
    table = bart.model.decoder.embed_positions
    looked_up: list[list[int]] = []
    table.register_forward_pre_hook(
        lambda _, __, named: looked_up.append(named["position_ids"].tolist()), with_kwargs=True, prepend=False
    )
    forward = OffGraphForward(bart)
    hooks = len(table._forward_pre_hooks)
    with observed(), torch.no_grad():
        forward(torch.tensor([[5, 6, 7]]), torch.tensor([40, 41, 42]))
    assert len(table._forward_pre_hooks) == hooks == 1
    with torch.no_grad(), observed():
        at_40, at_0 = (forward(torch.tensor([[5]]), torch.tensor([start])) for start in (40, 0))
    assert not torch.allclose(at_40, at_0)


def test_one_row_of_logits_comes_back_whatever_the_model_keeps() -> None:
    class KeepsAll(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=input_ids.unsqueeze(-1))

    assert OffGraphForward(KeepsAll())(torch.tensor([[4, 5, 6]]), torch.arange(3)).tolist() == [[[6]]]


def test_every_mode_has_its_rows_of_a_model_that_keeps_all() -> None:
    class KeepsAll(torch.nn.Module):
        def forward(self, input_ids: torch.Tensor, **_: Any) -> SimpleNamespace:
            return SimpleNamespace(logits=input_ids.unsqueeze(-1))

    step = torch.tensor([[4, 5, 6]]), torch.arange(3)
    assert keeps_all_rows(KeepsAll())
    assert OffGraphForward(KeepsAll(), "full")(*step).tolist() == [[[4], [5], [6]]]
    assert OffGraphForward(KeepsAll(), "selected")(*step, torch.tensor([2, 0])).tolist() == [[[6], [4]]]


GEMMA4 = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size": 32,
    "intermediate_size": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "global_head_dim": 32,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    "sliding_window": 8,
}
GEMMA3N = {
    **{key: value for key, value in GEMMA4.items() if key not in {"global_head_dim", "hidden_size"}},
    "activation_sparsity_pattern": [0.0] * 4,
}


@pytest.mark.parametrize(("model_type", "changes"), [
    ("llama", {}),
    ("qwen2", MIXED),
    ("gemma3n_text", GEMMA3N),
    ("gemma4_text", GEMMA4),
])  # fmt: skip
@pytest.mark.parametrize("mode", LOGITS_MODE)
def test_every_mode_gives_the_models_own_rows(model_type: str, changes: dict[str, Any], mode: str) -> None:
    """In steps, over the oracle's cache; the Gemmas share K/V between layers."""
    ours, eager = (model(model_type, implementation, **changes) for implementation in (IMPLEMENTATION, "eager"))
    text = torch.randint(4, VOCAB_SIZE, (1, 14), generator=torch.Generator().manual_seed(1))
    forward, start = OffGraphForward(ours, mode), 0
    with torch.no_grad(), active(OracleCache(geometry_of(ours), capacity=14)):
        expected = eager(input_ids=text, use_cache=False).logits[0]
        for length, selected in ((5, [3]), (4, [3, 0, 0, 1]), (1, [0]), (4, [2, 1])):
            positions = torch.arange(start, start + length)
            arguments = (torch.tensor(selected),) if mode == "selected" else ()
            rows = {"last": [length - 1], "full": list(range(length)), "selected": selected}[mode]
            logits = forward(text[:, positions], positions, *arguments)
            torch.testing.assert_close(
                logits, expected[None, [start + row for row in rows]], rtol=0, atol=1e-4 * float(expected.std())
            )
            start += length


def test_failures_of_the_model_are_explained_and_our_own_pass() -> None:
    mpt = model("mpt", n_heads=4, n_layers=2, d_model=64)
    with pytest.raises(ExportError) as caught, failures_explained(mpt):
        raise AttributeError("'NoneType' object has no attribute 'to'.\nmore")
    assert str(caught.value) == (
        "model type 'mpt': its forward fails, given positions and no mask: 'NoneType' object has no attribute 'to'. It "
        "cannot be exported with the off-graph cache."
    )
    with pytest.raises(ExportError, match=r"^softcap$"), failures_explained(mpt):
        raise ExportError("softcap")
