"""The ``pte`` command parses, dispatches, and turns what escapes into an exit code."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from pipeline.cli import main as main_module
from pipeline.cli.main import VERBS, main
from pipeline.errors import ContractError, ManifestError, PipelineError, PteError, SmokeError, UsageError


def pte(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", *arguments]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["--version"])
    assert exit_.value.code == 0
    assert capsys.readouterr().out.startswith("pte ")


def test_help_lists_every_verb_without_importing_one() -> None:
    script = (
        "import sys; from pipeline.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: sys.exit([name for name in sys.modules if name in sys.argv[1:]] or 0)"
    )
    modules = [f"pipeline.cli.{verb}" for verb in VERBS]
    done = subprocess.run([sys.executable, "-c", script, *modules], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for verb, help_text in VERBS.items():
        assert verb in done.stdout
        assert help_text in done.stdout


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_a_verb_explains_itself_as_the_list_does(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([verb, "--help"])
    assert exit_.value.code == 0
    assert f"usage: pte {verb}" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["--nonsense"]])
def test_a_wrong_command_line_gives_two(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: pte" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (PipelineError("something is wrong"), 1, "something is wrong\n"),
        (SmokeError("it decodes nonsense"), 1, "it decodes nonsense\n"),
        (UsageError("x: is nowhere"), 2, "x: is nowhere\n"),
        (ContractError("contract 'x': there is none"), 2, "contract 'x': there is none\n"),
        (ManifestError(["x.yaml: is bad", "y.yaml: too\x1b[2J"]), 2, "x.yaml: is bad\ny.yaml: too\\x1b[2J\n"),
        (PteError("x.pte: is not one"), 3, "x.pte: is not one\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_becomes_a_message_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Args:
        @staticmethod
        def run(_: object) -> int:
            raise error

    class Parser:
        @staticmethod
        def parse_args(_: list[str]) -> type[Args]:
            return Args

    monkeypatch.setattr(main_module, "_parser", lambda _: Parser)
    assert main(["verify"]) == code
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("arguments", [["--help"], ["verify"]])
def test_a_reader_that_went_away_is_no_error(arguments: list[str], tiny_pte: Any) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = pte(*arguments, *([str(tiny_pte.path)] if arguments == ["verify"] else []), stdout=writing)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_module_runs_like_the_command() -> None:
    done = pte("verify", "no-such-file.pte")
    assert done.returncode == 3
    assert done.stderr == "no-such-file.pte: there is no such file; expected a .pte. Build it, or correct the path.\n"
