"""Reductions, running sums and order along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate.ops.precision import on_cpu, widened


def softmax(x: mx.array, axis: int, precise: bool) -> mx.array:
    """``precise`` accumulates in float32, as it always is on a CPU; the result has the dtype of x.

    MLX adds one by one there: in bfloat16 a sum stops growing at 256 times its terms.
    """
    return mx.softmax(x, axis=axis, precise=precise or on_cpu())


def log_sum_exp(x: mx.array, axes: tuple[int, ...] | None, keepdims: bool) -> mx.array:
    """No axes is none of them, other than in all the reductions: x comes back, as a float."""
    return mx.logsumexp(x, axis=list(axes or ()), keepdims=keepdims)


def cumsum(x: mx.array, axis: int, reverse: bool, inclusive: bool) -> mx.array:
    """From the end if ``reverse``; without the element itself, so beginning with 0, unless ``inclusive``."""
    found = mx.cumsum(widened(x), axis=axis, reverse=reverse, inclusive=inclusive)
    return found.astype(x.dtype) if mx.issubdtype(x.dtype, mx.floating) else found


def _reduced(reduce: Callable[..., mx.array]) -> Callable[..., Any]:
    """No axes, or an empty list of them, is all of them. What else the node has, ``ddof``, goes through."""
    return lambda x, axes, keepdims, **others: reduce(x, axis=list(axes) if axes else None, keepdims=keepdims, **others)


def _along(function: Callable[..., mx.array]) -> Callable[..., Any]:
    return lambda x, axis, **others: function(x, axis=axis, **others)


OPERATORS: dict[str, Callable[..., Any]] = {
    "AllNode": _reduced(mx.all),
    "AnyNode": _reduced(mx.any),
    "ArgPartitionNode": _along(mx.argpartition),
    "ArgmaxNode": _along(mx.argmax),
    "ArgminNode": _along(mx.argmin),
    "ArgsortNode": _along(mx.argsort),
    "CumsumNode": cumsum,
    "LogSumExpNode": log_sum_exp,
    "MaxNode": _reduced(mx.max),
    "MeanNode": _reduced(mx.mean),
    "MedianNode": _reduced(mx.median),
    "MinNode": _reduced(mx.min),
    "PartitionNode": _along(mx.partition),
    "ProdNode": _reduced(mx.prod),
    "SoftmaxNode": softmax,
    "SortNode": _along(mx.sort),
    "StdNode": _reduced(mx.std),
    "SumNode": _reduced(mx.sum),
    "VarNode": _reduced(mx.var),
}
