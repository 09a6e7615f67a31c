"""One step has the positions it is told, wherever the model would count them itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION, observed
from pipeline.model.forward import OffGraphForward, failures_explained
from tests.tiny_models import model

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
