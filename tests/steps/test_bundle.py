"""A bundle's record says what it is, what is in it, and how each file came to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.steps import bundle

ASKED: dict[str, Any] = {"spec": {"name": "tiny", "model": "org/tiny"}, "inputs": {"model.pte": "00" * 32}}
HISTORY: dict[str, Any] = {
    "fetch": {"key": "ab", "asked": {"spec": {"source": "path"}}, "outputs": {}},
    "build": {"key": "cd", "asked": {}, "outputs": {"model.pte": {"sha256": "00" * 32, "size_bytes": 3}}},
}


def test_the_record_holds_name_model_files_and_the_steps_behind_them(tmp_path: Path) -> None:
    bundle.run(ASKED, HISTORY, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["build.json"]
    assert json.loads((tmp_path / "build.json").read_bytes()) == {
        "name": "tiny",
        "model": "org/tiny",
        "files": {"model.pte": "00" * 32},
        "steps": HISTORY,
    }


def test_the_record_is_the_same_bytes_whatever_order_it_was_made_in(tmp_path: Path) -> None:
    for name, history in (("one", HISTORY), ("other", dict(reversed(HISTORY.items())))):
        (tmp_path / name).mkdir()
        bundle.run(ASKED, history, tmp_path / name)
    assert (tmp_path / "one" / "build.json").read_bytes() == (tmp_path / "other" / "build.json").read_bytes()
