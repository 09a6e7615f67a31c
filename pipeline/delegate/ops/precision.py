"""What MLX computes worse on a CPU than on a GPU, or not at all, is computed there in float32 and rounded once."""

from __future__ import annotations

import mlx.core as mx


def on_cpu() -> bool:
    return bool(mx.default_device() == mx.cpu)


def widened(array: mx.array) -> mx.array:
    """On a CPU, a float as float32; what is no float stays, and everything elsewhere."""
    return array.astype(mx.float32) if on_cpu() and mx.issubdtype(array.dtype, mx.floating) else array
