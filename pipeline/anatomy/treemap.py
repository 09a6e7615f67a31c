"""Rectangles whose areas are in proportion to sizes, as near to squares as a row at a time allows.

The squarified treemap of Bruls, Huizing and van Wijk (2000): rows are laid along the shorter side of what is left, and
one more rectangle joins a row as long as the row's worst one becomes no longer for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], room: Rect) -> list[Rect]:
    """A rectangle in ``room`` for each of ``sizes``, which are positive and best in falling order."""
    total = sum(sizes)
    assert total > 0, "nothing to lay out"
    scale = room.width * room.height / total
    areas = [size * scale for size in sizes]
    found: list[Rect] = []
    while len(found) < len(areas):
        row = _row(areas, len(found), min(room.width, room.height))
        placed, room = _placed(row, room)
        found += placed
    return found


def _row(areas: Sequence[float], start: int, side: float) -> Sequence[float]:
    """The areas from ``start`` on that make the best row along ``side``."""
    end, total = start, 0.0
    largest, smallest = 0.0, float("inf")
    worst = float("inf")
    while end < len(areas):
        area = areas[end]
        largest, smallest, total = max(largest, area), min(smallest, area), total + area
        now = max(side * side * largest / (total * total), total * total / (side * side * smallest)) if side else 0.0
        if now > worst:
            break
        worst = now
        end += 1
    return areas[start : max(end, start + 1)]


def _placed(row: Sequence[float], room: Rect) -> tuple[list[Rect], Rect]:
    """The row's rectangles along the shorter side of ``room``, and the room that is left."""
    total = sum(row)
    found = []
    if room.width >= room.height:
        depth = min(total / room.height, room.width) if room.height else 0.0
        at = room.y
        for area in row:
            length = room.height * area / total
            found.append(Rect(room.x, at, depth, length))
            at += length
        return found, Rect(room.x + depth, room.y, room.width - depth, room.height)
    depth = min(total / room.width, room.height) if room.width else 0.0
    at = room.x
    for area in row:
        length = room.width * area / total
        found.append(Rect(at, room.y, length, depth))
        at += length
    return found, Rect(room.x, room.y + depth, room.width, room.height - depth)
