"""Tokenizers that several modules open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.text.made import MAKERS, Made


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Each tokenizer by name, made once."""
    known: dict[str, Made] = {}

    def make(name: str) -> Made:
        if name not in known:
            known[name] = MAKERS[name](tmp_path_factory.mktemp("tokenizers") / name)
        return known[name]

    return make
