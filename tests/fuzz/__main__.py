"""``python -m tests.fuzz --cases 200000 --round 1``: a long round, in small processes; what it found, and its figures.

``--write CASE`` writes one case of the round to a file instead.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz.cases import Round

CHUNK = 2_000
MAX_SECONDS_OF_A_CHUNK = 1_200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--round", type=int, default=0, help="a number: the same one gives the same cases")
    parser.add_argument("--first", type=int, default=0, help="the case to begin with")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seeds", type=Path, metavar="DIRECTORY", help="kept there, and used when there already")
    parser.add_argument("--write", type=int, metavar="CASE")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        seeds = arguments.seeds or Path(scratch)
        if not seeds.is_dir() or not any(seeds.iterdir()):
            # In a process of its own: what writes them takes hundreds of megabytes.
            subprocess.run([sys.executable, "-m", "tests.fuzz.seeds", str(seeds)], check=True)
        if arguments.write is not None:
            case = Round.of_directory(seeds, arguments.round).case(arguments.write)
            path = Path(f"fuzz-{arguments.round}-{arguments.write}-{Path(case.seed).name}")
            path.write_bytes(case.data)
            sys.stdout.write(f"{path}\n")
            return 0
        return _play(arguments, seeds)


def _play(arguments: argparse.Namespace, seeds: Path) -> int:
    outcomes: Counter[str] = Counter()
    slowest, largest = (0.0, 0), (0, 0)
    failures: dict[str, str] = {}
    for found in _chunks(arguments, seeds):
        outcomes.update(found["outcomes"])
        slowest, largest = max(slowest, tuple(found["slowest"])), max(largest, tuple(found["largest"]))
        for case, failure in found["failures"].items():
            sys.stdout.write(f"case {case} of round {arguments.round}: {failure}\n")
        failures |= found["failures"]
        sys.stderr.write(f"\r{sum(outcomes.values())} of {arguments.cases}, {len(failures)} found")
    sys.stderr.write("\n")
    for name, count in sorted(outcomes.items()):
        sys.stdout.write(f"{name:30} {count:8}\n")
    sys.stdout.write(
        f"{sum(outcomes.values())} cases; slowest {slowest[0]:.2f} s of the processor (case {slowest[1]}), "
        f"largest {largest[0] / 2**20:.0f} MB (case {largest[1]}); {len(failures)} found\n"
    )
    return int(bool(failures))


def _chunks(arguments: argparse.Namespace, seeds: Path) -> Iterator[dict[str, Any]]:
    def play(first: int) -> dict[str, Any]:
        count = min(CHUNK, arguments.first + arguments.cases - first)
        numbers = ["--round", str(arguments.round), "--first", str(first), "--cases", str(count)]
        command = [sys.executable, "-m", "tests.fuzz.worker", str(seeds), *numbers]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=MAX_SECONDS_OF_A_CHUNK)
            if done.returncode == 0:
                found: dict[str, Any] = json.loads(done.stdout)
                return found
            failure = f"its process ended with {done.returncode}\n{done.stderr[-2000:]}"
        except subprocess.TimeoutExpired:
            failure = f"its process went on for {MAX_SECONDS_OF_A_CHUNK} s"
        failures = {f"{first} to {first + count - 1}": failure}
        return {"outcomes": {}, "slowest": (0.0, first), "largest": (0, first), "failures": failures}

    with ThreadPoolExecutor(arguments.jobs) as pool:
        yield from pool.map(play, range(arguments.first, arguments.first + arguments.cases, CHUNK))


if __name__ == "__main__":
    sys.exit(main())
