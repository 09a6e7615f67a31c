"""Whole numbers beside the tensors: sizes, positions and what is computed from them.

Each is an int32; the plan refuses a result that is none.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul, sub
from typing import Any, cast

import mlx.core as mx

from pipeline.errors import DelegateError


def item(x: mx.array) -> int:
    """The one element of a tensor. The runtime reads its bytes as they are, so it is a whole number or a bool."""
    if x.size != 1 or mx.issubdtype(x.dtype, mx.inexact):
        raise DelegateError(f"ItemIntNode reads {list(x.shape)} of {x.dtype}; expected one whole number.")
    return int(cast(int, x.item()))


def sym_size(a: mx.array, dim: int) -> int:
    size: int = a.shape[dim]
    return size


def floor_divide(a: int, b: int) -> int:
    """Rounded down, as in Python."""
    return a // _divisor(b)


def modulo(a: int, b: int) -> int:
    """With the sign of the divisor, as in Python."""
    return a % _divisor(b)


def _divisor(b: int) -> int:
    if b == 0:
        raise DelegateError("an integer is divided by 0; a size or position that the graph computes is wrong.")
    return b


def _of_two(function: Callable[[int, int], int]) -> Callable[..., Any]:
    return lambda a, b: function(a, b)


OPERATORS: dict[str, Callable[..., Any]] = {
    "AddIntNode": _of_two(add),
    "FloorDivideIntNode": floor_divide,
    "ItemIntNode": item,
    "ModIntNode": modulo,
    "MultiplyIntNode": _of_two(mul),
    "SubtractIntNode": _of_two(sub),
    "SymSizeNode": sym_size,
}
