"""What people read: one line for what holds, every finding of what does not, and no line broken in a log."""

from __future__ import annotations

import re

import pytest

from pipeline.cli.formats import text
from pipeline.cli.terminal import Terminal
from pipeline.verify.findings import Finding, Report, Severity
from tests.cli.formats.runs import BAD, GOOD, NO_STOPS, OLD, RUNS, STOPS, UNALIGNED, UNREADABLE, report, run

LOG = Terminal()


def test_a_file_that_holds_is_a_line_and_what_it_rests_on() -> None:
    assert text.document(RUNS["good"]) == (
        "ok  build/model.pte  (2 caches, vocab 11)\n"
        "    269 MB, held to off_graph@1, text@1\n"
        "    compared: published values; published, graph; file\n"
        "    not compared: published, manifest (no manifest is given)\n"
    )


def test_findings_follow_their_file_and_the_end_counts() -> None:
    assert text.document(RUNS["all"]) == (
        f"{text.block(GOOD, Severity.ERROR, LOG)}\n"
        "fail  build/bad.pte  (2 caches, vocab 11)\n"
        "    269 MB, held to off_graph@1, text@1\n"
        "    compared: published values; published, graph; file\n"
        "    not compared: published, manifest (no manifest is given)\n"
        "    error PTE101 stop-ids: get_eos_ids is missing; expected one or more token ids. Rebuild the artifact. "
        "(off_graph@1)\n"
        "    error PTE201 vocabulary-width: get_vocab_size is 10 but the logits are 11 wide; they are one number. "
        "Rebuild the artifact. (off_graph@1)\n"
        "    warning PTE701 version: The file is of executorch 1.4; expected 1.5. Rebuild the artifact.\n"
        "cut.pte: it ends after 7 bytes; expected a .pte. Build it again.\n"
        "Why a rule is there: pte verify --explain PTE101\n"
        "3 files: 1 passed, 1 failed, 1 cannot be read; 2 errors, 1 warning\n"
    )


@pytest.mark.parametrize(
    ("found", "fail_on", "verdict"),
    [
        (GOOD, Severity.NOTE, "ok"),
        (report(OLD), Severity.ERROR, "warning"),
        (report(OLD), Severity.WARNING, "fail"),
        (report(UNALIGNED, OLD), Severity.ERROR, "warning"),
        (report(UNALIGNED), Severity.WARNING, "note"),
        (BAD, None, "error"),
    ],
)
def test_a_verdict_is_ok_only_without_findings(found: Report, fail_on: Severity | None, verdict: str) -> None:
    assert text.block(found, fail_on, LOG).startswith(f"{verdict}  {found.file}  (")


def test_several_good_files_are_counted() -> None:
    assert list(text.end(run(GOOD, GOOD), LOG)) == ["2 files: 2 passed"]
    assert list(text.end(run(GOOD), LOG)) == []


def test_a_file_held_to_no_contract_and_publishing_nothing_says_so() -> None:
    bare = Report(file="x.pte", size_bytes=7, contracts=(), compared={}, summary="", findings=())
    assert text.block(bare, Severity.ERROR, LOG) == "ok  x.pte\n    7 bytes, held to no contract"


@pytest.mark.parametrize(
    ("size_bytes", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (89_460_000, "89.5 MB"),
        (1_340_000_000, "1.34 GB"),
        (5 * 10**15, "5e+03 TB"),
    ],
)
def test_a_size_has_three_digits(size_bytes: int, shown: str) -> None:
    found = Report(file="x.pte", size_bytes=size_bytes, contracts=(), compared={}, summary="", findings=())
    assert text.block(found, None, LOG).splitlines()[1] == f"    {shown}, held to no contract"


def test_colours_change_nothing_but_colour() -> None:
    coloured = Terminal(width=None, colours=True)
    for outcome in (GOOD, BAD, UNREADABLE, report(OLD, UNALIGNED)):
        shown = text.block(outcome, Severity.ERROR, coloured)
        assert re.sub(r"\x1b\[\d+m", "", shown) == text.block(outcome, Severity.ERROR, LOG)
    assert "\x1b[31merror\x1b[0m PTE101 " in text.block(BAD, Severity.ERROR, coloured)
    assert text.block(GOOD, Severity.ERROR, coloured).startswith("\x1b[32mok\x1b[0m  build/model.pte")


@pytest.mark.parametrize("width", [20, 40, 60, 100])
def test_lines_are_broken_between_words_to_fit_a_terminal(width: int) -> None:
    shown = text.block(BAD, Severity.ERROR, Terminal(width=width))
    head, *lines = shown.splitlines()
    assert head == "fail  build/bad.pte  (2 caches, vocab 11)"
    assert max(map(len, lines)) <= max(width, 40)
    assert re.sub(r"\s+", " ", shown) == re.sub(r"\s+", " ", text.block(BAD, Severity.ERROR, LOG))


def test_what_a_file_says_reaches_no_terminal_unescaped() -> None:
    hostile = Finding(rule=STOPS, subject="x", contract="\x1b[2J@1", message="\x1b[2J\rok  x.pte\n\u202e is it.")
    shown = text.block(report(hostile, NO_STOPS, file="a\nok  b.pte"), Severity.ERROR, LOG)
    assert shown.startswith("fail  'a\\nok  b.pte'  (")
    assert "error PTE101 stop-ids: \\x1b[2J\\rok  x.pte\\n\\u202e is it. (\\x1b[2J@1)\n" in shown
