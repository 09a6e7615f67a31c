"""Attention, over the off-graph KV cache and over what the graph itself keeps, and rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError


class Cache(Protocol):
    """What the executor needs of an off-graph cache; ``runtime.kv_cache.KVCache`` is one."""

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]: ...

    def commit_step(self) -> None: ...

    def abandon_step(self) -> None: ...


BLOCK = 128
"""Queries that are attended at once in blocks; the fastest of 32 to 256 on two x86-64 cores."""


class UpdateAndAttend:
    """``kvcache::update_and_attend`` over one bound cache.

    In ``blocks`` of queries, no key is multiplied only to be masked. MLX's GPU kernels know that
    by themselves, its CPU does not. The same sums.
    """

    def __init__(self, cache: Cache | None, *, blocks: bool = False) -> None:
        self.cache = cache
        self._blocks = blocks
        self._latest: tuple[mx.array, list[int]] | None = None

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        position: mx.array,
        layer_id: int | None,
        scale: float | None,
        out_dtype: int | None,
    ) -> mx.array:
        """q [1, heads, T, head_dim], k and v [1, KV heads, T, head_dim], position [T] or [T, 1]. Returns q's shape.

        K and V are read back in the cache's dtype, attended in that of q, and the result cast to ``out_dtype``.
        """
        if self.cache is None:
            raise DelegateError("the graph attends over an off-graph KV cache and none is bound. Load it with a cache.")
        if layer_id is None or scale is None:
            raise DelegateError("UpdateAndAttendNode lacks its layer_id or scale; the file is damaged.")
        keys, values, mask = self.cache.update_and_fetch(layer_id, k, v, self._positions(position))
        if keys.dtype != q.dtype:
            keys, values = keys.astype(q.dtype), values.astype(q.dtype)
        if self._blocks and isinstance(mask, str) and q.shape[2] > BLOCK:
            attended = _in_blocks(q, keys, values, scale)
        else:
            attended = mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)
        return attended if out_dtype is None else attended.astype(dtypes.of_code(out_dtype))

    def _positions(self, position: mx.array) -> list[int]:
        """Every layer of a step is handed the same array: it is read once."""
        if self._latest is None or self._latest[0] is not position:
            if position.dtype not in (mx.int32, mx.int64):
                raise DelegateError(f"UpdateAndAttendNode has positions of {position.dtype}; expected int32 or int64.")
            self._latest = (position, numbers(position))
        return self._latest[1]


def _in_blocks(q: mx.array, keys: mx.array, values: mx.array, scale: float) -> mx.array:
    num_queries, num_keys = q.shape[2], keys.shape[2]
    attended = []
    for start in range(0, num_queries, BLOCK):
        end = min(start + BLOCK, num_queries)
        newest = num_keys - num_queries + end
        attended.append(
            mx.fast.scaled_dot_product_attention(
                q[:, :, start:end], keys[:, :, :newest], values[:, :, :newest], scale=scale, mask="causal"
            )
        )
    return mx.concatenate(attended, axis=2)


def numbers(position: mx.array) -> list[int]:
    """The elements in order. Of an array [T] that MLX has already, nothing is computed."""
    return cast(list[int], (position if position.ndim == 1 else position.reshape(-1)).tolist())


def sdpa(q: mx.array, k: mx.array, v: mx.array, scale: float, mask: mx.array | None, causal: bool) -> mx.array:
    """q [B, heads, T, head_dim], k and v [B, KV heads, S, head_dim]. Causality is aligned to the newest key.

    A bool mask chooses the keys, any other is added to the scores in the dtype of q.
    """
    if mask is not None and causal:
        raise DelegateError("SdpaNode is causal and has a mask; expected one of them.")
    if k.ndim == 4 and not k.shape[1]:
        # MLX would end the whole process with a division by zero.
        raise DelegateError(f"SdpaNode has keys {list(k.shape)}; expected at least one head.")
    if mask is not None and mask.dtype != mx.bool_:
        mask = mask.astype(q.dtype)
    return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if causal else mask)


def rope(
    x: mx.array,
    dims: int,
    offset: int | mx.array,
    freqs: mx.array | None,
    traditional: bool,
    base: float,
    scale: float,
) -> mx.array:
    """x [B, heads, T, head_dim], its first ``dims`` features rotated by ``scale * position / freqs``.

    Positions count from ``offset``; ``freqs`` are ``base ** (2 i / dims)`` unless given.
    """
    return mx.fast.rope(
        x,
        dims,
        traditional=traditional,
        base=base if freqs is None else None,
        scale=scale,
        offset=offset,
        freqs=freqs,
    )


OPERATORS: dict[str, Callable[..., Any]] = {"RopeNode": rope, "SdpaNode": sdpa}
"""Those that need no cache."""
