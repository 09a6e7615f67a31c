"""Arithmetic, comparison, bits and casts, element by element.

Operands are arrays, so MLX's own dtype promotion applies; a function that only floats have gives float32 of integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), both in the dtype of x."""
    return x * mx.sigmoid(x)


def gelu(x: mx.array, approximate: str) -> mx.array:
    """Exact, or by tanh. Constants are rounded to the dtype of x and every intermediate stays in it."""

    def constant(value: float) -> mx.array:
        return mx.array(value, dtype=x.dtype)

    if approximate == "tanh":
        inner = constant(0.7978845608) * (x + constant(0.044715) * (x * (x * x)))
        return (x * (constant(1.0) + mx.tanh(inner))) * constant(0.5)
    return (x * (constant(1.0) + mx.erf(constant(0.7071067812) * x))) * constant(0.5)


def as_type(x: mx.array, scalar_type: int) -> mx.array:
    return x.astype(dtypes.of_code(scalar_type))


def clip(x: mx.array, a_min: mx.array | None, a_max: mx.array | None) -> mx.array:
    """Bounds are arrays and promote; where they cross, the upper one wins."""
    if a_min is None and a_max is None:
        raise DelegateError("ClipNode has neither bound; expected at least one.")
    return mx.clip(x, a_min, a_max)


def floor_divide(a: mx.array, b: mx.array) -> mx.array:
    """Floats: the quotient rounded down. Integers, as the runtime has it: a float32 that floors when it is cast back.

    That is the true quotient, less 1 where it is negative and not whole: -7 / 2 gives -4.5, and 7 / 2 gives 3.5. The
    graph's own cast, or that of the output, truncates it; a graph that computes on without one is not what torch means,
    here as on the device.
    """
    if mx.issubdtype(a.dtype, mx.inexact):
        return mx.floor_divide(a, b)
    below = mx.logical_and(remainder(a, b) != 0, (a < 0) != (b < 0))
    return mx.divide(a, b) - below.astype(a.dtype)


def remainder(a: mx.array, b: mx.array) -> mx.array:
    """With the sign of the divisor, as in Python."""
    if mx.issubdtype(b.dtype, mx.signedinteger):
        # By -1 nothing remains, as by 1; MLX would end the whole process over the smallest number by -1.
        b = mx.where(b == -1, mx.array(1, b.dtype), b)
    return mx.remainder(a, b)


UNARY: dict[str, Callable[..., mx.array]] = {
    "AbsNode": mx.abs,
    "ArccosNode": mx.arccos,
    "ArccoshNode": mx.arccosh,
    "ArcsinNode": mx.arcsin,
    "ArcsinhNode": mx.arcsinh,
    "ArctanNode": mx.arctan,
    "ArctanhNode": mx.arctanh,
    "BitwiseInvertNode": mx.bitwise_invert,
    "CeilNode": mx.ceil,
    "CosNode": mx.cos,
    "CoshNode": mx.cosh,
    "ErfNode": mx.erf,
    "ExpNode": mx.exp,
    "Expm1Node": mx.expm1,
    "FloorNode": mx.floor,
    "Log10Node": mx.log10,
    "Log1pNode": mx.log1p,
    "Log2Node": mx.log2,
    "LogNode": mx.log,
    "LogicalNotNode": mx.logical_not,
    "NegNode": mx.negative,
    "ReciprocalNode": mx.reciprocal,
    "RsqrtNode": mx.rsqrt,
    "SigmoidNode": mx.sigmoid,
    "SignNode": mx.sign,
    "SiluNode": silu,
    "SinNode": mx.sin,
    "SinhNode": mx.sinh,
    "SqrtNode": mx.sqrt,
    "SquareNode": mx.square,
    "TanNode": mx.tan,
    "TanhNode": mx.tanh,
    "TruncNode": mx.trunc,
}

BINARY: dict[str, Callable[..., mx.array]] = {
    "AddNode": mx.add,
    "Atan2Node": mx.arctan2,
    "BitwiseAndNode": mx.bitwise_and,
    "BitwiseOrNode": mx.bitwise_or,
    "BitwiseXorNode": mx.bitwise_xor,
    "DivideNode": mx.divide,
    "EqualNode": mx.equal,
    "FloorDivideNode": floor_divide,
    "GreaterEqualNode": mx.greater_equal,
    "GreaterNode": mx.greater,
    "LessEqualNode": mx.less_equal,
    "LessNode": mx.less,
    "LogAddExpNode": mx.logaddexp,
    "LogicalAndNode": mx.logical_and,
    "LogicalOrNode": mx.logical_or,
    "MaximumNode": mx.maximum,
    "MinimumNode": mx.minimum,
    "MultiplyNode": mx.multiply,
    "NotEqualNode": mx.not_equal,
    "PowerNode": mx.power,
    "RemainderNode": remainder,
    "SubtractNode": mx.subtract,
}


def _of_one(function: Callable[..., mx.array]) -> Callable[..., Any]:
    return lambda x: function(x)


def _of_two(function: Callable[..., mx.array]) -> Callable[..., Any]:
    return lambda a, b: function(a, b)


OPERATORS: dict[str, Callable[..., Any]] = {
    **{name: _of_one(function) for name, function in UNARY.items()},
    **{name: _of_two(function) for name, function in BINARY.items()},
    "AsTypeNode": as_type,
    "ClipNode": clip,
    "GeluNode": gelu,
    "RoundNode": lambda x, decimals: mx.round(x, decimals),
    "WhereNode": lambda condition, x, y: mx.where(condition.astype(mx.bool_), x, y),
}
