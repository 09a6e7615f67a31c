"""Which artifacts a command line names: files, bundles, directories and patterns, each artifact once.

A pattern is expanded here too, for shells that do not and for more files than a command line holds. It means what it
means to bash with ``globstar``: ``**`` is any number of directories, a name that begins with a dot is asked for by a
dot, and ``**`` follows no symbolic link.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.cli.plain import name
from pipeline.errors import UsageError

MODEL = "model.pte"
"""What makes a directory a bundle."""


def find(arguments: Sequence[str]) -> list[Path]:
    """The artifacts in the order of the arguments; those that one argument names, sorted directory by directory.

    A bundle is given as its directory. Two routes to one name are one artifact, two names of one file are two. What
    is not there, or cannot be looked into, is given as well: who reads it says why it cannot be read. Raises UsageError
    for a pattern that matches nothing and for a directory without artifacts.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(f"the working directory: {error.strerror}; expected one to find files from.") from error
    found: dict[Path, Path] = {}
    for argument in arguments:
        for path in _named_by(argument):
            found.setdefault(_identity(path), path)
    return list(found.values())


def _named_by(argument: str) -> list[Path]:
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


def _artifacts(path: Path) -> Iterator[Path]:
    """The path itself, or all that lie in and below a directory."""
    if not _is_directory(path):
        yield path
        return
    for directory, entries in _directories(path):
        if entries is None:
            yield directory
            continue
        for entry in entries:
            file = directory / entry.name
            if entry.name == MODEL:
                yield directory
            elif (file.suffix == ".pte" and not _is_directory(file)) or (entry.is_symlink() and _is_bundle(file)):
                yield file


def _directories(top: Path) -> Iterator[tuple[Path, list[os.DirEntry[str]] | None]]:
    """The directory and those below it with what they hold that is not hidden; ``None`` if that cannot be listed.

    Links to directories are left out, so that a circle ends. No recursion: names of one letter nest deeper than Python.
    """
    waiting = [top]
    while waiting:
        directory = waiting.pop()
        entries = _entries(directory)
        yield directory, entries
        below = [entry for entry in entries or () if entry.is_dir(follow_symlinks=False)]
        waiting += [directory / entry.name for entry in reversed(below)]


def _entries(directory: Path, hidden: bool = False) -> list[os.DirEntry[str]] | None:
    """What a directory holds, sorted."""
    try:
        with os.scandir(directory) as found:
            entries = [entry for entry in found if hidden or not entry.name.startswith(".")]
    except OSError:
        return None
    return sorted(entries, key=lambda entry: entry.name)


def _is_directory(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112 - Path.is_dir raises where it may not look


def _is_bundle(path: Path) -> bool:
    return os.path.lexists(path / MODEL)


def _identity(path: Path) -> Path:
    """Equal for two routes to one name: the real path of its directory, and the name."""
    file = path / MODEL if _is_directory(path) else path
    return Path(os.path.realpath(file.parent), file.name)


def _is_pattern(text: str) -> bool:
    return any(c in text for c in "*?[")


def _matching(pattern: Path) -> list[Path]:
    """What exists and matches, sorted; ``**`` at the end gives the directories, which stand for all below them.

    A directory that cannot be listed is given too, since what was asked for may lie in it.
    """
    parts = [part for part in pattern.parts if part != pattern.anchor]
    # Twice in a row means what once does.
    parts = [part for part, before in zip(parts, ["", *parts], strict=False) if not part == before == "**"]
    matches, closed = [Path(pattern.anchor)], list[Path]()
    for part in parts[:-1] if parts[-1] == "**" else parts:
        matches = [match for path in matches for match in _step(path, part, closed)]
    return [*matches, *closed] if parts[-1] != "**" else [path for path in [*matches, *closed] if _is_directory(path)]


def _step(path: Path, part: str, closed: list[Path]) -> Iterator[Path]:
    if part == "**":
        if _is_directory(path):
            yield from (directory for directory, _ in _directories(path))
    elif not _is_pattern(part):
        if os.path.lexists(path / part):
            yield path / part
    elif _is_directory(path):
        entries = _entries(path, hidden=part.startswith("."))
        if entries is None:
            closed.append(path)
            return
        from fnmatch import fnmatchcase

        yield from (path / entry.name for entry in entries if fnmatchcase(entry.name, part))
