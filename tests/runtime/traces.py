"""Random traces of what a cache is asked, planned by ours and by models that keep everything.

``python -m tests.runtime.traces --traces 100000`` runs that many for one sequence and as many for the cells of several.
No array is made: a pool is a list of tokens, moved as the plans say. Every token is a number of its own, so that what
is stale, foreign or out of order shows. A trace is made from its number alone, and a divergence names it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from random import Random

from pipeline.errors import CacheError
from pipeline.runtime.cells import MAX_SEQUENCES, CellTable
from pipeline.runtime.history import History
from pipeline.runtime.layout import LayerLayout, StepPlan, grown

EMPTY = None

OPERATIONS = 24


@dataclass
class Pool:
    """A layer's pool that holds tokens in place of keys."""

    layout: LayerLayout
    slots: list[int | None] = field(default_factory=list)

    def write(self, plan: StepPlan, tokens: list[int]) -> None:
        needed = max(slot + num_slots for slot, num_slots in plan.writes)
        if needed > len(self.slots):
            size = grown(len(self.slots), needed, self.layout.max_slots)
            self.slots += [EMPTY] * (size - len(self.slots))
        start = 0
        for slot, num_slots in plan.writes:
            self.slots[slot : slot + num_slots] = tokens[start : start + num_slots]
            start += num_slots
        assert start == len(tokens)

    def read(self, plan: StepPlan) -> list[int | None]:
        return [token for slot, num_slots in plan.reads for token in self.slots[slot : slot + num_slots]]

    def still_has(self, text: list[int]) -> bool:
        """Whether the keys that a query after the text attends are there, as they were written."""
        layout = self.layout
        oldest = max(0, len(text) - layout.window + 1) if layout.window else 0
        return all(self.slots[place % layout.max_slots] == text[place] for place in range(oldest, len(text)))


@cache
def rows(mask: str, num_keys: int, length: int, window: int) -> list[list[int]]:
    """The delivered keys that each query attends, by the meaning of a plan's mask."""
    last = num_keys - length
    match mask:
        case "none":
            return [list(range(num_keys)) for _ in range(length)]
        case "causal":
            return [list(range(last + query + 1)) for query in range(length)]
        case "window":
            return [[key for key in range(num_keys) if 0 <= last + query - key < window] for query in range(length)]
    raise AssertionError(mask)


def sequence_trace(number: int) -> None:
    """One sequence over layers of any windows: steps, refused, abandoned and committed, rewinds and clears."""
    chance = Random(number)
    capacity, max_write = chance.randint(1, 40), chance.randint(1, 9)
    windows = {chance.choice((0, chance.randint(1, 12))) for _ in range(chance.randint(1, 3))}
    layouts = [LayerLayout(window=window, capacity=capacity, max_write=max_write) for window in windows]
    pools = [
        Pool(layout, [EMPTY] * (layout.max_slots if layout.window else min(chance.randint(0, 4), capacity)))
        for layout in layouts
    ]
    history, text, fresh = History(layouts), list[int](), count()
    for _ in range(OPERATIONS):
        assert history.length == len(text)
        assert all(history.can_extend(more) == (len(text) + more <= capacity) for more in (0, 1, max_write))
        operation = chance.random()
        if operation < 0.05:
            history.clear()
            text = []
        elif operation < 0.25:
            length = chance.randint(-1, len(text) + 1)
            kept = 0 <= length <= len(text) and all(pool.still_has(text[:length]) for pool in pools)
            assert history.rewind(length) == kept, f"rewind to {length} of {len(text)}, {layouts}"
            text = text[:length] if kept else text
        else:
            start, length = len(text), chance.randint(0 if operation < 0.3 else 1, max_write + (operation < 0.35))
            start += chance.choice((-1, 1, 3)) if operation < 0.3 else 0
            fits = start == len(text) and length > 0 and start + length <= capacity
            fits = fits and (length <= max_write or windows == {0})
            try:
                plans = history.enter(range(start, start + length))
            except CacheError:
                assert not fits, f"refused {start}, {length} after {len(text)}, {layouts}"
                continue
            assert fits, f"accepted {start}, {length} after {len(text)}, {layouts}"
            tokens = [next(fresh) for _ in range(length)]
            for pool, plan in zip(pools, plans, strict=True):
                pool.write(plan, tokens)
                delivered = pool.read(plan)
                window = pool.layout.window
                for query, row in enumerate(rows(plan.mask, plan.num_keys, length, window)):
                    oldest = max(0, start + query - window + 1) if window else 0
                    attended = [delivered[key] for key in row]
                    assert attended == (text + tokens)[oldest : start + query + 1], f"{start}, {length}, {layouts}"
            if chance.random() < 0.2:
                history.abandon()
            else:
                history.commit()
                text = text + tokens


@dataclass
class Cell:
    """As the specification has it: a position and the sequences that own it. ``token`` stands for what it holds."""

    position: int
    owners: set[int]
    token: int


@dataclass
class NaiveTable:
    """Cells in a list, looked through from its start for everything; every sequence's text beside it."""

    capacity: int
    cells: dict[int, Cell] = field(default_factory=dict)
    texts: dict[int, list[int]] = field(default_factory=dict)

    def free(self) -> list[int]:
        return [cell for cell in range(self.capacity) if cell not in self.cells]

    def used_end(self) -> int:
        return max(self.cells, default=-1) + 1

    def place(self, sequences: list[int], tokens: list[int]) -> list[int]:
        places = self.free()[: len(sequences)]
        for place, sequence, token in zip(places, sequences, tokens, strict=True):
            self.cells[place] = Cell(len(self.texts[sequence]), {sequence}, token)
            self.texts[sequence].append(token)
        return places

    def row(self, sequence: int, position: int, window: int) -> list[bool]:
        def seen(cell: Cell | None) -> bool:
            if cell is None or sequence not in cell.owners or cell.position > position:
                return False
            return not window or cell.position >= position - window + 1

        return [seen(self.cells.get(place)) for place in range(self.used_end())]

    def new(self) -> int:
        sequence = min(set(range(MAX_SEQUENCES)) - self.texts.keys())
        self.texts[sequence] = []
        return sequence

    def drop(self, sequence: int, length: int) -> None:
        """The sequence does not own cells from position ``length`` on."""
        self.texts[sequence] = self.texts[sequence][:length]
        for place, cell in list(self.cells.items()):
            if cell.position >= length:
                cell.owners.discard(sequence)
            if not cell.owners:
                del self.cells[place]

    def clone(self, sequence: int, length: int, clone: int) -> None:
        self.texts[clone] = self.texts[sequence][:length]
        for cell in self.cells.values():
            if sequence in cell.owners and cell.position < length:
                cell.owners.add(clone)


def cells_trace(number: int) -> None:
    """Several sequences over one table: made, cloned, rewound and removed, with steps of any of them together."""
    chance = Random(number)
    capacity, window = chance.randint(1, 24), chance.choice((0, chance.randint(1, 6)))
    max_context = chance.choice((None, chance.randint(1, 12)))
    table, naive, fresh = CellTable(capacity, max_context), NaiveTable(capacity), count()
    for _ in range(OPERATIONS):
        assert table.sequences == tuple(sorted(naive.texts))
        assert [table.pos(each) for each in table.sequences] == [len(naive.texts[each]) for each in table.sequences]
        assert (table.num_free, table.used_end) == (len(naive.free()), naive.used_end())
        operation, there_are = chance.random(), list(table.sequences)
        sequence = chance.choice(there_are) if there_are and operation < 0.97 else chance.randint(0, 5)
        alive, length = sequence in naive.texts, len(naive.texts.get(sequence, ()))
        if not there_are or operation < 0.1:
            assert table.seq_new() == naive.new()
        elif operation < 0.15:
            removed = asked(table.seq_rm, sequence)
            assert (removed is REFUSED) != alive
            if alive:
                naive.drop(sequence, 0)
                del naive.texts[sequence]
        elif operation < 0.25:
            upto = chance.randint(-1, length + 1)
            made = asked(table.seq_clone, sequence, upto)
            if alive and 0 <= upto <= length:
                clone = naive.new()
                assert made == clone
                naive.clone(sequence, upto, clone)
            else:
                assert made is REFUSED
        elif operation < 0.4 and alive:
            target = chance.randint(-1, length + 1)
            assert table.rewind(sequence, target) == (0 <= target <= length)
            if 0 <= target <= length:
                naive.drop(sequence, target)
        elif operation < 0.42:
            table.clear()
            naive = NaiveTable(capacity)
        else:
            cells_step(table, naive, chance, window, max_context, fresh)


REFUSED = object()


def asked(operation: Callable[..., object], *arguments: object) -> object:
    """What it returns, or REFUSED."""
    try:
        return operation(*arguments)
    except CacheError:
        return REFUSED


def cells_step(
    table: CellTable, naive: NaiveTable, chance: Random, window: int, max_context: int | None, fresh: count[int]
) -> None:
    choices = [*naive.texts] if chance.random() < 0.95 else [*naive.texts, 40]
    sequences = [chance.choice(choices) for _ in range(chance.randint(0 if chance.random() < 0.1 else 1, 6))]
    lengths = {each: len(text) for each, text in naive.texts.items()}
    positions = []
    for each in sequences:
        positions.append(lengths.get(each, 0))
        lengths[each] = positions[-1] + 1
    fits = 0 < len(sequences) <= len(naive.free()) and all(each in naive.texts for each in sequences)
    fits = fits and all(max_context is None or position < max_context for position in positions)
    declared = asked(table.declare_step, sequences)
    assert (declared is REFUSED) != fits
    if not fits:
        return
    if chance.random() < 0.05:
        wrong = list(positions)
        wrong[chance.randrange(len(wrong))] += chance.choice((-1, 1))
        assert asked(table.place_step, wrong) is REFUSED
    placement = table.place_step(positions)
    before = {each: list(text) for each, text in naive.texts.items()}
    tokens = [next(fresh) for _ in sequences]
    assert list(placement.cells) == naive.place(sequences, tokens)
    assert placement.used_end == naive.used_end()
    assert placement == table.place_step(list(positions)), "a second layer is given another placement"
    assert [cell for first, length in placement.runs() for cell in range(first, first + length)] == [*placement.cells]
    for each, position in zip(sequences, positions, strict=True):
        attended = table.attended(each, position, window)
        seen = set(attended)
        assert [cell in seen for cell in range(placement.used_end)] == naive.row(each, position, window)
        oldest = max(0, position - window + 1) if window else 0
        assert [naive.cells[cell].token for cell in attended] == naive.texts[each][oldest : position + 1]
    if chance.random() < 0.2:
        table.abandon_step()
        for each, text in before.items():
            naive.drop(each, len(text))
    else:
        table.commit_step()


TRACES: dict[str, Callable[[int], None]] = {"sequence": sequence_trace, "cells": cells_trace}


def divergences(kind: str, numbers: range) -> list[str]:
    """What is wrong with which traces."""
    found = []
    for number in numbers:
        try:
            TRACES[kind](number)
        except Exception as error:
            found.append(f"{kind} trace {number}: {type(error).__name__}: {error}")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Random cache traces against models that keep everything.")
    parser.add_argument("--traces", type=int, default=100_000, help="how many of each kind")
    numbers = range(parser.parse_args(arguments).traces)
    found = []
    for kind in TRACES:
        started = time.perf_counter()
        diverged = divergences(kind, numbers)
        found += diverged
        sys.stdout.write(
            f"{kind}: {len(numbers)} traces, {len(diverged)} divergences, {time.perf_counter() - started:.0f} s\n"
        )
        sys.stdout.flush()
    sys.stdout.write("".join(f"{line}\n" for line in found[:20]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
