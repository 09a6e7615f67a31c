"""The cache behind ``kvcache::update_and_attend`` in eager PyTorch: what any runtime's cache must amount to.

Keeps every position of every cache and masks by position, so there is nothing to get wrong but the contract itself:
a query at position p attends the keys of all positions up to p, or of the last ``window`` of them, p included. Stands
where a runtime's cache stands: in executorch's registry (extension/llm/cache/update_and_attend.py), found by the op.

A step is not announced to the op; it is recognised. A cache is written at the position that follows its history, so a
second write for the same positions is a second write of one step. It is refused, but for one that repeats the first
bit for bit: that is how a layer that reads another layer's K/V attends, by handing its donor's K/V to its donor's
cache again with a query of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError

if TYPE_CHECKING:
    from executorch.extension.llm.cache.reference_cache import AttendSpec

_KEY = "pte_oracle"


@dataclass
class _History:
    """K and V of one cache, [1, KV heads, length, head_dim], and where its last write began."""

    keys: torch.Tensor
    values: torch.Tensor
    last_start: int = 0

    @property
    def length(self) -> int:
        return int(self.keys.shape[2])

    def is_repeated_by(self, start: int, keys: torch.Tensor, values: torch.Tensor) -> bool:
        return (
            start == self.last_start
            and torch.equal(keys, self.keys[:, :, start:])
            and torch.equal(values, self.values[:, :, start:])
        )

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.last_start = self.length
        self.keys = torch.cat([self.keys, keys], dim=2)
        self.values = torch.cat([self.values, values], dim=2)


class OracleCache:
    """One sequence's history, in one cache for each geometry given; a layer names its cache by its index.

    Holds ``capacity`` positions, stored as ``dtype``. Every refusal is a CacheError, and changes nothing in the cache
    that was addressed; caches that were written earlier in the step keep what they were given.
    """

    def __init__(self, caches: Sequence[CacheGeometry], *, capacity: int, dtype: torch.dtype = torch.float32) -> None:
        if capacity < 1:
            raise CacheError(f"capacity is {capacity}; expected at least one position.")
        self._geometries = tuple(caches)
        self._capacity = capacity
        self._dtype = dtype
        self.clear()

    def clear(self) -> None:
        """Forgets the sequence."""
        self._histories = [self._empty(geometry) for geometry in self._geometries]

    def length(self, cache_id: int) -> int:
        """How many positions a cache holds."""
        return self._histories[self._checked_id(cache_id)].length

    def update_and_fetch(
        self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, AttendSpec]:
        """K and V of all positions so far, [1, KV heads, S, head_dim], and the mask [1, 1, T, S], true to attend.

        ``k`` and ``v`` are [1, KV heads, T, head_dim], of this step, and ``position`` is integer [T, 1].
        """
        from executorch.extension.llm.cache.reference_cache import AttendSpec, MaskKind

        geometry, history = self._geometries[self._checked_id(layer_id)], self._histories[layer_id]
        start = self._checked_start(layer_id, geometry, k, v, position)
        keys, values = k.detach().to(self._dtype), v.detach().to(self._dtype)
        if start == history.length:
            if start + len(position) > self._capacity:
                raise CacheError(
                    f"cache {layer_id}: a step of {len(position)} tokens at position {start} does not fit; the "
                    f"capacity is {self._capacity} positions."
                )
            history.append(keys, values)
        elif not history.is_repeated_by(start, keys, values):
            if start == history.last_start:
                raise CacheError(
                    f"cache {layer_id}: it is written twice in the step at position {start}, with different K/V; "
                    "expected one writer a step, or readers that repeat its K/V."
                )
            raise CacheError(
                f"cache {layer_id}: a step starts at position {start}; expected {history.length}, where its history "
                "ends."
            )
        age = position.reshape(-1, 1) - torch.arange(history.length)
        mask = age >= 0
        if geometry.window:
            mask &= age < geometry.window
        return history.keys, history.values, AttendSpec(kind=MaskKind.EXPLICIT, mask=mask[None, None])

    def _empty(self, geometry: CacheGeometry) -> _History:
        nothing = torch.zeros(1, geometry.num_kv_heads, 0, geometry.head_dim, dtype=self._dtype)
        return _History(nothing, nothing)

    def _checked_id(self, cache_id: int) -> int:
        if not 0 <= cache_id < len(self._geometries):
            raise CacheError(f"cache {cache_id} is addressed; there are caches 0 to {len(self._geometries) - 1}.")
        return cache_id

    def _checked_start(
        self, cache_id: int, geometry: CacheGeometry, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor
    ) -> int:
        """The step's first position, once the shapes and the other positions are what they should be."""
        length = k.shape[2] if k.dim() == 4 else 0
        expected = (1, geometry.num_kv_heads, length, geometry.head_dim)
        if not length or k.shape != expected or v.shape != expected:
            raise CacheError(
                f"cache {cache_id}: K is {list(k.shape)} and V {list(v.shape)}; expected [1, {geometry.num_kv_heads}, "
                f"T, {geometry.head_dim}] for both, with T at least 1."
            )
        if position.dtype not in (torch.int32, torch.int64) or position.shape != (length, 1):
            raise CacheError(
                f"cache {cache_id}: positions are {position.dtype} {list(position.shape)}; expected int32 or int64 "
                f"[{length}, 1]."
            )
        positions: list[int] = position[:, 0].tolist()
        if positions != list(range(positions[0], positions[0] + length)):
            raise CacheError(f"cache {cache_id}: positions are {positions}; expected each to follow the one before.")
        return positions[0]


@contextmanager
def active(cache: OracleCache) -> Iterator[OracleCache]:
    """The op finds ``cache`` while the block runs; one that was active before is active again afterwards."""
    from executorch.extension.llm.cache.update_and_attend import REGISTRY

    key = f"{_KEY}-{id(cache)}"
    REGISTRY.install(key, cache)
    try:
        with REGISTRY.active(key):
            yield cache
    finally:
        REGISTRY.uninstall(key)
