"""Ctrl-C while a model is at work: a step is finished, and then no other begins."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class Interrupts:
    """While it is entered, the first Ctrl-C is noted and the second is a KeyboardInterrupt."""

    def __init__(self) -> None:
        self.came = False
        self._before: Any = None

    def __call__(self) -> bool:
        """Whether one came."""
        return self.came

    def __enter__(self) -> Self:
        self.came = False
        # Only the main thread is told of signals, and only it may ask to be.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
