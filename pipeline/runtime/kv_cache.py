"""The off-graph KV cache of one sequence, in MLX arrays.

Holds what ``kvcache::update_and_attend`` appends and hands back the history with the mask to attend it. Layout is
planned in ``layout``; here are the pools. A step counts only once it is committed: a step that fails half-way leaves
the sequence as it was, since a ring's write never touches a cell that the next query still needs.

Layers that share K/V share a cache: the first one writes, the others repeat its write with queries of their own. A
repeat is told by its arrays, which are the very same; nothing is written then.
"""

from __future__ import annotations

from collections.abc import Sequence

import mlx.core as mx

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError
from pipeline.runtime.layout import LayerLayout, Run, StepPlan, grown

DEFAULT_INITIAL_CAPACITY = 512


class KVCache:
    """K and V of one sequence, one pool pair [1, KV heads, slots, head_dim] for each cache id.

    ``capacity`` bounds positions and ``max_write`` the tokens of one step; ``dtype`` is how K/V are stored. Flat pools
    start at ``initial_capacity`` slots and double up to the capacity; ring pools are allocated whole.
    """

    def __init__(
        self,
        caches: Sequence[CacheGeometry],
        *,
        capacity: int,
        max_write: int,
        dtype: mx.Dtype,
        initial_capacity: int = DEFAULT_INITIAL_CAPACITY,
    ) -> None:
        if not caches or capacity < 1 or max_write < 1 or initial_capacity < 0:
            raise CacheError(
                f"a cache of {len(caches)} layers, capacity {capacity}, max_write {max_write} and initial capacity "
                f"{initial_capacity} was asked for; expected at least 1 of each, and 0 or more to begin with."
            )
        self.capacity = capacity
        self.dtype = dtype
        self.length = 0
        self._highest = 0
        self._step: tuple[int, int] | None = None
        self._positions: Sequence[int] | None = None
        self._plans: dict[LayerLayout, _IndexedPlan] = {}
        self._written_by: dict[int, tuple[mx.array, mx.array]] = {}
        self._layouts = [LayerLayout(window=c.window, capacity=capacity, max_write=max_write) for c in caches]
        self._sizes = [(cache.num_kv_heads, cache.head_dim) for cache in caches]
        self._max_write = max_write
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        for cache, layout in zip(caches, self._layouts, strict=True):
            slots = layout.max_slots if cache.window else min(initial_capacity, layout.max_slots)
            shape = (1, cache.num_kv_heads, slots, cache.head_dim)
            self._keys.append(mx.zeros(shape, dtype))
            self._values.append(mx.zeros(shape, dtype))
        # What is only recorded can be computed by no other thread than this one.
        mx.eval(self._keys, self._values)

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self.length + num_tokens <= self.capacity

    def clear(self) -> None:
        """Forgets the sequence; the pools keep their size."""
        self.length = self._highest = 0
        self.abandon_step()

    def rewind(self, length: int) -> bool:
        """Forgets all but the first ``length`` tokens. False, and nothing is changed, if they are no longer all there.

        A flat layer keeps every token. A ring has lost cells once it has been written round: what was written last, up
        to ``max_write`` tokens, can be taken back.
        """
        wrapped = any(layout.window and self._highest > layout.max_slots for layout in self._layouts)
        if not 0 <= length <= self.length or (wrapped and length < self._highest - self._max_write):
            return False
        self.length = length
        self.abandon_step()
        return True

    def commit_step(self) -> None:
        """The step's tokens belong to the sequence from now on."""
        if self._step is not None:
            start, length = self._step
            self.length = start + length
        self.abandon_step()

    def abandon_step(self) -> None:
        """Whatever the step wrote is not part of the sequence; the same positions may be written again."""
        self._step = self._positions = None
        self._plans.clear()
        self._written_by.clear()

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]:
        """Appends this step's K/V, each [1, KV heads, T, head_dim], to one cache and returns its history.

        Returns K and V [1, KV heads, S, head_dim] in the storage dtype, oldest position first, and the mask that
        ``mx.fast.scaled_dot_product_attention`` takes: None, "causal" or bool [1, 1, T, S].

        A second write to one cache in one step must repeat the first.

        Raises CacheError when the step does not continue the sequence, does not fit, has another shape than the cache,
        or writes other K/V than it has; nothing of this layer has been written then.
        """
        if not 0 <= layer_id < len(self._layouts):
            raise CacheError(f"layer_id {layer_id} has no cache; expected 0 to {len(self._layouts) - 1}.")
        heads, head_dim = self._sizes[layer_id]
        expected = (1, heads, len(positions), head_dim)
        for name, array in (("K", keys), ("V", values)):
            if array.shape != expected:
                raise CacheError(f"cache {layer_id}: {name} has shape {array.shape}; expected {expected}.")
        if positions is not self._positions:
            self._enter_step(positions)
        layout = self._layouts[layer_id]
        plan = self._plans.get(layout)
        if plan is None:
            plan = self._plans[layout] = _IndexedPlan(layout.plan(positions[0], len(positions)), layout.window)
        if layer_id in self._written_by:
            self._check_repeat(layer_id, keys, values)
        else:
            self._keys[layer_id] = self._written(self._keys[layer_id], keys, plan, layout)
            self._values[layer_id] = self._written(self._values[layer_id], values, plan, layout)
            self._written_by[layer_id] = keys, values
        return _gathered(self._keys[layer_id], plan), _gathered(self._values[layer_id], plan), plan.mask

    def _enter_step(self, positions: Sequence[int]) -> None:
        if not positions:
            raise CacheError("the step has no tokens; expected at least 1.")
        step = (positions[0], len(positions))
        if list(positions) != list(range(step[0], step[0] + step[1])):
            raise CacheError(
                f"the step's positions {list(positions)[:8]} are not contiguous; one sequence needs a run."
            )
        if self._step is None:
            if step[0] != self.length:
                raise CacheError(
                    f"the step starts at position {step[0]}, the sequence has {self.length} tokens; expected it to "
                    "continue there."
                )
            self._step = step
        elif step != self._step:
            raise CacheError(f"layers of one step disagree about it: {step} after {self._step} (start, tokens).")
        self._positions = positions

    def _check_repeat(self, layer_id: int, keys: mx.array, values: mx.array) -> None:
        for first, second in zip(self._written_by[layer_id], (keys, values), strict=True):
            # Looking at numbers would wait for them; a reader of its donor's arrays never makes us look.
            if second is not first and not mx.array_equal(second, first):
                raise CacheError(
                    f"cache {layer_id} is written twice in one step, with different K/V; expected one writer, or "
                    "readers that repeat its K/V."
                )

    def _written(self, pool: mx.array, update: mx.array, plan: _IndexedPlan, layout: LayerLayout) -> mx.array:
        slots = pool.shape[2]
        if plan.slots > slots:
            size = grown(slots, plan.slots, layout.max_slots)
            padding = mx.zeros((1, pool.shape[1], size - slots, pool.shape[3]), pool.dtype)
            pool = mx.concatenate([pool, padding], axis=2)
        self._highest = max(self._highest, plan.end)
        if update.dtype != self.dtype:
            update = update.astype(self.dtype)
        if len(plan.writes) == 1:
            pool[plan.writes[0][0]] = update
            return pool
        for cells, part in plan.writes:
            pool[cells] = update[part]
        return pool


class _IndexedPlan:
    """A step's plan as every layer of a layout uses it: indices into pools, and the mask."""

    def __init__(self, plan: StepPlan, window: int) -> None:
        self.slots = max(slot + count for slot, count in plan.writes)
        self.reads = [_cells(run) for run in plan.reads]
        self.writes = []
        length = 0
        for run in plan.writes:
            self.writes.append((_cells(run), _cells((length, run[1]))))
            length += run[1]
        self.end = plan.end
        self.mask = _banded(plan.num_keys, length, window) if plan.mask == "window" else _NAMED_MASKS[plan.mask]


_NAMED_MASKS = {"none": None, "causal": "causal"}


def _banded(num_keys: int, num_queries: int, window: int) -> mx.array:
    # Query i has the position of key S - T + i, and reaches window - 1 positions back from there.
    newest = mx.arange(num_keys - num_queries, num_keys)[:, None]
    age = newest - mx.arange(num_keys)[None, :]
    return ((age >= 0) & (age < window))[None, None]


def _cells(run: Run) -> tuple[slice, slice, slice]:
    slot, count = run
    return slice(None), slice(None), slice(slot, slot + count)


def _gathered(pool: mx.array, plan: _IndexedPlan) -> mx.array:
    if len(plan.reads) == 1:
        return pool[plan.reads[0]]
    return mx.concatenate([pool[cells] for cells in plan.reads], axis=2)
