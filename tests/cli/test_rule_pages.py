"""A rule's page is found in a checkout and ships with the package; one that is not there is told of."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from pipeline.cli import rule_pages
from pipeline.errors import PipelineError
from pipeline.verify import RULES

ROOT = Path(__file__).resolve().parents[2]


def test_every_rule_has_its_page() -> None:
    for rule in RULES:
        assert rule_pages.page(rule) == (ROOT / "docs" / "rules" / f"{rule}.md").read_text(encoding="utf-8")


def test_the_pages_are_installed_where_they_are_looked_for() -> None:
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert ROOT / wheel["force-include"]["docs/rules"] in rule_pages._PLACES


def test_a_page_that_is_not_there_is_told() -> None:
    with pytest.raises(PipelineError) as error:
        rule_pages.page("PTE000")
    assert str(error.value) == (
        f"PTE000.md: not found in {ROOT}/pipeline/docs/rules and {ROOT}/docs/rules; it ships with pte-pipeline. "
        "Reinstall the package."
    )
