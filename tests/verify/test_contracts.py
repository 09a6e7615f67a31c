"""Contracts are found by name, claimed by what is published, and held to; a user's own are as good as the shipped."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from pipeline.errors import ContractError
from pipeline.verify import RULES, Question, Severity, check, contracts, examine
from pipeline.verify.contracts import Contract
from tests.verify.examples import GOOD, GOOD_CONSTANTS, case, in_graph, int32, with_constants

DOCS = Path(__file__).parents[2] / "docs"

GEN_1 = {
    name: GOOD_CONSTANTS[name]
    for name in ("get_n_caches", "get_kv_heads", "get_head_dims", "get_windows", "get_prefill_chunk_size")
} | {"get_max_ctx_len": 1024}


def names(found: tuple[Contract, ...]) -> list[str]:
    return list(map(str, found))


@pytest.mark.parametrize("contract", contracts.known(), ids=str)
def test_a_contract_that_ships_is_a_sound_schema_and_describes_every_method(contract: Contract) -> None:
    Draft202012Validator.check_schema(contract.schema)
    assert contract.schema["description"].endswith(".")
    for name, said in contract.methods.items():
        assert said["description"].endswith("."), name
        assert said["x-expected"], name
    wanted = {*contract.schema.get("required", ()), *contract.claimed_by, *contract.advisable}
    assert wanted <= set(contract.methods)
    assert contract.rules <= set(RULES)
    assert set(contract.severities) <= set(RULES)


def test_every_rule_about_more_than_one_value_is_brought_by_a_contract() -> None:
    brought = {rule for contract in contracts.known() for rule in contract.rules}
    assert brought == {rule for rule in RULES if rule.startswith(("PTE2", "PTE3"))} - {"PTE321"}


@pytest.mark.parametrize(
    ("constants", "claimed"),
    [
        (GOOD_CONSTANTS, ["run_llm_hf@1", "run_llm_hf@2"]),
        (GEN_1, ["run_llm_hf@1"]),
        ({"get_max_seq_len": 128}, ["text_llm_runner@1"]),
        ({"use_kv_cache": True}, ["text_llm_runner@1"]),
        ({"get_max_seq_len": 128, "get_n_caches": 2}, []),
        ({"get_max_seq_len": 128, "get_logits_to_keep_mode": 1}, ["run_llm_hf@2", "text_llm_runner@1"]),
        ({"classes": 1000}, []),
    ],
)
def test_a_contract_is_claimed_by_what_is_published(constants: dict[str, Any], claimed: list[str]) -> None:
    assert names(contracts.claimed(constants)) == claimed


@pytest.mark.parametrize("name", [name for name in GOOD_CONSTANTS if name != "of_another_tool"])
def test_an_artifact_of_ours_that_lacks_one_method_claims_what_it_claimed(name: str) -> None:
    """Or its absence would not be found."""
    constants = {key: value for key, value in GOOD_CONSTANTS.items() if key != name}
    assert names(contracts.claimed(constants)) == ["run_llm_hf@1", "run_llm_hf@2"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("run_llm_hf", "run_llm_hf@2"),
        ("run_llm_hf@1", "run_llm_hf@1"),
        ("text_llm_runner", "text_llm_runner@1"),
    ],
)
def test_a_contract_is_found_by_its_name_or_the_version_of_it(name: str, found: str) -> None:
    assert str(contracts.find(name)) == found


def test_a_name_that_is_none_lists_those_that_are() -> None:
    with pytest.raises(ContractError) as caught:
        contracts.find("run_llm_hf@9")
    assert str(caught.value) == (
        "contract 'run_llm_hf@9': there is no such contract; expected one of run_llm_hf@1, run_llm_hf@2, "
        "text_llm_runner@1, or the path of a JSON schema. Correct the name."
    )


def test_an_artifact_is_held_to_the_contracts_that_are_chosen_and_no_other() -> None:
    older = dataclasses.replace(GOOD, constants=GEN_1)
    assert {finding.rule.id for finding in check(case(older))} == {"PTE106"}
    newer = check(case(older, held_to=(contracts.find("run_llm_hf@2"),)))
    assert [
        (finding.rule.id, finding.subject, finding.contract) for finding in newer if finding.rule.id == "PTE101"
    ] == [("PTE101", name, "run_llm_hf@2") for name in contracts.find("run_llm_hf@2").schema["required"]]


def test_what_two_contracts_say_is_told_once_with_both() -> None:
    (finding,) = check(case(with_constants(get_windows=None)))
    assert (finding.rule.id, finding.contract) == ("PTE101", "run_llm_hf@1, run_llm_hf@2")
    (finding,) = check(case(with_constants(get_kv_heads=int32(2, 2))))
    assert (finding.rule.id, finding.contract) == ("PTE203", "run_llm_hf@1, run_llm_hf@2")


def test_a_rule_for_every_file_belongs_to_no_contract() -> None:
    (finding,) = check(case(dataclasses.replace(GOOD, file=dataclasses.replace(GOOD.file, program_version=1))))
    assert (finding.rule.id, finding.contract) == ("PTE702", None)


def test_a_contract_says_what_matters_less_to_its_runner() -> None:
    """The generic runner takes the vocabulary from the tokenizer."""
    (finding,) = check(case(in_graph(get_vocab_size=999, others={})))
    assert (finding.rule.id, finding.rule.severity, RULES["PTE312"].severity) == (
        "PTE312",
        Severity.WARNING,
        Severity.ERROR,
    )


def written(directory: Path, content: Any, name: str = "mine.json") -> str:
    file = directory / name
    file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return str(file)


def test_the_contract_in_the_docs_finds_what_they_say(tiny_pte: Any, tmp_path: Path) -> None:
    page = (DOCS / "contracts.md").read_text(encoding="utf-8")
    example = page.split("```json\n")[1].split("```")[0]
    told = page.split("```text\n")[1].split("```")[0].splitlines()
    contract = contracts.find(written(tmp_path, example, "chat_app@2.json"))
    assert (str(contract), contract.title) == ("chat_app@2", "What our chat app reads")
    report = examine(tiny_pte.path, Question(contracts=(contract,)))
    assert report.contracts == ("chat_app@2",)
    assert [f"{item.rule.id} {item.rule.severity}: {item.message}" for item in report.findings] == told


OWN: dict[str, Any] = {"properties": {"get_style": {"enum": ["a", "b"]}}, "required": ["get_style"]}


@pytest.mark.parametrize(
    ("changes", "value", "rule", "text"),
    [
        ({}, None, "PTE101", "get_style is missing; expected what the contract's schema says of it"),
        ({}, "c", "PTE104", "get_style is 'c'; expected enum ['a', 'b']"),
        (
            {"properties": {"get_style": {"type": "integer"}}},
            5.0,
            "PTE102",
            "get_style is 5.0; expected type 'integer'",
        ),
        ({"properties": {"get_style": {"pattern": "^x"}}}, "a", "PTE104", "get_style is 'a'; expected pattern '^x'"),
        ({"properties": {"get_style": {"$ref": "#/$defs/one"}}}, 3, "PTE104", "get_style is 3; expected what the "),
        ({"properties": {"get_style": False}}, 3, "PTE107", "the published methods together break 'false' of the "),
        ({"dependentRequired": {"get_style": ["get_more"]}}, "a", "PTE101", "get_more is missing; expected what the "),
        ({"not": {"required": ["get_style"]}}, "a", "PTE107", "the published methods together break 'not' of the "),
        ({"additionalProperties": False}, "a", "PTE107", "the published methods together break 'additionalProperties'"),
    ],
)
def test_any_keyword_can_be_broken(changes: dict[str, Any], value: Any, rule: str, text: str, tmp_path: Path) -> None:
    schema = OWN | {"$defs": {"one": {"const": 1}}} | changes
    contract = contracts.find(written(tmp_path, schema))
    constants = {} if value is None else {"get_style": value, "x": 1}
    (finding,) = check(case(dataclasses.replace(GOOD, constants=constants, forward=None), held_to=(contract,)))
    assert (finding.rule.id, finding.contract) == (rule, "mine")
    assert finding.message.startswith(text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("{", "the file is no JSON (Expecting property name"),
        ("[" * 100_000, "the file is nested too deeply"),
        ("[1]", "the file holds [1]; expected a JSON object, a schema"),
        ({"properties": {"get_x": {"type": "integr"}}}, "properties.get_x.type is 'integr'; expected"),
        ({"required": "get_x"}, "required is 'get_x'; expected type 'array'"),
        ({}, "the schema names no method; expected properties or required"),
        (
            OWN | {"allOf": [{"$ref": "https://example.com/x"}]},
            "allOf.0.$ref is 'https://example.com/x'; expected a place in this file, as in #/$defs/count",
        ),
        (OWN | {"$ref": "#"}, "$ref is '#'; expected a place in this file"),
        (OWN | {"allOf": [{"$ref": "#/$defs/no"}]}, "allOf.0.$ref is '#/$defs/no'; expected a place"),
        (OWN | {"x-rule": []}, "x-rule is not known; expected x-advisable, "),
        (OWN | {"x-rules": "PTE201"}, "x-rules is 'PTE201'; expected a list of ids of rules"),
        (OWN | {"x-rules": ["PTE999"]}, "x-rules has 'PTE999'; expected ids of rules, such as PTE201"),
        (OWN | {"x-severities": {"PTE201": "bad"}}, "x-severities is {'PTE201': 'bad'}; expected ids of rules, each"),
        (OWN | {"x-advisable": ["get_x"]}, "x-advisable is ['get_x']; expected methods, each with what it costs"),
        ({"properties": {"get_x": {"x-expected": 5}}}, "properties.get_x has an x-expected or x-formerly that is no"),
        (" " * (1 << 20) + "{}", "the file has more than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_contract_is_refused_with_what_and_where(content: Any, text: str, tmp_path: Path) -> None:
    path = written(tmp_path, content)
    with pytest.raises(ContractError) as caught:
        contracts.find(path)
    assert str(caught.value).startswith(f"{path}: {text}")
    assert str(caught.value).endswith("Correct the schema; docs/contracts.md shows one.")


def test_a_file_that_is_not_there_or_no_file_is_a_sentence(tmp_path: Path) -> None:
    for path, text in (
        (tmp_path / "no.json", "there is no such file; expected"),
        (tmp_path, "cannot be read (Is a dir"),
    ):
        with pytest.raises(ContractError) as caught:
            contracts.find(str(path))
        assert str(caught.value).startswith(f"{path}: {text}")


def test_a_schema_that_refers_to_itself_without_end_is_a_sentence(tmp_path: Path) -> None:
    loop = OWN | {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "allOf": [{"$ref": "#/$defs/a"}]}
    contract = contracts.find(written(tmp_path, loop))
    with pytest.raises(ContractError, match="refers to itself without end"):
        case(GOOD, held_to=(contract,))


def test_the_name_of_a_file_is_the_contracts_with_or_without_a_version(tmp_path: Path) -> None:
    for name, label in (("app.json", "app"), ("app@3.schema.json", "app@3"), ("app.schema.json", "app")):
        assert str(contracts.find(written(tmp_path, OWN, name))) == label


def test_held_to_nothing_an_artifact_is_still_looked_at(artifact: Callable[[str], Any]) -> None:
    report = examine(artifact("mixed").pte, Question(contracts=()))
    assert (report.contracts, report.findings) == ((), ())
