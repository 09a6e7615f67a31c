"""Runs a heavy step in a process of its own.

The parent stays light, whatever torch prints goes to a log file, memory is given back when the step ends, and a crash
or a kill becomes an error with a sentence. The child lives no longer than its parent: it holds the other end of a
pipe, and takes its whole process group with it when that closes.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from pipeline import errors
from pipeline.errors import PipelineError, StepError

ENVIRONMENT = {
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    # torch reads its own sources in the locale's encoding.
    "PYTHONUTF8": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

TAIL_BYTES = 64 * 1024
MAX_LINE = 400


def run_step(name: str, arguments: dict[str, Any], log: Path, stage: Callable[[str], None]) -> None:
    """Calls ``pipeline.steps.<name>.run(**arguments, stage=…)`` in a new process, forwarding its stages.

    Raises what the step raises of our own errors, with the log file's name added; StepError for any other end.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")]))
    events_read, events_write = os.pipe()
    with log.open("wb") as log_file, os.fdopen(events_read, "rb") as events:
        try:
            child = subprocess.Popen(
                [sys.executable, "-m", "pipeline.steps.process", str(events_write)],
                stdin=subprocess.PIPE,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                pass_fds=(events_write,),
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                start_new_session=True,
                bufsize=0,
            )
        finally:
            os.close(events_write)
        assert child.stdin is not None
        reaper = threading.Thread(target=_reap, args=(child,), daemon=True)
        reaper.start()
        try:
            # One that died early hears nothing; its exit code says more than a broken pipe.
            with contextlib.suppress(BrokenPipeError):
                pickle.dump((name, arguments), child.stdin)
            last = _follow(events, stage)
        except BaseException:
            # Interrupted: the step has no more use.
            _kill_group(child.pid)
            raise
        finally:
            reaper.join()
            child.stdin.close()
    if "error" in last:
        raise getattr(errors, last["error"])(f"{last['message']}\nThe log is {log}.")
    if "crash" in last:
        raise StepError(f"{name}: its process failed: {_fit(last['crash'])}\nThe log is {log}.")
    if child.returncode != 0 or "done" not in last:
        raise StepError(f"{name}: {_end(child.returncode, log)}\nThe log is {log}.")


def _follow(events: BinaryIO, stage: Callable[[str], None]) -> dict[str, Any]:
    """Reads the child's events to their end; returns the last one."""
    last: dict[str, Any] = {}
    for line in events:
        if not line.endswith(b"\n"):
            break  # killed while it wrote
        last = json.loads(line)
        if "stage" in last:
            stage(last["stage"])
    return last


def _reap(child: subprocess.Popen[bytes]) -> None:
    """Waits for the child, then ends what it started and left behind: that may hold the events open."""
    child.wait()
    _kill_group(child.pid)


def _end(code: int, log: Path) -> str:
    if code == -signal.SIGKILL:
        return "its process was killed; the system may have run out of memory. Free some, then run doit again."
    if code < 0:
        known = {member.value: member.name for member in signal.Signals}
        name = known.get(-code, f"signal {-code}")
        return f"its process was ended by {name}. Run doit again; if it happens again, report it with the log."
    if code == 0:
        return f"its process ended before the step was done: {_last_line(log)}"
    return f"its process failed: {_last_line(log)}"


def _last_line(log: Path) -> str:
    """The last line that holds anything."""
    with log.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((_fit(line) for line in reversed(lines) if line), "it printed nothing")


def _fit(line: str) -> str:
    """A line as a message can hold it, whatever it is full of."""
    shown = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in line)
    return shown if len(shown) <= MAX_LINE else f"{shown[:MAX_LINE]}…"


def _kill_group(pid: int) -> None:
    # macOS answers EPERM where all that is left of a group is dead.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _main(events_fd: int) -> int:
    name, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with os.fdopen(events_fd, "w", encoding="utf-8", buffering=1) as events:

        def tell(**event: str) -> None:
            events.write(json.dumps(event) + "\n")

        try:
            step = importlib.import_module(f"pipeline.steps.{name}")
            step.run(**arguments, stage=lambda stage: tell(stage=stage))
            tell(done=name)
        except Exception as error:
            # Told before it is logged: it may be the log's disk that is full.
            if isinstance(error, PipelineError):
                tell(error=type(error).__name__, message=str(error))
            else:
                tell(crash=f"{type(error).__name__}: {error}".strip(": ").splitlines()[0])
            traceback.print_exc()
            return 1
    return 0


def _die_with_parent() -> None:
    """Blocks until the parent closes its end, which it does by ending, in whatever way."""
    # Not sys.stdin: a thread inside its buffer's lock aborts the interpreter's shutdown.
    os.read(0, 1)
    _kill_group(os.getpgrp())


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
