"""The few keywords that are evaluated here say what a general validator says, on whatever is published."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from pipeline.verify import contract_files, contracts
from pipeline.verify.contracts import Contract
from pipeline.verify.keywords import violations
from tests.verify.examples import GOOD_CONSTANTS, int32

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


def test_a_keyword_that_is_not_evaluated_is_not_overlooked() -> None:
    with pytest.raises(AssertionError, match="no shipped contract may use multipleOf"):
        list(violations({"properties": {"get_x": {"multipleOf": 2}}}, {"get_x": 3}))
