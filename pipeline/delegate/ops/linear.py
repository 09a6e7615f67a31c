"""Matrix products and normalization."""

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


OPERATORS: dict[str, Callable[..., Any]] = {"AddmmNode": addmm, "RMSNormNode": rms_norm}
