"""Workflow commands as the runner reads them: https://docs.github.com/actions/reference/workflow-commands."""

from __future__ import annotations

import re

import pytest

from pipeline.cli.formats import github
from tests.cli.formats.runs import HOSTILE, RUNS


def read(line: str) -> tuple[str, dict[str, str], str]:
    """Command, properties and message, read in the steps of actions/runner's ActionCommand."""
    match = re.fullmatch("::([a-z]+) (.*?)::(.*)", line)
    assert match, line
    properties = dict(one.split("=", 1) for one in match[2].split(","))
    unescaped = {key: unescape(value, ":,") for key, value in properties.items()}
    return match[1], unescaped, unescape(match[3], "")


def unescape(text: str, more: str) -> str:
    for c in (*"\r\n", *more, "%"):
        text = text.replace(f"%{ord(c):02X}", c)
    return text


def test_every_finding_and_every_unreadable_file_is_annotated() -> None:
    assert github.document(RUNS["all"]) == (
        "::error file=build/bad.pte,title=PTE101 stop-ids::build/bad.pte: get_eos_ids is missing; "
        "expected one or more token ids. Rebuild the artifact.\n"
        "::error file=build/bad.pte,title=PTE201 vocabulary-width::build/bad.pte: get_vocab_size is 10 but the logits "
        "are 11 wide; they are one number. Rebuild the artifact.\n"
        "::warning file=build/bad.pte,title=PTE701 version::build/bad.pte: The file is of executorch 1.4; expected "
        "1.5. Rebuild the artifact.\n"
        "::error file=cut.pte,title=cannot be read::cut.pte: it ends after 7 bytes; expected a .pte. Build it again.\n"
    )


def test_a_note_is_a_notice() -> None:
    assert [read(line)[0] for line in github.document(RUNS["warned"]).splitlines()] == ["warning", "notice"]


@pytest.mark.parametrize("which", ["nothing", "good"])
def test_there_is_nothing_to_say_about_what_holds(which: str) -> None:
    assert github.document(RUNS[which]) == ""


def test_a_name_can_neither_end_its_command_nor_begin_another() -> None:
    first, second = github.document(RUNS["hostile"]).splitlines()
    command, properties, message = read(first)
    assert command == "error"
    assert set(properties) == {"file", "title"}
    assert properties["file"].startswith("a\n::error::b\\x1b[31m\\udcff\\x00")
    assert properties["file"].endswith(",:%{0}[x](y)<&>\"'\\u202e.pte")
    assert HOSTILE.replace("\n", "\\n").split("\x1b")[0] in message
    assert read(second)[1]["title"] == "cannot be read"
