"""Shapes, slices and indexing."""

from __future__ import annotations

from collections.abc import Callable
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


OPERATORS: dict[str, Callable[..., Any]] = {
    "ConcatenateNode": lambda tensors, axis: mx.concatenate(list(tensors), axis=axis),
    "ExpandDimsNode": lambda x, axis: mx.expand_dims(x, axis),
    "ReshapeNode": lambda x, shape: mx.reshape(x, shape),
    "SliceNode": slice_axis,
    "SymSizeNode": sym_size,
    "TakeNode": take,
    "TransposeNode": lambda x, perm: mx.transpose(x, perm),
}
