"""``python -m tests.fuzz.worker DIRECTORY --round N --first I --cases K``: some cases of a round, in a small process.

Prints one JSON object. A case takes the place of its seed while it is read: one that kills the process stays behind.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Round
from tests.fuzz.probe import MAX_BYTES, limit_memory, probe
from tests.fuzz.target import read


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.worker", description=__doc__)
    parser.add_argument("directory", type=Path, help="seeds")
    parser.add_argument("--round", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--cases", type=int, default=1)
    arguments = parser.parse_args()
    limit_memory(MAX_BYTES)
    sys.stdout.write(json.dumps(run(arguments.directory, arguments.round, arguments.first, arguments.cases)))


def run(seeds: Path, number: int, first: int, count: int) -> dict[str, Any]:
    """What happened: ``outcomes`` by seed, the ``slowest`` and the ``largest`` case, the ``failures`` by case."""
    played = Round.of_directory(seeds, number)
    outcomes: Counter[str] = Counter()
    slowest, largest = (0.0, first), (0, first)
    failures: dict[int, str] = {}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as scratch:
        shutil.copytree(seeds, scratch, dirs_exist_ok=True)
        for index in range(first, first + count):
            case = played.case(index)
            path = Path(scratch) / case.seed
            path.write_bytes(case.data)
            outcome = probe(read, path)
            shutil.copyfile(seeds / case.seed, path)
            outcomes[f"{case.seed} {'refused' if outcome.refused else 'read'}"] += 1
            slowest, largest = max(slowest, (outcome.seconds, index)), max(largest, (outcome.peak_bytes, index))
            if outcome.failure is not None:
                failures[index] = f"{case.seed}: {outcome.failure}"
    return {"outcomes": outcomes, "slowest": slowest, "largest": largest, "failures": failures}


if __name__ == "__main__":
    main()
