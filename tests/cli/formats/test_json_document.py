"""JSON as ``schemas/verify-report.schema.json`` describes it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from pipeline import schema
from pipeline.cli.formats import json_document
from pipeline.verify.findings import Pair, Severity
from tests.cli.formats.runs import BAD, GOOD, RUNS, UNREADABLE, run

SCHEMA = schema.load("verify-report")
VALIDATOR = Draft202012Validator(SCHEMA)


def told(which: str) -> Any:
    return json.loads(json_document.document(RUNS[which]))


@pytest.mark.parametrize("which", RUNS)
def test_every_run_is_as_the_schema_says(which: str) -> None:
    VALIDATOR.validate(told(which))


def test_the_schema_knows_every_field_that_is_written_and_explains_its_own() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    for name, part in {"the report": SCHEMA, **SCHEMA["$defs"]}.items():
        assert "description" in part, name
        assert set(part.get("required", ())) == set(part.get("properties", ())), name
    assert SCHEMA["$defs"]["pair"]["enum"] == [str(pair) for pair in Pair]
    assert set(SCHEMA["$defs"]["finding"]["properties"]["severity"]["enum"]) == set(map(str, Severity))


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.update(schema="pte-verify@2"),
        lambda found: found.update(exit_code=2),
        lambda found: found["files"][0].pop("pairs"),
        lambda found: found["files"][0].update(status="unreadable"),
        lambda found: found["files"][1]["findings"][0].update(severity="fatal"),
        lambda found: found["files"][0]["pairs"][0].update(compared=False),
        lambda found: found["files"][2].pop("problem"),
    ],
)
def test_the_schema_refuses_what_is_wrong(change: Any) -> None:
    found = told("all")
    change(found)
    with pytest.raises(ValidationError):
        VALIDATOR.validate(found)


def test_a_whole_report() -> None:
    assert json.loads(json_document.document(run(GOOD, BAD, UNREADABLE))) == {
        "schema": "pte-verify@1",
        "exit_code": 3,
        "fail_on": "error",
        "totals": {
            "files": 3,
            "passed": 1,
            "failed": 1,
            "unreadable": 1,
            "errors": 2,
            "warnings": 1,
            "notes": 0,
        },
        "files": [
            {
                "file": "build/model.pte",
                "status": "passed",
                "size_bytes": 269162244,
                "contracts": ["off_graph@1", "text@1"],
                "summary": "2 caches, vocab 11",
                "pairs": PAIRS,
                "findings": [],
            },
            {
                "file": "build/bad.pte",
                "status": "failed",
                "size_bytes": 269162244,
                "contracts": ["off_graph@1", "text@1"],
                "summary": "2 caches, vocab 11",
                "pairs": PAIRS,
                "findings": [
                    {
                        "rule": "PTE101",
                        "name": "stop-ids",
                        "severity": "error",
                        "pair": "published values",
                        "subject": "get_eos_ids",
                        "contract": "off_graph@1",
                        "message": "get_eos_ids is missing; expected one or more token ids. Rebuild the artifact.",
                    },
                    {
                        "rule": "PTE201",
                        "name": "vocabulary-width",
                        "severity": "error",
                        "pair": "published, graph",
                        "subject": "get_vocab_size",
                        "contract": "off_graph@1",
                        "message": "get_vocab_size is 10 but the logits are 11 wide; they are one number. "
                        "Rebuild the artifact.",
                    },
                    {
                        "rule": "PTE701",
                        "name": "version",
                        "severity": "warning",
                        "pair": "file",
                        "subject": "forward",
                        "contract": None,
                        "message": "The file is of executorch 1.4; expected 1.5. Rebuild the artifact.",
                    },
                ],
            },
            {
                "file": "cut.pte",
                "status": "unreadable",
                "problem": "it ends after 7 bytes; expected a .pte. Build it again.",
            },
        ],
    }


PAIRS = [
    {"pair": "published values", "compared": True, "why_not": None},
    {"pair": "published, graph", "compared": True, "why_not": None},
    {"pair": "published, manifest", "compared": False, "why_not": "no manifest is given"},
    {"pair": "file", "compared": True, "why_not": None},
]


@pytest.mark.parametrize(("which", "status"), [("warned", "passed"), ("strict", "failed"), ("lenient", "passed")])
def test_a_file_passes_or_fails_by_what_the_run_fails_on(which: str, status: str) -> None:
    (file,) = told(which)["files"]
    assert file["status"] == status
    assert file["findings"]


def test_a_name_is_kept_but_for_bytes_that_are_no_text() -> None:
    name = told("hostile")["files"][0]["file"]
    assert name.startswith("a\n::error::b\x1b[31m\\xff\x00")
    assert name.encode("utf-8").endswith(b"\xe2\x80\xae.pte")
