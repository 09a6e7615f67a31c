"""What MLX keeps for a thread is let go of while the thread still can.

Streams and the records of ``mx.compile`` belong to the thread that made them. MLX drops them after the thread has been
joined, when Python or CUDA may be ending already, and then the process aborts. So MLX wants every thread but the main
one to call ``mx.clear_streams`` before it ends. Who executes a program need not know that.
"""

from __future__ import annotations

import threading

import mlx.core as mx


class _End:
    """Is let go of when its thread ends, by that thread and with Python's lock."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        # When Python itself ends, modules may be empty before this is.
        self._current, self._clear = threading.get_ident, mx.clear_streams

    def __del__(self) -> None:
        # A thread that outlives Python is beyond help; its streams are not those of the thread that tidies up then.
        if self._current() == self._thread:
            self._clear()


class _Threads(threading.local):
    def __init__(self) -> None:
        # MLX sees to the main thread itself.
        self.end = None if threading.current_thread() is threading.main_thread() else _End()


_THREADS = _Threads()


def tidied() -> None:
    """MLX's streams and records of the current thread go when the thread ends."""
    _ = _THREADS.end
