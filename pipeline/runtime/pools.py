"""K and V of every cache id as they are stored, in MLX arrays that grow by doubling.

Where a step writes and what it reads is planned elsewhere and comes as an ``Access``. Layers that share K/V share a
cache: the first one writes, the others repeat its write with queries of their own. A repeat is told by its arrays,
which are the very same; nothing is written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import mlx.core as mx

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError
from pipeline.runtime.layout import Run, grown
from pipeline.runtime.policy import group_size

Index: TypeAlias = "tuple[slice, slice, slice | mx.array]"
"""Some slots of an array [1, KV heads, slots, ...]."""


class Access(NamedTuple):
    """A step in one kind of pool: the slots that it must have, where tokens are written, and what is read after that.

    A write is a place and the part of the step's tokens that goes there; None is all of them.
    """

    slots: int
    writes: list[tuple[Index, Index | None]]
    reads: list[Index]


def run_index(run: Run) -> Index:
    """A run of slots."""
    slot, count = run
    return slice(None), slice(None), slice(slot, slot + count)


def write_runs(runs: Sequence[Run]) -> list[tuple[Index, Index | None]]:
    """A step's tokens, in order, into runs of slots."""
    if len(runs) == 1:
        return [(run_index(runs[0]), None)]
    writes: list[tuple[Index, Index | None]] = []
    start = 0
    for run in runs:
        writes.append((run_index(run), run_index((start, run[1]))))
        start += run[1]
    return writes


class Pool:
    """An array [1, KV heads, slots, width]."""

    def __init__(self, num_kv_heads: int, width: int, slots: int, max_slots: int, dtype: mx.Dtype) -> None:
        self.slots = slots
        self.array = mx.zeros((1, num_kv_heads, slots, width), dtype)
        # What is only recorded can be computed by no other thread than this one.
        mx.eval(self.array)
        self._max_slots = max_slots
        self._dtype = dtype

    def write(self, access: Access, update: mx.array) -> None:
        """``update`` is [1, KV heads, tokens, width], rounded to what the pool holds."""
        if access.slots > self.slots:
            self._grow(access.slots)
        if update.dtype != self._dtype:
            update = update.astype(self._dtype)
        for index, part in access.writes:
            self.array[index] = update if part is None else update[part]

    def read(self, access: Access) -> mx.array:
        """What is to be read, [1, KV heads, slots read, width]."""
        if len(access.reads) == 1:
            return self.array[access.reads[0]]
        return mx.concatenate([self.array[index] for index in access.reads], axis=2)

    def wipe(self, slots: Sequence[int]) -> None:
        """Zeros in these slots, of those that there are by now."""
        there = [slot for slot in slots if slot < self.slots]
        if there:
            self.array[:, :, mx.array(there, mx.int32)] = mx.zeros((), self._dtype)

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def _grow(self, needed: int) -> None:
        size = grown(self.slots, needed, self._max_slots)
        _, heads, _, width = self.array.shape
        padding = mx.zeros((1, heads, size - self.slots, width), self._dtype)
        self.array = mx.concatenate([self.array, padding], axis=2)
        self.slots = size


class QuantizedPool:
    """Heads of ``head_dim`` numbers, packed in ``bits`` each, with a scale and a bias for each group of them.

    A number is off by less than one step, which is (largest - smallest of its group) / (2 ** bits - 1), and mostly by
    less than half of it; scales of a narrow dtype round further.
    """

    def __init__(
        self, num_kv_heads: int, head_dim: int, slots: int, max_slots: int, dtype: mx.Dtype, bits: int
    ) -> None:
        self._dtype = dtype
        self._group_size, self._bits = group_size(head_dim, bits), bits
        scale = (head_dim // self._group_size, dtype)
        # Packed numbers, scales and biases, as mx.quantize returns them.
        parts = ((head_dim * bits // 32, mx.uint32), scale, scale)
        self._parts = [Pool(num_kv_heads, width, slots, max_slots, kind) for width, kind in parts]

    def write(self, access: Access, update: mx.array) -> None:
        quantized = mx.quantize(update.astype(self._dtype), self._group_size, self._bits)
        for part, array in zip(self._parts, quantized, strict=True):
            part.write(access, array)

    def read(self, access: Access) -> mx.array:
        packed, scales, biases = (part.read(access) for part in self._parts)
        return mx.dequantize(packed, scales, biases, self._group_size, self._bits)

    def wipe(self, slots: Sequence[int]) -> None:
        for part in self._parts:
            part.wipe(slots)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)


class Pools:
    """K and V of ``caches``; ``slots`` are those that each has now, and the most that it may have.

    Stored in ``dtype``, or in ``bits`` with scales of that dtype; what is read is in it either way.
    """

    def __init__(
        self, caches: Sequence[CacheGeometry], slots: Sequence[tuple[int, int]], dtype: mx.Dtype, bits: int | None
    ) -> None:
        self._shapes = [(cache.num_kv_heads, cache.head_dim) for cache in caches]
        self._pools = [
            [
                Pool(*shape, *sizes, dtype) if bits is None else QuantizedPool(*shape, *sizes, dtype, bits)
                for _ in ("K", "V")
            ]
            for shape, sizes in zip(self._shapes, slots, strict=True)
        ]
        self._written: dict[int, tuple[mx.array, mx.array]] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays as they are now."""
        return sum(pool.nbytes for pair in self._pools for pool in pair)

    def check(self, layer_id: int, keys: mx.array, values: mx.array, num_tokens: int) -> None:
        """Raises CacheError for a cache that there is not, and for arrays that are not of its shape."""
        if not 0 <= layer_id < len(self._shapes):
            raise CacheError(f"layer_id {layer_id} has no cache; expected 0 to {len(self._shapes) - 1}.")
        heads, head_dim = self._shapes[layer_id]
        expected = (1, heads, num_tokens, head_dim)
        for name, array in (("K", keys), ("V", values)):
            if array.shape != expected:
                raise CacheError(f"cache {layer_id}: {name} has shape {array.shape}; expected {expected}.")

    def write_and_read(
        self, layer_id: int, keys: mx.array, values: mx.array, access: Access
    ) -> tuple[mx.array, mx.array]:
        """Checked K and V go in unless they are in already; returns what is read, [1, KV heads, slots read, head_dim].

        Raises CacheError for other K/V than were written in this step.
        """
        pools = self._pools[layer_id]
        if layer_id in self._written:
            self._check_repeat(layer_id, keys, values)
        else:
            pools[0].write(access, keys)
            pools[1].write(access, values)
            self._written[layer_id] = keys, values
        return pools[0].read(access), pools[1].read(access)

    def wipe(self, slots: Sequence[int]) -> None:
        """Every pool has zeros in these slots, as far as it has grown."""
        for pool in (pool for pair in self._pools for pool in pair):
            pool.wipe(slots)

    def end_step(self) -> None:
        """What is written next belongs to another step."""
        self._written.clear()

    def _check_repeat(self, layer_id: int, keys: mx.array, values: mx.array) -> None:
        for first, second in zip(self._written[layer_id], (keys, values), strict=True):
            # Looking at numbers would wait for them; a reader of its donor's arrays never makes us look.
            if second is not first and not mx.array_equal(second, first):
                raise CacheError(
                    f"cache {layer_id} is written twice in one step, with different K/V; expected one writer, or "
                    "readers that repeat its K/V."
                )
