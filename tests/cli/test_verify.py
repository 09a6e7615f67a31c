"""``pte verify`` says what it found, and its exit code says how bad it is."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli.main import main


def test_a_good_file_gets_one_line_and_zero(tiny_pte: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(tiny_pte.path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"ok  {tiny_pte.path}  (2 caches, vocab 11, fp32, steps of 6 in 32 tokens, last logits)\n"
    assert err == ""


def test_findings_go_to_stderr_and_give_one(tiny_pte: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.pte"
    broken.write_bytes(
        tiny_pte.path.read_bytes().replace(b"get_bos_id", b"got_bos_id").replace(b"get_windows", b"got_windows")
    )
    assert main(["verify", str(broken)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        f"{broken}: get_windows is missing; expected a one-dimensional int32 tensor of entries of at least 0. "
        "Rebuild the artifact.\n"
    )


def test_an_unreadable_file_gives_three_and_the_others_are_still_looked_at(
    tiny_pte: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tmp_path / "no.pte"), str(tiny_pte.path)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("ok  ")
    assert err.endswith("no.pte: there is no such file; expected a .pte. Build it, or correct the path.\n")


def test_a_manifest_is_held_against_the_file(tiny_pte: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = tmp_path / "tiny.yaml"
    manifest.write_text(
        "version: 1\n"
        "name: tiny\n"
        "model: {id: a/b, source: {path: somewhere}}\n"
        "dtype: fp32\n"
        "max_seq_len: 6\n"
        "max_context_len: 64\n"
        "backend: mlx\n"
        "smoke: {prompts: [{name: hello, user: Hello, expect: world, max_new_tokens: 4}]}\n",
        encoding="utf-8",
    )
    code = main(["verify", str(tiny_pte.path), "--manifest", str(manifest)])
    err = capsys.readouterr().err
    assert err == (
        f"{tiny_pte.path}: get_max_context_len says 32 but the manifest asks for 64. Rebuild the artifact.\n"
    )
    assert code == 1


def test_a_bad_manifest_is_reported_like_check_does(
    tiny_pte: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(tiny_pte.path), "--manifest", str(tmp_path / "no.yaml")]) == 2
    assert "no.yaml: cannot be read" in capsys.readouterr().err


def test_no_file_is_a_mistake_in_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["verify"])
    assert exit_.value.code == 2
    assert "the following arguments are required: FILE" in capsys.readouterr().err


def test_a_cold_process_is_quick_and_imports_no_heavy_library(tiny_pte: Any) -> None:
    """The bound is generous for a busy machine; torch alone would take longer."""
    script = (
        "import sys; from pipeline.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'executorch', 'numpy', 'transformers', 'mlx', 'yaml'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", script, "verify", str(tiny_pte.path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.perf_counter() - start < 2
