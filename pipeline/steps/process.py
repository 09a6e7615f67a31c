"""Runs a heavy step in a process of its own.

The parent stays light, whatever torch prints goes to a log file, memory is given back when the step ends, and a crash
or a kill becomes an error with a sentence. The child lives no longer than its parent: it holds the other end of a
pipe, and takes its whole process group with it when that closes.
"""

from __future__ import annotations

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
    "TOKENIZERS_PARALLELISM": "false",
}


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
            )
        finally:
            os.close(events_write)
        assert child.stdin is not None
        try:
            pickle.dump((name, arguments), child.stdin)
            child.stdin.flush()
            failure = _follow(events, stage)
            code = child.wait()
        except BaseException:
            # Interrupted: the step has no more use, nor has anything it started.
            _kill_group(child.pid)
            child.wait()
            raise
        finally:
            child.stdin.close()
    if failure is not None:
        error, message = failure
        raise error(f"{message}\nThe log is {log}.")
    if code != 0:
        raise StepError(f"{name}: {_end(code, log)}\nThe log is {log}.")


def _follow(events: BinaryIO, stage: Callable[[str], None]) -> tuple[type[PipelineError], str] | None:
    """Reads the child's events to their end; returns the error it reported, if any."""
    failure = None
    for line in events:
        event = json.loads(line)
        if "stage" in event:
            stage(event["stage"])
        else:
            failure = (getattr(errors, event["error"]), event["message"])
    return failure


def _end(code: int, log: Path) -> str:
    if code < 0:
        name = signal.Signals(-code).name
        if name == "SIGKILL":
            return "its process was killed; the system may have run out of memory. Free some, then run doit again."
        return f"its process was ended by {name}. Run doit again; if it happens again, report it with the log."
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "it printed nothing"
    return f"its process failed: {last}"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _main(events_fd: int) -> int:
    name, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    with os.fdopen(events_fd, "w", encoding="utf-8", buffering=1) as events:

        def tell(**event: str) -> None:
            events.write(json.dumps(event) + "\n")

        try:
            step = importlib.import_module(f"pipeline.steps.{name}")
            step.run(**arguments, stage=lambda stage: tell(stage=stage))
        except PipelineError as error:
            traceback.print_exc()
            tell(error=type(error).__name__, message=str(error))
            return 1
    return 0


def _die_with_parent() -> None:
    """Blocks until the parent closes its end, which it does by ending, in whatever way."""
    # Not sys.stdin: a thread inside its buffer's lock aborts the interpreter's shutdown.
    os.read(0, 1)
    _kill_group(os.getpgrp())


if __name__ == "__main__":
    sys.exit(_main(int(sys.argv[1])))
