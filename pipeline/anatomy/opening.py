"""Opens what is to be looked at: a ``.pte``, a ``.ptd``, or a bundle's directory with both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import PteError
from pipeline.pte import MlxGraph, MlxGraphs, PtdFile, PteFile
from pipeline.pte.program import Method, Program
from pipeline.pte.segments import SegmentedFile

MLX = "MLXBackend"
BUNDLED = "model.pte"
MAX_OTHERS = 1000


@dataclass(frozen=True, kw_only=True)
class Opened:
    """Open files by the name to show, the program's first. ``others`` are a bundle's further files, with sizes.

    ``graphs`` are the MLX graphs by method and number of its delegate; ``unreadable`` says why one is not there.
    """

    path: Path
    files: Mapping[str, SegmentedFile]
    program: Program | None
    others: Mapping[str, int]
    graphs: Mapping[tuple[str, int], MlxGraph]
    unreadable: Mapping[tuple[str, int], str]

    def method(self, name: str) -> Method:
        assert self.program is not None, "a .ptd has no methods"
        return self.program.methods[name]


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Raises ``PteError`` for a file that cannot be read, and for a directory that is no bundle."""
    paths, others = _paths(path)
    with ExitStack() as stack:
        files = {name: stack.enter_context(_open(file)) for name, file in paths.items()}
        program = next((file.program for file in files.values() if isinstance(file, PteFile)), None)
        graphs, unreadable = _graphs(program)
        yield Opened(path=path, files=files, program=program, others=others, graphs=graphs, unreadable=unreadable)


def _paths(path: Path) -> tuple[dict[str, Path], dict[str, int]]:
    if not path.is_dir():
        return {path.name: path}, {}
    try:
        entries = sorted(entry for entry in path.iterdir() if entry.is_file())
        sizes = {entry: entry.stat().st_size for entry in entries}
    except OSError as error:
        raise PteError(f"{path}: cannot be read ({error.strerror}); expected a bundle's directory.") from None
    programs = [entry for entry in entries if entry.suffix == ".pte"]
    chosen = [entry for entry in programs if entry.name == BUNDLED] or programs
    if len(chosen) != 1:
        raise PteError(
            f"{path}: it holds {len(programs)} .pte files, none of them {BUNDLED}; expected a bundle with one. "
            "Name the file."
        )
    files = chosen + [entry for entry in entries if entry.suffix == ".ptd"]
    others = {entry.name: size for entry, size in sizes.items() if entry not in files}
    return {entry.name: entry for entry in files}, dict(list(others.items())[:MAX_OTHERS])


def _open(path: Path) -> SegmentedFile:
    return PtdFile.open(path) if _is_ptd(path) else PteFile.open(path)


def _is_ptd(path: Path) -> bool:
    """By its mark, else by its name: a damaged file is refused as what it is called."""
    try:
        # A pipe would be waited for; opening it as a .pte refuses it.
        if not path.is_file():
            return path.suffix == ".ptd"
        with path.open("rb") as file:
            mark = file.read(8)[4:]
    except OSError:
        return path.suffix == ".ptd"
    return mark == PtdFile.identifier or (mark != PteFile.identifier and path.suffix == ".ptd")


def _graphs(program: Program | None) -> tuple[dict[tuple[str, int], MlxGraph], dict[tuple[str, int], str]]:
    read = MlxGraphs()
    graphs: dict[tuple[str, int], MlxGraph] = {}
    unreadable: dict[tuple[str, int], str] = {}
    for name, method in program.methods.items() if program is not None else ():
        for number, delegate in enumerate(method.delegates):
            if delegate.id == MLX:
                try:
                    graphs[name, number] = read.of(delegate.payload, "its MLX graph")
                except PteError as error:
                    unreadable[name, number] = str(error)
    return graphs, unreadable
