"""``pte serve`` says where it listens, ends in good order when it is told to, and refuses by name."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main
from tests.bundles import Bundle

Serve = Callable[..., tuple[int, str, str]]


@pytest.fixture
def serve(capsys: pytest.CaptureFixture[str]) -> Serve:
    """Runs the command in this process: its exit code, standard output and standard error."""

    def serve(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(["serve", *map(str, arguments)])
        except SystemExit as exit_:
            code = int(str(exit_.code))
        out, err = capsys.readouterr()
        return code, out, err

    return serve


@contextmanager
def process(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, on a free port, and the address that it said."""
    command = [sys.executable, "-m", "pipeline", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as started:
        try:
            assert started.stdout is not None
            line = started.stdout.readline()
            found = re.search(r"http://\S+(?=:)", line)
            assert found is not None, line + started.communicate()[1]
            yield started, found.group()
        finally:
            started.kill()


def post(address: str, **asked: Any) -> Any:
    body = json.dumps({"model": "selected", "prompt": "hello", **asked}).encode()
    request = urllib.request.Request(f"{address}/completions", body, {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_it_says_where_it_listens_answers_and_ends_when_it_is_told_to(bundle: Bundle, number: signal.Signals) -> None:
    with process(bundle("selected")) as (started, address):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", address)
        with post(address, max_tokens=3) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 3
        # What is being answered is answered to its end.
        with post(address, max_tokens=40, stream=True) as answer:
            answer.readline()
            started.send_signal(number)
            assert answer.read().endswith(b"data: [DONE]\n\n")
        out, err = started.communicate(timeout=30)
        assert (started.returncode, out, err) == (0, "", "")


def test_it_tells_what_a_user_should_know(bundle: Bundle) -> None:
    with process(bundle("talk"), "--host", "0.0.0.0") as (started, _):
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=30)
    assert err.splitlines() == [
        "model.pte: one text at a time, the others wait: a step of it gives the logits of one token (last); export it "
        "with logits: selected",
        "whoever reaches 0.0.0.0 can use the model: there is no authentication. --host 127.0.0.1 is for this machine "
        "alone",
    ]
    assert started.returncode == 0


def test_a_port_that_is_taken_is_refused_before_anything_is_loaded(serve: Serve) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = serve("nowhere", "--port", port)
    assert (code, out) == (2, "")
    assert err == (
        f"127.0.0.1 port {port}: Address already in use; expected an address of this machine and a port that is free. "
        "Choose with --host and --port; --port 0 takes any.\n"
    )


def test_a_host_that_is_none_is_refused(serve: Serve) -> None:
    code, _, err = serve("nowhere", "--host", "no.such.host.invalid")
    assert code == 2
    assert err.startswith("no.such.host.invalid port 8000: ")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--port", "65536"), "argument --port: '65536' is no whole number from 0 to 65535"),
        (("--at-once", "0"), "argument --at-once: '0' is no whole number from 1 to 32"),
        (("--queue", "-1"), "argument --queue: '-1' is no whole number of 0 or more"),
        (("--temperature", "-1"), "temperature is -1.0; expected 0 for greedy decoding, or a number from"),
        (("--kv-windows", "x"), "argument --kv-windows: the windows are 'x', whose field 1 is 'x'"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_flag_that_makes_no_sense_is_refused(serve: Serve, flags: tuple[str, ...], message: str) -> None:
    code, out, err = serve("nowhere", *flags)
    assert (code, out) == (2, "")
    assert message in err


def test_what_cannot_be_opened_is_refused_by_name(serve: Serve, bundle: Bundle, tmp_path: Path) -> None:
    missing = tmp_path / "none.pte"
    code, out, err = serve(missing, "--port", 0)
    assert (code, out) == (3, "")
    assert err.startswith(f"{missing}: ")
    (tmp_path / "model.pte").write_bytes((bundle("selected") / "model.pte").read_bytes())
    code, out, err = serve(tmp_path, "--port", 0)
    assert (code, out) == (1, "")
    assert err.startswith(f"{tmp_path}: ")
    assert err.endswith("Or name another with --tokenizer.\n")
    code, _, err = serve(bundle("selected"), "--port", 0, "--kv-max-capacity", 8 * 64 + 1)
    assert code == 1
    assert err == (
        "the cache is to hold 513 tokens, and the artifact's context is 64, 512 for 8 sequences. Choose no more, or "
        "export it with a larger max_context_len.\n"
    )


def test_a_missing_library_names_the_extra_that_brings_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("starlette.applications", "uvicorn", "mlx.core"):
        with monkeypatch.context() as patched:
            for name in [name for name in sys.modules if name.startswith(("pipeline.serving", "pipeline.session"))]:
                patched.delitem(sys.modules, name)
            patched.setitem(sys.modules, library, None)
            code, _, err = serve("nowhere")
        assert code == 1
        assert err.startswith(f"{library.partition('.')[0]} cannot be imported (")
        assert err.endswith(
            "expected the libraries that serve a .pte. Install them: pip install 'pte-pipeline[serve]'.\n"
        )


def test_help_loads_no_library() -> None:
    heavy = "{'mlx', 'numpy', 'tokenizers', 'jinja2', 'starlette', 'uvicorn', 'anyio'}"
    script = (
        "import sys; from pipeline.cli.main import main\n"
        "try: main(['serve', '--help'])\n"
        f"except SystemExit: sys.exit(sorted({heavy} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--at-once" in done.stdout
