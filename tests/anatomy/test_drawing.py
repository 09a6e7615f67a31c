"""Bars are in proportion, tables line up, and what does not fit is cut where a word says so."""

from __future__ import annotations

import pytest

from pipeline.anatomy.drawing import Canvas, bytes_text, count_text, path_text, percent_text


@pytest.mark.parametrize(("part", "bar"), [(0, ""), (1, "▏"), (8, "█"), (12, "█▌"), (63, "███████▉"), (64, "████████")])
def test_a_bar_is_as_long_as_its_part_to_an_eighth(part: int, bar: str) -> None:
    assert Canvas().bar(part, 64, 8) == bar


@pytest.mark.parametrize(("part", "bar"), [(0, ""), (1, "#"), (12, "##"), (64, "########")])
def test_a_bar_in_ascii_is_of_whole_columns(part: int, bar: str) -> None:
    assert Canvas(unicode=False).bar(part, 64, 8) == bar


def test_columns_line_up_and_the_first_gives_way() -> None:
    rows = [("a" * 60, "1", "x"), ("b", "22", "yy")]
    lines = Canvas(width=50).table(rows, "<><")
    assert lines == ["  aaaaaaaaaaaaa…" + "a" * 26 + "   1  x", "  b" + " " * 39 + "  22  yy"]
    assert max(map(len, lines)) <= 50


def test_rows_beyond_the_limit_are_counted() -> None:
    rows = [(str(number),) for number in range(5)]
    assert Canvas(limit=2).shown(rows, "numbers", "<") == ["  0", "  1", "  … and 3 more numbers (--all shows them)"]
    assert len(Canvas(limit=None).shown(rows, "numbers", "<")) == 5
    assert Canvas(limit=2, unicode=False).shown(rows, "numbers", "<")[-1].startswith("  ... and 3 more")


def test_sizes_and_counts_are_told_in_thousands() -> None:
    assert [bytes_text(size) for size in (0, 999, 1000, 999_949, 999_950, 269_164_292, 10**16, -5)] == [
        "0 B", "999 B", "1.0 kB", "999.9 kB", "1.0 MB", "269.2 MB", "10.0 PB", "-5 B",
    ]  # fmt: skip
    assert [count_text(count) for count in (0, 9999, 10_000, 134_515_040, 10**13)] == [
        "0", "9999", "10.0 k", "134.5 M", "10.0 T",
    ]  # fmt: skip
    assert [percent_text(*pair) for pair in ((0, 5), (1, 3), (1, 10_000), (5, 0))] == ["0 %", "33.3 %", "<0.1 %", "0 %"]


def test_a_path_is_told_whole_and_on_one_line() -> None:
    assert path_text("/a" * 60) == "/a" * 60
    assert path_text("a\x1b[31m\n") == r"'a\x1b[31m\n'"
