"""A contract of a user's own, from a JSON Schema over the methods that their app reads (``docs/contracts.md``).

Any keyword of JSON Schema may be used, so a general validator evaluates it. What would make it fail, or fetch
something, when an artifact is held to it, is refused when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline.errors import ContractError
from pipeline.verify.contracts import Contract, cut, of_schema
from pipeline.verify.findings import Severity
from pipeline.verify.keywords import Violation
from pipeline.verify.rules import REGISTERED

MAX_BYTES = 1 << 20


def read(path: str) -> Contract:
    """The contract in a file, named after it. Raises ContractError with what is wrong with it, and where."""
    file = Path(path)
    rules = _parsed(file)
    _check(file, rules)
    stem = file.name.removesuffix(".json").removesuffix(".schema")
    name, _, version = stem.partition("@")
    return of_rules(name or stem, version or None, rules)


def of_rules(name: str, version: str | None, rules: Mapping[str, Any]) -> Contract:
    """The contract in a schema that was checked, of whatever keywords."""
    return replace(of_schema(name, version, rules), violations=_violations)


def _wrong(file: Path, place: str, what: str) -> ContractError:
    return ContractError(f"{file}: {place} {what}. Correct the schema; docs/contracts.md shows one.")


def _parsed(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MAX_BYTES:
            raise _wrong(file, "the file", f"has more than {MAX_BYTES} bytes; expected a schema of some methods")
        rules = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ContractError(f"{file}: there is no such file; expected a JSON schema. Correct the path.") from None
    except OSError as error:
        raise ContractError(f"{file}: cannot be read ({error.strerror}); expected a JSON schema.") from None
    except ValueError as error:
        raise _wrong(file, "the file", f"is no JSON ({error})") from None
    except RecursionError:
        raise _wrong(file, "the file", "is nested too deeply; expected a schema of some methods") from None
    if not isinstance(rules, dict):
        raise _wrong(file, "the file", f"holds {cut(rules)}; expected a JSON object, a schema")
    return rules


def _check(file: Path, rules: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError, best_match

    try:
        error: Any = best_match(Draft202012Validator(Draft202012Validator.META_SCHEMA).iter_errors(rules))
    except (RecursionError, SchemaError) as failure:
        raise _wrong(file, "the file", f"is no JSON Schema of draft 2020-12 ({type(failure).__name__})") from None
    if error is not None:
        place = _place(error.absolute_path)
        raise _wrong(file, place, f"is {cut(error.instance)}; expected {error.validator} {cut(error.validator_value)}")
    if not rules.get("properties") and not rules.get("required"):
        raise _wrong(file, "the schema", "names no method; expected properties or required")
    for place, target in _references(rules, ()):
        if not _resolves(rules, target):
            raise _wrong(file, place, f"is {cut(target)}; expected a place in this file, as in #/$defs/count")
    _check_own_keys(file, rules)


def _check_own_keys(file: Path, rules: dict[str, Any]) -> None:
    for key, given in rules.items():
        if key.startswith("x-") and key not in _OWN:
            raise _wrong(file, key, f"is not known; expected {', '.join(sorted(_OWN))}")
        if key in _OWN and not _OWN[key](given):
            raise _wrong(file, key, f"is {cut(given)}; expected {_EXPECTED[key]}")
    for key in ("x-rules", "x-severities"):
        for rule in rules.get(key, ()):
            if rule not in REGISTERED:
                raise _wrong(file, key, f"has {rule!r}; expected ids of rules, such as PTE201")
    for name, said in rules.get("properties", {}).items():
        words = [said.get(key, "") for key in ("x-expected", "x-formerly")] if isinstance(said, dict) else []
        if not all(isinstance(text, str) for text in words):
            raise _wrong(file, f"properties.{name}", "has an x-expected or x-formerly that is no text; expected words")


def _are_names(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(name, str) for name in given)


def _are_reasons(given: Any) -> bool:
    return isinstance(given, dict) and all(isinstance(reason, str) for reason in given.values())


def _are_severities(given: Any) -> bool:
    levels = {str(level) for level in Severity}
    return isinstance(given, dict) and all(isinstance(level, str) and level in levels for level in given.values())


_OWN = {
    "x-rules": _are_names,
    "x-severities": _are_severities,
    "x-advisable": _are_reasons,
    "x-claimed-by": _are_names,
    "x-not-claimed-by": _are_names,
}
_EXPECTED = {
    "x-rules": "a list of ids of rules",
    "x-severities": "ids of rules, each with note, warning or error",
    "x-advisable": "methods, each with what it costs to do without",
    "x-claimed-by": "a list of methods",
    "x-not-claimed-by": "a list of methods",
}


def _references(rules: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
    """Every reference in a schema, with its place."""
    inner: Iterator[tuple[str | int, Any]] = iter(())
    if isinstance(rules, dict):
        for key in ("$ref", "$dynamicRef"):
            if key in rules:
                yield _place((*path, key)), rules[key]
        inner = ((key, value) for key, value in rules.items() if key not in ("enum", "const", "default", "examples"))
    elif isinstance(rules, list):
        inner = iter(enumerate(rules))
    for step, value in inner:
        yield from _references(value, (*path, step))


def _resolves(rules: Any, target: Any) -> bool:
    """Whether a reference leads to a place in the schema, other than its root, which would contain itself."""
    if not (isinstance(target, str) and target.startswith("#/")):
        return False
    for part in target[2:].split("/"):
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(rules, list) and key.isdecimal() and int(key) < len(rules):
            rules = rules[int(key)]
        elif isinstance(rules, dict) and key in rules:
            rules = rules[key]
        else:
            return False
    return isinstance(rules, dict | bool)


def _place(path: Any) -> str:
    return ".".join(map(str, path)) or "the schema"


def _violations(rules: Mapping[str, Any], constants: Any) -> Iterator[Violation]:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    # JSON Schema counts 512.0 as an integer; a Double is not an Int to a runner.
    types = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    strict: Any = extend(Draft202012Validator, type_checker=types)  # type: ignore[no-untyped-call]
    try:
        for error in strict(rules).iter_errors(constants):
            # A schema that is ``false`` has no keyword that could be broken, and no path.
            yield Violation(tuple(error.absolute_path), error.validator or "false", _missing(error))
    except RecursionError:
        raise ContractError(
            "the contract's schema refers to itself without end; expected references that come to one. Correct it."
        ) from None


def _missing(error: Any) -> tuple[str, ...]:
    """The names that an error finds missing; the validator reports each as an error of its own."""
    if error.validator == "required":
        return tuple(name for name in error.validator_value if name not in error.instance)
    if error.validator == "dependentRequired":
        return tuple(
            other
            for name, others in error.validator_value.items()
            if name in error.instance
            for other in others
            if other not in error.instance
        )
    return ()
