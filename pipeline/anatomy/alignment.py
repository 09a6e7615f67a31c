"""Two sequences put side by side: which items of one are which of the other, in order.

Patience first (what appears once on each side anchors the rest), then a longest common subsequence in the gaps. The
work is bounded: of sequences made to be hard, gaps stay unmatched, and what is matched is still right.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

MAX_CELLS = 1_000_000
MAX_STEPS = 4_000_000


@dataclass(slots=True)
class Budget:
    """What may still be spent, by several calls together."""

    cells: int = MAX_CELLS
    steps: int = MAX_STEPS


def aligned(a: Sequence[Hashable], b: Sequence[Hashable], budget: Budget | None = None) -> list[tuple[int, int]]:
    """Pairs of indices of equal items, rising on both sides."""
    return _Aligner(a, b, budget or Budget()).pairs()


class _Aligner:
    def __init__(self, a: Sequence[Hashable], b: Sequence[Hashable], budget: Budget) -> None:
        self._a, self._b = a, b
        self._budget = budget

    def pairs(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        gaps = [(0, len(self._a), 0, len(self._b))]
        while gaps:
            start_a, end_a, start_b, end_b = gaps.pop()
            while start_a < end_a and start_b < end_b and self._a[start_a] == self._b[start_b]:
                found.append((start_a, start_b))
                start_a, start_b = start_a + 1, start_b + 1
            while start_a < end_a and start_b < end_b and self._a[end_a - 1] == self._b[end_b - 1]:
                end_a, end_b = end_a - 1, end_b - 1
                found.append((end_a, end_b))
            if start_a == end_a or start_b == end_b:
                continue
            self._budget.steps -= end_a - start_a + end_b - start_b
            anchors = self._anchors(start_a, end_a, start_b, end_b) if self._budget.steps > 0 else []
            if not anchors:
                found += self._common(start_a, end_a, start_b, end_b)
                continue
            found += anchors
            before = (start_a - 1, start_b - 1)
            for anchor in [*anchors, (end_a, end_b)]:
                gaps.append((before[0] + 1, anchor[0], before[1] + 1, anchor[1]))
                before = anchor
        return sorted(found)

    def _anchors(self, start_a: int, end_a: int, start_b: int, end_b: int) -> list[tuple[int, int]]:
        """Of the items that are there once on each side, the longest run in the same order."""
        counts_a, counts_b = Counter(self._a[start_a:end_a]), Counter(self._b[start_b:end_b])
        where = {item: index for index, item in enumerate(self._b[start_b:end_b], start_b) if counts_b[item] == 1}
        pairs = [
            (index, where[item])
            for index, item in enumerate(self._a[start_a:end_a], start_a)
            if counts_a[item] == 1 and item in where
        ]
        tails: list[int] = []
        last: list[int] = []
        before: list[int] = []
        for number, (_, index) in enumerate(pairs):
            place = bisect_left(tails, index)
            before.append(last[place - 1] if place else -1)
            tails[place : place + 1] = [index]
            last[place : place + 1] = [number]
        run: list[tuple[int, int]] = []
        number = last[-1] if last else -1
        while number >= 0:
            run.append(pairs[number])
            number = before[number]
        return run[::-1]

    def _common(self, start_a: int, end_a: int, start_b: int, end_b: int) -> list[tuple[int, int]]:
        """A longest common subsequence, if what is left of the bound allows to look for it."""
        height, width = end_a - start_a, end_b - start_b
        if height * width > self._budget.cells:
            return []
        self._budget.cells -= height * width
        longest = [[0] * (width + 1) for _ in range(height + 1)]
        for i in range(height - 1, -1, -1):
            row, below, item = longest[i], longest[i + 1], self._a[start_a + i]
            for j in range(width - 1, -1, -1):
                row[j] = below[j + 1] + 1 if item == self._b[start_b + j] else max(below[j], row[j + 1])
        found = []
        i = j = 0
        while i < height and j < width:
            if self._a[start_a + i] == self._b[start_b + j]:
                found.append((start_a + i, start_b + j))
                i, j = i + 1, j + 1
            elif longest[i + 1][j] >= longest[i][j + 1]:
                i += 1
            else:
                j += 1
        return found
