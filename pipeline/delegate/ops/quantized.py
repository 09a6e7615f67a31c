"""Products with packed weights, and their unpacking.

A weight is uint32 words that hold unsigned codes of ``bits`` bits, least significant first, rows along the last axis;
each ``group_size`` of them shares a scale. Mode affine stands for ``scale * code + bias``; nvfp4, mxfp4 and mxfp8 are
small floats times a scale of eight bits.

On a CPU, MLX rounds every partial sum of a half precision product to half precision (bfloat16: off by a tenth over 256
columns, and ten times slower), where its GPU kernels accumulate in float32. So on a CPU the product is taken in
float32 and rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.delegate.ops.precision import on_cpu, widened
from pipeline.errors import DelegateError


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    mode: str,
    transpose: bool,
) -> mx.array:
    """``x`` times the weight, transposed or not. x [..., K], w [N, K * bits / 32] when transposed. Returns [..., N]."""
    check_packing(w, scales, biases, group_size, bits)
    layout: dict[str, Any] = {"group_size": group_size, "bits": bits, "mode": mode}
    if not x.size or not w.size:
        # MLX would end the whole process with a division by zero.
        whole = mx.dequantize(w, scales, biases, **layout, dtype=x.dtype)
        return mx.matmul(x, whole.swapaxes(-1, -2) if transpose else whole)
    result = _dtype(x, scales, biases)
    x, scales, biases = _widened(x, scales, biases)
    return mx.quantized_matmul(x, w, scales, biases, transpose=transpose, **layout).astype(result)


def gather_qmm(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    mode: str,
    biases: mx.array | None,
    lhs_indices: mx.array | None,
    rhs_indices: mx.array | None,
    transpose: bool,
    group_size: int,
    bits: int,
    sorted_indices: bool,
    sorted_indices_flag: int | None,
) -> mx.array:
    """A quantized product per pair of matrices that the indices choose from the flattened batch axes of x and w.

    That the indices are sorted is a hint; the flag is one computed at run time and goes before the literal.
    """
    if lhs_indices is None and rhs_indices is None:
        return quantized_matmul(x, w, scales, biases, group_size, bits, mode, transpose)
    check_packing(w, scales, biases, group_size, bits)
    if not x.size or not w.size:
        raise DelegateError(f"GatherQmmNode has x {list(x.shape)} and w {list(w.shape)}; expected some elements.")
    result = _dtype(x, scales, biases)
    x, scales, biases = _widened(x, scales, biases)
    return mx.gather_qmm(
        x,
        w,
        scales,
        biases,
        lhs_indices=lhs_indices,
        rhs_indices=rhs_indices,
        transpose=transpose,
        group_size=group_size,
        bits=bits,
        mode=mode,
        sorted_indices=sorted_indices if sorted_indices_flag is None else bool(sorted_indices_flag),
    ).astype(result)


def dequantize(
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    mode: str,
    global_scale: mx.array | None,
    dtype: int | None,
) -> mx.array:
    """The weight unpacked, in ``dtype``, or in that of scales and biases; without both, small floats are bfloat16."""
    check_packing(w, scales, biases, group_size, bits)
    asked = None if dtype is None else dtypes.of_code(dtype)
    result = asked or (mx.bfloat16 if biases is None else mx.result_type(scales, biases))
    if not w.size:
        return mx.zeros((*w.shape[:-1], scales.shape[-1] * group_size), result)
    _, scales, biases = _widened(w, scales, biases)
    exact = mx.float32 if on_cpu() else result
    return mx.dequantize(
        w,
        scales,
        biases,
        group_size=group_size,
        bits=bits,
        mode=mode,
        global_scale=global_scale,
        dtype=exact,
    ).astype(result)


def check_packing(w: mx.array, scales: mx.array, biases: mx.array | None, group_size: int, bits: int) -> None:
    """What MLX does not check itself: it would read past the end, or divide by zero and end the process."""
    rows = w.shape[:-1]
    if scales.shape[:-1] != rows or (biases is not None and biases.shape != scales.shape):
        shapes = ", ".join(str(list(array.shape)) for array in (w, scales, biases) if array is not None)
        raise DelegateError(f"a packed weight, its scales and biases have shapes {shapes}; expected the same rows.")
    if group_size < 1 or bits < 1:
        raise DelegateError(
            f"a packed weight has groups of {group_size} and {bits} bits; expected both to be positive."
        )


def _dtype(x: mx.array, scales: mx.array, biases: mx.array | None) -> mx.Dtype:
    """A product's: affine scales promote, those of small floats are bytes and do not."""
    return x.dtype if biases is None else mx.result_type(x, scales, biases)


def _widened(x: mx.array, scales: mx.array, biases: mx.array | None) -> tuple[mx.array, mx.array, mx.array | None]:
    return widened(x), widened(scales), None if biases is None else widened(biases)


OPERATORS: dict[str, Callable[..., Any]] = {
    "DequantizeNode": dequantize,
    "GatherQmmNode": gather_qmm,
    "QuantizedMatmulNode": quantized_matmul,
}
