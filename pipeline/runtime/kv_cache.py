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
        self._step: tuple[int, int] | None = None
        self._plans: dict[LayerLayout, StepPlan] = {}
        self._masks: dict[tuple[int, int, int], mx.array] = {}
        self._written_by: dict[int, tuple[mx.array, mx.array]] = {}
        self._layouts = [LayerLayout(window=c.window, capacity=capacity, max_write=max_write) for c in caches]
        self._geometry = tuple(caches)
        self._keys: list[mx.array] = []
        self._values: list[mx.array] = []
        for cache, layout in zip(caches, self._layouts, strict=True):
            slots = layout.max_slots if cache.window else min(initial_capacity, layout.max_slots)
            shape = (1, cache.num_kv_heads, slots, cache.head_dim)
            self._keys.append(mx.zeros(shape, dtype))
            self._values.append(mx.zeros(shape, dtype))

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self.length + num_tokens <= self.capacity

    def clear(self) -> None:
        """Forgets the sequence; the pools keep their size."""
        self.length = 0
        self.abandon_step()

    def commit_step(self) -> None:
        """The step's tokens belong to the sequence from now on."""
        if self._step is not None:
            start, length = self._step
            self.length = start + length
        self.abandon_step()

    def abandon_step(self) -> None:
        """Whatever the step wrote is not part of the sequence; the same positions may be written again."""
        self._step = None
        self._plans.clear()
        self._masks.clear()
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
        expected = (1, self._geometry[layer_id].num_kv_heads, len(positions), self._geometry[layer_id].head_dim)
        for name, array in (("K", keys), ("V", values)):
            if array.shape != expected:
                raise CacheError(f"cache {layer_id}: {name} has shape {array.shape}; expected {expected}.")
        self._enter_step(positions)
        layout = self._layouts[layer_id]
        plan = self._plans.get(layout)
        if plan is None:
            plan = self._plans[layout] = layout.plan(positions[0], len(positions))
        if layer_id in self._written_by:
            self._check_repeat(layer_id, keys, values)
        else:
            self._keys[layer_id] = self._written(self._keys[layer_id], keys, plan, layout)
            self._values[layer_id] = self._written(self._values[layer_id], values, plan, layout)
            self._written_by[layer_id] = keys, values
        return (
            _gathered(self._keys[layer_id], plan.reads),
            _gathered(self._values[layer_id], plan.reads),
            self._mask(plan, layout.window, len(positions)),
        )

    def _enter_step(self, positions: Sequence[int]) -> None:
        if not positions:
            raise CacheError("the step has no tokens; expected at least 1.")
        step = (positions[0], len(positions))
        if any(position != step[0] + offset for offset, position in enumerate(positions)):
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

    def _check_repeat(self, layer_id: int, keys: mx.array, values: mx.array) -> None:
        for first, second in zip(self._written_by[layer_id], (keys, values), strict=True):
            # Looking at numbers would wait for them; a reader of its donor's arrays never makes us look.
            if second is not first and not mx.array_equal(second, first):
                raise CacheError(
                    f"cache {layer_id} is written twice in one step, with different K/V; expected one writer, or "
                    "readers that repeat its K/V."
                )

    def _written(self, pool: mx.array, update: mx.array, plan: StepPlan, layout: LayerLayout) -> mx.array:
        last_slot = max(slot + count for slot, count in plan.writes)
        slots = pool.shape[2]
        if last_slot > slots:
            size = grown(slots, last_slot, layout.max_slots)
            padding = mx.zeros((1, pool.shape[1], size - slots, pool.shape[3]), pool.dtype)
            pool = mx.concatenate([pool, padding], axis=2)
        update = update.astype(self.dtype)
        offset = 0
        for slot, count in plan.writes:
            pool[:, :, slot : slot + count] = update[:, :, offset : offset + count]
            offset += count
        return pool

    def _mask(self, plan: StepPlan, window: int, num_queries: int) -> mx.array | str | None:
        if plan.mask == "none":
            return None
        if plan.mask == "causal":
            return "causal"
        key = (num_queries, plan.num_keys, window)
        if key not in self._masks:
            # Query i has the position of key S - T + i, and reaches window - 1 positions back from there.
            newest = mx.arange(plan.num_keys - num_queries, plan.num_keys)[:, None]
            age = newest - mx.arange(plan.num_keys)[None, :]
            self._masks[key] = ((age >= 0) & (age < window))[None, None]
        return self._masks[key]


def _gathered(pool: mx.array, reads: tuple[Run, ...]) -> mx.array:
    parts = [pool[:, :, slot : slot + count] for slot, count in reads]
    return parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=2)
