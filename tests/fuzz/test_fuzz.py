"""A damaged file is read or refused for a reason, within seconds and megabytes; and the harness would notice if not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PteError
from pipeline.pte import MlxGraphs, PteFile
from tests.fuzz import found, seeds
from tests.fuzz.cases import Round, Seed, with_graph
from tests.fuzz.probe import MAX_BYTES, probe
from tests.fuzz.target import COMMANDS, read

# Importing executorch's Python side warns about torch internals it uses.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"


@pytest.fixture(scope="module")
def whole(tiny_pte: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of files that are whole."""
    return seeds.write(tmp_path_factory.mktemp("fuzz") / "seeds", tiny_pte.path.read_bytes())


def test_files_that_are_whole_are_read(whole: Path) -> None:
    for path in filter(Path.is_file, whole.rglob("*")):
        outcome = probe(read, path)
        assert (outcome.refused, outcome.failure) == (False, None), path.name


def test_a_short_round_finds_nothing(whole: Path) -> None:
    """The beginning of what ``python -m tests.fuzz`` plays."""
    command = [sys.executable, "-m", "tests.fuzz.worker", str(whole), "--cases", "1350"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    result = json.loads(done.stdout)
    assert result["failures"] == {}, "python -m tests.fuzz --write CASE writes one"
    for path in whole.rglob("*.pt[ed]"):
        name = path.relative_to(whole).as_posix()
        assert result["outcomes"][f"{name} refused"] > 20
        assert result["outcomes"][f"{name} read"] > 5, "not everything is refused at the door"


@pytest.mark.parametrize("name", found.RECIPES)
def test_what_would_unfold_is_read_or_refused_in_time(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(found.RECIPES[name]())
    for command, run in COMMANDS.items():
        assert probe(run, path).failure is None, command


@pytest.mark.parametrize("file", sorted(CORPUS.iterdir()), ids=lambda file: file.stem)
def test_what_a_round_found_is_read_or_refused_since(file: Path, whole: Path, tmp_path: Path) -> None:
    kept = json.loads(file.read_text())
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    path = tmp_path / kept["file"]
    path.write_bytes(kept["text"].encode() if "text" in kept else bytes.fromhex(kept["hex"]))
    assert probe(read, path).failure is None, kept["why"]


def test_graphs_of_one_file_are_read_once_and_paid_for_together() -> None:
    def fill(b: Any) -> dict[str, found.Add]:
        noop = found.table(b, s0=found.number("Uint8", 1), s1=found.to(found.table(b)))
        return {"s7": found.to(found.vector(b, [found.table(b, s0=found.to(found.vector(b, [noop] * 10_000)))]))}

    payload = memoryview(found.payload(found.graph(fill)))
    graphs = MlxGraphs()
    assert graphs.of(payload) is graphs.of(payload)
    with pytest.raises(PteError, match=r"MLXGraph.* unfolds into more than a reader should hold of \d+ bytes"):
        list(map(graphs.of, (payload[:] for _ in range(100))))


def spins(_: Path) -> None:
    while True:
        pass


def swallows(_: Path) -> None:
    while True:
        with suppress(Exception):
            spins(_)


def hoards(_: Path) -> None:
    bytearray(MAX_BYTES + (16 << 20))[::4096] = b"\1" * ((MAX_BYTES + (16 << 20)) // 4096)


def stumbles(_: Path) -> None:
    raise IndexError("out of range")


def mumbles(_: Path) -> None:
    raise PteError("x.pte: method '\x1b[31m' is wrong.")


def rambles(_: Path) -> None:
    raise PteError("x" * 2_001)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (spins, "takes more than 2.0 s"),
        (swallows, "takes more than 2.0 s"),
        (hoards, "takes 2.. MB"),
        (stumbles, "IndexError: out of range"),
        (mumbles, "a message of"),
        (rambles, "a message of 2001 characters"),
    ],
)
def test_the_harness_notices(wrong: Callable[[Path], None], said: str, tmp_path: Path) -> None:
    outcome = probe(wrong, tmp_path)
    assert outcome.failure is not None
    assert outcome.seconds < 3
    assert re.search(said, outcome.failure)


def test_a_round_is_the_same_whenever_it_is_played(whole: Path) -> None:
    first, second = (Round.of_directory(whole, 7) for _ in range(2))
    cases = [first.case(index) for index in range(200)]
    assert [second.case(index) for index in reversed(range(200))][::-1] == cases
    assert len({case.data for case in cases}) > 190
    assert Round.of_directory(whole, 8).case(0) != cases[0]


def test_a_graph_of_another_size_is_found_in_its_file(whole: Path) -> None:
    seed = Seed("nodes.pte", (whole / "nodes.pte").read_bytes())
    assert seed.graph is not None
    for size in (0, 1, 100_000):
        pte = PteFile.from_bytes(with_graph(seed, b"g" * size), "x.pte")
        assert bytes(pte.program.methods["forward"].delegates[0].payload) == b"g" * size
        assert bytes(pte.named_data["abcd/weight"]) == bytes(64)
