"""The few keywords that are evaluated here say what a general validator says, on whatever is published."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from pipeline.verify import contract_files, contracts, summary
from pipeline.verify.asked import Asked
from pipeline.verify.case import Case
from pipeline.verify.contracts import Contract
from pipeline.verify.keywords import violations
from pipeline.verify.rules import REGISTERED
from tests.verify.examples import ASKED, BUNDLE, GOOD, GOOD_CONSTANTS, TOKENIZER, int32

VALUES: list[Any] = [
    None,
    True,
    False,
    -(2**40),
    -1,
    0,
    1,
    2,
    5,
    15,
    2**31 - 1,
    2**31,
    0.0,
    1.0,
    512.0,
    "",
    "15",
    [],
    [1],
    [1, -1],
    [1, "x"],
    [1.0],
    [True],
    int32(),
    int32(1),
    int32(0, 7),
    int32(-1),
    {"dtype": "int64", "sizes": [1], "values": [1]},
    {"dtype": "float32", "sizes": [2], "values": [1.0, 2.5]},
    {"dtype": "int32", "sizes": [], "values": [1]},
    {"dtype": "int32", "sizes": [1, 1], "values": [-1]},
    {"dtype": "bool", "sizes": [1], "values": [True]},
]


def told(rules: Any, value: Any, evaluate: Any) -> set[tuple[Any, ...]]:
    return {(tuple(path), keyword, frozenset(missing)) for path, keyword, missing in evaluate(rules, value)}


@pytest.mark.parametrize("contract", contracts.known(), ids=str)
def test_it_agrees_with_a_general_validator_on_every_method_and_value(contract: Contract) -> None:
    found = 0
    for name, value in itertools.product(contract.methods, VALUES):
        constants = {**GOOD_CONSTANTS, name: value}
        ours = told(contract.schema, constants, violations)
        assert ours == told(contract.schema, constants, contract_files._violations), (name, value)
        found += len(ours)
    assert found > 100


@pytest.mark.parametrize("contract", contracts.known(), ids=str)
def test_it_agrees_with_a_general_validator_on_what_is_missing(contract: Contract) -> None:
    for absent in itertools.chain.from_iterable(
        itertools.combinations(contract.methods, size) for size in (0, 1, 2, 5)
    ):
        constants = {name: value for name, value in GOOD_CONSTANTS.items() if name not in absent}
        ours, theirs = (told(contract.schema, constants, by) for by in (violations, contract_files._violations))
        assert {(keyword, missing) for _, keyword, missing in ours} == {
            (keyword, missing) for _, keyword, missing in theirs
        }


def test_what_is_too_long_is_not_looked_through() -> None:
    rules = {"properties": {"get_x": {"maxItems": 2, "items": {"type": "integer"}}}}
    assert [broken.keyword for broken in violations(rules, {"get_x": ["a"] * 3})] == ["maxItems"]


@pytest.mark.parametrize("held_to", [None, ()], ids=["claimed", "none"])
def test_no_value_is_too_much_for_a_rule(held_to: Any) -> None:
    """Also where no contract that it is held to refuses it."""
    names = sorted({name for contract in contracts.known() for name in contract.methods})
    for name, value in itertools.product(names, [*VALUES, [-1] * 5000, int32(*[7] * 5000)]):
        evidence = dataclasses.replace(GOOD, constants={**GOOD_CONSTANTS, name: value})
        given = Case.of(evidence, held_to=held_to, asked=Asked.of(ASKED), tokenizer=TOKENIZER, bundle=BUNDLE)
        for rule in REGISTERED.values():
            list(rule.find(given))
        summary(given)


def test_a_keyword_that_is_not_evaluated_is_not_overlooked() -> None:
    with pytest.raises(AssertionError, match="no shipped contract may use multipleOf"):
        list(violations({"properties": {"get_x": {"multipleOf": 2}}}, {"get_x": 3}))
