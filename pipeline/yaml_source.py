"""One small YAML document as plain values, with the line each was written on.

Knows YAML, and refuses by line what a reviewed configuration file has no use for: a key given
twice, aliases and merge keys, tags, a second document, nesting without end. Does not know what a
manifest is, nor opens files. Reads parser events instead of composed nodes, so that a hostile
file can neither recurse nor expand.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

Field = tuple[str | int, ...]
"""Where a value stands: mapping keys and list indices from the top."""

MAX_DEPTH = 20
MAX_VALUES = 2_000

_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()
_TAG = "tag:yaml.org,2002:"
_FORBIDDEN = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_UNENCODABLE = re.compile("[\x00\ud800-\udfff]")
_DECIMAL = re.compile(r"[-+]?(0|[1-9][0-9]*)", re.ASCII)
_MAX_DIGITS = 18
_MAX_SHOWN = 120


@dataclass(frozen=True)
class Unreadable:
    """Stands in for a scalar that has no plain value here; ``why`` continues 'is <text>, …'."""

    why: str


@dataclass(frozen=True)
class Place:
    """The line of a value's key (of the value, in a list), and a scalar's text as written."""

    line: int
    written: str = ""


@dataclass(frozen=True)
class Problem:
    """A mistake, the field it is about, and its line; ``text`` is the sentence after ``file:line:``."""

    line: int
    field: Field
    text: str


@dataclass(frozen=True, kw_only=True)
class Document:
    """``value`` is None when the text could not be read to its end; ``problems`` then says why."""

    value: dict[str, Any] | None
    places: dict[Field, Place]
    problems: list[Problem]


def parse(data: bytes) -> Document:
    """The one mapping that ``data`` holds; mistakes are returned, never raised."""
    builder = _Builder()
    value: dict[str, Any] | None = None
    try:
        value = builder.document(_decoded(data))
    except _RefusedError as error:
        builder.problems.append(error.problem)
    except yaml.YAMLError as error:
        builder.problems.append(_syntax_problem(error))
    return Document(value=value, places=builder.places, problems=builder.problems)


class _RefusedError(Exception):
    """Ends the reading of one document; never leaves this module."""

    def __init__(self, line: int, text: str) -> None:
        super().__init__(text)
        self.problem = Problem(line, (), text)


def _decoded(data: bytes) -> str:
    advice = "expected UTF-8 text. Save the file as UTF-8."
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _RefusedError(1, f"the file starts like UTF-16 or UTF-32; {advice}")
    if (nul := data.find(b"\0")) >= 0:
        raise _RefusedError(_line_at(data, nul), f"the file holds a NUL byte; {advice}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} is not UTF-8"
        raise _RefusedError(_line_at(data, error.start), f"{found}; {advice}") from error
    if match := _FORBIDDEN.search(text):
        line = text.count("\n", 0, match.start()) + 1
        expected = "expected printable text. Write it as an escape in double quotes."
        raise _RefusedError(line, f"the file holds the control character {match.group()!r}; {expected}")
    return text


def _line_at(data: bytes, offset: int) -> int:
    return data.count(b"\n", 0, offset) + 1


def _syntax_problem(error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    what = getattr(error, "problem", None) or getattr(error, "context", None) or "it cannot be parsed"
    line, column = (mark.line + 1, f" at column {mark.column + 1}") if mark else (1, "")
    advice = ""
    if "mapping values are not allowed" in what:
        advice = " Quote a text that contains ': ', and check the indentation."
    elif "cannot start any token" in what:
        advice = " Indent with spaces, not tabs, and quote a text that starts with a special character."
    return Problem(line, (), f"invalid YAML{column}: {what}.{advice}")


class _Builder:
    """Turns parser events into values, keeping where each was found and what was wrong."""

    def __init__(self) -> None:
        self.places: dict[Field, Place] = {}
        self.problems: list[Problem] = []
        self._events: Iterator[Any] = iter(())

    def document(self, text: str) -> dict[str, Any]:
        self._events = yaml.parse(text, Loader=_LOADER)
        next(self._events)  # the stream's start
        if isinstance(next(self._events), yaml.StreamEndEvent):
            raise _RefusedError(1, "the file is empty; expected a mapping of fields.")
        root = next(self._events)
        line = _line(root)
        value = self._value(root, (), line)
        next(self._events)  # the document's end
        if not isinstance(extra := next(self._events), yaml.StreamEndEvent):
            raise _RefusedError(_line(extra), "a second document starts here; expected one. Give it its own file.")
        if value is None:
            raise _RefusedError(1, "the file is empty; expected a mapping of fields.")
        if not isinstance(value, dict):
            found = "a list" if isinstance(value, list) else "a single value"
            raise _RefusedError(line, f"the file holds {found}; expected a mapping of fields.")
        return value

    def _value(self, event: Any, field: Field, line: int) -> Any:
        if len(self.places) >= MAX_VALUES:
            raise _RefusedError(_line(event), f"the file holds more than {MAX_VALUES} values; expected fewer.")
        if len(field) > MAX_DEPTH:
            raise _RefusedError(_line(event), f"values are nested more than {MAX_DEPTH} deep; expected fewer levels.")
        if isinstance(event, yaml.AliasEvent):
            self.places[field] = Place(line, f"*{event.anchor}")
            return Unreadable("an alias, and aliases are not used here")
        if isinstance(event, yaml.ScalarEvent):
            tag = "" if event.tag is None else _short(event.tag)
            self.places[field] = Place(line, f"{tag} {event.value}".strip() if tag else event.value)
            return _scalar(event)
        self.places[field] = Place(line)
        if event.tag is not None:
            self._problem(event, field, f"the tag '{_short(event.tag)}' stands here; expected no tag. Remove it.")
        return self._mapping(field) if isinstance(event, yaml.MappingStartEvent) else self._sequence(field)

    def _sequence(self, field: Field) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*field, len(items)), _line(event)))
        return items

    def _mapping(self, field: Field) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            name = self._key(key, field, fields)
            value = next(self._events)
            if name is None:
                self._skip(value)
            else:
                fields[name] = self._value(value, (*field, name), _line(key))
        return fields

    def _key(self, event: Any, field: Field, seen: dict[str, Any]) -> str | None:
        """The name of the next field; None when it is refused, and its value is to be skipped."""
        if not isinstance(event, yaml.ScalarEvent):
            self._skip(event)
            kind = "an alias" if isinstance(event, yaml.AliasEvent) else "a mapping or a list"
            self._problem(event, field, f"{kind} stands as a field name; expected plain text.")
            return None
        name = event.value
        if event.implicit[0] and name == "<<":
            text = "the merge key '<<' stands here; expected fields. Write them out."
        elif not isinstance(_scalar(event), str):
            text = f"the field name {name[:_MAX_SHOWN]!r} is not text to YAML; expected a name of letters."
        elif name in seen:
            first = self.places[(*field, name)].line
            text = f"duplicate field {name[:_MAX_SHOWN]!r}; it is already on line {first}. Keep one."
        else:
            return str(name)
        self._problem(event, (*field, name), text)
        return None

    def _skip(self, event: Any) -> None:
        depth = 0
        while True:
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth == 0:
                return
            event = next(self._events)

    def _problem(self, event: Any, field: Field, text: str) -> None:
        self.problems.append(Problem(_line(event), field, text))


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag


def _scalar(event: yaml.ScalarEvent) -> Any:
    """The value of a scalar as YAML 1.1 reads it, or why it has none a JSON document could hold."""
    text = event.value
    if event.tag is not None:
        return Unreadable("a value with a tag, and tags are not used here")
    if _UNENCODABLE.search(text):
        return Unreadable("which holds a NUL or half a surrogate pair")
    if not event.implicit[0]:
        return text
    kind = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False)).removeprefix(_TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return text.lower() in ("yes", "true", "on")
    if kind == "int":
        return _integer(text)
    if kind == "float":
        return _finite(text)
    return Unreadable("which YAML reads as a date") if kind == "timestamp" else text


def _integer(text: str) -> int | Unreadable:
    if not _DECIMAL.fullmatch(text):
        return Unreadable("which YAML reads as a number not written in plain decimal")
    return int(text) if len(text) <= _MAX_DIGITS else Unreadable("which is too large a number")


def _finite(text: str) -> float | Unreadable:
    try:
        number = float(text)
    except ValueError:  # .inf, .nan and base 60 are floats to YAML alone
        number = math.nan
    return number if math.isfinite(number) else Unreadable("which is not a finite decimal number")
