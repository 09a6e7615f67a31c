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
    "AbsNode": torch.abs,
    "ArccosNode": torch.acos,
    "ArccoshNode": torch.acosh,
    "ArcsinNode": torch.asin,
    "ArcsinhNode": torch.asinh,
    "ArctanNode": torch.atan,
    "ArctanhNode": torch.atanh,
    "CeilNode": torch.ceil,
    "CosNode": torch.cos,
    "CoshNode": torch.cosh,
    "ErfNode": torch.erf,
    "ExpNode": torch.exp,
    "Expm1Node": torch.expm1,
    "FloorNode": torch.floor,
    "Log10Node": torch.log10,
    "Log1pNode": torch.log1p,
    "Log2Node": torch.log2,
    "LogNode": torch.log,
    "NegNode": torch.neg,
    "ReciprocalNode": torch.reciprocal,
    "RsqrtNode": torch.rsqrt,
    "SigmoidNode": torch.sigmoid,
    "SignNode": torch.sign,
    "SiluNode": torch.nn.functional.silu,
    "SinNode": torch.sin,
    "SinhNode": torch.sinh,
    "SqrtNode": torch.sqrt,
    "SquareNode": torch.square,
    "TanNode": torch.tan,
    "TanhNode": torch.tanh,
    "TruncNode": torch.trunc,
}
POSITIVE = {"Log10Node", "Log1pNode", "Log2Node", "LogNode", "ReciprocalNode", "RsqrtNode", "SqrtNode"}
RANGES = {"ArccosNode": (-0.9, 0.9), "ArcsinNode": (-0.9, 0.9), "ArctanhNode": (-0.9, 0.9), "ArccoshNode": (1.1, 9)}
BINARY = {
    "AddNode": torch.add,
    "Atan2Node": torch.atan2,
    "DivideNode": torch.div,
    "LogAddExpNode": torch.logaddexp,
    "MaximumNode": torch.maximum,
    "MinimumNode": torch.minimum,
    "MultiplyNode": torch.mul,
    "RemainderNode": torch.remainder,
    "SubtractNode": torch.sub,
}
ALWAYS_FLOAT = {"Atan2Node", "DivideNode", "LogAddExpNode"}
COMPARISONS = {
    "EqualNode": torch.eq,
    "GreaterEqualNode": torch.ge,
    "GreaterNode": torch.gt,
    "LessEqualNode": torch.le,
    "LessNode": torch.lt,
    "NotEqualNode": torch.ne,
}
LOGIC = {"LogicalAndNode": torch.logical_and, "LogicalOrNode": torch.logical_or}


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
    if name in RANGES:
        values = np.random.default_rng(0).uniform(*RANGES[name], (3, 5))
    x, tensor = pair(np.abs(values) + 0.1 if name in POSITIVE else values, dtype)
    check(OPERATORS[name](x=x), UNARY[name](tensor.double()), dtype, ROUNDING[dtype])


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
    if name in ALWAYS_FLOAT and "float" not in expected:
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


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_is_a_bool_and_false_for_what_is_no_number(name: str) -> None:
    a, b = [1.0, 2.0, 3.0, np.nan, 1.0], [2.0, 2.0, 2.0, 1.0, np.nan]
    found = OPERATORS[name](a=mx.array(a), b=mx.array(b))
    assert found.dtype == mx.bool_
    assert found.tolist() == COMPARISONS[name](torch.tensor(a), torch.tensor(b)).tolist()


@pytest.mark.parametrize("name", LOGIC)
def test_logic_takes_anything_for_true_but_zero(name: str) -> None:
    a, b = [0.0, 0.0, 2.0, np.nan], [0, 3, 0, 0]
    found = OPERATORS[name](a=mx.array(a), b=mx.array(b))
    assert found.tolist() == LOGIC[name](torch.tensor(a), torch.tensor(b)).tolist()
    assert OPERATORS["LogicalNotNode"](x=mx.array(a)).tolist() == torch.logical_not(torch.tensor(a)).tolist()


def test_a_power_of_integers_stays_integer_and_of_floats_is_that_of_torch() -> None:
    assert OPERATORS["PowerNode"](a=mx.array([2, -3]), b=mx.array([10, 3])).tolist() == [1024, -27]
    a, b = [2.0, 0.0, 9.0, -2.0], [-2.0, 0.0, 0.5, 3.0]
    found = OPERATORS["PowerNode"](a=mx.array(a), b=mx.array(b)).tolist()
    assert found == pytest.approx(torch.pow(torch.tensor(a), torch.tensor(b)).tolist())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_gelu_keeps_its_dtype_and_agrees_with_torch(dtype: str, approximate: str) -> None:
    x, tensor = pair(np.linspace(-6, 6, 101), dtype)
    reference = torch.nn.functional.gelu(tensor.double(), approximate=approximate)
    check(OPERATORS["GeluNode"](x=x, approximate=approximate), reference, dtype, 2 * ROUNDING[dtype])


@pytest.mark.parametrize("bounds", [(-1.0, 1.0), (None, 1.0), (-1.0, None), (1.0, -1.0)], ids=str)
def test_clip_takes_either_bound_and_the_upper_where_they_cross(bounds: tuple[float | None, float | None]) -> None:
    values = [-2.0, 0.5, 3.0]
    low, high = (None if bound is None else mx.array(bound) for bound in bounds)
    found = OPERATORS["ClipNode"](x=mx.array(values), a_min=low, a_max=high).tolist()
    assert found == torch.clamp(torch.tensor(values), *bounds).tolist()


def test_clip_without_bounds_is_refused() -> None:
    with pytest.raises(DelegateError, match=r"^ClipNode has neither bound; expected at least one\.$"):
        OPERATORS["ClipNode"](x=mx.array(1.0), a_min=None, a_max=None)


def test_where_chooses_by_anything_but_zero_and_broadcasts() -> None:
    found = OPERATORS["WhereNode"](condition=mx.array([0, 2, 1]), x=mx.array([[1.0], [2.0]]), y=mx.array(9.0))
    assert found.tolist() == [[9.0, 1.0, 1.0], [9.0, 2.0, 2.0]]


def test_a_float_quotient_is_floored_and_an_integer_one_floors_when_it_is_cast() -> None:
    """As the runtime has it: integers divide to float32, and the cast that follows truncates."""
    a, b = np.array([-7, 7, 7, -7, 6, -6, 0]), np.array([2, -2, 2, -2, 3, 3, 5])
    floats = OPERATORS["FloorDivideNode"](a=mx.array(a, mx.float32), b=mx.array(b, mx.float32))
    np.testing.assert_array_equal(np.array(floats), a // b)
    integers = OPERATORS["FloorDivideNode"](a=mx.array(a), b=mx.array(b))
    assert integers.dtype == mx.float32
    assert integers.tolist() == [-4.5, -4.5, 3.5, 3.5, 2.0, -2.0, 0.0]
    np.testing.assert_array_equal(np.array(integers.astype(mx.int64)), a // b)


@pytest.mark.parametrize("dtype", [mx.int32, mx.int64, mx.float32], ids=str)
def test_a_remainder_has_the_sign_of_its_divisor(dtype: mx.Dtype) -> None:
    a, b = [-7, 7, 7, -7, 5, -(2**31)], [2, -2, 2, -2, 1, -1]
    found = OPERATORS["RemainderNode"](a=mx.array(a, dtype), b=mx.array(b, dtype))
    assert found.dtype == dtype
    assert found.tolist() == [1, -1, 1, -1, 0, 0]


@pytest.mark.parametrize(
    ("name", "reference"), [("And", np.bitwise_and), ("Or", np.bitwise_or), ("Xor", np.bitwise_xor)]
)
def test_bits_are_those_of_numpy(name: str, reference: np.ufunc) -> None:
    for a, b in (([-7, 12, 0], [5, 10, -1]), ([True, True, False], [True, False, False])):
        found = OPERATORS[f"Bitwise{name}Node"](a=mx.array(a), b=mx.array(b))
        assert found.tolist() == reference(a, b).tolist()


def test_inverted_bits_of_a_bool_are_its_opposite() -> None:
    assert OPERATORS["BitwiseInvertNode"](x=mx.array([5, -1, 0])).tolist() == [-6, 0, -1]
    assert OPERATORS["BitwiseInvertNode"](x=mx.array([True, False])).tolist() == [False, True]


@pytest.mark.parametrize("decimals", [0, 1, -1])
def test_rounding_is_half_to_even(decimals: int) -> None:
    values = [0.5, 1.5, 2.5, -2.5, 12.34, 25.0, 35.0]
    found = OPERATORS["RoundNode"](x=mx.array(values), decimals=decimals)
    np.testing.assert_allclose(np.array(found), np.round(values, decimals), rtol=1e-6)


def test_the_limits_of_logaddexp() -> None:
    found = OPERATORS["LogAddExpNode"](a=mx.array([-np.inf, 1000.0]), b=mx.array([-np.inf, 1000.0])).tolist()
    assert found == [-np.inf, pytest.approx(1000.0 + np.log(2))]
