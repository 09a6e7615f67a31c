"""``pte diff`` says what changed, and its exit code whether anything did."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline import schema
from pipeline.cli.main import main
from pipeline.pte import PteFile
from tests.tiny_models import Artifact

Output = pytest.CaptureFixture[str]


def diff(capsys: Output, *arguments: Any) -> tuple[int, str]:
    # What the libraries said while they built an artifact.
    capsys.readouterr()
    code = main(["diff", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert err == ""
    return code, out


def replaced(source: Path, target: Path, *pairs: tuple[bytes, bytes]) -> Path:
    data = source.read_bytes()
    for before, after in pairs:
        assert len(before) == len(after)
        assert before in data
        data = data.replace(before, after)
    target.write_bytes(data)
    return target


def test_a_file_and_its_copy_are_identical(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    copy = tmp_path / "copy.pte"
    shutil.copy(tiny_pte.path, copy)
    for other in (tiny_pte.path, copy):
        assert diff(capsys, tiny_pte.path, other) == (0, f"{tiny_pte.path} and {other} are identical\n")


def test_other_prefixes_of_names_are_no_change(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        prefix = next(iter(pte.named_data)).partition("/")[0].encode()
    other = replaced(tiny_pte.path, tmp_path / "other.pte", (prefix + b"/", b"0123/"))
    code, out = diff(capsys, tiny_pte.path, other)
    assert code == 0
    assert (
        out.splitlines()[2]
        == "the same in all that is compared; their bytes are not: prefixes of names, padding, order"
    )


def test_a_published_value_that_changed_is_told(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    other = replaced(tiny_pte.path, tmp_path / "other.pte", (b"get_bos_id", b"got_bos_id"))
    code, out = diff(capsys, tiny_pte.path, other)
    assert code == 1
    assert out.splitlines()[2:] == [
        "published values",
        "  get_bos_id  1 → absent",
        "  got_bos_id  absent → 1",
    ]


def test_a_weight_that_changed_is_told_by_name(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        key = next(key for key in pte.named_data if key.endswith("head.weight"))
        start, _ = pte.segments[pte.named_data.segment_of(key)]
    data = bytearray(tiny_pte.path.read_bytes())
    data[start + 5] ^= 1
    other = tmp_path / "other.pte"
    other.write_bytes(data)
    code, out = diff(capsys, tiny_pte.path, other)
    assert code == 1
    assert out.splitlines()[2:] == ["tensors: 6 the same", "  other bytes: 1", "    head.weight"]


def test_two_models_differ_in_what_sets_them_apart(artifact: Callable[[str], Artifact], capsys: Output) -> None:
    """The same weights in another dtype, and a bf16 cache."""
    code, out = diff(capsys, artifact("llama").pte, artifact("llama-bf16").pte, "--all")
    assert code == 1
    lines = out.splitlines()
    assert "  get_activation_dtype  6 → 15" in lines
    assert "weights by format" in lines
    assert any(
        "model.layers.*.mlp.up_proj.weight" in line and "float32 [96, 64] → bfloat16 [96, 64]" in line for line in lines
    )
    assert any(
        "UpdateAndAttend" in line and "out_dtype=bfloat16" in line and line.startswith("      +") for line in lines
    )


def test_every_place_is_listed_when_asked(artifact: Callable[[str], Artifact], capsys: Output) -> None:
    full, last = artifact("full").pte, artifact("mixed").pte
    code, out = diff(capsys, full, last, "--instructions")
    assert code == 1
    came = [line for line in out.splitlines() if line.startswith("    + ")]
    assert [line for line in came if "= Slice(" in line]
    assert "    @@" in out.splitlines()


def test_the_json_is_what_the_schema_says(tiny_pte: Any, artifact: Callable[[str], Artifact], capsys: Output) -> None:
    rules = schema.load("diff-report")
    jsonschema.Draft202012Validator.check_schema(rules)
    for a, b in ((tiny_pte.path, tiny_pte.path), (tiny_pte.path, artifact("llama").pte)):
        code, out = diff(capsys, a, b, "--format", "json")
        found = json.loads(out)
        jsonschema.Draft202012Validator(rules).validate(found)
        assert (found["same"], code) == ((True, 0) if a == b else (False, 1))


def test_a_bundles_other_files_are_compared(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    for name, tokenizer in (("a", "{}"), ("b", "[]")):
        (tmp_path / name).mkdir()
        shutil.copy(tiny_pte.path, tmp_path / name / "model.pte")
        (tmp_path / name / "tokenizer.json").write_text(tokenizer)
    assert diff(capsys, tmp_path / "a", tmp_path / "a")[0] == 0
    code, out = diff(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 1
    assert out.splitlines()[2:] == ["other files", "  tokenizer.json  2 bytes → 2 other bytes"]
    # A file has nothing beside it to compare.
    assert diff(capsys, tmp_path / "a", tmp_path / "b" / "model.pte")[0] == 0


def test_what_cannot_be_read_gives_three(tiny_pte: Any, tmp_path: Path, capsys: Output) -> None:
    assert main(["diff", str(tiny_pte.path), str(tmp_path / "no.pte")]) == 3
    assert capsys.readouterr().err.endswith(
        "no.pte: there is no such file; expected a .pte. Build it, or correct the path.\n"
    )


def test_one_file_is_a_mistake_in_the_command_line(tiny_pte: Any, capsys: Output) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["diff", str(tiny_pte.path)])
    assert exit_.value.code == 2
    assert "the following arguments are required: B" in capsys.readouterr().err
