"""Pages for the rules of runs that are made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli import rule_pages
from tests.cli.formats.runs import RULES


@pytest.fixture
def pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rule in RULES.values():
        (tmp_path / f"{rule.id}.md").write_text(f"# {rule.id} {rule.name}\n\n{rule.reason}\n", encoding="utf-8")
    monkeypatch.setattr(rule_pages, "_PLACES", (tmp_path,))
