"""Matrix products and normalization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate.ops.precision import widened


def addmm(mat1: mx.array, mat2: mx.array, bias: mx.array | None, alpha: float, beta: float) -> mx.array:
    """beta * bias + alpha * (mat1 @ mat2); without a bias the plain product, whatever alpha and beta say."""
    if bias is None:
        return mx.matmul(mat1, mat2)
    return mx.addmm(bias, mat1, mat2, alpha=alpha, beta=beta)


def rms_norm(x: mx.array, weight: mx.array | None, eps: float) -> mx.array:
    """Over the last axis; statistics in float32."""
    return mx.fast.rms_norm(x, weight, eps)


def layer_norm(x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float) -> mx.array:
    """Over the last axis."""
    return mx.fast.layer_norm(x, weight, bias, eps)


def gather_mm(
    a: mx.array,
    b: mx.array,
    lhs_indices: mx.array | None,
    rhs_indices: mx.array | None,
    sorted_indices: bool,
    sorted_indices_flag: int | None,
) -> mx.array:
    """A product per pair of matrices that the indices choose from the flattened batch axes of a and b.

    That the indices are sorted is a hint; the flag is one computed at run time and goes before the literal.
    """
    hint = sorted_indices if sorted_indices_flag is None else bool(sorted_indices_flag)
    # On a CPU, MLX gathers float32 alone.
    found = mx.gather_mm(widened(a), widened(b), lhs_indices=lhs_indices, rhs_indices=rhs_indices, sorted_indices=hint)
    return found.astype(mx.result_type(a, b))


OPERATORS: dict[str, Callable[..., Any]] = {
    "AddmmNode": addmm,
    "GatherMmNode": gather_mm,
    "LayerNormNode": layer_norm,
    "RMSNormNode": rms_norm,
}
