"""Nothing a model prints can drive the terminal; all else is as it was."""

from __future__ import annotations

import unicodedata

import pytest

from pipeline.text.terminal import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇"),
        ("\x9b31m", r"\x9b31m"),
        ("right\rwrong", "right␍wrong"),
        ("ab\b\b", "ab␈␈"),
        ("\x00\x7f", "␀␡"),
        ("user\u202egpj.exe\u202c", r"user\u202egpj.exe\u202c"),
        ("a\u2028b", r"a\u2028b"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Zażółć 東京 שלום 👩‍👩‍👧 é", "Zażółć 東京 שלום 👩‍👩‍👧 é"),
    ],
)
def test_what_drives_a_terminal_is_shown_instead(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert "".join(map(visible, text)) == shown


def test_no_control_or_bidirectional_character_of_unicode_is_left() -> None:
    shown = visible("".join(map(chr, range(0x110000))))
    left = {unicodedata.bidirectional(character) for character in shown}
    assert not left & {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert {character for character in shown if unicodedata.category(character) == "Cc"} == {"\n", "\t"}
