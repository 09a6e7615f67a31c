"""Sequences are put side by side as a longest common subsequence would, and hard ones end in time."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from difflib import SequenceMatcher
from itertools import pairwise

import pytest

from pipeline.anatomy.alignment import aligned


def checked(a: Sequence[int] | str, b: Sequence[int] | str) -> list[tuple[int, int]]:
    """The pairs, which are of equal items and rise on both sides."""
    pairs = aligned(a, b)
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in pairwise(pairs))
    return pairs


@pytest.mark.parametrize(
    ("a", "b", "number"),
    [
        ("", "", 0),
        ("abc", "", 0),
        ("abc", "abc", 3),
        ("abc", "axc", 2),
        ("abcd", "dabc", 3),
        ("aaaa", "aa", 2),
        ("abab", "baba", 3),
        ("xaby", "zabw", 2),
        ("abcdefgh", "abXdefYh", 6),
        ("aXbXcX", "aYbYcY", 3),
    ],
)
def test_as_many_items_are_matched_as_can_be(a: str, b: str, number: int) -> None:
    assert len(checked(a, b)) == number


def test_random_edits_leave_what_was_not_edited() -> None:
    rng = random.Random(20261130)
    for _ in range(200):
        a = [rng.randrange(6) for _ in range(rng.randrange(40))]
        b = [item for item in a if rng.random() > 0.1]
        for _ in range(rng.randrange(4)):
            b.insert(rng.randint(0, len(b)), 9)
        # What was only deleted or inserted leaves all the rest in common.
        kept = len([item for item in b if item != 9])
        assert len(checked(a, b)) >= 0.9 * kept
        matcher = SequenceMatcher(None, a, b, autojunk=False)
        assert len(checked(a, b)) >= 0.8 * sum(block.size for block in matcher.get_matching_blocks())


def test_sequences_made_to_be_hard_end_in_time() -> None:
    rng = random.Random(7)
    twos = [rng.randrange(2) for _ in range(60_000)]
    others = [rng.randrange(2) for _ in range(60_000)]
    start = time.perf_counter()
    checked(twos, others)
    checked(list(range(100_000)), list(range(100_000, 0, -1)))
    assert time.perf_counter() - start < 20
