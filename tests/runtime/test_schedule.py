"""Who is part of a step, who waits, and whose cells are shared, whatever order texts come and go in."""

from __future__ import annotations

from random import Random

import pytest

from pipeline.runtime.cells import CellTable
from pipeline.runtime.schedule import PREFILL_BESIDE, Schedule, Span, Text

NEW = 1000
"""The first of the tokens that follow prompts."""


def schedule(
    capacity: int = 100, *, max_step: int = 4, max_rows: int = 4, max_running: int = 8, max_kept: int = 0
) -> Schedule:
    return Schedule(
        table=CellTable(capacity), max_step=max_step, max_rows=max_rows, max_running=max_running, max_kept=max_kept
    )


def text(prompt: list[int], budget: int = 4) -> Text:
    return Text(ids=list(prompt), budget=budget)


def take(asked: Schedule) -> list[Span]:
    """One step, in which every text that can be followed by a new token is, and ends at its budget."""
    spans = asked.next_step()
    if spans:
        sequences = [span.sequence for span in spans for _ in span.ids]
        asked.table.declare_step(sequences)
        asked.table.place_step([span.start + place for span in spans for place in range(len(span.ids))])
        asked.table.commit_step()
        asked.fed(spans)
        for span in spans:
            if span.is_last:
                span.text.ids.append(NEW + len(span.text.ids))
                if len(span.text.ids) == span.text.num_prompt + span.text.budget:
                    asked.end(span.text)
    return spans


def shares(spans: list[Span]) -> dict[int, int]:
    """How many tokens each text has in a step, by its first id."""
    return {span.text.ids[0]: len(span.ids) for span in spans}


def test_prompts_are_fed_in_chunks_beside_the_tokens_of_others() -> None:
    asked = schedule(max_step=6)
    asked.add(text([1, 1, 1], budget=9))
    assert shares(take(asked)) == {1: 3}
    asked.add(text([2] * 12))
    assert [shares(take(asked)) for _ in range(4)] == [{1: 1, 2: 5}, {1: 1, 2: 5}, {1: 1, 2: 2}, {1: 1, 2: 1}]


def test_texts_take_turns_where_a_step_has_no_room_for_all() -> None:
    asked = schedule(max_step=2)
    for first in range(5):
        asked.add(text([first], budget=9))
    taken = [shares(take(asked)) for _ in range(5)]
    assert [sorted(step) for step in taken] == [[0, 1], [2, 3], [0, 4], [1, 2], [3, 4]]


def test_a_long_prompt_beside_others_is_fed_in_short_chunks_and_alone_in_long_ones() -> None:
    asked = schedule(capacity=4000, max_step=512)
    asked.add(text([1] * 600, budget=9))
    assert shares(take(asked)) == {1: 512}
    take(asked)
    asked.add(text([2] * 600))
    assert shares(take(asked)) == {1: 1, 2: 1 + PREFILL_BESIDE}


def test_a_step_has_no_more_new_tokens_than_rows() -> None:
    asked = schedule(max_step=8, max_rows=2)
    for first in range(4):
        asked.add(text([first, first], budget=3))
    while asked.running or asked.num_waiting:
        assert sum(span.is_last for span in take(asked)) in (1, 2)


def test_a_text_waits_until_cells_are_free_for_all_that_it_may_become() -> None:
    asked = schedule(capacity=10)
    first, second, third = text([1] * 4, budget=4), text([2] * 3, budget=2), text([3], budget=1)
    for each in (first, second, third):
        asked.add(each)
    take(asked)
    # 7 of 10 are promised to the first, and the third does not overtake the second.
    assert (asked.running, asked.num_waiting) == ((first,), 2)
    while first in asked.running:
        take(asked)
    take(asked)
    assert second in asked.running


def test_a_text_begins_with_what_it_has_in_common_with_one_that_has_ended() -> None:
    asked = schedule(max_step=8, max_kept=20)
    asked.add(text([5, 6, 7, 1, 2], budget=2))
    while take(asked):
        pass
    free = asked.table.num_free
    follower = text([5, 6, 7, 9, 9, 9])
    asked.add(follower)
    (span,) = asked.next_step()
    assert (follower.num_shared, span.start, span.ids) == (3, 3, [9, 9, 9])
    assert asked.table.num_free == free


def test_the_last_token_of_a_prompt_is_fed_however_much_is_shared() -> None:
    asked = schedule(max_step=8, max_kept=20)
    for _ in range(2):
        asked.add(text([5, 6, 7], budget=1))
        (span,) = take(asked)
    assert (span.start, span.ids, span.is_last) == (2, [7], True)
    assert asked.num_kept == 1


def test_who_begins_like_one_that_is_being_fed_waits_for_it_and_shares_its_cells() -> None:
    asked = schedule(max_step=8)
    prompt = list(range(30))
    twins = [text(prompt), text(prompt)]
    for twin in twins:
        asked.add(twin)
    first = [take(asked) for _ in range(2)]
    assert [[span.text for span in spans] for spans in first] == [[twins[0]], [twins[0]]]
    while twins[1] not in asked.running:
        take(asked)
    assert twins[1].num_shared == len(prompt) - 1


def test_kept_sequences_give_way_to_texts_the_least_useful_first() -> None:
    asked = schedule(capacity=12, max_step=8, max_kept=12)
    for first in (1, 2, 3):
        asked.add(text([first] * 3, budget=1))
        take(asked)
    # The first is of use once more.
    asked.add(text([1, 1, 1, 7], budget=1))
    take(asked)
    asked.add(text([9] * 6, budget=1))
    take(asked)
    asked.add(text([1, 1, 1, 7, 8], budget=1))
    (span,) = asked.next_step()
    assert span.start == 4


def test_the_last_texts_are_kept_and_no_more_tokens_than_may_be() -> None:
    asked = schedule(max_step=8, max_kept=7)
    for first in (1, 2, 3):
        asked.add(text([first] * 3, budget=1))
        take(asked)
    assert (asked.num_kept, asked.table.num_free) == (2, 94)
    asked.add(text([2, 2, 2, 2], budget=1))
    (span,) = take(asked)
    assert span.start == 3


def test_what_keeps_queries_looking_at_free_cells_is_not_kept() -> None:
    asked = schedule(capacity=4000, max_step=512, max_kept=100)
    long, short = text([1] * 600, budget=9), text([2] * 3, budget=1)
    asked.add(long)
    asked.add(short)
    while asked.running != (long,) or len(long.ids) == 600:
        take(asked)
    assert (asked.num_kept, asked.table.used_end > 512) == (1, True)
    # The short one's cells are at the end; were they kept, every query would look at all before them.
    asked.end(long, keep=False)
    assert (asked.num_kept, asked.table.used_end) == (0, 0)


def test_texts_that_a_step_failed_with_are_taken_alone_before_there_is_a_common_one_again() -> None:
    asked = schedule(max_step=4)
    texts = [text([first] * 6) for first in (1, 2)]
    for each in texts:
        asked.add(each)
    failed = asked.next_step()
    asked.try_alone(span.text for span in failed)
    assert [shares(take(asked)) for _ in range(4)] == [{1: 4}, {1: 2}, {2: 4}, {2: 2}]
    assert not asked.tries_alone
    assert shares(take(asked)) == {1: 1, 2: 1}


def test_beginning_anew_feeds_everyone_whole_and_keeps_nothing() -> None:
    asked = schedule(max_step=8, max_kept=20)
    asked.add(text([9, 9], budget=1))
    take(asked)
    asked.add(text([1, 1, 1], budget=5))
    take(asked)
    take(asked)
    asked.begin_anew()
    assert (asked.num_kept, asked.table.num_free) == (0, asked.table.capacity)
    (span,) = take(asked)
    assert (span.start, len(span.ids), span.is_last) == (0, 5, True)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_comes_and_goes_every_text_is_fed_once_in_order_and_ends(seed: int) -> None:
    draw = Random(seed)
    capacity = draw.randrange(12, 80)
    asked = schedule(
        capacity,
        max_step=draw.randrange(1, 12),
        max_rows=draw.randrange(1, 6),
        max_running=draw.randrange(1, 6),
        max_kept=draw.randrange(40),
    )
    stems = [[draw.randrange(9) for _ in range(10)] for _ in range(3)]
    texts: list[Text] = []
    cancelled: set[Text] = set()
    ever_in: list[Text] = []
    for _ in range(2000):
        if len(texts) < 12 and draw.random() < 0.3:
            prompt = [*draw.choice(stems)[: draw.randrange(11)], draw.randrange(9)]
            texts.append(text(prompt, budget=draw.randrange(1, capacity - len(prompt) + 2)))
            asked.add(texts[-1])
        if texts and draw.random() < 0.05:
            gone = draw.choice(texts)
            cancelled.add(gone)
            asked.end(gone, keep=draw.random() < 0.5)
        spans = take(asked)
        assert sum(len(span.ids) for span in spans) <= asked.max_step
        assert sum(span.is_last for span in spans) <= asked.max_rows
        assert len(asked.running) <= asked.max_running
        assert len({span.text for span in spans}) == len(spans)
        ever_in += sorted((each for each in asked.running if each not in ever_in), key=texts.index)
        if len(texts) == 12 and not spans:
            break
    assert not asked.running
    assert not asked.num_waiting
    # Nobody overtook anybody.
    assert ever_in == [each for each in texts if each in ever_in]
    for each in texts:
        assert each in cancelled or len(each.ids) == each.num_prompt + each.budget
    while asked.num_kept:
        asked.begin_anew()
    assert asked.table.num_free == capacity
