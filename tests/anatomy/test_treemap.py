"""Rectangles have areas in proportion, lie inside their room and nowhere on each other."""

from __future__ import annotations

import itertools
import random

import pytest

from pipeline.anatomy.treemap import Rect, squarified

ROOM = Rect(10, 20, 300, 200)


def sizes_of(kind: str) -> list[float]:
    rng = random.Random(kind)
    match kind:
        case "one":
            return [5]
        case "equal":
            return [1] * 12
        case "the paper's":
            return [6, 6, 4, 3, 2, 2, 1]
        case "far apart":
            return [10.0**power for power in range(9, -1, -1)]
    return sorted((rng.expovariate(1) for _ in range(60)), reverse=True)


@pytest.mark.parametrize("kind", ["one", "equal", "the paper's", "far apart", "random", "random again"])
def test_areas_are_in_proportion_inside_and_apart(kind: str) -> None:
    sizes = sizes_of(kind)
    rects = squarified(sizes, ROOM)
    scale = ROOM.width * ROOM.height / sum(sizes)
    for size, rect in zip(sizes, rects, strict=True):
        assert rect.width * rect.height == pytest.approx(size * scale, rel=1e-6)
        assert rect.x >= ROOM.x - 1e-6
        assert rect.y >= ROOM.y - 1e-6
        assert rect.x + rect.width <= ROOM.x + ROOM.width + 1e-6
        assert rect.y + rect.height <= ROOM.y + ROOM.height + 1e-6
    for a, b in itertools.combinations(rects, 2):
        wide = min(a.x + a.width, b.x + b.width) - max(a.x, b.x)
        high = min(a.y + a.height, b.y + b.height) - max(a.y, b.y)
        assert min(wide, high) < 1e-6


def test_the_papers_example_has_the_papers_rows() -> None:
    """Bruls, Huizing and van Wijk, figure 3: 6 6 4 3 2 2 1 in 6 by 4."""
    rects = squarified([6, 6, 4, 3, 2, 2, 1], Rect(0, 0, 6, 4))
    assert [tuple(round(value, 3) for value in rect) for rect in rects[:4]] == [
        (0, 0, 3, 2),
        (0, 2, 3, 2),
        (3, 0, 1.714, 2.333),
        (4.714, 0, 1.286, 2.333),
    ]


def test_shapes_are_near_squares() -> None:
    rects = squarified([1] * 30, Rect(0, 0, 600, 500))
    assert max(max(r.width / r.height, r.height / r.width) for r in rects) < 2
