"""Slices and indices, read and written, against numpy and torch."""

from __future__ import annotations

import itertools
import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
CUBE = np.arange(24).reshape(2, 3, 4)


def op(name: str, **fields: Any) -> np.ndarray:
    return np.array(OPERATORS[name](**fields))


def refused(name: str, **fields: Any) -> str:
    with pytest.raises(DelegateError) as caught:
        op(name, **fields)
    return str(caught.value)


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


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("step", [1, 2])
def test_a_slice_is_replaced_within_clamped_bounds(step: int, axis: int) -> None:
    bounds = (INT32_MIN, -9, -2, 0, 1, 3, INT32_MAX)
    for start, stop in itertools.product(bounds, bounds):
        size = CUBE.shape[axis]
        low, high = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, stop))
        expected = CUBE.copy()
        index = [slice(None)] * 3
        index[axis] = slice(low, high, step)
        expected[tuple(index)] = -1
        update = mx.full((1, 1, 1), -1.0)
        found = op("SliceUpdateNode", dst=mx.array(CUBE), update=update, axis=axis, start=start, stop=stop, step=step)
        np.testing.assert_array_equal(found, expected, err_msg=str((start, stop)))


def test_an_updated_slice_has_rows_of_its_own_and_leaves_the_array_alone() -> None:
    dst, update = mx.array(CUBE), np.arange(100, 108).reshape(2, 1, 4)
    found = op("SliceUpdateNode", dst=dst, update=mx.array(update), axis=1, start=-1, stop=INT32_MAX, step=1)
    np.testing.assert_array_equal(found, np.concatenate([CUBE[:, :2], update], axis=1))
    np.testing.assert_array_equal(np.array(dst), CUBE)


def test_an_update_takes_the_dtype_of_what_it_updates() -> None:
    dst = mx.zeros(3, mx.bfloat16)
    found = OPERATORS["SliceUpdateNode"](dst=dst, update=mx.array([1.001]), axis=0, start=0, stop=1, step=1)
    assert found.dtype == mx.bfloat16
    assert found.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("step", [0, -1])
def test_an_update_backwards_is_refused(step: int) -> None:
    found = refused("SliceUpdateNode", dst=mx.zeros(3), update=mx.zeros(1), axis=0, start=0, stop=1, step=step)
    assert found == f"SliceUpdateNode has step {step}; expected at least 1."


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("SliceUpdateNode", {"update": mx.zeros(1), "start": 0, "stop": 1, "step": 1}),
        ("IndexCopyNode", {"update": mx.zeros(1), "indices": mx.array([0], mx.int64)}),
    ],
)
def test_a_write_to_an_axis_that_is_not_there_is_refused(name: str, fields: dict[str, Any]) -> None:
    assert refused(name, dst=mx.zeros(3), axis=1, **fields) == f"{name} has axis 1 on an array of 1 dimensions."


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("indices", [[], [1], [0, 1], [-1, 0], [1, 1, 0]], ids=str)
def test_rows_are_copied_to_their_indices_and_the_last_one_stays(indices: list[int], axis: int) -> None:
    shape = list(CUBE.shape)
    shape[axis] = len(indices)
    update = -1 - np.arange(np.prod(shape)).reshape(shape)
    expected = np.moveaxis(CUBE.copy(), axis, 0)
    for index, row in zip(indices, np.moveaxis(update, axis, 0), strict=True):
        expected[index] = row
    found = op(
        "IndexCopyNode", dst=mx.array(CUBE), update=mx.array(update), indices=mx.array(indices, mx.int64), axis=axis
    )
    np.testing.assert_array_equal(found, np.moveaxis(expected, 0, axis))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"indices": mx.array([2], mx.int64)}, "IndexCopyNode has row 2 of axis 0; the axis has 2."),
        ({"indices": mx.array([-3], mx.int64)}, "IndexCopyNode has row -1 of axis 0; the axis has 2."),
        (
            {"indices": mx.array([1], mx.int32)},
            "IndexCopyNode has indices [1] of mlx.core.int32; expected one dimension of int64.",
        ),
        (
            {"indices": mx.array([[1]], mx.int64)},
            "IndexCopyNode has indices [1, 1] of mlx.core.int64; expected one dimension of int64.",
        ),
        (
            {"indices": mx.array([0, 1], mx.int64)},
            "IndexCopyNode has an update [1, 3, 4] for 2 indices of axis 0; expected one row for each.",
        ),
    ],
)
def test_a_copy_to_no_row_is_refused(fields: dict[str, Any], expected: str) -> None:
    assert refused("IndexCopyNode", dst=mx.array(CUBE), update=mx.zeros((1, 3, 4)), axis=0, **fields) == expected


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_taking_along_an_axis_chooses_element_by_element(axis: int) -> None:
    shape = list(CUBE.shape)
    shape[axis] = 5
    indices = np.random.default_rng(0).integers(-CUBE.shape[axis], CUBE.shape[axis], shape)
    found = op("TakeAlongAxisNode", x=mx.array(CUBE), indices=mx.array(indices), axis=axis)
    np.testing.assert_array_equal(found, np.take_along_axis(CUBE, indices, axis))


@pytest.mark.parametrize("slice_sizes", [(1, 1, 4), (1, 1, 1), (1, 2, 3), (2, 1, 2)], ids=str)
def test_a_gather_cuts_blocks_from_where_its_indices_broadcast_to(slice_sizes: tuple[int, int, int]) -> None:
    rows, columns = np.array([[0], [1]]) * (2 - slice_sizes[0]), np.array([0, 1, -2])
    found = op(
        "GatherNode",
        x=mx.array(CUBE),
        indices=(mx.array(rows), mx.array(columns)),
        axes=(0, 1),
        slice_sizes=slice_sizes,
    )
    depth, height, width = slice_sizes
    expected = [[CUBE[i : i + depth, j % 3 : j % 3 + height, :width] for j in columns] for i in rows[:, 0]]
    np.testing.assert_array_equal(found, np.array(expected))


def test_a_gather_without_indices_is_one_block() -> None:
    found = op("GatherNode", x=mx.array(CUBE), indices=(), axes=(), slice_sizes=(1, 2, 3))
    np.testing.assert_array_equal(found, CUBE[:1, :2, :3])


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"axes": (0, 1)}, "GatherNode has 1 indices for axes [0, 1] and slice sizes [1, 1, 4] on an array of 3"),
        ({"axes": (-1,)}, "GatherNode has 1 indices for axes [-1] and slice sizes"),
        ({"axes": (3,)}, "GatherNode has 1 indices for axes [3] and slice sizes"),
        ({"slice_sizes": (1, 1)}, "GatherNode has 1 indices for axes [0] and slice sizes [1, 1] on"),
        ({"slice_sizes": (1, 1, 5)}, "GatherNode takes blocks of [1, 1, 5] out of [2, 3, 4]."),
        ({"slice_sizes": (1, 0, 4)}, "GatherNode makes [1, 0, 4] of mlx.core.int64; expected sizes above 0"),
    ],
)
def test_a_gather_that_does_not_fit_is_refused(fields: dict[str, Any], expected: str) -> None:
    gather = {"indices": (mx.array([1]),), "axes": (0,), "slice_sizes": (1, 1, 4)}
    assert refused("GatherNode", x=mx.array(CUBE), **gather | fields).startswith(expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_what_is_scattered_to_one_place_adds_up(axis: int) -> None:
    shape = list(CUBE.shape)
    shape[axis] = 5
    make = np.random.default_rng(0)
    indices, updates = make.integers(0, CUBE.shape[axis], shape), make.integers(1, 9, shape)
    found = op("ScatterAddNode", x=mx.array(CUBE), indices=mx.array(indices), updates=mx.array(updates), axis=axis)
    expected = torch.from_numpy(CUBE).scatter_add(axis, torch.from_numpy(indices), torch.from_numpy(updates))
    np.testing.assert_array_equal(found, expected.numpy())


def test_scattered_updates_broadcast_and_take_the_dtype_of_the_array() -> None:
    x, indices = mx.zeros((2, 3), mx.float16), mx.array([[0, 0, 2]])
    found = OPERATORS["ScatterAddNode"](x=x, indices=indices, updates=mx.array(1.5), axis=1)
    assert found.dtype == mx.float16
    assert found.tolist() == [[3.0, 0.0, 1.5]] * 2
    assert x.tolist() == [[0.0] * 3] * 2


def test_scattering_by_indices_of_another_rank_is_refused() -> None:
    found = refused("ScatterAddNode", x=mx.zeros((2, 3)), indices=mx.array([0]), updates=mx.array([1.0]), axis=0)
    assert found == "ScatterAddNode has indices [1] for an array [2, 3]."


@pytest.mark.parametrize("index", [2, -3, 10**8])
def test_an_index_beyond_the_axis_is_refused_before_anything_is_scattered(index: int) -> None:
    """MLX would add to whatever is there in memory."""
    given = {"x": mx.zeros((2, 3)), "updates": mx.array([[1.0]])}
    found = refused("ScatterAddNode", **given, indices=mx.array([[0, 1, index]]), axis=0)
    assert found == f"ScatterAddNode has index {index} on axis 0; the axis has 2."
    ends = OPERATORS["ScatterAddNode"](**given, indices=mx.array([[-2, 1, -1]]), axis=0)
    assert ends.tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]


def test_no_indices_scatter_nothing() -> None:
    found = op("ScatterAddNode", x=mx.array(CUBE), indices=mx.zeros((0, 1, 1), mx.int32), updates=mx.array(1), axis=0)
    np.testing.assert_array_equal(found, CUBE)
