"""Where a step's tokens lie: worked examples, and random traces against a model that keeps every position."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import NamedTuple

import pytest

from pipeline.errors import CacheError
from pipeline.runtime.layout import LayerLayout, Run, StepPlan, grown

EMPTY = None


@dataclass
class Pool:
    """A layer's pool that holds positions in place of keys, moved as the plans say."""

    layout: LayerLayout
    slots: list[int | None] = field(default_factory=list)

    def step(self, start: int, length: int) -> tuple[StepPlan, list[int | None]]:
        """The plan of the step, and the positions it delivers, oldest first."""
        plan = self.layout.plan(start, length)
        needed = max(slot + count for slot, count in plan.writes)
        if needed > len(self.slots):
            size = grown(len(self.slots), needed, self.layout.max_slots)
            self.slots += [EMPTY] * (size - len(self.slots))
        position = start
        for slot, count in plan.writes:
            self.slots[slot : slot + count] = range(position, position + count)
            position += count
        assert position == start + length
        assert all(slot + count <= len(self.slots) for slot, count in plan.reads)
        return plan, [held for slot, count in plan.reads for held in self.slots[slot : slot + count]]


class Step(NamedTuple):
    """One row of a worked example."""

    start: int
    length: int
    writes: tuple[Run, ...]
    reads: tuple[Run, ...]
    keys: list[int]
    mask: str
    slots: list[int | None]


def to(last: int, first: int = 0) -> list[int]:
    return list(range(first, last + 1))


EXAMPLES = {
    "a flat pool grows by doubling, clamped to its capacity": (
        LayerLayout(window=0, capacity=10, max_write=10),
        2,
        [
            Step(0, 3, ((0, 3),), ((0, 3),), to(2), "causal", [0, 1, 2, EMPTY]),
            Step(3, 1, ((3, 1),), ((0, 4),), to(3), "none", [0, 1, 2, 3]),
            Step(4, 1, ((4, 1),), ((0, 5),), to(4), "none", [*to(4), EMPTY, EMPTY, EMPTY]),
            Step(5, 4, ((5, 4),), ((0, 9),), to(8), "causal", [*to(8), EMPTY]),
            Step(9, 1, ((9, 1),), ((0, 10),), to(9), "none", to(9)),
        ],
    ),
    "a ring whose step may be as long as its window": (
        LayerLayout(window=4, capacity=64, max_write=4),
        7,
        [
            Step(0, 4, ((0, 4),), ((0, 4),), to(3), "causal", [*to(3), EMPTY, EMPTY, EMPTY]),
            Step(4, 3, ((4, 3),), ((1, 6),), to(6, 1), "window", to(6)),
            Step(7, 1, ((0, 1),), ((4, 3), (0, 1)), to(7, 4), "none", [7, *to(6, 1)]),
            Step(8, 4, ((1, 4),), ((5, 2), (0, 5)), to(11, 5), "window", [7, 8, 9, 10, 11, 5, 6]),
        ],
    ),
    "a ring with a small step splits writes and reads where it wraps": (
        LayerLayout(window=3, capacity=64, max_write=2),
        4,
        [
            Step(0, 2, ((0, 2),), ((0, 2),), to(1), "causal", [0, 1, EMPTY, EMPTY]),
            Step(2, 2, ((2, 2),), ((0, 4),), to(3), "window", [0, 1, 2, 3]),
            Step(4, 2, ((0, 2),), ((2, 2), (0, 2)), to(5, 2), "window", [4, 5, 2, 3]),
            Step(6, 1, ((2, 1),), ((0, 3),), to(6, 4), "none", [4, 5, 6, 3]),
            Step(7, 2, ((3, 1), (0, 1)), ((1, 3), (0, 1)), to(8, 5), "window", [8, 5, 6, 7]),
        ],
    ),
    "a wide ring is plainly causal until its window is full": (
        LayerLayout(window=8, capacity=64, max_write=2),
        9,
        [
            Step(0, 2, ((0, 2),), ((0, 2),), to(1), "causal", [*to(1), *[EMPTY] * 7]),
            Step(2, 2, ((2, 2),), ((0, 4),), to(3), "causal", [*to(3), *[EMPTY] * 5]),
            Step(4, 2, ((4, 2),), ((0, 6),), to(5), "causal", [*to(5), *[EMPTY] * 3]),
            Step(6, 2, ((6, 2),), ((0, 8),), to(7), "causal", [*to(7), EMPTY]),
            Step(8, 2, ((8, 1), (0, 1)), ((1, 8), (0, 1)), to(9, 1), "window", [9, *to(8, 1)]),
        ],
    ),
    "a window of one sees itself alone": (
        LayerLayout(window=1, capacity=64, max_write=3),
        3,
        [
            Step(0, 3, ((0, 3),), ((0, 3),), to(2), "window", to(2)),
            Step(3, 2, ((0, 2),), ((0, 2),), to(4, 3), "window", [3, 4, 2]),
        ],
    ),
    "the flat layer of a mixed cache": (
        LayerLayout(window=0, capacity=16, max_write=4),
        16,
        [
            Step(0, 4, ((0, 4),), ((0, 4),), to(3), "causal", [*to(3), *[EMPTY] * 12]),
            Step(4, 4, ((4, 4),), ((0, 8),), to(7), "causal", [*to(7), *[EMPTY] * 8]),
            Step(8, 1, ((8, 1),), ((0, 9),), to(8), "none", [*to(8), *[EMPTY] * 7]),
            Step(9, 1, ((9, 1),), ((0, 10),), to(9), "none", [*to(9), *[EMPTY] * 6]),
        ],
    ),
    "the ring layer of the same cache": (
        LayerLayout(window=4, capacity=16, max_write=4),
        7,
        [
            Step(0, 4, ((0, 4),), ((0, 4),), to(3), "causal", [*to(3), EMPTY, EMPTY, EMPTY]),
            Step(4, 4, ((4, 3), (0, 1)), ((1, 6), (0, 1)), to(7, 1), "window", [7, *to(6, 1)]),
            Step(8, 1, ((1, 1),), ((5, 2), (0, 2)), to(8, 5), "none", [7, 8, *to(6, 2)]),
            Step(9, 1, ((2, 1),), ((6, 1), (0, 3)), to(9, 6), "none", [7, 8, 9, *to(6, 3)]),
        ],
    ),
}


@pytest.mark.parametrize(("layout", "initial", "steps"), EXAMPLES.values(), ids=EXAMPLES)
def test_a_worked_example_is_planned_as_written(layout: LayerLayout, initial: int, steps: list[Step]) -> None:
    pool = Pool(layout, [EMPTY] * initial)
    for step in steps:
        plan, keys = pool.step(step.start, step.length)
        found = Step(step.start, step.length, plan.writes, plan.reads, keys, plan.mask, list(pool.slots))
        assert found == step
        assert plan.num_keys == len(step.keys)


def test_a_flat_pool_that_starts_empty_doubles_from_one() -> None:
    assert grown(0, 3, 10) == 4


def test_growth_never_passes_the_capacity() -> None:
    assert [grown(4, needed, 10) for needed in (5, 8, 9, 10)] == [8, 8, 10, 10]


@pytest.mark.parametrize(("window", "slots"), [(0, 100), (4, 7), (1, 4), (200, 203)])
def test_a_ring_keeps_its_window_and_a_step_and_a_flat_layer_its_capacity(window: int, slots: int) -> None:
    assert LayerLayout(window=window, capacity=100, max_write=4).max_slots == slots


@pytest.mark.parametrize("window", [0, 3])
def test_a_step_beyond_the_capacity_is_refused(window: int) -> None:
    layout = LayerLayout(window=window, capacity=10, max_write=4)
    assert layout.plan(8, 2).num_keys
    expected = (
        "the step ends at position 11, the cache's capacity is 10. "
        "Shorten the text, or bind a cache of larger capacity."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        layout.plan(9, 2)


def test_a_ring_refuses_a_step_longer_than_it_was_made_for() -> None:
    layout = LayerLayout(window=4, capacity=64, max_write=4)
    expected = "the step has 5 tokens, a ring layer takes at most 4 at a time. Feed the text in smaller chunks."
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        layout.plan(12, 5)


@pytest.mark.parametrize("window", [0, 4])
def test_a_step_without_tokens_is_refused(window: int) -> None:
    with pytest.raises(CacheError, match=r"^the step has 0 tokens; expected at least 1\.$"):
        LayerLayout(window=window, capacity=8, max_write=4).plan(0, 0)


def mask_rows(plan: StepPlan, length: int, window: int) -> list[list[bool]]:
    """Which delivered keys each query attends, by the meaning of the plan's mask, not by positions."""
    last = plan.num_keys - length
    match plan.mask:
        case "none":
            return [[True] * plan.num_keys for _ in range(length)]
        case "causal":
            return [[key <= last + query for key in range(plan.num_keys)] for query in range(length)]
        case "window":
            return [[0 <= last + query - key < window for key in range(plan.num_keys)] for query in range(length)]


def test_random_traces_deliver_what_a_model_that_keeps_every_position_would() -> None:
    """2,000 traces: every slot holds the latest position that maps to it, and each query sees its window exactly."""
    chance = random.Random(20_26)
    for _ in range(2_000):
        capacity, max_write = chance.randint(1, 40), chance.randint(1, 9)
        window = chance.choice((0, 0, chance.randint(1, 12)))
        layout = LayerLayout(window=window, capacity=capacity, max_write=max_write)
        pool = Pool(layout, [EMPTY] * (layout.max_slots if window else min(chance.randint(0, 4), capacity)))
        start = 0
        while start < capacity:
            length = min(chance.randint(1, max_write), capacity - start)
            plan, keys = pool.step(start, length)
            end = start + length
            for query, row in enumerate(mask_rows(plan, length, window)):
                attended = [position for position, seen in zip(keys, row, strict=True) if seen]
                oldest = max(0, start + query - window + 1) if window else 0
                assert attended == to(start + query, oldest), (layout, start, length)
            for slot, held in enumerate(pool.slots):
                written = range(slot, end, layout.max_slots) if window else range(slot, min(slot + 1, end))
                assert held == (written[-1] if written else EMPTY), (layout, start, length)
            start = end
