"""Which artifacts a command line names: files, bundles, directories and patterns, each artifact once.

A pattern is expanded here too, for shells that do not and for more files than a command line holds. It means what it
means to bash with ``globstar``: ``**`` is any number of directories, a name that begins with a dot is asked for by a
dot, and ``**`` follows no symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.cli.plain import name
from pipeline.errors import UsageError
from pipeline.verify.bundle import ARTIFACT


class Closed(NamedTuple):
    """A directory that may hold artifacts and cannot be listed, and why."""

    path: Path
    reason: str


def find(arguments: Sequence[str]) -> list[Path | Closed]:
    """The artifacts in the order of the arguments; those that one argument names, sorted directory by directory.

    A bundle is its ``model.pte``. Two routes to one name are one artifact, two names of one file are two. What is not
    there is given as well: who reads it says so. Raises UsageError for a pattern that matches nothing and for a
    directory without artifacts.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(f"the working directory: {error.strerror}; expected one to find files from.") from error
    found: dict[Path, Path | Closed] = {}
    for argument in arguments:
        for artifact in _named_by(argument):
            path = artifact.path if isinstance(artifact, Closed) else artifact
            # Of the last name in a path, and of no other, a link is a second one.
            found.setdefault(Path(os.path.realpath(path.parent), path.name), artifact)
    return list(found.values())


def _named_by(argument: str) -> list[Path | Closed]:
    if not argument:
        raise UsageError("'': an empty path; expected a .pte, a bundle, a directory or a pattern.")
    # A file may be called what looks like a pattern; then it is meant.
    if _is_pattern(argument) and not os.path.lexists(argument):
        matches, expected = _matching(Path(argument)), "nothing matches; expected artifacts"
    else:
        matches, expected = [Path(argument)], "it holds no .pte; expected a bundle, or a directory of artifacts"
    artifacts = [artifact for match in matches for artifact in _artifacts(match)]
    if not artifacts:
        raise UsageError(f"{name(argument)}: {expected}. Build them, or correct the path.")
    return artifacts


def _artifacts(found: Path | Closed) -> Iterator[Path | Closed]:
    """The path itself, or all that lie in and below a directory."""
    if isinstance(found, Closed) or not _is_directory(found):
        yield found
        return
    for directory, entries in _directories(found):
        if isinstance(entries, Closed):
            yield entries
            continue
        for entry in entries:
            path = directory / entry.name
            if path.suffix == ".pte" and not _is_directory(path):
                yield path
            elif entry.is_symlink() and os.path.lexists(path / ARTIFACT):
                yield path / ARTIFACT


def _directories(top: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]] | Closed]]:
    """The directory and those below it, each with what it holds that is not hidden.

    Links to directories are left out, so that a circle ends. No recursion: names of one letter nest deeper than Python.
    """
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        entries = _entries(directory)
        yield directory, entries
        if not isinstance(entries, Closed):
            below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
            waiting += [directory / entry.name for entry in reversed(below)]


def _entries(directory: Path, hidden: bool = False) -> list[os.DirEntry[str]] | Closed:
    """What a directory holds, sorted."""
    try:
        with os.scandir(directory) as found:
            entries = [entry for entry in found if hidden or not entry.name.startswith(".")]
    except OSError as error:
        return Closed(directory, f"cannot be listed ({error.strerror}); expected a directory of artifacts.")
    return sorted(entries, key=lambda entry: entry.name)


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises where it may not look


def _is_pattern(text: str) -> bool:
    return any(c in text for c in "*?[")


def _matching(pattern: Path) -> list[Path | Closed]:
    """What exists and matches, sorted; ``**`` at the end gives the directories, which stand for all below them.

    A directory that cannot be listed is given too, since what was asked for may lie in it.
    """
    parts = [part for part in pattern.parts if part != pattern.anchor]
    # Twice in a row means what once does.
    parts = [part for part, before in zip(parts, ["", *parts], strict=False) if not part == before == "**"]
    matches, closed = [Path(pattern.anchor)], list[Closed]()
    for part in parts[:-1] if parts[-1] == "**" else parts:
        matches = [match for path in matches for match in _step(path, part, closed)]
    if parts[-1] == "**":
        matches = list(filter(_is_directory, matches))
    return [*matches, *closed]


def _step(path: Path, part: str, closed: list[Closed]) -> Iterator[Path]:
    if part == "**":
        if _is_directory(path):
            yield from (directory for directory, _ in _directories(path))
    elif not _is_pattern(part):
        if os.path.lexists(path / part):
            yield path / part
    elif _is_directory(path):
        entries = _entries(path, hidden=part.startswith("."))
        if isinstance(entries, Closed):
            closed.append(entries)
            return
        from fnmatch import fnmatchcase

        yield from (path / entry.name for entry in entries if fnmatchcase(entry.name, part))
