"""Standard output and error that never turn a verdict into a traceback, nor a reader's leaving into another verdict."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast


class Output:
    """A text stream in place of ``sys.stdout`` or ``sys.stderr``.

    What a closed pipe, a closed descriptor or a full disk does not take is dropped; ``failure`` keeps the first reason
    that is not a reader's leaving. What the stream's encoding cannot say is escaped.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self.failure: OSError | None = None
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        # A full disk refuses even nothing.
        if text:
            self._try(lambda stream: stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._try(lambda stream: stream.flush())

    @property
    def encoding(self) -> str | None:
        return None if self._stream is None else self._stream.encoding

    def isatty(self) -> bool:
        return self._stream is not None and self._stream.isatty()

    @property
    def is_gone(self) -> bool:
        """Whether nobody reads any more."""
        return self._stream is None

    def _try(self, act: Callable[[TextIO], object]) -> None:
        if self._stream is None:
            return
        try:
            act(self._stream)
        except OSError as error:
            if not isinstance(error, BrokenPipeError):
                self.failure = error
            # The interpreter flushes the real stream once more at its end; then there must be somewhere to go.
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            self._stream = None


def reader_left() -> bool:
    """Whether what is printed reaches nobody: whoever computes something to be printed can stop."""
    return isinstance(sys.stdout, Output) and sys.stdout.is_gone


@contextmanager
def tolerant() -> Iterator[Output]:
    """Tolerant streams stand in for the real ones while the block runs; gives the one for standard output."""
    before = sys.stdout, sys.stderr
    out = Output(sys.stdout)
    sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, Output(sys.stderr))
    try:
        yield out
    finally:
        out.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before
