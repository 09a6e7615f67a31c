"""Whatever becomes of standard output, the exit code is the verdict, and no traceback is shown."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest


def shell(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """bash, with "$PTE" for the command and the arguments as $1 and so on."""
    environment |= {"PTE": f"{sys.executable} -m pipeline"}
    return subprocess.run(
        ["bash", "-c", script, "bash", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_reader_that_leaves_does_not_change_the_verdict(tiny_pte: Any, tmp_path: Path) -> None:
    (tmp_path / "empty.pte").touch()
    files = str(tmp_path / "empty.pte"), str(tiny_pte.path)
    done = shell('$PTE verify "$1" "$2" | head -c 0; exit ${PIPESTATUS[0]}', *files)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)


@pytest.mark.parametrize(("file", "code"), [(None, 0), ("nope.pte", 3)])
def test_closed_streams_do_not_change_the_verdict(file: str | None, code: int, tiny_pte: Any) -> None:
    done = shell('$PTE verify "$1" >&- 2>&-', file or str(tiny_pte.path))
    assert done.returncode == code


def test_an_answer_that_cannot_be_written_is_a_failure(tiny_pte: Any) -> None:
    done = shell('$PTE verify "$1" >/dev/full', str(tiny_pte.path))
    assert done.returncode == 1
    assert done.stderr == "standard output: No space left on device; the answer could not be written.\n"


def test_a_name_that_the_terminal_cannot_say_is_escaped(tiny_pte: Any, tmp_path: Path) -> None:
    file = tmp_path / "ü.pte"
    file.symlink_to(tiny_pte.path)
    done = shell('$PTE verify "$1"', str(file), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "\\xfc.pte" in done.stdout


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")], ids=["pipe", "device"])
def test_what_is_no_regular_file_is_refused_at_once(make: Any, tmp_path: Path) -> None:
    make(tmp_path / "x.pte")
    done = shell('$PTE verify "$1"', str(tmp_path / "x.pte"))
    assert done.returncode == 3
    assert done.stderr == f"{tmp_path / 'x.pte'}: it is no regular file; expected a .pte. Check the path.\n"


def test_a_manifest_that_is_not_there_is_a_usage_error(tiny_pte: Any) -> None:
    done = shell('$PTE verify "$1" --manifest nope.yaml', str(tiny_pte.path))
    assert done.returncode == 2
    assert done.stderr == "nope.yaml: cannot be read (No such file or directory); expected a YAML file.\n"


def test_a_directory_of_manifests_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = shell('cd "$1" && PYTHONPATH="$2" $PTE check', str(tmp_path), str(Path(__file__).parents[2]))
    assert done.returncode == 1
    assert done.stderr == "manifests: there is no such directory; expected one that holds manifests.\n"
