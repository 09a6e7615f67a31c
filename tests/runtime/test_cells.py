"""Which cell holds which token: the worked example by hand, and every refusal. Random traces are in ``test_traces``."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from pipeline.errors import CacheError
from pipeline.runtime.cells import MAX_SEQUENCES, CellTable, Placement


def step(table: CellTable, sequences: list[int], positions: list[int]) -> Placement:
    table.declare_step(sequences)
    return table.place_step(positions)


def rows(table: CellTable, placement: Placement, window: int) -> list[str]:
    """Of each token, which cells it attends."""
    found = []
    for sequence, position in zip(placement.sequences, placement.positions, strict=True):
        attended = table.attended(sequence, position, window)
        found.append("".join("01"[cell in attended] for cell in range(placement.used_end)))
    return found


def test_the_worked_example_is_placed_and_masked_as_written() -> None:
    table = CellTable(6)
    a, b = table.seq_new(), table.seq_new()
    assert (a, b) == (0, 1)
    placement = step(table, [a, a, b], [0, 1, 0])
    assert (placement.cells, placement.used_end) == ((0, 1, 2), 3)
    assert rows(table, placement, 0) == ["100", "110", "001"]
    table.commit_step()
    placement = step(table, [b, a], [1, 2])
    assert (placement.cells, placement.used_end) == ((3, 4), 5)
    assert rows(table, placement, 0) == ["00110", "11001"]
    assert rows(table, placement, 2) == ["00110", "01001"]
    table.commit_step()
    c = table.seq_clone(a, 2)
    assert (c, table.pos(c), table.num_free, table.can_extend(1), table.can_extend(2)) == (2, 2, 1, True, False)
    placement = step(table, [c], [2])
    assert (placement.cells, placement.used_end) == ((5,), 6)
    assert rows(table, placement, 0) == ["110001"]
    table.commit_step()
    with pytest.raises(CacheError, match=r"^the step has 1 tokens, and 0 of 6 cells are free\."):
        table.declare_step([b])
    table.seq_rm(a)
    assert (table.num_free, table.used_end) == (1, 6)
    assert step(table, [b], [2]).cells == (4,)


def test_numbers_and_cells_of_a_removed_sequence_are_used_again_lowest_first() -> None:
    table = CellTable(8)
    a, b = table.seq_new(), table.seq_new()
    step(table, [a, b, a, b, a], [0, 0, 1, 1, 2])
    table.commit_step()
    table.seq_rm(a)
    assert (table.used_end, table.num_free) == (4, 6)
    assert table.seq_new() == a
    assert step(table, [a] * 4, [0, 1, 2, 3]).cells == (0, 2, 4, 5)


def test_a_rewound_sequence_leaves_its_clones_what_they_share() -> None:
    table = CellTable(8)
    a = table.seq_new()
    step(table, [a] * 4, [0, 1, 2, 3])
    table.commit_step()
    b = table.seq_clone(a, 3)
    assert table.rewind(a, 1)
    assert (table.pos(a), table.pos(b), table.num_free, table.used_end) == (1, 3, 5, 3)
    assert not table.rewind(a, 2)
    assert not table.rewind(a, -1)
    placement = step(table, [a, b], [1, 3])
    assert placement.cells == (3, 4)
    assert rows(table, placement, 0) == ["10010", "11101"]


def test_a_step_counts_once_it_is_committed() -> None:
    table = CellTable(4)
    a = table.seq_new()
    step(table, [a, a], [0, 1])
    assert (table.pos(a), table.num_free) == (0, 2)
    table.abandon_step()
    assert (table.pos(a), table.num_free, table.used_end) == (0, 4, 0)
    assert step(table, [a], [0]).cells == (0,)
    table.commit_step()
    assert table.pos(a) == 1


CHANGES: dict[str, tuple[Callable[[CellTable], object], dict[int, int]]] = {
    "removed": (lambda table: table.seq_rm(1), {0: 2}),
    "cloned": (lambda table: table.seq_clone(0), {0: 2, 1: 0, 2: 2}),
    "rewound": (lambda table: table.rewind(0, 1), {0: 1, 1: 0}),
    "cleared": (lambda table: table.clear(), {}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_a_sequence_abandons_a_step_under_way(change: str) -> None:
    operation, left = CHANGES[change]
    table = CellTable(8)
    table.seq_new(), table.seq_new()
    step(table, [0, 0], [0, 1])
    table.commit_step()
    step(table, [0, 1], [2, 0])
    operation(table)
    table.commit_step()
    assert {sequence: table.pos(sequence) for sequence in table.sequences} == left
    assert table.num_free == 8 - left.get(0, 0)
    with pytest.raises(CacheError, match="0 were declared"):
        table.place_step([2, 0])


def test_a_step_that_was_declared_and_not_written_is_not_committed_in_silence() -> None:
    table = CellTable(4)
    table.seq_new()
    table.declare_step([0, 0])
    expected = (
        "a step of 2 tokens was declared, and none was written: the method keeps its history itself, that of one "
        "sequence. Run it without this cache."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        table.commit_step()
    table.commit_step()
    assert table.pos(0) == 0


def test_a_new_sequence_lets_a_declared_step_be() -> None:
    table = CellTable(4)
    table.seq_new()
    table.declare_step([0])
    table.seq_new()
    assert table.place_step([0]).cells == (0,)


def two_sequences() -> CellTable:
    """Of 3 tokens and of none, in 6 cells, each of at most 4."""
    table = CellTable(6, max_context=4)
    table.seq_new(), table.seq_new()
    step(table, [0, 0, 0], [0, 1, 2])
    table.commit_step()
    return table


def declared(sequences: list[int], positions: list[int]) -> Callable[[CellTable], object]:
    return lambda table: step(table, sequences, positions)


def disagreeing(table: CellTable) -> None:
    step(table, [0, 1], [3, 0])
    table.place_step([3, 1])


REFUSED: dict[str, tuple[Callable[[CellTable], object], str]] = {
    "no tokens": (declared([], []), "the step has no tokens; expected at least 1."),
    "a sequence that there is not": (
        declared([0, 7], [3, 0]),
        "there is no sequence 7 in the cache; there are: 0, 1.",
    ),
    "more tokens than cells": (
        declared([1] * 4, [0, 1, 2, 3]),
        "the step has 4 tokens, and 3 of 6 cells are free. Wait until a sequence is done, remove one, or bind a cache "
        "of larger capacity.",
    ),
    "more tokens than the context": (
        declared([0, 1, 0], [3, 0, 4]),
        "the step ends at position 5 of sequence 0, the context is 4. Shorten the text, or export with a larger "
        "max_context_len.",
    ),
    "a position beyond the next": (
        declared([1, 0], [0, 4]),
        "token 1 of the step has position 4 of sequence 0; expected 3, where the sequence continues.",
    ),
    "a position twice": (
        declared([1, 1], [0, 0]),
        "token 1 of the step has position 0 of sequence 1; expected 1, where the sequence continues.",
    ),
    "another number of tokens than declared": (
        declared([0], [3, 4]),
        "the step has 2 tokens, and 1 were declared. Declare with declare_step which sequence each token belongs to, "
        "before each step.",
    ),
    "a step that is not declared": (
        lambda table: table.place_step([3]),
        "the step has 1 tokens, and 0 were declared. Declare with declare_step which sequence each token belongs to, "
        "before each step.",
    ),
    "layers that disagree": (
        disagreeing,
        "layers of one step disagree about its positions: [3, 1] after [3, 0].",
    ),
    "removing what there is not": (
        lambda table: table.seq_rm(2),
        "there is no sequence 2 in the cache; there are: 0, 1.",
    ),
    "a clone of more than there is": (
        lambda table: table.seq_clone(0, 4),
        "sequence 0 is to be cloned up to token 4 and has 3; expected 0 to 3.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_says_why_and_changes_nothing(case: str) -> None:
    operation, message = REFUSED[case]
    table = two_sequences()
    with pytest.raises(CacheError, match=f"^{re.escape(message)}$"):
        operation(table)
    table.abandon_step()
    assert (table.sequences, table.pos(0), table.pos(1), table.num_free, table.used_end) == ((0, 1), 3, 0, 3, 3)
    assert step(table, [1, 0], [0, 3]).cells == (3, 4)


def test_there_are_only_so_many_sequences() -> None:
    table = CellTable(2)
    assert [table.seq_new() for _ in range(MAX_SEQUENCES)] == list(range(64))
    for operation in (table.seq_new, lambda: table.seq_clone(3)):
        with pytest.raises(CacheError, match=r"^the cache has 64 sequences, and cannot have more\. Remove one\.$"):
            operation()
    table.seq_rm(5)
    assert table.seq_clone(3) == 5


def test_an_empty_table_has_no_sequence_to_name() -> None:
    with pytest.raises(CacheError, match=r"^there is no sequence 0 in the cache; there are: none\.$"):
        CellTable(2).pos(0)
