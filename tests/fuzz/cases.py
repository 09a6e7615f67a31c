"""The cases of a round: which seed is damaged, and how. A case follows from the round's number, its own, and the seeds.

Half of the cases of a file with a delegate's graph damage the graph alone, in a file that is whole otherwise: damage
anywhere in a file seldom gets that far.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pipeline.pte import PteFile
from tests.fuzz.mutate import Places, mutated, mutated_text, places

BASE, DATA_SIZE = 24, 32


@dataclass(frozen=True)
class Case:
    """Damaged bytes, and the seed that they were."""

    seed: str
    data: bytes


@dataclass(frozen=True)
class Seed:
    """A file that is whole. ``graph`` is where its first delegate's payload lies, if that is one of MLX's."""

    name: str
    data: bytes

    @cached_property
    def places(self) -> Places:
        return places(self.data)

    @cached_property
    def graph(self) -> range | None:
        if not self.name.endswith(".pte") or b"MLX0" not in self.data:
            return None
        start = self.data.index(b"MLX0") - 4
        segments = PteFile.from_bytes(self.data, self.name).segments
        return next((range(*place) for place in segments if place[0] == start), None)

    @cached_property
    def graph_places(self) -> Places:
        assert self.graph is not None
        return places(self.data[self.graph.start : self.graph.stop])


class Round:
    """All cases of one number: ``case(i)`` is the same whenever it is asked for."""

    def __init__(self, seeds: Mapping[str, bytes], number: int) -> None:
        self._seeds = [Seed(name, data) for name, data in sorted(seeds.items())]
        # Most of what lies beside an artifact is a few lines: a case in five is one of theirs.
        self._turns = [seed for seed in self._seeds for _ in range(1 if seed.name.endswith(".json") else 3)]
        self._number = number

    @classmethod
    def of_directory(cls, directory: Path, number: int) -> Round:
        """The seeds are the files in ``directory`` and below it, named as they lie there."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        return cls({path.relative_to(directory).as_posix(): path.read_bytes() for path in files}, number)

    def case(self, index: int) -> Case:
        rng = random.Random(f"{self._number}:{index}")
        seed = self._turns[index % len(self._turns)]
        others = [other.data for other in self._seeds]
        if seed.name.endswith(".json"):
            return Case(seed.name, mutated_text(seed.data, rng, others))
        if seed.graph is None or rng.random() < 0.5:
            return Case(seed.name, mutated(seed.data, seed.places, rng, others))
        whole = seed.data[seed.graph.start : seed.graph.stop]
        return Case(seed.name, with_graph(seed, mutated(whole, seed.graph_places, rng, others)))


def with_graph(seed: Seed, graph: bytes) -> bytes:
    """The seed with another payload, of any size; it moves to the end of the file."""
    assert seed.graph is not None
    data = bytearray(seed.data)
    (base,) = struct.unpack_from("<Q", data, BASE)
    at = len(data) + -len(data) % 16
    old, new = (seed.graph.start - base, len(seed.graph)), (at - base, len(graph))
    # A builder may have put either field first.
    for turn in (1, -1):
        place = data.find(struct.pack("<QQ", *old[::turn]), 0, base)
        if place >= 0:
            struct.pack_into("<QQ", data, place, *new[::turn])
            struct.pack_into("<Q", data, DATA_SIZE, at + len(graph) - base)
            return bytes(data) + bytes(at - len(data)) + graph
    raise AssertionError(f"{seed.name}: the segment of the graph is not where its table says")
