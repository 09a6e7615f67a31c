"""Every rule has its page, every page its rule, and what stands there is what the rule says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.verify import RULES, Rule, contracts
from pipeline.verify.rules import REGISTERED

DOCS = Path(__file__).parents[2] / "docs"
PAGES = DOCS / "rules"
GROUPS = {"published": "12", "graph": "3", "manifest": "4", "tokenizer": "5", "model": "6", "file": "7"}


def test_every_rule_has_its_page_and_every_page_its_rule() -> None:
    assert sorted(page.stem for page in PAGES.glob("PTE*.md")) == list(RULES)


@pytest.mark.parametrize("rule", RULES.values(), ids=list(RULES))
def test_a_page_opens_with_the_name_and_the_reason_of_its_rule(rule: Rule) -> None:
    lines = (PAGES / f"{rule.id}.md").read_text(encoding="utf-8").splitlines()
    assert lines[0] == f"# {rule.id} {rule.name}: {rule.reason}"
    assert lines[2] == f"A rule of severity *{rule.severity}* about *{rule.pair}*."
    assert [line for line in lines if line.startswith("## ")] == [
        "## What is wrong",
        "## On the device",
        "## What to do",
    ]


def test_the_list_of_rules_has_each_as_it_is() -> None:
    listed = [line for line in (PAGES / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    assert listed == [
        f"| [{rule.id}]({rule.id}.md) | {rule.name} | {rule.severity} | {rule.reason} |" for rule in RULES.values()
    ]


def test_names_and_ids_are_given_once_and_ids_say_where_a_rule_is_found() -> None:
    assert len({rule.name for rule in RULES.values()}) == len(RULES)
    for id_, registered in REGISTERED.items():
        assert id_[3] in GROUPS[registered.find.__module__.rpartition(".")[2]], id_
        assert registered.rule.reason.endswith(".")
        assert not registered.advice.endswith(".")


def test_the_page_of_contracts_lists_those_that_ship() -> None:
    rows = [line for line in (DOCS / "contracts.md").read_text(encoding="utf-8").splitlines() if "@" in line]
    for contract in contracts.known():
        (row,) = [line for line in rows if line.startswith(f"| `{contract}` |")]
        assert all(f"`{name}`" in row for name in contract.claimed_by)
