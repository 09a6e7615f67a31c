"""What a bundle says of its own artifact: ``report.json``, which the build wrote, and ``build.json``.

They are read where they lie beside a ``model.pte``. Files of these names may be anyone's: what is not as a build
writes it is told of, and used no further.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.verify.asked import Asked

ARTIFACT, REPORT, RECORD = "model.pte", "report.json", "build.json"

MAX_BYTES = 1 << 24


class Layer(NamedTuple):
    """One attention layer, as it was observed when the model was built; ``window`` 0 is all of the history."""

    layer: int
    cache: int
    num_kv_heads: int
    head_dim: int
    window: int


class Bundle(NamedTuple):
    """``layers`` and ``asked`` are ``None`` where nothing is recorded of them.

    ``ends`` are the ids that end a text, by what names them; ``libraries`` the versions that the build used;
    ``sizes`` the bytes of each file that the bundle consists of. ``problems`` are files that are not as a build writes
    them, with what is wrong.
    """

    directory: Path
    layers: tuple[Layer, ...] | None
    ends: Mapping[str, tuple[int, ...]]
    asked: Asked | None
    libraries: Mapping[str, str]
    sizes: Mapping[str, int]
    problems: tuple[tuple[str, str], ...]


def read(directory: Path) -> Bundle | None:
    """What the records in a directory say; ``None`` where there is none."""
    problems: list[tuple[str, str]] = []
    report = _object(directory / REPORT, problems)
    record = _object(directory / RECORD, problems)
    if report is None and record is None and not problems:
        return None
    layers, ends = _report(report or {}, problems)
    asked, libraries, sizes = _record(record or {}, problems)
    return Bundle(directory, layers, ends, asked, libraries, sizes, tuple(problems))


def _object(file: Path, problems: list[tuple[str, str]]) -> dict[str, Any] | None:
    try:
        if file.stat().st_size > MAX_BYTES:
            problems.append((file.name, f"has more than {MAX_BYTES} bytes"))
            return None
        content = json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        problems.append((file.name, f"cannot be read ({error.strerror})"))
        return None
    except (ValueError, RecursionError):
        problems.append((file.name, "is no JSON"))
        return None
    if not isinstance(content, dict):
        problems.append((file.name, "is no JSON object"))
        return None
    return content


def _report(
    report: dict[str, Any], problems: list[tuple[str, str]]
) -> tuple[tuple[Layer, ...] | None, Mapping[str, tuple[int, ...]]]:
    layers, ends = None, {}
    try:
        if "attention" in report:
            layers = tuple(Layer(*(_count(entry[field]) for field in Layer._fields)) for entry in report["attention"])
        ends = {
            str(source): tuple(_count(token) for token in ids) for source, ids in report.get("end_of_text", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append((REPORT, "does not say of layers and ends of text what a build writes"))
    return layers, ends


def _record(
    record: dict[str, Any], problems: list[tuple[str, str]]
) -> tuple[Asked | None, dict[str, str], dict[str, int]]:
    asked, libraries, sizes = None, {}, {}
    try:
        steps = record.get("steps", {})
        made = {name: made for step in steps.values() for name, made in step["outputs"].items()}
        sizes = {_name(name): _count(made[name]["size_bytes"]) for name in record.get("files", {}) if name in made}
        if "build" in steps:
            build = steps["build"]["asked"]
            libraries = {str(name): str(version) for name, version in build["libraries"].items()}
            asked = Asked.recorded(build["spec"])
    except (AttributeError, KeyError, TypeError, ValueError):
        problems.append((RECORD, "does not say what the artifact was built from as a build writes it"))
    return asked, libraries, sizes


def _name(value: str) -> str:
    """Of a file that lies in the directory itself."""
    if not value.isprintable() or Path(value).name != value:
        raise ValueError(value)
    return value


def _count(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(value)
    return value
