"""The off-graph KV cache of many sequences, in MLX arrays.

The tokens of a step may belong to different sequences, each at its own position: several texts are prefilled and
decoded in one call of an artifact. Which cell a token lies in is planned in ``cells``; the arrays are those of
``pools``. Each query sees the cells of its own sequence through a mask; a window narrows the mask, and saves no cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import mlx.core as mx
import numpy as np

from pipeline.contract import SCALAR_TYPE, CacheGeometry
from pipeline.delegate.dtypes import BY_CODE
from pipeline.errors import CacheError
from pipeline.runtime.cells import CellTable, Placement
from pipeline.runtime.policy import DEFAULT_INITIAL_CAPACITY, CachePlan
from pipeline.runtime.pools import Access, Pools, run_index, write_runs

MOST_RUNS = 4
"""Tokens in more runs of cells than these are written by one scatter."""


class CellCache:
    """K and V of many sequences, one pool pair [1, KV heads, cells, head_dim] for each cache id; a ``BoundCache``.

    ``table`` makes, clones, rewinds and removes sequences. Before each call of the method that the cache is bound to,
    ``table.declare_step`` says which sequence each token belongs to; the call's positions are those in the sequences.

    ``capacity`` counts cells in use, ``max_context`` bounds each sequence. K/V are stored in ``dtype``, or in ``bits``
    (8 or 4) with scales of that dtype. Pools start at ``initial_capacity`` cells and double up to the capacity.
    """

    def __init__(
        self,
        caches: Sequence[CacheGeometry],
        *,
        capacity: int,
        dtype: mx.Dtype,
        max_context: int | None = None,
        initial_capacity: int = DEFAULT_INITIAL_CAPACITY,
        bits: int | None = None,
    ) -> None:
        if not caches or capacity < 1 or initial_capacity < 0:
            raise CacheError(
                f"a cache of {len(caches)} layers, {capacity} cells and initially {initial_capacity} was asked for; "
                "expected at least 1 of each, and 0 or more to begin with."
            )
        self.dtype = dtype
        self.table = CellTable(capacity, max_context)
        self._windows = [cache.window for cache in caches]
        self._pools = Pools(caches, [(min(initial_capacity, capacity), capacity)] * len(caches), dtype, bits)
        self._placement: Placement | None = None
        self._access = Access(0, [], [])
        self._masks: dict[int, mx.array] = {}

    @classmethod
    def of(cls, plan: CachePlan) -> Self:
        """The cache that was planned."""
        assert plan.batched
        return cls(
            plan.caches,
            capacity=plan.capacity,
            dtype=BY_CODE[SCALAR_TYPE[plan.storage.dtype]],
            max_context=plan.max_context,
            initial_capacity=plan.initial_capacity,
            bits=plan.storage.bits,
        )

    @property
    def capacity(self) -> int:
        """The most cells that may be in use."""
        return self.table.capacity

    @property
    def nbytes(self) -> int:
        """Bytes of the pools as they are now."""
        return self._pools.nbytes

    def commit_step(self) -> None:
        """The step's tokens belong to their sequences from now on; CacheError if it was declared and wrote none."""
        self._end_step()
        self.table.commit_step()

    def abandon_step(self) -> None:
        """Every sequence is as it was before the step, which is no longer declared."""
        self.table.abandon_step()
        self._end_step()

    def wipe(self) -> None:
        """What tokens left in cells that none has now is zeros: a number that is not finite would reach every text."""
        self.abandon_step()
        self._pools.wipe(self.table.vacated)

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array]:
        """Writes this step's K/V, each [1, KV heads, T, head_dim], into their cells and returns all cells in use.

        Returns K and V [1, KV heads, S, head_dim] in ``dtype``, in the order of cells, and the mask, bool [1, 1, T, S].

        A second write to one cache in one step must repeat the first.

        Raises CacheError when the step is not the one declared, a token does not continue its sequence, K/V have
        another shape than the cache, or are others than this step has written; nothing has been written then.
        """
        self._pools.check(layer_id, keys, values, len(positions))
        placement = self.table.place_step(positions)
        if placement is not self._placement:
            self._end_step()
            self._placement, self._access = placement, _access(placement)
        window = self._windows[layer_id]
        mask = self._masks.get(window)
        if mask is None:
            mask = self._masks[window] = self._mask(placement, window)
        return *self._pools.write_and_read(layer_id, keys, values, self._access), mask

    def _mask(self, placement: Placement, window: int) -> mx.array:
        rows = np.zeros((len(placement.cells), placement.used_end), np.bool_)
        for row, sequence, position in zip(rows, placement.sequences, placement.positions, strict=True):
            row[np.frombuffer(self.table.attended(sequence, position, window), np.intc)] = True
        return mx.array(rows)[None, None]

    def _end_step(self) -> None:
        self._placement = None
        self._masks.clear()
        self._pools.end_step()


def _access(placement: Placement) -> Access:
    runs = placement.runs()
    reads = [run_index((0, placement.used_end))]
    if len(runs) <= MOST_RUNS:
        return Access(placement.used_end, write_runs(runs), reads)
    cells = mx.array(placement.cells, mx.int32)
    return Access(placement.used_end, [((slice(None), slice(None), cells), None)], reads)
