"""A manifest file as a frozen ``Manifest``, or every mistake in it at once.

Knows the manifest's fields and the rules that span several of them. What each field may hold
alone is in ``schemas/manifest.schema.json``. Does not know how anything is fetched or built.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline import schema_problems, yaml_source
from pipeline.errors import ManifestError
from pipeline.spec import (
    DEFAULT_GROUP_SIZE,
    DEFAULT_MAX_NEW_TOKENS,
    GROUP_SIZE_CHOOSABLE,
    NONE,
    HubSource,
    PathSource,
    Quantization,
    SmokePrompt,
    Source,
    WeightFormat,
    WheelSource,
)
from pipeline.yaml_source import Field, Problem

MAX_FILE_BYTES = 256 * 1024

Dtype = Literal["fp32", "fp16", "bf16"]
Logits = Literal["last", "full", "selected"]


@dataclass(frozen=True, kw_only=True)
class Model:
    """What the model is called, and where its files come from."""

    id: str
    source: Source


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Who owns the key-value cache."""

    placement: Literal["off_graph"] = "off_graph"


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One artifact to build. ``path`` is the file as the caller named it; lengths are in tokens."""

    path: Path
    version: int
    name: str
    model: Model
    dtype: Dtype
    quantization: Quantization
    max_seq_len: int
    max_context_len: int
    cache: Cache
    backend: Literal["mlx"]
    logits: Logits
    smoke: tuple[SmokePrompt, ...]


def load(path: Path | str) -> Manifest:
    """The manifest in one file; raises ``ManifestError`` with every mistake in it."""
    found = _read(Path(path))
    if not isinstance(found, Manifest):
        raise ManifestError(found)
    return found


def load_all(directory: Path | str) -> tuple[Manifest, ...]:
    """The manifests directly in a directory, sorted by name; raises one ``ManifestError`` for all their mistakes."""
    manifests, problems = survey(directory)
    if problems:
        raise ManifestError(problems)
    return manifests


def survey(directory: Path | str) -> tuple[tuple[Manifest, ...], list[str]]:
    """The good manifests directly in a directory, sorted by name, and the mistakes of all the others."""
    directory = Path(directory)
    try:
        files = [file for file in sorted(directory.iterdir()) if _is_manifest_file(file)]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return (), [f"{shown(directory)}: cannot be listed ({reason}); expected a directory of manifests."]
    manifests: list[Manifest] = []
    problems: list[str] = []
    owner: dict[str, Path] = {}
    for file in files:
        if (first := owner.setdefault(file.stem, file)) != file:
            what = f"the name {file.stem!r} is already that of {shown(first)}; expected one file per name."
            problems.append(f"{shown(file)}:1: {what} Remove one of the two.")
            continue
        found = _read(file)
        if isinstance(found, Manifest):
            manifests.append(found)
        else:
            problems += found
    return tuple(sorted(manifests, key=lambda manifest: manifest.name)), problems


def shown(path: Path) -> str:
    """A path for a message: relative to the working directory when inside it, otherwise as given."""
    try:
        text = str(path.relative_to(Path.cwd())) if path.is_absolute() else str(path)
    except (OSError, ValueError):
        text = str(path)
    return text if text.isprintable() else repr(text)[1:-1]


def _is_manifest_file(file: Path) -> bool:
    return file.suffix in (".yaml", ".yml") and not file.name.startswith(".") and not file.is_dir()


def _read(path: Path) -> Manifest | list[str]:
    """The manifest, or its mistakes in the order of their lines."""
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        return [f"{shown(path)}: cannot be read ({reason}); expected a YAML file."]
    if isinstance(content, str):
        return [f"{shown(path)}: {content}"]
    document = yaml_source.parse(content)
    problems = list(document.problems)
    if document.value is not None:
        problems += schema_problems.find(document, "manifest")
        wrong = {problem.field for problem in problems}
        for field, text in _broken_rules(_Sound(document.value, wrong), path.stem):
            problems.append(Problem(document.places[field].line, field, text))
        if not problems:
            return _manifest(path, document.value)
    where = shown(path)
    return [f"{where}:{problem.line}: {problem.text}" for problem in sorted(problems, key=lambda found: found.line)]


def _content(path: Path) -> bytes | str:
    """The file's bytes, or what is wrong with the file."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        return f"is {kind}; expected a YAML file."
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES + 1) if status.st_size <= MAX_FILE_BYTES else b""
    if max(status.st_size, len(content)) > MAX_FILE_BYTES:
        return f"holds more than {MAX_FILE_BYTES // 1024} KiB; expected a manifest of a few dozen lines."
    return content


class _Sound:
    """Looks up fields that are present and have no problem yet, so that no mistake is told twice."""

    def __init__(self, data: dict[str, Any], wrong: set[Field]) -> None:
        self._data = data
        self._wrong = wrong

    def get(self, *field: str | int) -> Any:
        """The value of the field, or None."""
        value: Any = self._data
        for depth, key in enumerate(field, start=1):
            if field[:depth] in self._wrong or (isinstance(key, str) and key not in value):
                return None
            value = value[key]
        return value


def _broken_rules(sound: _Sound, stem: str) -> Iterator[tuple[Field, str]]:
    """The rules that a schema cannot state: each broken one, at the field to change."""
    name = sound.get("name")
    if name is not None and name != stem:
        yield ("name",), f"name is {name!r}; expected {stem!r}, as the file is called. Rename one of the two."
    context = sound.get("max_context_len")
    step = sound.get("max_seq_len")
    if context is not None and step is not None and step > context:
        yield ("max_seq_len",), f"max_seq_len is {step}; expected at most max_context_len, which is {context}."
    yield from _broken_quantization_rules(sound)
    yield from _broken_prompt_rules(sound, context)


def _broken_quantization_rules(sound: _Sound) -> Iterator[tuple[Field, str]]:
    if sound.get("quantization") is None:
        return
    schemes = []
    for kind in ("linear", "embedding"):
        field: Field = ("quantization", f"{kind}_group_size")
        group_size = sound.get(*field)
        scheme = sound.get("quantization", kind) or NONE
        schemes.append(scheme)
        if group_size is not None and scheme not in GROUP_SIZE_CHOOSABLE:
            groups = f"groups of {DEFAULT_GROUP_SIZE[scheme]}" if scheme != NONE else "no groups"
            choosable = schema_problems.choices(GROUP_SIZE_CHOOSABLE)
            what = (
                f"quantization.{kind}_group_size is {group_size}; quantization.{kind} is {scheme}, which has {groups}."
            )
            yield field, f"{what} Remove it, or choose {choosable}."
    for option in ("untie_head", "skip"):
        if sound.get("quantization", option) and schemes == [NONE, NONE]:
            what = (
                f"quantization.{option} is set; quantization.linear and quantization.embedding are none, so nothing is"
            )
            yield ("quantization", option), f"{what} quantized. Remove it, or choose a scheme."


def _broken_prompt_rules(sound: _Sound, context: int | None) -> Iterator[tuple[Field, str]]:
    seen: dict[str, int] = {}
    for index in range(len(sound.get("smoke", "prompts") or ())):
        prompt: Field = ("smoke", "prompts", index)
        if sound.get(*prompt) is None:
            continue
        where = schema_problems.dotted(prompt)
        name = sound.get(*prompt, "name")
        if name is not None and (first := seen.setdefault(name, index)) != index:
            yield (*prompt, "name"), f"{where}.name is {name!r}, as in smoke.prompts[{first}]; expected unique names."
        given = "max_new_tokens" in sound.get(*prompt)
        tokens = sound.get(*prompt, "max_new_tokens") if given else DEFAULT_MAX_NEW_TOKENS
        if context is not None and tokens is not None and tokens >= context:
            found = f"{where}.max_new_tokens is {tokens}{'' if given else ' by default'}"
            field = (*prompt, "max_new_tokens") if given else prompt
            yield field, f"{found}; expected less than max_context_len, which is {context}."


def _manifest(path: Path, data: dict[str, Any]) -> Manifest:
    return Manifest(
        path=path,
        version=data["version"],
        name=data["name"],
        model=Model(id=data["model"]["id"], source=_source(data["model"]["source"], path)),
        dtype=data["dtype"],
        quantization=_quantization(data.get("quantization", {})),
        max_seq_len=data["max_seq_len"],
        max_context_len=data["max_context_len"],
        cache=Cache(**data.get("cache", {})),
        backend=data["backend"],
        logits=data.get("logits", "last"),
        smoke=tuple(SmokePrompt(**prompt) for prompt in data["smoke"]["prompts"]),
    )


def _quantization(data: dict[str, Any]) -> Quantization:
    def format_of(kind: str) -> WeightFormat:
        scheme = data.get(kind, NONE)
        return WeightFormat(scheme=scheme, group_size=data.get(f"{kind}_group_size", DEFAULT_GROUP_SIZE[scheme]))

    return Quantization(
        linear=format_of("linear"),
        embedding=format_of("embedding"),
        untie_head=data.get("untie_head", False),
        skip=tuple(data.get("skip", ())),
    )


def _source(data: dict[str, Any], path: Path) -> Source:
    ((kind, value),) = data.items()
    if kind == "hub":
        return HubSource(**value)
    if kind == "wheel":
        return WheelSource(**value)
    assert kind == "path", f"the schema let the source {kind!r} pass"
    # Not resolve(): following a link would lose the name, and with it the .gguf suffix.
    return PathSource(path=Path(os.path.abspath(path.parent / value)))  # noqa: PTH100
