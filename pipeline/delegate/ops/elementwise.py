"""Arithmetic and casts, element by element. Operands are arrays, so MLX's own dtype promotion applies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes


def silu(x: mx.array) -> mx.array:
    """x * sigmoid(x), both in the dtype of x."""
    return x * mx.sigmoid(x)


def as_type(x: mx.array, scalar_type: int) -> mx.array:
    return x.astype(dtypes.of_code(scalar_type))


OPERATORS: dict[str, Callable[..., Any]] = {
    "AddNode": lambda a, b: mx.add(a, b),
    "AsTypeNode": as_type,
    "CosNode": lambda x: mx.cos(x),
    "DivideNode": lambda a, b: mx.divide(a, b),
    "MultiplyNode": lambda a, b: mx.multiply(a, b),
    "NegNode": lambda x: mx.negative(x),
    "RsqrtNode": lambda x: mx.rsqrt(x),
    "SiluNode": silu,
    "SinNode": lambda x: mx.sin(x),
    "SubtractNode": lambda a, b: mx.subtract(a, b),
}
