"""The schemas ship with the package, are valid themselves, and explain every field to an editor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from pipeline import schema
from pipeline.errors import PipelineError
from pipeline.manifest import Cache
from pipeline.spec import Quantization, SmokePrompt


def subschemas(rule: dict[str, Any], where: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    yield where, rule
    for name, inner in rule.get("properties", {}).items():
        yield from subschemas(inner, f"{where}.{name}")
    if "items" in rule:
        yield from subschemas(rule["items"], f"{where}[]")


MANIFEST_RULES = dict(subschemas(schema.load("manifest")))


def test_the_manifest_schema_is_valid_json_schema_2020_12() -> None:
    assert schema.load("manifest")["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema.load("manifest"))


@pytest.mark.parametrize("where", MANIFEST_RULES)
def test_every_part_of_the_manifest_schema_is_closed_and_described(where: str) -> None:
    rule = MANIFEST_RULES[where]
    assert rule["description"].endswith(".")
    assert rule["type"] in ("object", "array", "string", "integer", "boolean")
    if rule["type"] == "object":
        assert rule["additionalProperties"] is False
    if "pattern" in rule:
        assert rule["patternErrorMessage"].startswith("expected ")


def test_the_defaults_an_editor_shows_are_the_defaults_that_apply() -> None:
    prompt = SmokePrompt(name="a", user="b", expect="c")
    defaults = {where: rule["default"] for where, rule in MANIFEST_RULES.items() if "default" in rule}
    assert defaults == {
        "$.quantization": {},
        "$.quantization.linear": Quantization().linear.scheme,
        "$.quantization.embedding": Quantization().embedding.scheme,
        "$.quantization.untie_head": Quantization().untie_head,
        "$.cache": {},
        "$.cache.placement": Cache().placement,
        "$.logits": "last",
        "$.smoke.prompts[].max_new_tokens": prompt.max_new_tokens,
    }


def test_an_installed_schema_comes_before_that_of_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("installed", "checkout"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "x.schema.json").write_text(f'{{"title": "{place}"}}')
    (tmp_path / "checkout" / "y.schema.json").write_text("{}")
    monkeypatch.setattr(schema, "_PLACES", (tmp_path / "installed", tmp_path / "checkout"))
    find = schema.load.__wrapped__
    assert find("x") == {"title": "installed"}
    assert find("y") == {}


def test_a_missing_schema_is_a_broken_installation() -> None:
    with pytest.raises(PipelineError, match=r"^absent\.schema\.json: not found in .*; .*Reinstall the package\.$"):
        schema.load("absent")


def test_a_folder_of_schemas_is_listed_as_they_are_loaded() -> None:
    listed = schema.names("contracts")
    assert listed == ["contracts/run_llm_hf@1", "contracts/run_llm_hf@2", "contracts/text_llm_runner@1"]
    assert all(schema.load(name)["$id"] == f"{name.removeprefix('contracts/')}.schema.json" for name in listed)


def test_a_folder_that_is_missing_is_told_of() -> None:
    with pytest.raises(PipelineError, match=r"^no/\*\.schema\.json: not found in .* Reinstall the package\.$"):
        schema.names("no")
