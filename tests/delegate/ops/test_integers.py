"""Whole numbers are those of Python, and what is none is refused."""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

CUBE = np.arange(24).reshape(2, 3, 4)


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_a_size_is_a_plain_number(dim: int) -> None:
    size = OPERATORS["SymSizeNode"](a=mx.array(CUBE), dim=dim)
    assert type(size) is int
    assert size == CUBE.shape[dim]


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("AddIntNode", operator.add),
        ("FloorDivideIntNode", operator.floordiv),
        ("ModIntNode", operator.mod),
        ("MultiplyIntNode", operator.mul),
        ("SubtractIntNode", operator.sub),
    ],
)
def test_arithmetic_is_that_of_python(name: str, reference: Callable[[int, int], int]) -> None:
    for a, b in itertools.product((-7, -6, -1, 0, 1, 6, 7, 2**31 - 1, -(2**31)), (-3, -1, 1, 2, 3)):
        assert OPERATORS[name](a=a, b=b) == reference(a, b), (a, b)


@pytest.mark.parametrize("name", ["FloorDivideIntNode", "ModIntNode"])
def test_a_division_by_0_is_refused(name: str) -> None:
    with pytest.raises(DelegateError, match=r"^an integer is divided by 0; a size or position that the graph computes"):
        OPERATORS[name](a=1, b=0)


@pytest.mark.parametrize("dtype", [mx.int32, mx.int64, mx.uint32, mx.uint8, mx.int8], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_an_item_is_the_one_element(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    item = OPERATORS["ItemIntNode"](x=mx.full(shape, 77, dtype=dtype))
    assert type(item) is int
    assert item == 77


def test_a_bool_is_1_or_0() -> None:
    assert [OPERATORS["ItemIntNode"](x=mx.array(value)) for value in (True, False)] == [1, 0]


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (mx.array([1, 2]), "[2] of mlx.core.int32"),
        (mx.array(1.0), "[] of mlx.core.float32"),
        (mx.array([], mx.int32), "[0] of mlx.core.int32"),
    ],
)
def test_an_item_of_several_or_of_no_whole_numbers_is_refused(x: mx.array, shown: str) -> None:
    expected = f"ItemIntNode reads {shown}; expected one whole number."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        OPERATORS["ItemIntNode"](x=x)
