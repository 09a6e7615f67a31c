"""A bundle as it ships, made of a small model that was built for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.snapshot import is_tokenizer_file
from tests.tiny_models import Artifact


@pytest.fixture(scope="session")
def shipped(artifact: Callable[[str], Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flat cache and a ring of eight; read it, never change it."""
    made = artifact("mixed")
    directory = tmp_path_factory.mktemp("shipped")
    for file in (made.pte, made.pte.with_name("report.json")):
        shutil.copy(file, directory)
    fetched = {file.name: {"size_bytes": file.stat().st_size} for file in made.snapshot.iterdir()}
    for name in filter(is_tokenizer_file, fetched):
        shutil.copy(made.snapshot / name, directory)
    record = {
        "name": "mixed",
        "files": {file.name: "00" for file in directory.iterdir()},
        "steps": {
            "fetch": {"outputs": fetched},
            "build": {
                "asked": {"spec": asdict(made.spec), "libraries": {"executorch": "1.5.1"}},
                "outputs": {"model.pte": {"size_bytes": made.pte.stat().st_size}},
            },
        },
    }
    (directory / "build.json").write_text(json.dumps(record))
    return directory


@pytest.fixture
def bundle(shipped: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(shipped, tmp_path / "bundle"))
