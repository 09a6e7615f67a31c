"""Shapes, slices and indexing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import mlx.core as mx

from pipeline.errors import DelegateError


def sym_size(a: mx.array, dim: int) -> int:
    size: int = a.shape[dim]
    return size


def slice_axis(x: mx.array, axis: int, start: int, stop: int, step: int) -> mx.array:
    """Python's slice on one axis: negative bounds count from the end, all are clamped."""
    if not -x.ndim <= axis < x.ndim:
        raise DelegateError(f"SliceNode has axis {axis} on an array of {x.ndim} dimensions.")
    if step == 0:
        # MLX would end the whole process with a division by zero.
        raise DelegateError("SliceNode has step 0; expected any other.")
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, stop, step)
    return x[tuple(index)]


def take(x: mx.array, index: int | mx.array, axis: int) -> mx.array:
    """One index drops the axis; an array of indices replaces it by the array's shape."""
    if isinstance(index, int):
        size = x.shape[axis]
        if not -size <= index < size:
            raise DelegateError(f"TakeNode has index {index} on an axis of size {size}.")
        return mx.take(x, index % size, axis=axis)
    return mx.take(x, index, axis=axis)


def split(x: mx.array, sizes: tuple[int, ...], axis: int) -> list[mx.array]:
    """One size cuts pieces of it, the last one short; several are the pieces' sizes, the last taking the rest."""
    if len(sizes) > 1:
        return list(mx.split(x, list(accumulate(sizes[:-1])), axis=axis))
    (size,) = sizes
    if size < 1:
        raise DelegateError(f"SplitNode has size {size}; expected at least 1.")
    return list(mx.split(x, list(range(size, x.shape[axis], size)), axis=axis))


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
    if repeats < 1:
        raise DelegateError(f"RepeatNode has {repeats} repeats; expected at least 1.")
    return mx.repeat(x, repeats, axis=axis)


OPERATORS: dict[str, Callable[..., Any]] = {
    "BroadcastToNode": broadcast_to,
    "ConcatenateNode": lambda tensors, axis: mx.concatenate(list(tensors), axis=axis),
    "ExpandDimsNode": lambda x, axis: mx.expand_dims(x, axis),
    "IdCopyNode": lambda x: x,
    "RepeatNode": repeat,
    "ReshapeNode": lambda x, shape: mx.reshape(x, shape),
    "SliceNode": slice_axis,
    "SplitNode": split,
    "SqueezeNode": squeeze,
    "StackNode": lambda tensors, axis: mx.stack(list(tensors), axis=axis),
    "SymSizeNode": sym_size,
    "TakeNode": take,
    "TransposeNode": lambda x, perm: mx.transpose(x, perm),
}
