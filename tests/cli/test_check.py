"""``pte check`` prints good manifests, reports every mistake, and exits 1 when there is one."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from pipeline.cli import check

ROOT = Path(__file__).resolve().parent.parent.parent
GOOD = (ROOT / "manifests" / "smollm2-135m.yaml").read_text(encoding="utf-8")


def run(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    check.add_parser(parser.add_subparsers())
    args = parser.parse_args(["check", *arguments])
    code: int = args.run(args)
    return code


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("manifests").mkdir()
    for name in ("one", "two"):
        Path(f"manifests/{name}.yaml").write_text(GOOD.replace("name: smollm2-135m", f"name: {name}", 1))


def test_without_a_path_the_manifests_directory_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run() == 0
    assert capsys.readouterr() == ("ok  one  manifests/one.yaml\nok  two  manifests/two.yaml\n", "")


def test_a_file_is_checked_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(str(tmp_path / "manifests" / "two.yaml")) == 0
    assert capsys.readouterr() == ("ok  two  manifests/two.yaml\n", "")


def test_good_manifests_are_printed_beside_the_mistakes_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    Path("manifests/two.yaml").write_text("- a\n")
    assert run("manifests", "absent.yaml") == 1
    out, err = capsys.readouterr()
    assert out == "ok  one  manifests/one.yaml\n"
    assert err == (
        "manifests/two.yaml:1: the file holds a list; expected a mapping of fields.\n"
        "absent.yaml: cannot be read (No such file or directory); expected a YAML file.\n"
    )


def test_a_directory_without_manifests_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    assert run("empty") == 1
    assert capsys.readouterr().err == "empty: holds no *.yaml; expected a directory of manifests.\n"
