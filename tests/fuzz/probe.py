"""What one file does to its reader: how it ends, the seconds and the memory it takes. Measures; knows no formats."""

from __future__ import annotations

import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pipeline.errors import PipelineError

MAX_SECONDS = 2.0
MAX_BYTES = 256 << 20
MAX_MESSAGE = 2_000

STATUS, FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Outcome:
    """``failure`` says what must not happen; ``refused`` is for a reason. Seconds are the processor's."""

    refused: bool
    seconds: float
    peak_bytes: int
    failure: str | None = None


class TooSlow(BaseException):
    """Raised in the midst of what takes too long; nobody's ``except Exception`` keeps it."""


def probe(read: Callable[[Path], None], path: Path) -> Outcome:
    """Reads a file, for ``MAX_SECONDS`` of the processor at most."""
    failure = None
    refused = False
    before = _resident_bytes()
    began = time.process_time()
    try:
        with _limited(MAX_SECONDS):
            read(path)
    except PipelineError as error:
        refused = True
        message = str(error)
        if len(message) > MAX_MESSAGE or not message.replace("\n", "").isprintable():
            failure = f"a message of {len(message)} characters: {message[:MAX_MESSAGE]!r}"
    except TooSlow:
        failure = f"takes more than {MAX_SECONDS} s\n{traceback.format_exc(limit=-8)}"
    except (Exception, MemoryError, RecursionError):
        failure = traceback.format_exc(limit=-8)
    seconds = time.process_time() - began
    peak = _peak_bytes() - before
    if failure is None and peak > MAX_BYTES:
        failure = f"takes {peak >> 20} MB"
    return Outcome(refused, seconds, peak, failure)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def limit_memory(num_bytes: int) -> None:
    """From now on this process gets ``num_bytes`` more at most; Python then raises MemoryError."""
    if sys.platform == "linux":
        limit = _status("VmSize") + num_bytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _resident_bytes() -> int:
    """What the process holds now; from here the peak is counted, where the system can forget an earlier one."""
    if sys.platform != "linux":
        return _peak_bytes()
    FORGET.write_text("5")
    return _status("VmRSS")


def _peak_bytes() -> int:
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _status("VmHWM")


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024
