"""Arithmetic against torch and numpy, and the dtypes it gives."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.dtypes import BY_CODE, BY_NAME
from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

TORCH = {name: getattr(torch, name) for name in BY_NAME}

# One unit in the last place of the result's dtype, a few times over: the libraries round transcendentals differently.
ROUNDING = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}

UNARY = {
    "CosNode": torch.cos,
    "NegNode": torch.neg,
    "RsqrtNode": torch.rsqrt,
    "SiluNode": torch.nn.functional.silu,
    "SinNode": torch.sin,
}
BINARY = {"AddNode": torch.add, "SubtractNode": torch.sub, "MultiplyNode": torch.mul, "DivideNode": torch.div}


def pair(values: np.ndarray, dtype: str) -> tuple[mx.array, torch.Tensor]:
    """The same values in both libraries, rounded alike."""
    tensor = torch.from_numpy(values).to(TORCH[dtype])
    return mx.array(tensor.double().numpy().astype(np.float32)).astype(BY_NAME[dtype]), tensor


def check(result: mx.array, reference: torch.Tensor, dtype: str, tolerance: float) -> None:
    assert result.dtype == BY_NAME[dtype]
    found = np.array(result.astype(mx.float32))
    np.testing.assert_allclose(found, reference.to(TORCH[dtype]).float().numpy(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("name", UNARY)
def test_a_unary_operator_keeps_a_float_dtype_and_agrees_with_torch(name: str, dtype: str) -> None:
    values = np.random.default_rng(0).normal(size=(3, 5)) * 3
    x, tensor = pair(np.abs(values) if name == "RsqrtNode" else values, dtype)
    check(OPERATORS[name](x=x), UNARY[name](tensor), dtype, ROUNDING[dtype])


@pytest.mark.parametrize("name", ["CosNode", "SinNode", "RsqrtNode", "SiluNode"])
def test_a_float_function_of_integers_is_float32(name: str) -> None:
    x, tensor = pair(np.arange(1, 6), "int32")
    check(OPERATORS[name](x=x), UNARY[name](tensor.float()), "float32", ROUNDING["float32"])


def test_silu_holds_at_the_ends() -> None:
    found = OPERATORS["SiluNode"](x=mx.array([-100.0, -0.0, 0.0, 100.0])).tolist()
    assert found == pytest.approx([-100.0 * np.exp(-100.0), 0.0, 0.0, 100.0], abs=1e-30)


def test_rsqrt_of_zero_is_infinite() -> None:
    assert OPERATORS["RsqrtNode"](x=mx.array(0.0)).item() == np.inf


def test_negation_keeps_integers() -> None:
    result = OPERATORS["NegNode"](x=mx.array([3, -4], mx.int64))
    assert result.dtype == mx.int64
    assert result.tolist() == [-3, 4]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("float32", "float32", "float32"),
        ("bfloat16", "bfloat16", "bfloat16"),
        ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"),
        ("int32", "float16", "float16"),
        ("int64", "float32", "float32"),
        ("bool", "bfloat16", "bfloat16"),
        ("uint32", "int32", "int64"),
        ("uint8", "int8", "int16"),
        ("bool", "int32", "int32"),
    ],
)
def test_a_binary_operator_promotes_and_broadcasts(name: str, a: str, b: str, expected: str) -> None:
    make = np.random.default_rng(1)
    left, left_tensor = pair(make.integers(0, 2, (4, 1, 3)) if a == "bool" else make.integers(2, 9, (4, 1, 3)), a)
    right, right_tensor = pair(make.integers(1, 2, (5, 1)), b)
    if name == "DivideNode" and "float" not in expected:
        expected = "float32"
    wide = torch.float64 if "float" in expected else torch.int64
    reference = BINARY[name](left_tensor.to(wide), right_tensor.to(wide))
    check(OPERATORS[name](a=left, b=right), reference, expected, ROUNDING.get(expected, 0.0))


def test_a_scalar_constant_is_no_weak_scalar() -> None:
    """A float32 constant of no dimensions widens bfloat16, as the runtime's arrays do."""
    result = OPERATORS["MultiplyNode"](a=mx.array([1.5], mx.bfloat16), b=mx.array(1.001, mx.float32))
    assert result.dtype == mx.float32
    assert result.item() == pytest.approx(1.5015)


def test_division_by_zero_is_infinite_or_not_a_number() -> None:
    result = OPERATORS["DivideNode"](a=mx.array([1.0, -1.0, 0.0]), b=mx.array(0.0))
    assert result.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(result[2].item())


@pytest.mark.parametrize("code", BY_CODE)
def test_a_cast_gives_the_dtype_of_its_code(code: int) -> None:
    result = OPERATORS["AsTypeNode"](x=mx.array([0.0, 1.75, 100.0]), scalar_type=code)
    assert result.dtype == BY_CODE[code]
    name = next(name for name, dtype in BY_NAME.items() if dtype == BY_CODE[code])
    assert result.tolist() == torch.tensor([0.0, 1.75, 100.0]).to(TORCH[name]).tolist()


def test_a_cast_from_float_to_integer_truncates_toward_zero() -> None:
    assert OPERATORS["AsTypeNode"](x=mx.array([-1.9, 1.9]), scalar_type=3).tolist() == [-1, 1]


def test_a_cast_to_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(DelegateError, match=re.escape("scalar type 7 is none that the MLX delegate knows")):
        OPERATORS["AsTypeNode"](x=mx.array(1.0), scalar_type=7)
