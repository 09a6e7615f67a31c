"""No control character gets through, and what is plain stays as it is."""

from __future__ import annotations

import pytest

from pipeline.cli.plain import name, plain, unicode


@pytest.mark.parametrize("text", ["", "model.pte", "ü 漢字 🙂.pte", "a b", "back\\slash", "'quoted'"])
def test_what_is_printable_stays(text: str) -> None:
    assert plain(text) == name(text) == unicode(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\nb\r", "a\\nb\\r"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\udcff", "\\udcff"),
        ("\u202eetp.", "\\u202eetp."),
        ("\u2028\ufeff\ufffe", "\\u2028\\ufeff\\ufffe"),
        ("\U000e0001", "\\U000e0001"),
        ("it's\n", "it's\\n"),
    ],
)
def test_what_is_not_printable_is_escaped(text: str, expected: str) -> None:
    assert plain(text) == expected
    assert name(text) == repr(text)
    assert name(text).isprintable()


def test_what_is_to_be_kept_is_kept() -> None:
    assert plain("a\nb\x00", keep="\n") == "a\nb\\x00"


def test_bytes_that_are_no_text_are_written_as_bytes() -> None:
    assert unicode("a\n\udcff\udc80ü") == "a\n\\xff\\x80ü"
