"""Colours and line breaks are for terminals whose owner wants them."""

from __future__ import annotations

import io

import pytest

from pipeline.cli.terminal import Terminal


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "72")


def test_a_log_gets_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Terminal.of(io.StringIO()) == Terminal(width=None, colours=False)


def test_a_terminal_gets_both() -> None:
    assert Terminal.of(Tty()) == Terminal(width=72, colours=True)


@pytest.mark.parametrize(
    ("name", "value", "colours"),
    [("NO_COLOR", "1", False), ("NO_COLOR", "", True), ("TERM", "dumb", False), ("TERM", "xterm", True)],
)
def test_colours_can_be_refused(name: str, value: str, colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert Terminal.of(Tty()).colours is colours


@pytest.mark.parametrize("columns", ["", "0", "wide", "-3", "²"])
def test_a_width_that_is_none_is_not_taken(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr("os.get_terminal_size", lambda _: (_ for _ in ()).throw(OSError))
    assert Terminal.of(Tty()).width is None
