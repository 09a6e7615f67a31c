"""A program becomes one delegate, or the operators that stayed out are listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pipeline.errors import LowerError
from pipeline.model.lower import lower_to_mlx, write
from pipeline.pte import PteFile
from tests.tiny_models import library_warnings_ignored


class Toy(torch.nn.Module):
    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def lowered(body: Callable[[torch.Tensor], torch.Tensor], path: Path) -> PteFile:
    with library_warnings_ignored():
        program = torch.export.export(Toy(body), (torch.rand(4, 4),), strict=False)
        write(lower_to_mlx(program, {"get_one": 1}), path)
    return PteFile.open(path)


def test_what_mlx_knows_becomes_one_delegate(tmp_path: Path) -> None:
    with lowered(lambda x: torch.sin(x) + 1, tmp_path / "toy.pte") as pte:
        forward = pte.program.methods["forward"]
        assert [call.kind for call in forward.instructions] == ["delegate_call"]
        assert [delegate.id for delegate in forward.delegates] == ["MLXBackend"]
        assert pte.program.constants() == {"get_one": 1}


def refusal(body: Callable[[torch.Tensor], torch.Tensor], path: Path) -> str:
    with pytest.raises(LowerError) as caught:
        lowered(body, path)
    assert not path.exists()
    return str(caught.value)


def test_operators_left_out_are_listed_with_their_number(tmp_path: Path) -> None:
    message = refusal(lambda x: torch.erfinv(torch.i0(torch.erfinv(torch.cos(x)) + 1)) + 1, tmp_path / "toy.pte")
    assert message == (
        "forward became 3 MLX delegates with 3 operators left out: aten.erfinv.default (2), aten.i0.default (1); "
        "expected one delegate and nothing else. The log has the partitioner's reasons."
    )


def test_a_failure_of_executorchs_own_is_told_with_its_reason(tmp_path: Path) -> None:
    message = refusal(torch.linalg.inv, tmp_path / "toy.pte")
    assert message == (
        "executorch cannot lower forward: Support for input TokenArgument(name='token') is not implemented. "
        "The log has the whole trace."
    )
