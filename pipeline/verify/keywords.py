"""The keywords of JSON Schema that the shipped contracts use, evaluated here.

Knows a dozen keywords and refuses to have overlooked one; a general validator takes longer to import than everything
else that reading a file does. A test holds this one to it, on every value it is asked about. Integers are of Python's
type ``int`` alone: neither ``True`` nor ``512.0``, which JSON Schema counts, is an Int to a runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

_TYPES: dict[str, type | tuple[type, ...]] = {
    "array": list,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "object": dict,
    "string": str,
}

SAYS_NOTHING = frozenset({"$schema", "$id", "$comment", "title", "description", "examples"})
"""Keywords that no value can break; those that begin with ``x-`` are ours, and break nothing either."""


Path = tuple[str | int, ...]
"""Where in a value: names of members and indices."""


class Violation(NamedTuple):
    """``keyword`` is broken at ``path`` in the value; ``missing`` are the names that it asks for in vain."""

    path: Path
    keyword: str
    missing: tuple[str, ...] = ()


def violations(rules: Mapping[str, Any], value: Any, path: Path = ()) -> Iterator[Violation]:
    """Every keyword of ``rules`` that ``value`` breaks, in the order in which they are written."""
    for keyword, argument in rules.items():
        evaluate = _KEYWORDS.get(keyword)
        if evaluate is not None:
            for violation in evaluate(argument, value, path):
                yield violation
                if keyword == "maxItems":
                    # What is too long is not looked through besides.
                    return
        else:
            assert keyword in SAYS_NOTHING or keyword.startswith("x-"), f"no shipped contract may use {keyword}"


def is_of_type(value: Any, name: str) -> bool:
    """Whether a published value is of one of JSON Schema's types."""
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])


def _type(names: str | list[str], value: Any, path: Path) -> Iterator[Violation]:
    if not any(is_of_type(value, name) for name in ([names] if isinstance(names, str) else names)):
        yield Violation(path, "type")


def _enum(values: list[Any], value: Any, path: Path) -> Iterator[Violation]:
    if not any(isinstance(value, bool) == isinstance(known, bool) and value == known for known in values):
        yield Violation(path, "enum")


def _const(known: Any, value: Any, path: Path) -> Iterator[Violation]:
    for _ in _enum([known], value, path):
        yield Violation(path, "const")


def _minimum(bound: int, value: Any, path: Path) -> Iterator[Violation]:
    if is_of_type(value, "number") and value < bound:
        yield Violation(path, "minimum")


def _maximum(bound: int, value: Any, path: Path) -> Iterator[Violation]:
    if is_of_type(value, "number") and value > bound:
        yield Violation(path, "maximum")


def _min_items(bound: int, value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, list) and len(value) < bound:
        yield Violation(path, "minItems")


def _max_items(bound: int, value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, list) and len(value) > bound:
        yield Violation(path, "maxItems")


def _items(rules: Mapping[str, Any], value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, list):
        for index, item in enumerate(value):
            yield from violations(rules, item, (*path, index))


def _properties(rules: Mapping[str, Any], value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, dict):
        for name, inner in rules.items():
            if name in value:
                yield from violations(inner, value[name], (*path, name))


def _required(names: list[str], value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, dict):
        missing = tuple(name for name in names if name not in value)
        if missing:
            yield Violation(path, "required", missing)


def _dependent_required(names: Mapping[str, list[str]], value: Any, path: Path) -> Iterator[Violation]:
    if isinstance(value, dict):
        wanted = dict.fromkeys(other for name, others in names.items() if name in value for other in others)
        missing = tuple(name for name in wanted if name not in value)
        if missing:
            yield Violation(path, "dependentRequired", missing)


_KEYWORDS: dict[str, Callable[[Any, Any, Path], Iterator[Violation]]] = {
    "type": _type,
    "enum": _enum,
    "const": _const,
    "minimum": _minimum,
    "maximum": _maximum,
    "minItems": _min_items,
    "maxItems": _max_items,
    "items": _items,
    "properties": _properties,
    "required": _required,
    "dependentRequired": _dependent_required,
}
