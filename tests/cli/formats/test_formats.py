"""A run exits as its worst file would; and whatever was found, no document carries a control character."""

from __future__ import annotations

import pytest

from pipeline.cli.formats import FORMATS, document, pairs
from pipeline.verify.findings import Pair, Report, Severity
from tests.cli.formats.runs import BAD, GOOD, NARROW, OLD, RUNS, UNALIGNED, UNREADABLE, report, run


@pytest.mark.parametrize(
    ("outcomes", "fail_on", "code"),
    [
        ([], Severity.ERROR, 0),
        ([GOOD], Severity.NOTE, 0),
        ([GOOD, BAD], Severity.ERROR, 1),
        ([BAD, GOOD], None, 0),
        ([report(OLD)], Severity.ERROR, 0),
        ([report(OLD)], Severity.WARNING, 1),
        ([report(UNALIGNED)], Severity.WARNING, 0),
        ([report(UNALIGNED)], Severity.NOTE, 1),
        ([UNREADABLE], None, 3),
        ([UNREADABLE, BAD], Severity.ERROR, 3),
        ([BAD, UNREADABLE], Severity.ERROR, 3),
    ],
)
def test_the_exit_code_is_the_worst_file_s(outcomes: list[Report], fail_on: Severity | None, code: int) -> None:
    assert run(*outcomes, fail_on=fail_on).exit_code == code


def test_every_pair_comes_once_and_in_order_and_no_finding_without_its_pair() -> None:
    found = Report(
        file="x.pte",
        size_bytes=1,
        contracts=(),
        compared={Pair.FILE: None, Pair.PUBLISHED: "nothing is published"},
        summary="",
        findings=(NARROW, OLD),
    )
    assert pairs(found) == [
        (Pair.PUBLISHED, "nothing is published", []),
        (Pair.PUBLISHED_GRAPH, None, [NARROW]),
        (Pair.FILE, None, [OLD]),
    ]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("which", RUNS)
def test_a_document_can_be_shown_and_is_the_same_each_time(name: str, which: str, pages: None) -> None:
    text = document(name, RUNS[which])
    assert text == document(name, RUNS[which])
    assert all(line.isprintable() for line in text.split("\n"))
    assert text == "" or text.endswith("\n")
    if name in ("json", "junit", "sarif"):
        assert text.isascii()
