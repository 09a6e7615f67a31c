"""The register of rules: a small function each, under an id that is never given to another.

Knows what a rule consists of, not one of them: those are in the modules beside this, a group of ids each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pipeline.verify.findings import Pair, Rule, Severity

if TYPE_CHECKING:
    from pipeline.verify.case import Case

REBUILD = "Rebuild the artifact"

NOTE, WARNING, ERROR = Severity.NOTE, Severity.WARNING, Severity.ERROR


class Broken(NamedTuple):
    """Where a rule is broken and what was found and expected there, without a full stop.

    ``contract`` is the one that asks for it, where a rule knows; else it is those that bring the rule.
    """

    subject: str
    text: str
    contract: str | None = None


Find = Callable[["Case"], Iterator[Broken]]


class Registered(NamedTuple):
    """A rule and what finds where it is broken; ``advice`` ends its messages, a sentence without its full stop."""

    rule: Rule
    find: Find
    advice: str


_registered: dict[str, Registered] = {}

REGISTERED: Mapping[str, Registered] = MappingProxyType(_registered)
"""Every rule by its id, once ``pipeline.verify`` is imported."""


def rule(
    id: str,  # noqa: A002 - what it is called everywhere
    name: str,
    severity: Severity,
    pair: Pair,
    reason: str,
    advice: str = REBUILD,
) -> Callable[[Find], Find]:
    """Registers the decorated function under ``id``."""
    assert id not in _registered, f"{id} is given to two rules"

    def register(find: Find) -> Find:
        made = Rule(id=id, name=name, severity=severity, pair=pair, reason=reason)
        _registered[id] = Registered(made, find, advice)
        return find

    return register
