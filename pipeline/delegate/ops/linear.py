"""Matrix products, normalization and reductions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx


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


def softmax(x: mx.array, axis: int, precise: bool) -> mx.array:
    """``precise`` accumulates in float32; the result has the dtype of x."""
    return mx.softmax(x, axis=axis, precise=precise)


def _reduced(reduce: Callable[..., mx.array]) -> Callable[..., Any]:
    """No axes, or an empty list of them, is all of them."""
    return lambda x, axes, keepdims: reduce(x, axis=list(axes) if axes else None, keepdims=keepdims)


OPERATORS: dict[str, Callable[..., Any]] = {
    "AddmmNode": addmm,
    "LayerNormNode": layer_norm,
    "MaxNode": _reduced(mx.max),
    "MeanNode": _reduced(mx.mean),
    "MinNode": _reduced(mx.min),
    "RMSNormNode": rms_norm,
    "SoftmaxNode": softmax,
    "SumNode": _reduced(mx.sum),
}
