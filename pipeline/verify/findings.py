"""What verification says of one file: which rules it broke, and what was held against what.

Values alone: the rules themselves are elsewhere, and so is how a report is shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


class Severity(IntEnum):
    """How much a finding matters. An error: a runner fails or answers wrongly. Ordered, so that they compare."""

    NOTE = 1
    WARNING = 2
    ERROR = 3

    def __str__(self) -> str:
        return self.name.lower()


class Pair(IntEnum):
    """What is held against what, each reported by name."""

    PUBLISHED = 1
    PUBLISHED_GRAPH = 2
    PUBLISHED_MANIFEST = 3
    GRAPH_MANIFEST = 4
    PUBLISHED_TOKENIZER = 5
    PUBLISHED_MODEL = 6
    FILE = 7

    def __str__(self) -> str:
        return {
            Pair.PUBLISHED: "published values",
            Pair.PUBLISHED_GRAPH: "published, graph",
            Pair.PUBLISHED_MANIFEST: "published, manifest",
            Pair.GRAPH_MANIFEST: "graph, manifest",
            Pair.PUBLISHED_TOKENIZER: "published, tokenizer",
            Pair.PUBLISHED_MODEL: "published, model",
            Pair.FILE: "file",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that can be wrong. ``docs/rules/<id>.md`` is its page; an id is never given to another rule."""

    id: str
    name: str
    severity: Severity
    pair: Pair
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule broken in one place.

    ``subject`` is what it was found on: a constant method's name, ``forward``, a named tensor, a field of a manifest.
    ``contract`` is the contract that asks for it, several with commas between, ``None`` for rules that hold for every
    file. ``message`` is a whole sentence for a person, without the file's name: what was found, what was expected, what
    to do.
    """

    rule: Rule
    subject: str
    message: str
    contract: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What was found about one file.

    ``contracts`` are those it was held to, as ``name@version``. ``compared`` has an entry for each pair: ``None`` where
    it was compared, else why it was not. ``summary`` is the contract in a few words. ``findings`` are in the order of
    their rules' ids.
    """

    file: str
    size_bytes: int
    contracts: tuple[str, ...]
    compared: Mapping[Pair, str | None]
    summary: str
    findings: tuple[Finding, ...]

    def worst(self) -> Severity | None:
        """The highest severity among the findings."""
        return max((finding.rule.severity for finding in self.findings), default=None)
