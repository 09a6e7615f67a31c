"""The off-graph KV cache of one sequence, in MLX arrays.

Holds what ``kvcache::update_and_attend`` appends and hands back the history with the mask to attend it. Steps are
planned in ``history``, and stored in ``pools``. A step counts only once it is committed: a step that fails half-way
leaves the sequence as it was, since a ring's write never touches a cell that the next query still needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

import mlx.core as mx

from pipeline.contract import SCALAR_TYPE, CacheGeometry
from pipeline.delegate.dtypes import BY_CODE
from pipeline.errors import CacheError
from pipeline.runtime.history import History
from pipeline.runtime.layout import LayerLayout, StepPlan
from pipeline.runtime.policy import DEFAULT_INITIAL_CAPACITY, CachePlan
from pipeline.runtime.pools import Access, Pools, run_index, write_runs


class KVCache:
    """K and V of one sequence, one pool pair [1, KV heads, slots, head_dim] for each cache id; a ``BoundCache``.

    ``capacity`` bounds positions and ``max_write`` the tokens of one step. K/V are stored in ``dtype``, or in ``bits``
    (8 or 4) with scales of that dtype. Flat pools start at ``initial_capacity`` slots and double up to the capacity;
    ring pools are allocated whole.
    """

    def __init__(
        self,
        caches: Sequence[CacheGeometry],
        *,
        capacity: int,
        max_write: int,
        dtype: mx.Dtype,
        initial_capacity: int = DEFAULT_INITIAL_CAPACITY,
        bits: int | None = None,
    ) -> None:
        if not caches or capacity < 1 or max_write < 1 or initial_capacity < 0:
            raise CacheError(
                f"a cache of {len(caches)} layers, capacity {capacity}, max_write {max_write} and initial capacity "
                f"{initial_capacity} was asked for; expected at least 1 of each, and 0 or more to begin with."
            )
        self.dtype = dtype
        layouts = [LayerLayout(window=c.window, capacity=capacity, max_write=max_write) for c in caches]
        slots = [
            (layout.max_slots if layout.window else min(initial_capacity, layout.max_slots), layout.max_slots)
            for layout in layouts
        ]
        distinct = list(dict.fromkeys(layouts))
        self._windows = [layout.window for layout in distinct]
        self._kinds = [distinct.index(layout) for layout in layouts]
        self._history = History(distinct)
        self._pools = Pools(caches, slots, dtype, bits)
        self._positions: Sequence[int] | None = None
        self._steps: list[_Step] = []

    @classmethod
    def of(cls, plan: CachePlan) -> Self:
        """The cache that was planned."""
        assert not plan.batched
        return cls(
            plan.caches,
            capacity=plan.capacity,
            max_write=plan.max_write,
            dtype=BY_CODE[SCALAR_TYPE[plan.storage.dtype]],
            initial_capacity=plan.initial_capacity,
            bits=plan.storage.bits,
        )

    @property
    def capacity(self) -> int:
        """The most tokens that the sequence may have."""
        return self._history.capacity

    @property
    def length(self) -> int:
        """The number of tokens in the sequence."""
        return self._history.length

    @property
    def nbytes(self) -> int:
        """Bytes of the pools as they are now."""
        return self._pools.nbytes

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self._history.can_extend(num_tokens)

    def clear(self) -> None:
        """Forgets the sequence; the pools keep their size."""
        self._history.clear()
        self._end_step()

    def rewind(self, length: int) -> bool:
        """Forgets all but the first ``length`` tokens. False, and nothing is changed, if they are no longer all there.

        A flat layer keeps every token. A ring has lost cells once it has been written round: what was written last, up
        to ``max_write`` tokens, can be taken back, and so can everything.
        """
        if not self._history.rewind(length):
            return False
        self._end_step()
        return True

    def commit_step(self) -> None:
        """The step's tokens belong to the sequence from now on."""
        self._history.commit()
        self._end_step()

    def abandon_step(self) -> None:
        """Whatever the step wrote is not part of the sequence; the same positions may be written again."""
        self._history.abandon()
        self._end_step()

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]:
        """Appends this step's K/V, each [1, KV heads, T, head_dim], to one cache and returns its history.

        Returns K and V [1, KV heads, S, head_dim] in ``dtype``, oldest position first, and the mask that
        ``mx.fast.scaled_dot_product_attention`` takes: None, "causal" or bool [1, 1, T, S].

        A second write to one cache in one step must repeat the first.

        Raises CacheError when the step does not continue the sequence, does not fit, has another shape than the cache,
        or writes other K/V than it has; nothing of this layer has been written then.
        """
        self._pools.check(layer_id, keys, values, len(positions))
        if positions is not self._positions:
            plans = self._history.enter(positions)
            if not self._steps:
                self._steps = [_step(plan, window) for plan, window in zip(plans, self._windows, strict=True)]
            self._positions = positions
        access, mask = self._steps[self._kinds[layer_id]]
        return *self._pools.write_and_read(layer_id, keys, values, access), mask

    def _end_step(self) -> None:
        self._positions = None
        self._steps = []
        self._pools.end_step()


class _Step(NamedTuple):
    """A step as every layer of a layout uses it."""

    access: Access
    mask: mx.array | str | None


_NAMED_MASKS = {"none": None, "causal": "causal"}


def _step(plan: StepPlan, window: int) -> _Step:
    slots = max(slot + count for slot, count in plan.writes)
    access = Access(slots, write_runs(plan.writes), [run_index(run) for run in plan.reads])
    length = sum(count for _, count in plan.writes)
    return _Step(access, _banded(plan.num_keys, length, window) if plan.mask == "window" else _NAMED_MASKS[plan.mask])


def _banded(num_keys: int, num_queries: int, window: int) -> mx.array:
    # Query i has the position of key S - T + i, and reaches window - 1 positions back from there.
    newest = mx.arange(num_keys - num_queries, num_keys)[:, None]
    age = newest - mx.arange(num_keys)[None, :]
    return ((age >= 0) & (age < window))[None, None]
