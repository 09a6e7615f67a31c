"""What a YAML document does wrong against a JSON schema, in sentences with lines.

Knows how to read a schema aloud: its choices, its bounds, and two annotations of ours,
``patternErrorMessage`` (shown by editors too) and ``x-later`` (values a later version accepts).
Does not know what any field is for.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from pipeline import schema
from pipeline.yaml_source import Document, Field, Problem, Unreadable

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError

_MAX_SHOWN = 120
_READ_AS = {bool: "a boolean", int: "a number", float: "a number", type(None): "nothing"}


def find(document: Document, schema_name: str) -> list[Problem]:
    """Every place where the document's value differs from the schema: at most one problem per field."""
    found: dict[Field, Problem] = {}
    for error in _validator(schema_name).iter_errors(document.value):
        for problem in _problems(error, document):
            found.setdefault(problem.field, problem)
    return list(found.values())


def dotted(field: Field) -> str:
    """``smoke.prompts[0].expect``."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in field).removeprefix(".")


def choices(values: Iterable[object], word: str = "or") -> str:
    """``a, b or c``."""
    *most, last = map(str, values)
    return f"{', '.join(most)} {word} {last}" if most else last


@cache
def _validator(schema_name: str) -> Any:
    # Imported here: it costs more than everything else that importing a manifest does.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 512.0 as an integer; a token count written so is a slip.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    return strict(schema.load(schema_name))


def _problems(error: ValidationError, document: Document) -> Iterator[Problem]:
    field: Field = tuple(error.absolute_path)
    rule: Any = error.schema
    instance: Any = error.instance
    if error.validator == "required":
        yield from _missing(field, instance, rule, document)
    elif error.validator == "additionalProperties":
        yield from _unknown(field, instance, rule, document)
    elif error.validator in ("minProperties", "maxProperties"):
        yield from _not_exactly_one(field, instance, rule, document)
    else:
        expected = f"an integer of at most {rule['maximum']}" if error.validator == "maximum" else _expected(rule)
        written = document.places[field].written
        found = f"{dotted(field)} is {_shown(instance, written)}; expected {expected}."
        yield _at(field, document, found + _advice(instance, written, rule))


def _missing(field: Field, instance: dict[str, Any], rule: Any, document: Document) -> Iterator[Problem]:
    misspelt = {_closest(name, rule["properties"]) for name in instance if name not in rule["properties"]}
    for name in rule["required"]:
        if name not in instance and name not in misspelt:
            text = f"{dotted((*field, name))} is missing; expected {_expected(rule['properties'][name])}."
            yield Problem(document.places[field].line, (*field, name), text)


def _unknown(field: Field, instance: dict[str, Any], rule: Any, document: Document) -> Iterator[Problem]:
    for name in instance:
        if name not in rule["properties"]:
            close = _closest(name, rule["properties"])
            rest = f". Did you mean {close!r}?" if close else f"; expected {choices(rule['properties'])}."
            yield _at((*field, name), document, f"unknown field {_cut(repr(dotted((*field, name))))}{rest}")


def _not_exactly_one(field: Field, instance: dict[str, Any], rule: Any, document: Document) -> Iterator[Problem]:
    given = [name for name in rule["properties"] if name in instance]
    found = f"has {choices(given, 'and')}" if given else "is empty"
    if len(given) != 1 and len(given) == len(instance):  # otherwise the unknown fields are the mistake
        yield _at(field, document, f"{dotted(field)} {found}; expected {_expected(rule)}.")


def _at(field: Field, document: Document, text: str) -> Problem:
    return Problem(document.places[field].line, field, text)


def _expected(rule: Any) -> str:
    """What a subschema accepts, to stand after 'expected'."""
    if "patternErrorMessage" in rule:
        return str(rule["patternErrorMessage"]).removeprefix("expected ")
    if "enum" in rule:
        return choices(rule["enum"])
    if "const" in rule:
        return repr(rule["const"])
    if rule["type"] == "integer":
        return f"an integer from {rule['minimum']} to {rule['maximum']}"
    if rule["type"] == "array":
        return f"a list of at least {rule['minItems']}"
    assert rule["type"] == "object", f"no words for {rule}"
    if "maxProperties" in rule:
        return f"exactly one of {choices(rule['properties'])}"
    return f"a mapping with {choices(rule.get('required', rule['properties']), 'and')}"


def _shown(value: object, written: str) -> str:
    if isinstance(value, str):
        return _cut(repr(value))
    if isinstance(value, dict | list):
        kind = "a mapping" if isinstance(value, dict) else "a list"
        return kind if value else f"{kind} with nothing in it"
    if value is None and not written:
        return "empty"
    why = value.why if isinstance(value, Unreadable) else f"which YAML reads as {_READ_AS[type(value)]}"
    # A number where a number belongs needs no explanation.
    return _cut(written if written.isprintable() else repr(written)) + ("" if type(value) is int else f", {why}")


def _advice(value: object, written: str, rule: Any) -> str:
    later = rule.get("x-later", ())
    if value in later:
        return f" A later version adds {choices(later, 'and')}."
    if isinstance(value, str):
        if rule["type"] == "integer" and re.fullmatch("[0-9]{1,9}", value):
            return " Remove the quotes."
        close = _closest(value, rule.get("enum", ()))
        return f" Did you mean {close!r}?" if close else ""
    quoted_helps = rule["type"] == "string" and written and re.search(rule.get("pattern", ""), written)
    if quoted_helps and not isinstance(value, dict | list) and written in rule.get("enum", (written,)):
        return f" Quote it: {_cut(repr(written))}."
    return ""


def _closest(word: str, known: Iterable[str]) -> str | None:
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:_MAX_SHOWN].lower(), lowered, n=1)
    return lowered[close[0]] if close else None


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
