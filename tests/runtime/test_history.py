"""One sequence's steps count once they are committed, and can be taken back as far as every layer still has it."""

from __future__ import annotations

import pytest

from pipeline.errors import CacheError
from pipeline.runtime.history import History
from pipeline.runtime.layout import LayerLayout

FLAT = LayerLayout(window=0, capacity=16, max_write=4)
RING = LayerLayout(window=4, capacity=16, max_write=4)


def fed(history: History, *steps: tuple[int, int]) -> None:
    for start, length in steps:
        history.enter(range(start, start + length))
        history.commit()


def test_a_mixed_cache_is_taken_back_as_far_as_its_ring_has_it() -> None:
    """Worked by hand: the ring has 7 slots, and position 9 is written over 2."""
    history = History([FLAT, RING])
    fed(history, (0, 4), (4, 4), (8, 1), (9, 1))
    assert not history.rewind(11)
    assert history.rewind(10)
    assert not history.rewind(5)
    assert history.length == 10
    assert history.rewind(6)
    flat, ring = history.enter([6])
    assert (flat.writes, flat.reads) == (((6, 1),), ((0, 7),))
    assert (ring.writes, ring.reads, ring.mask) == (((6, 1),), ((3, 4),), "none")
    history.commit()
    # Position 3 would need keys 0, 1 and 2, whose slots still hold 7, 8 and 9, though the sequence is shorter now.
    assert not history.rewind(3)
    assert history.length == 7


def test_a_narrow_step_leaves_no_more_to_take_back_than_itself() -> None:
    history = History([LayerLayout(window=4, capacity=16, max_write=1)])
    fed(history, *((start, 1) for start in range(10)))
    assert not history.rewind(6)
    assert history.rewind(9)


def test_flat_layers_can_be_taken_back_to_any_length() -> None:
    history = History([FLAT])
    fed(history, (0, 4), (4, 4), (8, 2))
    assert not history.rewind(-1)
    assert history.rewind(7)
    assert history.rewind(0)
    assert history.length == 0


def test_everything_can_be_taken_back_and_what_follows_is_a_new_sequence() -> None:
    history = History([RING])
    fed(history, (0, 4), (4, 4), (8, 4), (12, 4))
    assert history.rewind(0)
    fed(history, (0, 4), (4, 1))
    assert history.rewind(1), "what the sequence before it had overwritten does not count"


def test_a_window_of_one_needs_nothing_that_was() -> None:
    history = History([LayerLayout(window=1, capacity=16, max_write=2)])
    fed(history, *((start, 2) for start in range(0, 12, 2)))
    assert all(history.rewind(length) for length in (11, 5, 1))


def test_a_step_that_one_layer_refuses_is_refused_to_all_and_none_is_under_way() -> None:
    history = History([FLAT, RING])
    with pytest.raises(CacheError, match=r"^the step has 5 tokens, a ring layer takes at most 4 at a time\."):
        history.enter(range(5))
    history.commit()
    assert history.length == 0
    history.enter(range(2))
    history.commit()
    assert history.length == 2


def test_an_abandoned_step_is_no_part_of_the_sequence() -> None:
    history = History([FLAT, RING])
    history.enter(range(3))
    history.abandon()
    assert (history.length, history.can_extend(16), history.can_extend(17)) == (0, True, False)
    history.enter(range(2))
    assert history.enter([0, 1]) == history.enter(range(2))
    with pytest.raises(CacheError, match=r"^layers of one step disagree about it: \(0, 1\) after \(0, 2\)"):
        history.enter([0])
