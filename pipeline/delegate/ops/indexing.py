"""Reading and writing parts of an array by slices and by indices.

Negative indices count from the end. Indices in a tensor that something is read by are not looked at, as on the device:
what is read out of range is undefined. Those that something is written by are: MLX would write anywhere in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import mlx.core as mx

from pipeline.delegate.ops.creation import check_allocation
from pipeline.errors import DelegateError


def slice_axis(x: mx.array, axis: int, start: int, stop: int, step: int) -> mx.array:
    """Python's slice on one axis: negative bounds count from the end, all are clamped."""
    if step == 0:
        # MLX would end the whole process with a division by zero.
        raise DelegateError("SliceNode has step 0; expected any other.")
    return x[_on_axis(x, _axis("SliceNode", axis, x), slice(start, stop, step))]


def slice_update(dst: mx.array, update: mx.array, axis: int, start: int, stop: int, step: int) -> mx.array:
    """dst with a slice of one axis replaced; negative bounds count from the end, all are clamped.

    The update is broadcast to the slice and cast to the dtype of dst. Bounds that meet leave dst as it is.
    """
    if step < 1:
        raise DelegateError(f"SliceUpdateNode has step {step}; expected at least 1.")
    axis = _axis("SliceUpdateNode", axis, dst)
    size = dst.shape[axis]
    start, stop = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (start, stop))
    return dst if start == stop else _assigned(dst, axis, slice(start, stop, step), update)


def index_copy(dst: mx.array, update: mx.array, indices: mx.array, axis: int) -> mx.array:
    """dst with the rows of ``update`` at ``indices`` [n] of an axis; of rows for one index the last stays."""
    axis = _axis("IndexCopyNode", axis, dst)
    if indices.ndim != 1 or indices.dtype != mx.int64:
        raise DelegateError(
            f"IndexCopyNode has indices {list(indices.shape)} of {indices.dtype}; expected one dimension of int64."
        )
    if update.ndim != dst.ndim or update.shape[axis] != indices.size:
        raise DelegateError(
            f"IndexCopyNode has an update {list(update.shape)} for {indices.size} indices of axis {axis}; expected one "
            "row for each."
        )
    size = dst.shape[axis]
    rows = [index + size if index < 0 else index for index in cast(list[int], indices.tolist())]
    outside = [row for row in rows if not 0 <= row < size]
    if outside:
        raise DelegateError(f"IndexCopyNode has row {outside[0]} of axis {axis}; the axis has {size}.")
    for first, last in _runs(rows):
        part = update[_on_axis(update, axis, slice(first, last))]
        dst = _assigned(dst, axis, slice(rows[first], rows[first] + last - first), part)
    return dst


def _runs(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Where runs of consecutive numbers begin and end."""
    first = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1:
            yield first, place
            first = place


def _assigned(dst: mx.array, axis: int, part: slice, update: mx.array) -> mx.array:
    """A new array, since assignment to a slice would change dst for everyone who holds it."""
    result = mx.array(dst)
    result[_on_axis(dst, axis, part)] = update.astype(dst.dtype)
    return result


def _on_axis(x: mx.array, axis: int, part: slice) -> tuple[slice, ...]:
    index = [slice(None)] * x.ndim
    index[axis] = part
    return tuple(index)


def _axis(node: str, axis: int, x: mx.array) -> int:
    if not -x.ndim <= axis < x.ndim:
        raise DelegateError(f"{node} has axis {axis} on an array of {x.ndim} dimensions.")
    return axis % x.ndim


def take(x: mx.array, index: int | mx.array, axis: int) -> mx.array:
    """One index drops the axis; an array of indices replaces it by the array's shape."""
    axis = _axis("TakeNode", axis, x)
    if isinstance(index, int):
        size = x.shape[axis]
        if not -size <= index < size:
            raise DelegateError(f"TakeNode has index {index} on an axis of size {size}.")
        return mx.take(x, index % size, axis=axis)
    return mx.take(x, index, axis=axis)


def gather(x: mx.array, indices: tuple[mx.array, ...], axes: tuple[int, ...], slice_sizes: tuple[int, ...]) -> mx.array:
    """Blocks of ``slice_sizes`` out of x, from where the indices put them on ``axes`` and from 0 on the others.

    The indices broadcast together to a shape B; the result has shape (*B, *slice_sizes).
    """
    if len(indices) != len(axes) or len(slice_sizes) != x.ndim or not all(0 <= axis < x.ndim for axis in axes):
        raise DelegateError(
            f"GatherNode has {len(indices)} indices for axes {list(axes)} and slice sizes {list(slice_sizes)} on an "
            f"array of {x.ndim} dimensions; expected an index for each axis and a size for each dimension."
        )
    check_allocation("GatherNode", slice_sizes, x.dtype)
    if any(size > whole for size, whole in zip(slice_sizes, x.shape, strict=True)):
        raise DelegateError(f"GatherNode takes blocks of {list(slice_sizes)} out of {list(x.shape)}.")
    starts = dict(zip(axes, mx.broadcast_arrays(*indices) if indices else [], strict=True))
    places = []
    for axis, size in enumerate(slice_sizes):
        place = mx.arange(size).reshape(size, *[1] * (x.ndim - axis - 1))
        if axis in starts:
            place = place + mx.expand_dims(starts[axis], list(range(-x.ndim, 0)))
        places.append(place)
    return x[tuple(places)]


def scatter_add(x: mx.array, indices: mx.array, updates: mx.array, axis: int) -> mx.array:
    """x with ``updates`` added at ``indices`` of one axis, element by element; the same index adds up.

    Updates broadcast to the indices, which have as many dimensions as x and its sizes on the other axes.
    """
    axis = _axis("ScatterAddNode", axis, x)
    if indices.ndim != x.ndim:
        raise DelegateError(f"ScatterAddNode has indices {list(indices.shape)} for an array {list(x.shape)}.")
    size = x.shape[axis]
    for bound in (mx.min(indices), mx.max(indices)) if indices.size else ():
        if not -size <= cast(int, bound.item()) < size:
            raise DelegateError(f"ScatterAddNode has index {bound.item()} on axis {axis}; the axis has {size}.")
    indices, updates = mx.broadcast_arrays(indices, updates)
    shape = [*x.shape[:axis], indices.shape[axis], *x.shape[axis + 1 :]]
    places = [mx.arange(size).reshape(size, *[1] * (x.ndim - other - 1)) for other, size in enumerate(shape)]
    places[axis] = mx.broadcast_to(indices, shape)
    return x.at[tuple(places)].add(mx.broadcast_to(updates, shape).astype(x.dtype))


OPERATORS: dict[str, Callable[..., Any]] = {
    "GatherNode": gather,
    "IndexCopyNode": index_copy,
    "ScatterAddNode": scatter_add,
    "SliceNode": slice_axis,
    "SliceUpdateNode": slice_update,
    "TakeAlongAxisNode": lambda x, indices, axis: mx.take_along_axis(x, indices, axis=axis),
    "TakeNode": take,
}
