"""What rearranges, joins, cuts and repeats elements, against numpy."""

from __future__ import annotations

import itertools
import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

CUBE = np.arange(24).reshape(2, 3, 4)


def op(name: str, **fields: Any) -> np.ndarray:
    return np.array(OPERATORS[name](**fields))


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


@pytest.mark.parametrize("sizes", [(-1, 2), (2**31 - 1, 1, 1), (1, -1)], ids=str)
def test_a_split_into_impossible_sizes_is_refused(sizes: tuple[int, ...]) -> None:
    expected = f"SplitNode has sizes {list(sizes)}; expected none below 0 and int32 ends."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        OPERATORS["SplitNode"](x=mx.array(CUBE), sizes=sizes, axis=0)


@pytest.mark.parametrize("sizes", [(1,), (1, 1)])
@pytest.mark.parametrize("axis", [3, -4])
def test_a_split_of_an_axis_that_is_not_there_is_refused(axis: int, sizes: tuple[int, ...]) -> None:
    with pytest.raises(DelegateError, match=f"^SplitNode has axis {axis} on an array of 3 dimensions\\.$"):
        OPERATORS["SplitNode"](x=mx.array(CUBE), sizes=sizes, axis=axis)


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
    expected = f"RepeatNode makes [{2 * repeats}, 3, 4] of mlx.core.int64; expected sizes above 0 and at most 4 GiB."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        op("RepeatNode", x=mx.array(CUBE), repeats=repeats, axis=0)


@pytest.mark.parametrize("reps", [(2,), (1, 3), (2, 1, 2), (2, 1, 1, 3), (0,)], ids=str)
def test_a_tile_repeats_the_whole(reps: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(op("TileNode", x=mx.array(CUBE), reps=reps), np.tile(CUBE, reps))


@pytest.mark.parametrize("mode", ["constant", "edge"])
def test_a_pad_is_of_every_axis_before_and_after(mode: Any) -> None:
    widths = (1, 0, 0, 2, 3, 1)
    found = op("PadNode", x=mx.array(CUBE), pad_width=widths, mode=mode, constant_value=2.75)
    constant = {"constant_values": 2} if mode == "constant" else {}
    np.testing.assert_array_equal(
        found, np.pad(CUBE, list(zip(widths[::2], widths[1::2], strict=True)), mode, **constant)
    )


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pad_width": (1, 1)}, "PadNode has widths [1, 1] for an array of 3 dimensions; expected two for each."),
        ({"mode": "reflect"}, "PadNode has mode 'reflect'; expected constant or edge."),
    ],
)
def test_a_pad_that_the_runtime_has_not_is_refused(fields: dict[str, Any], expected: str) -> None:
    pad = {"pad_width": (0,) * 6, "mode": "constant", "constant_value": 0.0}
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        op("PadNode", x=mx.array(CUBE), **pad | fields)


@pytest.mark.parametrize(
    ("shape", "strides", "offset"),
    [((2, 2), (5, 3), 4), ((3,), (-2,), 4), ((4,), (0,), 23), ((), (), 7), ((0,), (99,), 99)],
)
def test_strides_count_elements_of_the_row_major_array(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> None:
    backwards = mx.array(CUBE.transpose(2, 1, 0).copy()).transpose(2, 1, 0)
    found = op("AsStridedNode", x=backwards, shape=shape, strides=strides, offset=offset)
    flat = np.ascontiguousarray(CUBE).reshape(-1)
    expected = [flat[offset + int(np.dot(place, strides))] for place in np.ndindex(shape)]
    np.testing.assert_array_equal(found, np.array(expected, dtype=CUBE.dtype).reshape(shape))


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "reads"),
    [
        ((2, 2), (20, 4), 0, "0 to 24"),
        ((3,), (-2,), 3, "-1 to 3"),
        ((1,), (1,), 24, "24 to 24"),
        ((-1,), (1,), 1, "-1 to 1"),
    ],
)
def test_strides_that_lead_outside_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, reads: str
) -> None:
    with pytest.raises(DelegateError, match=f"^AsStridedNode reads elements {reads} of an array of 24\\.$"):
        op("AsStridedNode", x=mx.array(CUBE), shape=shape, strides=strides, offset=offset)


@pytest.mark.parametrize(
    ("shift", "axes"), [((1,), (0,)), ((-2, 5), (1, -1)), ((1, 1), (2, 2)), ((1, 9), (0,))], ids=str
)
def test_a_roll_is_by_each_shift_on_its_axis(shift: tuple[int, ...], axes: tuple[int, ...]) -> None:
    expected = CUBE
    for distance, axis in zip(shift, axes, strict=False):
        expected = np.roll(expected, distance, axis)
    np.testing.assert_array_equal(op("RollNode", x=mx.array(CUBE), shift=shift, axes=axes), expected)


@pytest.mark.parametrize("axes", [(), (0,), (-1, 1), (0, 1, 2)], ids=str)
def test_a_flip_reverses_the_axes_listed(axes: tuple[int, ...]) -> None:
    np.testing.assert_array_equal(op("FlipNode", x=mx.array(CUBE), axes=axes), np.flip(CUBE, axes))


@pytest.mark.parametrize("k", [-3, -1, 0, 2, 9])
def test_triangles_are_of_the_last_two_axes(k: int) -> None:
    np.testing.assert_array_equal(op("TrilNode", x=mx.array(CUBE), k=k), np.tril(CUBE, k))
    np.testing.assert_array_equal(op("TriuNode", x=mx.array(CUBE), k=k), np.triu(CUBE, k))


def test_contiguous_is_the_same_in_row_major_order() -> None:
    np.testing.assert_array_equal(op("ContiguousNode", x=mx.array(CUBE).transpose(2, 0, 1)), CUBE.transpose(2, 0, 1))
