"""A step's progress: one line kept up to date on a terminal, one line at the end elsewhere."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
import time
from collections.abc import Iterator
from typing import TextIO

import pytest

from pipeline import progress
from pipeline.progress import CLEAR, Progress


@pytest.fixture
def terminal() -> Iterator[tuple[TextIO, int]]:
    """A terminal of 40 columns, and where what is shown on it can be read."""
    reader, writer = pty.openpty()
    fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    with os.fdopen(writer, "w") as stream:
        yield stream, reader
    os.close(reader)


def shown(reader: int) -> str:
    os.set_blocking(reader, False)
    parts = []
    while True:
        try:
            part = os.read(reader, 65536)
        except OSError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def test_elsewhere_than_on_a_terminal_one_line_is_written_at_the_end() -> None:
    stream = io.StringIO()
    with Progress("build:tiny", stream) as shown_progress:
        shown_progress.stage("loading")
        shown_progress.stage("exporting")
        assert stream.getvalue() == ""
    assert stream.getvalue() == "build:tiny  done in 0 s (loading 0, exporting 0)\n"
    shown_progress.say("  capital: 'Paris'")
    assert stream.getvalue().endswith(")\n  capital: 'Paris'\n")


def test_a_step_without_stages_has_a_total_alone() -> None:
    stream = io.StringIO()
    with Progress("bundle:tiny", stream):
        pass
    assert stream.getvalue() == "bundle:tiny  done in 0 s\n"


def test_a_step_that_fails_is_said_to_have_failed() -> None:
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress("build:tiny", stream):
        raise KeyboardInterrupt
    assert stream.getvalue() == "build:tiny  failed in 0 s\n"


def test_times_of_stages_sum_up_to_the_total(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 111.0, 131.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with Progress("build:tiny", stream) as shown_progress:
        shown_progress.stage("loading")
        shown_progress.stage("exporting")
    assert stream.getvalue() == "build:tiny  done in 31 s (loading 10, exporting 20)\n"


def test_on_a_terminal_the_line_is_refreshed_while_a_stage_runs(
    terminal: tuple[TextIO, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)
    stream, reader = terminal
    with Progress("build:tiny", stream) as shown_progress:
        shown_progress.stage("loading")
        time.sleep(0.2)
    lines = shown(reader).split(CLEAR)
    assert lines[0] == ""
    assert len(lines) > 4
    assert set(lines[1:-1]) == {"build:tiny  loading 0 s  (total 0 s)"}
    assert lines[-1] == "build:tiny  done in 0 s (loading 0)\r\n"


def test_a_line_never_wraps_where_it_could_not_be_cleared(terminal: tuple[TextIO, int]) -> None:
    stream, reader = terminal
    with Progress(f"build:{'x' * 64}", stream) as shown_progress:
        shown_progress.stage("loading")
    first = shown(reader).split(CLEAR)[1]
    assert first == f"build:{'x' * 33}"


class Closed(io.StringIO):
    """A terminal that was closed."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")


def test_a_closed_terminal_is_no_reason_to_lose_a_build() -> None:
    with Progress("build:tiny", Closed()) as shown_progress:
        shown_progress.stage("loading")
        shown_progress.stage("exporting")
    shown_progress.say("done")


def test_no_standard_error_is_no_reason_to_lose_a_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.__stderr__", None)
    with Progress("build:tiny") as shown_progress:
        shown_progress.stage("loading")
    shown_progress.say("done")
