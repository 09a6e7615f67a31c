"""Attention, over the off-graph KV cache and over what the graph itself keeps, and rotary positions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError


class BoundCache(Protocol):
    """What the executor needs of an off-graph cache: ``KVCache`` and ``CellCache`` of ``runtime`` are such.

    A call of the method is a step. It hands every cache id that the graph attends over the step's keys and values, then
    ends the step by one of the other two.
    """

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]:
        """Appends keys and values, each [1, KV heads, T, head_dim], of the T tokens at these positions.

        Every layer of a step is handed the same list of positions. Returns what its queries attend: K and V [1, KV
        heads, S, head_dim], and as mask None (all of it), "causal" (aligned to the newest key) or bool [1, 1, T, S].

        Raises CacheError for a step that does not fit; the call fails then, and the step is abandoned.
        """
        ...

    def commit_step(self) -> None:
        """The step's tokens count from now on. Without a step, nothing changes."""
        ...

    def abandon_step(self) -> None:
        """The history is as if there had been no step."""
        ...


BLOCK = 128
"""Queries that are attended at once on a CPU; the fastest of 32 to 256 on two x86-64 cores."""


class UpdateAndAttend:
    """``kvcache::update_and_attend`` over one bound cache.

    ``on_cpu`` arranges the same sums for MLX's CPU, which takes a matrix product literally: no key is multiplied only
    to be masked, and heads that share keys are rows of one product. MLX's GPU kernels see to both.
    """

    def __init__(self, cache: BoundCache | None, *, on_cpu: bool = False) -> None:
        self.cache = cache
        self._attended = _attended_on_cpu if on_cpu else _attended
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
        attended = self._attended(q, keys, values, scale, mask)
        return attended if out_dtype is None else attended.astype(dtypes.of_code(out_dtype))

    def _positions(self, position: mx.array) -> list[int]:
        """Every layer of a step is handed the same array: it is read once."""
        if self._latest is None or self._latest[0] is not position:
            if position.dtype not in (mx.int32, mx.int64):
                raise DelegateError(f"UpdateAndAttendNode has positions of {position.dtype}; expected int32 or int64.")
            self._latest = (position, numbers(position))
        return self._latest[1]


def _attended(q: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None) -> mx.array:
    return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)


def _attended_on_cpu(
    q: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None
) -> mx.array:
    (_, num_heads, num_queries, head_dim), (_, num_kv_heads, num_keys, _) = q.shape, keys.shape
    if mask is None and num_queries == 1 and num_kv_heads:
        grouped = q.reshape(1, num_kv_heads, -1, head_dim)
        return _attended(grouped, keys, values, scale, None).reshape(1, num_heads, 1, -1)
    if not isinstance(mask, str) or num_queries <= BLOCK:
        return _attended(q, keys, values, scale, mask)
    blocks = []
    for start in range(0, num_queries, BLOCK):
        end = min(start + BLOCK, num_queries)
        newest = num_keys - num_queries + end
        blocks.append(_attended(q[:, :, start:end], keys[:, :, :newest], values[:, :, :newest], scale, mask))
    return mx.concatenate(blocks, axis=2)


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
