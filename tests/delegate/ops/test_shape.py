"""Shapes, slices and indexing against numpy."""

from __future__ import annotations

import itertools
import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

INT32_MAX = 2**31 - 1
CUBE = np.arange(24).reshape(2, 3, 4)


def op(name: str, **fields: Any) -> np.ndarray:
    return np.array(OPERATORS[name](**fields))


def sliced(axis: int, start: int, stop: int, step: int) -> np.ndarray:
    index = [slice(None)] * CUBE.ndim
    index[axis] = slice(start, stop, step)
    return CUBE[tuple(index)]


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_a_slice_is_that_of_python_on_one_axis(axis: int) -> None:
    bounds = (-(2**31), -9, -3, -1, 0, 1, 3, 7, INT32_MAX)
    for start, stop, step in itertools.product(bounds, bounds, (1, 2, -1, -2)):
        found = op("SliceNode", x=mx.array(CUBE), axis=axis, start=start, stop=stop, step=step)
        np.testing.assert_array_equal(found, sliced(axis, start, stop, step), err_msg=str((start, stop, step)))


@pytest.mark.parametrize("axis", [3, -4])
def test_a_slice_of_an_axis_that_is_not_there_is_refused(axis: int) -> None:
    expected = f"SliceNode has axis {axis} on an array of 3 dimensions."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        op("SliceNode", x=mx.array(CUBE), axis=axis, start=0, stop=1, step=1)


def test_a_slice_of_step_0_is_refused() -> None:
    with pytest.raises(DelegateError, match=r"^SliceNode has step 0; expected any other\.$"):
        op("SliceNode", x=mx.array(CUBE), axis=0, start=0, stop=1, step=0)


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_taking_one_index_drops_the_axis(axis: int) -> None:
    size = CUBE.shape[axis]
    for index in range(-size, size):
        found = op("TakeNode", x=mx.array(CUBE), index=index, axis=axis)
        np.testing.assert_array_equal(found, np.take(CUBE, index, axis=axis))


@pytest.mark.parametrize("index", [3, -4, INT32_MAX, -(2**31)])
def test_an_index_outside_the_axis_is_refused(index: int) -> None:
    with pytest.raises(DelegateError, match=f"^TakeNode has index {index} on an axis of size 3\\.$"):
        op("TakeNode", x=mx.array(CUBE), index=index, axis=1)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("dtype", [mx.int32, mx.int64, mx.uint32], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 2), (1, 0)], ids=str)
def test_taking_an_array_of_indices_puts_its_shape_in_place_of_the_axis(
    axis: int, dtype: mx.Dtype, shape: tuple[int, ...]
) -> None:
    indices = np.random.default_rng(0).integers(0, CUBE.shape[axis], shape)
    found = op("TakeNode", x=mx.array(CUBE), index=mx.array(indices).astype(dtype), axis=axis)
    np.testing.assert_array_equal(found, np.take(CUBE, indices, axis=axis))


def test_negative_indices_in_an_array_count_from_the_end() -> None:
    found = op("TakeNode", x=mx.array(CUBE), index=mx.array([-1, 0, -3]), axis=1)
    np.testing.assert_array_equal(found, CUBE[:, [-1, 0, -3]])


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_a_size_is_a_plain_number(dim: int) -> None:
    size = OPERATORS["SymSizeNode"](a=mx.array(CUBE), dim=dim)
    assert type(size) is int
    assert size == CUBE.shape[dim]


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1, -2, -4])
def test_a_new_axis_is_counted_in_the_result(axis: int) -> None:
    np.testing.assert_array_equal(op("ExpandDimsNode", x=mx.array(CUBE), axis=axis), np.expand_dims(CUBE, axis))


@pytest.mark.parametrize("shape", [(24,), (4, -1), (2, 3, 1, 4), (-1, 12), (1, 24)], ids=str)
def test_a_reshape_infers_at_most_one_size(shape: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(op("ReshapeNode", x=mx.array(CUBE), shape=shape), CUBE.reshape(shape))


def test_an_empty_array_is_reshaped() -> None:
    assert op("ReshapeNode", x=mx.zeros((1, 0)), shape=(0, 3)).shape == (0, 3)


@pytest.mark.parametrize("perm", [*itertools.permutations(range(3)), (0, -1, 1), (-1, -3, -2)], ids=str)
def test_a_transpose_is_a_permutation_of_all_axes(perm: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(op("TransposeNode", x=mx.array(CUBE), perm=perm), CUBE.transpose(perm))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -3])
def test_a_concatenation_joins_along_its_axis(axis: int) -> None:
    parts = [CUBE, CUBE + 100, CUBE[:, :, :]]
    found = op("ConcatenateNode", tensors=tuple(map(mx.array, parts)), axis=axis)
    np.testing.assert_array_equal(found, np.concatenate(parts, axis=axis))


def test_a_concatenation_of_one_is_itself_and_of_several_dtypes_the_widest() -> None:
    half = mx.ones((2, 1), mx.bfloat16)
    np.testing.assert_array_equal(op("ConcatenateNode", tensors=(mx.array(CUBE),), axis=0), CUBE)
    joined = OPERATORS["ConcatenateNode"](tensors=(half, mx.ones((2, 3), mx.float32)), axis=-1)
    assert joined.dtype == mx.float32
    assert joined.shape == (2, 4)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("size", [1, 2, 3, 9])
def test_one_size_splits_into_pieces_of_it_with_a_short_last_one(size: int, axis: int) -> None:
    pieces = OPERATORS["SplitNode"](x=mx.array(CUBE), sizes=(size,), axis=axis)
    expected = np.split(CUBE, range(size, CUBE.shape[axis], size), axis=axis)
    assert [np.array(piece).tolist() for piece in pieces] == [piece.tolist() for piece in expected]


def test_several_sizes_are_those_of_the_pieces_the_last_taking_the_rest() -> None:
    pieces = OPERATORS["SplitNode"](x=mx.array(CUBE), sizes=(1, 2, 99), axis=2)
    assert [piece.shape for piece in pieces] == [(2, 3, 1), (2, 3, 2), (2, 3, 1)]
    np.testing.assert_array_equal(np.concatenate([np.array(piece) for piece in pieces], axis=2), CUBE)


def test_a_split_by_nothing_is_refused() -> None:
    with pytest.raises(DelegateError, match=r"^SplitNode has size 0; expected at least 1\.$"):
        OPERATORS["SplitNode"](x=mx.array(CUBE), sizes=(0,), axis=0)


@pytest.mark.parametrize(
    ("dims", "shape"),
    [(None, (3, 4)), ((), (3, 4)), ((0,), (3, 1, 4, 1)), ((-1, 2), (1, 3, 4)), ((1, 7), (1, 3, 1, 4, 1))],
    ids=str,
)
def test_squeeze_drops_listed_axes_of_size_one_and_leaves_the_others(dims: Any, shape: tuple[int, ...]) -> None:
    assert op("SqueezeNode", x=mx.zeros((1, 3, 1, 4, 1)), dims=dims).shape == shape


@pytest.mark.parametrize("shape", [(2, 3, 4), (5, 2, 3, 4), (-1, 3, -1), (7, -1, -1, 4)], ids=str)
def test_a_broadcast_keeps_the_sizes_written_as_minus_one(shape: tuple[int, ...]) -> None:
    full = [new if new != -1 else (2, 3, 4)[index - len(shape) + 3] for index, new in enumerate(shape)]
    found = op("BroadcastToNode", x=mx.array(CUBE), shape=shape)
    np.testing.assert_array_equal(found, np.broadcast_to(CUBE, full))


def test_a_copy_is_the_array_and_a_stack_has_one_axis_more() -> None:
    np.testing.assert_array_equal(op("IdCopyNode", x=mx.array(CUBE)), CUBE)
    found = op("StackNode", tensors=(mx.array(CUBE), mx.array(-CUBE)), axis=-1)
    np.testing.assert_array_equal(found, np.stack([CUBE, -CUBE], axis=-1))


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("repeats", [1, 3])
def test_a_repeat_is_of_each_element(repeats: int, axis: int) -> None:
    found = op("RepeatNode", x=mx.array(CUBE), repeats=repeats, axis=axis)
    np.testing.assert_array_equal(found, np.repeat(CUBE, repeats, axis=axis))


@pytest.mark.parametrize("repeats", [0, -1])
def test_a_repeat_of_nothing_is_refused(repeats: int) -> None:
    with pytest.raises(DelegateError, match=f"^RepeatNode has {repeats} repeats; expected at least 1\\.$"):
        op("RepeatNode", x=mx.array(CUBE), repeats=repeats, axis=0)
