"""Half precision is widened for a while, exactly and whatever holds it; the way back leaves nothing behind."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.float32 import casting_to_float32, in_float32


class Casting(torch.nn.Module):
    """Computes in half precision, with a tied weight, a buffer and a constant of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.one = torch.nn.Linear(4, 4, dtype=dtype)
        self.two = torch.nn.Linear(4, 4, dtype=dtype)
        self.two.weight = self.one.weight
        self.register_buffer("scale", torch.full((4,), 1 / 3, dtype=dtype))
        self.register_buffer("count", torch.tensor(3))
        self.dtype = dtype

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.two(self.one(x.to(self.scale.dtype)) * self.scale).float() / 3
        return y.to(self.scale.dtype).float() + torch.ones(4, dtype=self.scale.dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_are_wide_inside_and_what_they_were_outside(dtype: torch.dtype) -> None:
    ours = Casting(dtype)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    with in_float32(ours):
        assert {tensor.dtype for tensor in ours.state_dict().values()} == {torch.float32, torch.int64}
        assert ours.two.weight is ours.one.weight
        assert torch.equal(ours.one.weight, before["one.weight"].float())
    for name, tensor in ours.state_dict().items():
        assert tensor.dtype == before[name].dtype
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_program_is_the_float32_model_while_both_are_widened(dtype: torch.dtype) -> None:
    ours = Casting(dtype).requires_grad_(False)
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    program = torch.export.export(ours, (x,), strict=False)
    wide = casting_to_float32(program)
    with in_float32(ours, wide):
        assert torch.equal(wide(x), ours(x))
        exact = ours(x)
    assert torch.equal(program.module()(x), ours(x))
    assert torch.equal(exact, ours(x)) == (dtype == torch.float32), "half precision rounds"


def test_what_hangs_on_weights_alone_is_computed_when_first_run_and_kept() -> None:
    class Unpacking(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 4), requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.weight * 2)

    ours = Unpacking()
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    wide = casting_to_float32(torch.export.export(ours, (x,), strict=False))
    first = wide(x)
    assert torch.equal(first, ours(x))
    ours.weight.zero_()
    assert torch.equal(wide(x), first)
    assert not torch.equal(wide(2 * x), first), "what hangs on the input too is computed anew"


class Packed(torch.Tensor):
    """Weights of a kind that keeps the dtype it has."""

    def to(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(dtype=torch.bfloat16)


def test_weights_that_cannot_be_dequantized_to_float32_are_refused() -> None:
    ours = Casting(torch.bfloat16).requires_grad_(False)
    packed = torch.zeros(4, 4, dtype=torch.bfloat16).as_subclass(Packed)
    ours.one._parameters["weight"] = packed
    expected = (
        "weights of type Packed cannot be dequantized to float32, in which a build compares the program with the "
        "model. Choose another quantization."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"), in_float32(ours):
        raise AssertionError
    assert ours.one._parameters["weight"] is packed
    assert ours.two.weight.dtype == torch.bfloat16
