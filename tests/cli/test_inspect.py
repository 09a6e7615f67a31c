"""``pte inspect`` says what a file is, in three formats, at once, and never with a traceback."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline import schema
from pipeline.cli.main import main
from pipeline.pte import PteFile
from tests.cli.test_output import shell
from tests.tiny_models import Artifact

Output = pytest.CaptureFixture[str]


def inspected(capsys: Output, *arguments: str) -> str:
    # What the libraries said while they built an artifact.
    capsys.readouterr()
    assert main(["inspect", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def document(capsys: Output, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(inspected(capsys, *arguments, "--format", "json"))
    return found


def test_the_text_says_what_the_file_is(tiny_pte: Any, capsys: Output) -> None:
    out = inspected(capsys, str(tiny_pte.path))
    size = tiny_pte.path.stat().st_size
    assert out.startswith(f"tiny.pte: .pte, {size / 1000:.1f} kB ({size:,} bytes), program version 0\n")
    for line in (
        "method forward",
        "  in  tokens: int64 [1, 2..6]",
        "  in  positions: int64 [2..6]",
        "  get_windows              int32 [2]: 0, 6",
        "  nothing                  []",
        "  a_string                 zażółć",
    ):
        assert line in out.splitlines(), line


def test_the_json_is_what_the_schema_says(tiny_pte: Any, artifact: Callable[[str], Artifact], capsys: Output) -> None:
    rules = schema.load("inspect-report")
    jsonschema.Draft202012Validator.check_schema(rules)
    for arguments in ([str(tiny_pte.path)], [str(artifact("llama").pte), "--instructions"]):
        jsonschema.Draft202012Validator(rules).validate(document(capsys, *arguments))


def test_every_field_of_the_schema_is_required_and_there_is_no_other() -> None:
    for name in ("inspect-report", "diff-report"):
        waiting = [schema.load(name)]
        while waiting:
            rule = waiting.pop()
            waiting += [item for item in rule.values() if isinstance(item, dict)]
            waiting += [
                item for value in rule.values() if isinstance(value, list) for item in value if isinstance(item, dict)
            ]
            if "properties" in rule and isinstance(rule["properties"], dict) and "required" in rule:
                assert rule["additionalProperties"] is False


def test_the_html_is_written_to_a_file(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    assert inspected(capsys, str(tiny_pte.path), "--format", "html", "--output", str(tmp_path / "page.html")) == ""
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "embed.weight" in page


def test_a_file_that_cannot_be_written_is_told(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    where = str(tmp_path / "no" / "page.html")
    assert main(["inspect", str(tiny_pte.path), "--output", where]) == 1
    assert capsys.readouterr().err == f"{where}: cannot be written (No such file or directory). Choose another path.\n"


@pytest.mark.parametrize(
    "arguments", [["FILE", "--instructions"], ["--instructions", "FILE"], ["--instructions", "forward", "FILE"]]
)
def test_instructions_are_listed(arguments: list[str], tiny_pte: Any, capsys: Output) -> None:
    path = str(tiny_pte.path)
    out = inspected(capsys, *[path if word == "FILE" else word for word in arguments])
    assert "forward: delegate 0, main chain\n" in out
    assert "UpdateAndAttend(" in out
    assert "  # s0: size of tokens, axis 1, 2 to 6\n" in out


def test_a_method_that_is_not_there_is_told_with_those_that_are(tiny_pte: Any, capsys: Output) -> None:
    assert main(["inspect", str(tiny_pte.path), "--instructions", "backward"]) == 3
    err = capsys.readouterr().err
    assert err.startswith(f"{tiny_pte.path}: there is no method 'backward'; it has forward, ")
    assert err.endswith(". Name one of these.\n")


@pytest.mark.parametrize("arguments", [[], ["--instructions"], ["--format", "xml", "FILE"]])
def test_a_wrong_command_line_gives_two(arguments: list[str], capsys: Output) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["inspect", *arguments])
    assert exit_.value.code == 2
    assert "usage: pte inspect" in capsys.readouterr().err


def test_a_bundle_is_looked_at_with_what_lies_in_it(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "model.pte").write_bytes(tiny_pte.path.read_bytes())
    (tmp_path / "tokenizer.json").write_text("{}")
    found = document(capsys, str(tmp_path))
    assert [file["path"] for file in found["files"]] == ["model.pte"]
    assert found["others"] == {"tokenizer.json": 2}


@pytest.mark.parametrize(("names", "number"), [([], 0), (["a.pte", "b.pte"], 2)])
def test_a_directory_that_is_no_bundle_is_refused(
    names: list[str], number: int, tmp_path: Path, capsys: Output
) -> None:
    for name in names:
        (tmp_path / name).touch()
    assert main(["inspect", str(tmp_path)]) == 3
    assert capsys.readouterr().err == (
        f"{tmp_path}: it holds {number} .pte files, none of them model.pte; expected a bundle with one. "
        "Name the file.\n"
    )


def test_what_is_no_artifact_is_refused(tmp_path: Path, capsys: Output) -> None:
    assert main(["inspect", str(tmp_path / "no.pte")]) == 3
    assert capsys.readouterr().err.endswith(
        "no.pte: there is no such file; expected a .pte. Build it, or correct the path.\n"
    )
    (tmp_path / "x.ptd").write_bytes(b"nonsense")
    assert main(["inspect", str(tmp_path / "x.ptd")]) == 3
    assert "expected b'FT01', the mark of a .ptd." in capsys.readouterr().err


def test_ascii_output_is_ascii(tiny_pte: Any) -> None:
    done = shell('$PTE inspect "$1"', str(tiny_pte.path), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "####" in done.stdout
    assert done.stdout.isascii()


def test_damaged_files_are_shown_or_refused(tiny_pte: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every format, on files with bytes changed in their tables and graph."""
    data = tiny_pte.path.read_bytes()
    with PteFile.open(tiny_pte.path) as pte:
        tables, (start, end) = pte.tables_bytes, pte.segments[1]
    rng = random.Random(20261130)
    path = tmp_path / "damaged.pte"
    codes = []
    for number in range(300):
        changed = bytearray(data)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(tables) if number % 2 else rng.randrange(start, end)
            changed[place] = rng.choice([0, 1, 2, 4, 127, 128, 255, rng.randrange(256)])
        path.write_bytes(changed)
        for form in ("text", "json", "html"):
            out, err = io.StringIO(), io.StringIO()
            monkeypatch.setattr(sys, "stdout", out)
            monkeypatch.setattr(sys, "stderr", err)
            codes.append(main(["inspect", str(path), "--format", form, "--instructions"]))
            monkeypatch.undo()
            shown = out.getvalue() + err.getvalue()
            assert all(line.isprintable() for line in shown.split("\n")) or form == "html"
            assert codes[-1] in (0, 3)
            assert err.getvalue().count("\n") == (codes[-1] == 3)
    assert {0, 3} == set(codes)


def test_a_cold_process_is_quick_and_imports_no_heavy_library(tiny_pte: Any) -> None:
    """The bound is generous for a busy machine; torch alone would take longer."""
    script = (
        "import sys; from pipeline.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'executorch', 'numpy', 'transformers', 'mlx', 'yaml', 'jsonschema'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    for arguments in (["inspect", "--format", "html"], ["diff", str(tiny_pte.path)]):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments, str(tiny_pte.path)], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert time.perf_counter() - start < 2
