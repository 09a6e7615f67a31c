"""Two listings compared: instructions that are the same, whatever slots and numbers they have, and those that are not.

An instruction is what it does, with what, and where that comes from. First a likeness is found: the same operator with
the same attributes and constants, and near it the same producers. Then every pair is held to account: each value it
reads must come from the instruction that the other's comes from, else the pair is no pair. Where that instruction has
itself changed, one that changed stands for one that did, the same one wherever it is read: so a change is told where
it is, and not again by all that follows from it. Nothing is told exactly if everything is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.anatomy.alignment import Budget, aligned
from pipeline.anatomy.ssa import After, Block, Line, Named, Operand, Result

DEPTH = 3


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines of the old listing that are not in the new one at this place, and the other way round: [start, end)."""

    old: tuple[int, int]
    new: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Wiring:
    """``results`` are names of what is given back from elsewhere than before."""

    hunks: tuple[Hunk, ...]
    results: tuple[str, ...]


def compared(old: Block, new: Block, renamed: Callable[[str], str]) -> Wiring:
    """What changed from ``old`` to ``new``; ``renamed`` gives an old name's new one: of a constant, input or output."""
    old_marks, new_marks = _marks(old.lines, renamed), _marks(new.lines, lambda name: name)
    pairs = _aligned_by_likeness(old_marks, new_marks)
    same = _Correspondence(renamed)
    kept = [(a, b) for a, b in pairs if same.admits(old.lines[a], new.lines[b])]
    return Wiring(_hunks(kept, len(old.lines), len(new.lines)), _moved(old, new, same, renamed))


def _width(line: Line) -> int:
    return max(len(line.outputs), 1)


def _marks(lines: Sequence[Line], renamed: Callable[[str], str]) -> list[list[int]]:
    """Of each line a number for what it is, by how many steps back its producers are looked at: 0 to ``DEPTH``."""
    producer: dict[int, int] = {}
    marks: list[list[int]] = []
    for index, line in enumerate(lines):
        own: Hashable = (
            line.operator,
            line.stated,
            tuple((name, _shape(operand, renamed)) for name, operand in line.arguments),
            tuple(output.name and renamed(output.name) for output in line.outputs),
        )
        found = [hash(own)]
        producers = [producer.get(number) for _, operand in line.arguments for number in _numbers(operand)]
        for depth in range(DEPTH):
            found.append(hash((own, tuple(None if p is None else marks[p][depth] for p in producers))))
        marks.append(found)
        for k in range(_width(line)):
            producer[line.first + k] = index
    return marks


def _shape(operand: Operand, renamed: Callable[[str], str]) -> Hashable:
    """The operand without the numbers of values. 1, 1.0 and True differ."""
    if isinstance(operand, tuple):
        return tuple(_shape(item, renamed) for item in operand)
    if isinstance(operand, Named):
        return "named", renamed(operand.name)
    if isinstance(operand, Result):
        return "result"
    if isinstance(operand, After):
        return "after", operand.slot
    return type(operand).__name__, repr(operand)


def _numbers(operand: Operand) -> list[int]:
    if isinstance(operand, tuple):
        return [number for item in operand for number in _numbers(item)]
    return [operand.number] if isinstance(operand, Result | After) else []


def _aligned_by_likeness(old: Sequence[Sequence[int]], new: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Those alike in what produced them first, then in the gaps those alike in themselves."""
    gaps = [(0, len(old), 0, len(new))]
    pairs: list[tuple[int, int]] = []
    budget = Budget()
    for depth in range(DEPTH, -1, -DEPTH):
        left: list[tuple[int, int, int, int]] = []
        for start_a, end_a, start_b, end_b in gaps:
            found = aligned([m[depth] for m in old[start_a:end_a]], [m[depth] for m in new[start_b:end_b]], budget)
            here = [(start_a + a, start_b + b) for a, b in found]
            pairs += here
            before = (start_a - 1, start_b - 1)
            for pair in [*here, (end_a, end_b)]:
                if pair[0] - before[0] > 1 and pair[1] - before[1] > 1:
                    left.append((before[0] + 1, pair[0], before[1] + 1, pair[1]))
                before = pair
        gaps = left
    return sorted(pairs)


class _Correspondence:
    """Which value of the old listing is which of the new one, as far as lines were admitted."""

    def __init__(self, renamed: Callable[[str], str]) -> None:
        self._renamed = renamed
        self._new: dict[int, int] = {}
        self._old: dict[int, int] = {}

    def admits(self, a: Line, b: Line) -> bool:
        """Whether the lines are the same; if so, their values correspond from now on."""
        lands = [output.name and self._renamed(output.name) for output in a.outputs]
        before = (a.operator, a.stated, [name for name, _ in a.arguments], lands)
        if before != (b.operator, b.stated, [name for name, _ in b.arguments], [output.name for output in b.outputs]):
            return False
        if not self.holds([operand for _, operand in a.arguments], [operand for _, operand in b.arguments]):
            return False
        return self._bound([(a.first + k, b.first + k) for k in range(_width(a))])

    def holds(self, a: Sequence[Operand], b: Sequence[Operand]) -> bool:
        """Whether these read the same."""
        met: list[tuple[int, int]] = []
        return all(self._same(x, y, met) for x, y in zip(a, b, strict=True)) and self._bound(met)

    def _bound(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Makes the pairs correspond, all of them or none."""
        new, old = dict(pairs), {b: a for a, b in pairs}
        for a, b in pairs:
            if self._new.get(a, new[a]) != b or self._old.get(b, old[b]) != a:
                return False
        self._new |= new
        self._old |= old
        return True

    def _same(self, a: Any, b: Any, met: list[tuple[int, int]]) -> bool:
        if isinstance(a, tuple) and isinstance(b, tuple):
            return len(a) == len(b) and all(self._same(x, y, met) for x, y in zip(a, b, strict=True))
        if isinstance(a, Result) and isinstance(b, Result):
            met.append((a.number, b.number))
            return True
        if isinstance(a, After) and isinstance(b, After):
            met.append((a.number, b.number))
            return a.slot == b.slot
        return _shape(a, self._renamed) == _shape(b, lambda name: name)


def _hunks(kept: Sequence[tuple[int, int]], num_old: int, num_new: int) -> tuple[Hunk, ...]:
    hunks = []
    before = (-1, -1)
    for pair in [*kept, (num_old, num_new)]:
        if pair[0] - before[0] > 1 or pair[1] - before[1] > 1:
            hunks.append(Hunk((before[0] + 1, pair[0]), (before[1] + 1, pair[1])))
        before = pair
    return tuple(hunks)


def _moved(old: Block, new: Block, same: _Correspondence, renamed: Callable[[str], str]) -> tuple[str, ...]:
    """What a block gives back that does not come from where it came from."""
    before, after = {renamed(name): operand for name, operand in old.results}, dict(new.results)
    return tuple(
        name
        for name in dict.fromkeys([*before, *after])
        if name not in before or name not in after or not same.holds([before[name]], [after[name]])
    )
