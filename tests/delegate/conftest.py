"""Programs that several tests of this room load."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delegate import exported


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program of three methods, one of which has operators outside its two delegates, and a published number."""
    path = tmp_path_factory.mktemp("small") / "small.pte"
    methods = {"forward": "counter", "lookup": "lookup", "outside": "outside"}
    assert exported.write(path, methods, constants={"get_answer": 42}) == []
    return path
