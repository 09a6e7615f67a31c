"""What one run of ``pte verify`` found, and the forms in which it is told.

==================  ============================================================
``text``            for people
``json_document``   for programs of one's own; ``schemas/verify-report.schema.json``
``junit``           JUnit XML, as Jenkins and GitLab read it
``sarif``           SARIF 2.1.0, as code scanning reads it
``github``          workflow commands, which GitHub Actions shows as annotations
==================  ============================================================

Each of them is a function from a run to a document, and is imported when it is asked for. All are complete and well
formed whatever a file is called and whatever is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol, cast

from pipeline.verify.findings import Finding, Pair, Report, Rule, Severity

FORMATS = {"text": "text", "json": "json_document", "junit": "junit", "sarif": "sarif", "github": "github"}
"""What ``--format`` accepts, and the module here that writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file that could not be examined. ``problem`` is a whole sentence without the file's name."""

    file: str
    problem: str


Outcome = Report | Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """``outcomes`` are in the order of the files; ``fail_on`` is ``None`` when no finding fails the run.

    ``rules`` are all that there are, by id.
    """

    outcomes: tuple[Outcome, ...]
    fail_on: Severity | None
    rules: Mapping[str, Rule]

    @property
    def exit_code(self) -> int:
        """The greatest of every file's: 0 it holds, 1 a finding at or above ``fail_on``, 3 it cannot be read."""
        return max((exit_code(outcome, self.fail_on) for outcome in self.outcomes), default=0)


def exit_code(outcome: Outcome, fail_on: Severity | None) -> int:
    """What one file alone would exit with."""
    if isinstance(outcome, Unreadable):
        return 3
    return int(any(fails(finding, fail_on) for finding in outcome.findings))


def fails(finding: Finding, fail_on: Severity | None) -> bool:
    """Whether the finding makes the run exit with 1."""
    return fail_on is not None and finding.rule.severity >= fail_on


def pairs(report: Report) -> list[tuple[Pair, str | None, list[Finding]]]:
    """Each pair, why it was not compared (``None``: it was), and its findings. No finding is without its pair."""
    found: dict[Pair, list[Finding]] = {pair: [] for pair in report.compared}
    for finding in report.findings:
        found.setdefault(finding.rule.pair, []).append(finding)
    return [(pair, report.compared.get(pair), found[pair]) for pair in sorted(found)]


class _Format(Protocol):
    def document(self, run: Run) -> str: ...


def document(name: str, run: Run) -> str:
    """The run in the format of that name. All but ``text`` and ``github`` are ASCII."""
    return cast(_Format, import_module(f"{__name__}.{FORMATS[name]}")).document(run)
