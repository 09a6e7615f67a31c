"""Shapes: what rearranges, joins, cuts or repeats elements and computes none."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import mlx.core as mx

from pipeline.delegate.ops.creation import check_allocation
from pipeline.errors import DelegateError


def split(x: mx.array, sizes: tuple[int, ...], axis: int) -> list[mx.array]:
    """One size cuts pieces of it, the last one short; several are the pieces' sizes, the last taking the rest."""
    # MLX would end the whole process over an axis that is not there and over an end that is no int32.
    if not -x.ndim <= axis < x.ndim:
        raise DelegateError(f"SplitNode has axis {axis} on an array of {x.ndim} dimensions.")
    if len(sizes) == 1 and sizes[0] < 1:
        raise DelegateError(f"SplitNode has size {sizes[0]}; expected at least 1.")
    if any(size < 0 for size in sizes) or sum(sizes[:-1]) >= 2**31:
        raise DelegateError(f"SplitNode has sizes {list(sizes)}; expected none below 0 and int32 ends.")
    ends = range(sizes[0], x.shape[axis], sizes[0]) if len(sizes) == 1 else accumulate(sizes[:-1])
    return list(mx.split(x, list(ends), axis=axis))


def squeeze(x: mx.array, dims: tuple[int, ...] | None) -> mx.array:
    """Drops the listed axes that have size 1, or every such axis; others are left alone."""
    if not dims:
        return mx.squeeze(x)
    axes = [dim for dim in dims if -x.ndim <= dim < x.ndim and x.shape[dim] == 1]
    return mx.squeeze(x, axis=axes) if axes else x


def broadcast_to(x: mx.array, shape: tuple[int, ...]) -> mx.array:
    """-1 keeps the size of the axis that it stands over."""
    kept = (*[-1] * (len(shape) - x.ndim), *x.shape)
    return mx.broadcast_to(x, [old if new == -1 else new for new, old in zip(shape, kept, strict=True)])


def repeat(x: mx.array, repeats: int, axis: int) -> mx.array:
    """Each element along the axis ``repeats`` times in a row."""
    shape = list(x.shape)
    shape[axis] *= repeats
    check_allocation("RepeatNode", shape, x.dtype)
    return mx.repeat(x, repeats, axis=axis)


def pad(x: mx.array, pad_width: tuple[int, ...], mode: str, constant_value: float) -> mx.array:
    """By (before, after) for every axis, with a constant or with the values at the edge."""
    if len(pad_width) != 2 * x.ndim:
        raise DelegateError(
            f"PadNode has widths {list(pad_width)} for an array of {x.ndim} dimensions; expected two for each."
        )
    widths = list(zip(pad_width[::2], pad_width[1::2], strict=True))
    if mode == "constant":
        return mx.pad(x, widths, constant_values=mx.array(constant_value, mx.float32).astype(x.dtype))
    if mode == "edge":
        return mx.pad(x, widths, mode="edge")
    raise DelegateError(f"PadNode has mode '{mode}'; expected constant or edge.")


def as_strided(x: mx.array, shape: tuple[int, ...], strides: tuple[int, ...], offset: int) -> mx.array:
    """A view by strides and an offset, counted in elements of x in row-major order."""
    spans = [(size - 1) * stride for size, stride in zip(shape, strides, strict=True)]
    empty = 0 in shape
    first = offset + sum(min(span, 0) for span in spans)
    last = offset + sum(max(span, 0) for span in spans)
    if min(shape, default=1) < 0 or (not empty and not (first >= 0 and last < x.size)):
        # MLX would read whatever is there.
        raise DelegateError(f"AsStridedNode reads elements {first} to {last} of an array of {x.size}.")
    return mx.as_strided(x, shape, strides, offset)


def flip(x: mx.array, axes: tuple[int, ...]) -> mx.array:
    """In reverse on each axis listed."""
    return mx.flip(x, list(axes)) if axes else x


OPERATORS: dict[str, Callable[..., Any]] = {
    "AsStridedNode": as_strided,
    "BroadcastToNode": broadcast_to,
    "ConcatenateNode": lambda tensors, axis: mx.concatenate(list(tensors), axis=axis),
    "ContiguousNode": lambda x: mx.contiguous(x),
    "ExpandDimsNode": lambda x, axis: mx.expand_dims(x, axis),
    "FlipNode": flip,
    "IdCopyNode": lambda x: x,
    "PadNode": pad,
    "RepeatNode": repeat,
    "ReshapeNode": lambda x, shape: mx.reshape(x, shape),
    "RollNode": lambda x, shift, axes: mx.roll(x, shift, axes),
    "SplitNode": split,
    "SqueezeNode": squeeze,
    "StackNode": lambda tensors, axis: mx.stack(list(tensors), axis=axis),
    "TileNode": lambda x, reps: mx.tile(x, reps),
    "TransposeNode": lambda x, perm: mx.transpose(x, perm),
    "TrilNode": lambda x, k: mx.tril(x, k),
    "TriuNode": lambda x, k: mx.triu(x, k),
}
