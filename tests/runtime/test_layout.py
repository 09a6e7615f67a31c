"""Where a step's tokens lie: worked examples, by hand. Random traces are in ``test_traces``."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import pytest

from pipeline.errors import CacheError
from pipeline.runtime.layout import LayerLayout, Run, grown
from tests.runtime.traces import EMPTY, Pool


class Step(NamedTuple):
    """One row of a worked example."""

    start: int
    length: int
    writes: tuple[Run, ...]
    reads: tuple[Run, ...]
    keys: list[int | None]
    mask: str
    slots: list[int | None]


def to(last: int, first: int = 0) -> list[Any]:
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


REFUSED = {
    "a flat pool grows by doubling, clamped to its capacity": (10, 1),
    "a ring whose step may be as long as its window": (12, 5),
    "a ring with a small step splits writes and reads where it wraps": (9, 3),
}
"""What the examples are asked at last."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_worked_example_is_planned_as_written(name: str) -> None:
    """A pool holds positions in place of keys."""
    layout, initial, steps = EXAMPLES[name]
    pool = Pool(layout, [EMPTY] * initial)
    for step in steps:
        plan = layout.plan(step.start, step.length)
        pool.write(plan, to(step.start + step.length - 1, step.start))
        found = Step(step.start, step.length, plan.writes, plan.reads, pool.read(plan), plan.mask, list(pool.slots))
        assert found == step
        assert plan.num_keys == len(step.keys)
    if name in REFUSED:
        with pytest.raises(CacheError):
            layout.plan(*REFUSED[name])


def test_a_flat_pool_that_starts_empty_doubles_from_one() -> None:
    assert grown(0, 3, 10) == 4


def test_growth_never_passes_the_capacity() -> None:
    assert [grown(4, needed, 10) for needed in (5, 8, 9, 10)] == [8, 8, 10, 10]


@pytest.mark.parametrize(("window", "slots"), [(0, 100), (4, 7), (1, 4), (97, 100), (98, 100), (200, 100)])
def test_a_ring_keeps_its_window_and_a_step_and_never_more_than_its_capacity(window: int, slots: int) -> None:
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
