"""Arithmetic, comparison and casts, element by element. Operands are arrays, so MLX's own dtype promotion applies."""

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


UNARY: dict[str, Callable[..., mx.array]] = {
    "AbsNode": mx.abs,
    "CosNode": mx.cos,
    "ErfNode": mx.erf,
    "ExpNode": mx.exp,
    "LogNode": mx.log,
    "LogicalNotNode": mx.logical_not,
    "NegNode": mx.negative,
    "RsqrtNode": mx.rsqrt,
    "SigmoidNode": mx.sigmoid,
    "SiluNode": silu,
    "SinNode": mx.sin,
    "SqrtNode": mx.sqrt,
    "SquareNode": mx.square,
    "TanhNode": mx.tanh,
}

BINARY: dict[str, Callable[..., mx.array]] = {
    "AddNode": mx.add,
    "DivideNode": mx.divide,
    "EqualNode": mx.equal,
    "GreaterEqualNode": mx.greater_equal,
    "GreaterNode": mx.greater,
    "LessEqualNode": mx.less_equal,
    "LessNode": mx.less,
    "LogicalAndNode": mx.logical_and,
    "LogicalOrNode": mx.logical_or,
    "MaximumNode": mx.maximum,
    "MinimumNode": mx.minimum,
    "MultiplyNode": mx.multiply,
    "NotEqualNode": mx.not_equal,
    "PowerNode": mx.power,
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
    "WhereNode": lambda condition, x, y: mx.where(condition.astype(mx.bool_), x, y),
}
