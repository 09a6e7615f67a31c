"""What rules of ``delegate.fuse`` put in place of several nodes. These names are in no file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.delegate.ops.attention import numbers
from pipeline.delegate.ops.elementwise import gelu, silu
from pipeline.errors import CacheError

_SWAPPED = (..., slice(None, None, -1), slice(None))


def signed(sin: mx.array) -> mx.array:
    """A table [..., 2 * half] with its first half negated."""
    first, second = mx.split(sin, 2, axis=-1)
    return mx.concatenate([mx.negative(first), second], axis=-1)


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """x [B, heads, T, 2 * half], each pair (i, i + half) turned by tables of x's width; that of sin is signed.

    The swapped halves are a view, which gains over many tokens; for one, what counts is to record little.
    """
    width = cos.shape[-1]
    if cos.shape[-2] == 1:
        return mx.add(mx.multiply(x, cos), mx.multiply(mx.roll(x, width // 2, -1), sin))
    x, cos, sin = (mx.unflatten(array, -1, (2, width // 2)) for array in (x, cos, sin))
    return mx.flatten(mx.add(mx.multiply(x, cos), mx.multiply(x[_SWAPPED], sin)), -2, -1)


def start(positions: mx.array) -> mx.array:
    """The first of a run of positions, int32 []; all of them, int32 [T], if they are none. Made once for all layers."""
    given = numbers(positions)
    if not given:
        raise CacheError("the step has no tokens; expected at least 1.")
    return mx.array(given[0] if given == list(range(given[0], given[0] + len(given))) else given, mx.int32)


def rope_by_tables(x: mx.array, start: mx.array, divisors: mx.array, factor: float, table_type: int | None) -> mx.array:
    """x [B, heads, T, dims] turned by position / divisors [dims / 2], times ``factor``; ``start`` is as above.

    The dtype is what x and a table of ``table_type``, float32 if None, promote to. Where tokens have positions of their
    own, x is of one sequence of T tokens, and turned as T of one token each.
    """
    table = mx.float32 if table_type is None else dtypes.of_code(table_type)
    x = x.astype(mx.result_type(x.dtype, table))
    apart = start.ndim == 1
    if apart:
        x = mx.swapaxes(x, 0, 2)
    turned = mx.fast.rope(x, x.shape[-1], traditional=False, base=None, scale=1.0, offset=start, freqs=divisors)
    if apart:
        turned = mx.swapaxes(turned, 0, 2)
    return turned if factor == 1.0 else turned * mx.array(factor, x.dtype)


UNPACKED_ROWS = 32
"""From this many rows on, it is faster on a CPU to unpack a matrix and multiply it."""


def _product(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int, mode: str, transpose: bool
) -> mx.array:
    if transpose and x.size >= UNPACKED_ROWS * x.shape[-1]:
        return _product_unpacked(x, w, scales, biases, group_size, bits, mode)
    return mx.quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode)


def _product_unpacked(
    x: mx.array, w: mx.array, scales: mx.array, biases: mx.array, group_size: int, bits: int, mode: str
) -> mx.array:
    """x [.., K] by a packed matrix [N, K] transposed, both float32.

    Matrix first: for a plain BLAS, which MLX's CPU build has on Linux, two row-major operands are half as fast again as
    one that is transposed.
    """
    unpacked = mx.dequantize(w, scales, biases, group_size, bits, mode)
    columns = mx.contiguous(x.reshape(-1, x.shape[-1]).T)
    return mx.matmul(unpacked, columns).T.reshape(*x.shape[:-1], w.shape[0])


_COMPILED = {
    "silu": mx.compile(lambda gate, up: silu(gate) * up, shapeless=True),
    "gelu-none": mx.compile(lambda gate, up: gelu(gate, "none") * up, shapeless=True),
    "gelu-tanh": mx.compile(lambda gate, up: gelu(gate, "tanh") * up, shapeless=True),
}


def activated_product(gate: mx.array, up: mx.array, activation: str) -> mx.array:
    """``activation(gate) * up``, as one kernel."""
    return cast(mx.array, _COMPILED[activation](gate, up))


def widened_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    mode: str,
    transpose: bool,
    narrow: mx.Dtype,
) -> mx.array:
    """``quantized.quantized_matmul`` of a checked packing whose scales and biases, in ``narrow``, are float32 now."""
    if x.dtype == narrow == mx.float32 and x.size:
        return _product(x, w, scales, biases, group_size, bits, mode, transpose)
    if not x.size:
        # MLX would end the whole process with a division by zero.
        columns = w.shape[0] if transpose else scales.shape[1] * group_size
        return mx.zeros((*x.shape[:-1], columns), x.dtype)
    product = _product(x.astype(mx.float32), w, scales, biases, group_size, bits, mode, transpose)
    return product.astype(mx.result_type(x.dtype, narrow))


OPERATORS: dict[str, Callable[..., Any]] = {
    "ActivatedProductNode": activated_product,
    "RopeByTablesNode": rope_by_tables,
    "RotateNode": rotate,
    "SignedNode": signed,
    "StartNode": start,
    "WidenedMatmulNode": widened_matmul,
}
