"""Which stage of which step is running, and for how long: a line kept up to date on a terminal, one line at the end
elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from types import TracebackType
from typing import TextIO

REFRESH_SECONDS = 0.5
NARROW = 80
CLEAR = "\r\x1b[K"


class Progress:
    """Shown while the block runs. Call ``stage`` when the next one begins."""

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._title = title
        # doit captures sys.stderr per task; the line belongs on the terminal itself.
        self._stream = stream if stream is not None else sys.__stderr__
        self._live = self._stream is not None and self._stream.isatty()
        self._began = time.monotonic()
        self._stages: list[tuple[str, float]] = []
        self._done = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    def stage(self, name: str) -> None:
        """A new stage has begun."""
        self._stages.append((name, time.monotonic()))
        self._draw()

    def say(self, text: str) -> None:
        """A line of result, once the block has ended."""
        if self._stream is not None:
            self._write(f"{text}\n")

    def __enter__(self) -> Progress:
        if self._live:
            self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._done.set()
        if self._live:
            self._ticker.join()
        if self._stream is not None:
            outcome = "failed" if kind is not None else "done"
            self._write(f"{CLEAR if self._live else ''}{self._title}  {outcome} in {self._times()}\n")

    def _times(self) -> str:
        now = time.monotonic()
        total = f"{now - self._began:.0f} s"
        ends = [*(began for _, began in self._stages), now][1:]
        parts = [f"{name} {end - began:.0f}" for (name, began), end in zip(self._stages, ends, strict=True)]
        return f"{total} ({', '.join(parts)})" if parts else total

    def _tick(self) -> None:
        while not self._done.wait(REFRESH_SECONDS):
            self._draw()

    def _draw(self) -> None:
        if self._live and self._stages and not self._done.is_set():
            name, began = self._stages[-1]
            now = time.monotonic()
            line = f"{self._title}  {name} {now - began:.0f} s  (total {now - self._began:.0f} s)"
            # A line that wraps could not be cleared.
            self._write(f"{CLEAR}{line[: self._columns() - 1]}")

    def _columns(self) -> int:
        assert self._stream is not None
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or NARROW
        except (OSError, ValueError):
            return NARROW

    def _write(self, text: str) -> None:
        assert self._stream is not None
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):
            # A closed terminal is no reason to lose a build.
            self._stream = None
            self._live = False
