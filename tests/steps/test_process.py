"""A heavy step runs in a process of its own, and whatever becomes of that process is a sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import errors
from pipeline.errors import PipelineError, StepError
from pipeline.steps.process import run_step

ROOT = Path(__file__).resolve().parents[2]

# Steps that misbehave, as modules of the package in the child alone: it extends the package's path when it starts.
SITE = """
import pathlib
import pipeline.steps
pipeline.steps.__path__.append(str(pathlib.Path(__file__).parent / "steps"))
"""

# What a shell starts in the background ignores Ctrl-C, and so do its children unless they are told otherwise.
FOLLOWER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from pipeline.steps.process import run_step
run_step("probe", {"pids": Path(sys.argv[1])}, Path(sys.argv[2]), lambda stage: print(stage, flush=True))
"""

# A child with a child of its own, each leaving its process id.
FAMILY = """
import os, subprocess, sys, time

def run(pids, stage):
    inner = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    pids.write_text(f"{os.getpid()} {inner.pid}")
    stage("working")
    time.sleep(600)
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Runs a step of the given source; returns the stages it went through."""
    (tmp_path / "site" / "steps").mkdir(parents=True)
    (tmp_path / "site" / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))

    def run(source: str, **arguments: Any) -> list[str]:
        (tmp_path / "site" / "steps" / "probe.py").write_text(source)
        stages: list[str] = []
        run_step("probe", arguments, tmp_path / "logs" / "tiny.probe.log", stages.append)
        return stages

    return run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "tiny.probe.log"


def message(probe: Callable[..., list[str]], source: str, kind: type[PipelineError] = StepError, **given: Any) -> str:
    with pytest.raises(kind) as caught:
        probe(source, **given)
    assert type(caught.value) is kind
    return str(caught.value)


def gone(pid: int, within_seconds: float = 10) -> bool:
    """Whether the process ends in time; one that nobody has waited for has ended too."""
    end = time.monotonic() + within_seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            if Path("/proc/self").exists():
                return True
            state = subprocess.run(
                ["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True
            ).stdout.strip()
        if state[:1] in ("Z", ""):
            return True
        time.sleep(0.02)
    return False


def test_stages_are_forwarded_in_order_while_they_happen(probe: Callable[..., list[str]]) -> None:
    source = "def run(stage):\n    for name in ('loading', 'exporting', 'zażółć\\n'): stage(name)"
    assert probe(source) == ["loading", "exporting", "zażółć\n"]


def test_arguments_arrive_as_they_were_given(probe: Callable[..., list[str]], tmp_path: Path) -> None:
    source = "def run(stage, out, text): out.write_text(text)"
    probe(source, out=tmp_path / "result", text="x" * 1_000_000)
    assert (tmp_path / "result").read_text() == "x" * 1_000_000


def test_what_the_step_prints_goes_to_the_log_and_nowhere_else(
    probe: Callable[..., list[str]], log: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    probe("import sys, os\ndef run(stage):\n    print('out'); sys.stderr.write('err\\n'); os.write(1, b'raw\\n')")
    assert sorted(log.read_text().split()) == ["err", "out", "raw"]
    assert capfd.readouterr() == ("", "")


def test_the_step_has_libraries_calm_and_hashes_fixed(probe: Callable[..., list[str]], log: Path) -> None:
    probe("import os\ndef run(stage): print(os.environ['PYTHONHASHSEED'], os.environ['TOKENIZERS_PARALLELISM'])")
    assert log.read_text() == "0 false\n"


ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, PipelineError) and kind is not errors.ManifestError
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_our_own_errors_come_back_as_they_are_with_the_log_named(
    kind: type[PipelineError], probe: Callable[..., list[str]], log: Path
) -> None:
    source = (
        f"from pipeline.errors import {kind.__name__}\ndef run(stage): raise {kind.__name__}('wrong: “x”; or\\nso.')"
    )
    assert message(probe, source, kind) == f"wrong: “x”; or\nso.\nThe log is {log}."
    assert "Traceback" in log.read_text()


def test_an_error_of_many_lines_comes_back_whole(probe: Callable[..., list[str]], log: Path) -> None:
    source = "from pipeline.errors import VerifyError\ndef run(stage): raise VerifyError('finding\\n' * 50_000)"
    assert message(probe, source, errors.VerifyError) == "finding\n" * 50_000 + f"\nThe log is {log}."


@pytest.mark.parametrize(
    ("statement", "end"),
    [
        ("raise ValueError('no such operator')", "its process failed: ValueError: no such operator"),
        ("raise ValueError('first of\\n many lines')", "its process failed: ValueError: first of"),
        ("raise ValueError('\\x1b[2J' + 'x' * 1000)", f"its process failed: ValueError: \ufffd[2J{'x' * 384}…"),
        ("raise MemoryError", "its process failed: MemoryError"),
        ("raise KeyboardInterrupt", "its process was ended by SIGINT."),
        ("sys.exit(3)", "its process failed: it printed nothing"),
        ("sys.exit('a library gave up')", "its process failed: a library gave up"),
        ("print('  fatal: disk  \\n\\n'); os._exit(1)", "its process failed: fatal: disk"),
        ("sys.exit(0)", "its process ended before the step was done: it printed nothing"),
        ("print('bye'); os._exit(0)", "its process ended before the step was done: bye"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "its process was ended by SIGTERM."),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV."),
        ("os.abort()", "its process was ended by SIGABRT."),
    ],
)
def test_any_other_end_is_a_step_error(statement: str, end: str, probe: Callable[..., list[str]], log: Path) -> None:
    found = message(probe, f"import os, signal, sys\ndef run(stage):\n    stage('working'); {statement}")
    advice = " Run doit again; if it happens again, report it with the log." if "ended by" in end else ""
    assert found == f"probe: {end}{advice}\nThe log is {log}."


def test_a_killed_process_may_have_been_too_large(probe: Callable[..., list[str]], log: Path) -> None:
    assert message(probe, "import os, signal\ndef run(stage): os.kill(os.getpid(), signal.SIGKILL)") == (
        "probe: its process was killed; the system may have run out of memory. Free some, then run doit again.\n"
        f"The log is {log}."
    )


@pytest.mark.skipif(not hasattr(signal, "SIGRTMIN"), reason="no realtime signals here")
def test_a_signal_without_a_name_has_a_number(probe: Callable[..., list[str]]) -> None:
    number = signal.SIGRTMIN + 5
    found = message(probe, f"import os\ndef run(stage): os.kill(os.getpid(), {number})")
    assert found.startswith(f"probe: its process was ended by signal {number}. Run doit again")


def test_a_step_that_cannot_even_be_imported_is_a_step_error(probe: Callable[..., list[str]]) -> None:
    assert "its process failed: ModuleNotFoundError: No module named 'nowhere'" in message(probe, "import nowhere")
    assert "its process failed: SyntaxError" in message(probe, "def run(")


def test_a_process_that_dies_before_it_hears_what_to_do_is_a_step_error(
    probe: Callable[..., list[str]], tmp_path: Path
) -> None:
    (tmp_path / "site" / "sitecustomize.py").write_text("import os\nprint('no license', flush=True)\nos._exit(9)\n")
    found = message(probe, "", text="x" * 1_000_000)
    assert found.startswith("probe: its process failed: no license\n")


def test_megabytes_of_binary_garbage_in_the_log_make_a_short_message(
    probe: Callable[..., list[str]], log: Path
) -> None:
    garbage = r"bytes(range(256)) * 40_000 + b'\x00\x1b[2J\xff' * 900"
    source = f"import os\ndef run(stage):\n    os.write(1, {garbage}); os._exit(1)"
    found = message(probe, source)
    assert log.stat().st_size > 10_000_000
    first, last = found.splitlines()
    assert first.startswith("probe: its process failed: ")
    assert len(first) < 500
    assert first.isprintable()
    assert last == f"The log is {log}."


def test_a_step_killed_while_it_reports_is_a_step_error_all_the_same(probe: Callable[..., list[str]]) -> None:
    source = (
        "import os, signal, sys\n"
        "def run(stage):\n"
        '    os.write(int(sys.argv[1]), b\'{"stage": "hal\')\n'
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert message(probe, source).startswith("probe: its process was killed")


def test_what_a_step_leaves_running_ends_with_it(probe: Callable[..., list[str]], tmp_path: Path) -> None:
    # A fork holds the pipe of events open: whoever reads it to its end would wait as long as the fork lives.
    source = (
        "import os, time\n"
        "def run(stage, pids):\n"
        "    inner = os.fork()\n"
        "    if inner == 0:\n"
        "        time.sleep(600)\n"
        "    pids.write_text(str(inner))\n"
    )
    began = time.monotonic()
    probe(source, pids=tmp_path / "pids")
    assert time.monotonic() - began < 60
    assert gone(int((tmp_path / "pids").read_text()))


def follow(probe: Callable[..., list[str]], tmp_path: Path, log: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A process that runs the step FAMILY, and the ids of the step's own process and of its child."""
    pids = tmp_path / "pids"
    (tmp_path / "site" / "steps" / "probe.py").write_text(FAMILY)
    command = [sys.executable, "-c", FOLLOWER, str(pids), str(log)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    assert parent.stdout.readline() == "working\n"
    return parent, [int(pid) for pid in pids.read_text().split()]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_step_never_outlives_its_parent_however_that_ends(
    number: signal.Signals, probe: Callable[..., list[str]], tmp_path: Path, log: Path
) -> None:
    parent, family = follow(probe, tmp_path, log)
    try:
        parent.send_signal(number)
        parent.communicate(timeout=30)
        assert parent.returncode != 0
        assert [gone(pid) for pid in family] == [True, True]
    finally:
        parent.kill()


def test_an_interrupted_step_is_ended_before_the_interrupt_goes_on(
    probe: Callable[..., list[str]], tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        while not (pids.exists() and len(pids.read_text().split()) == 2):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            probe(FAMILY, pids=pids)
    finally:
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert [gone(int(pid), 0.5) for pid in pids.read_text().split()] == [True, True]
