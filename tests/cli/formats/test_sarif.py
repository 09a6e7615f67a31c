"""SARIF 2.1.0 by what the specification requires; its sections are named where a test rests on one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

import pytest

from pipeline.cli.formats import sarif
from pipeline.verify.findings import Severity
from tests.cli.formats.runs import HOSTILE, NARROW, RULES, RUNS, WIDTH, report, run

pytestmark = pytest.mark.usefixtures("pages")

# RFC 3986: unreserved, reserved but for brackets, and bytes.
URI = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?#]|%[0-9A-F]{2})+")


def told(which: str) -> Any:
    """The one SARIF run."""
    log = json.loads(sarif.document(RUNS[which]))
    assert log["version"] == "2.1.0"
    assert log["$schema"].endswith("/sarif-schema-2.1.0.json")
    (found,) = log["runs"]
    return found


def messages(value: Any) -> Iterator[str]:
    """Every message's text, wherever it is."""
    if isinstance(value, list):
        for item in value:
            yield from messages(item)
    elif isinstance(value, dict):
        if "message" in value:
            yield value["message"]["text"]
        for item in value.values():
            yield from messages(item)


def locations(found: Any) -> list[Any]:
    notifications = found["invocations"][0]["toolExecutionNotifications"]
    return [location for each in found["results"] + notifications for location in each["locations"]]


@pytest.mark.parametrize("which", RUNS)
def test_every_run_has_its_tool_its_invocation_and_its_results(which: str) -> None:
    found = told(which)
    assert found["tool"]["driver"]["name"] == "pte verify"  # 3.19.8
    assert isinstance(found["results"], list)  # 3.14.23: empty, not absent, when the tool ran and found nothing
    (invocation,) = found["invocations"]
    assert invocation["exitCode"] == RUNS[which].exit_code
    assert isinstance(invocation["executionSuccessful"], bool)  # 3.20.14
    failed = [one for one in invocation["toolExecutionNotifications"] if one["level"] == "error"]
    assert invocation["executionSuccessful"] == (not failed)  # 3.20.21


@pytest.mark.parametrize("version", ["1.2.3", None])
def test_the_tool_tells_its_version_where_it_is_installed(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sarif, "installed", lambda: version)
    assert told("good")["tool"]["driver"].get("version") == version


def test_every_rule_is_described() -> None:
    rules = told("good")["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == list(RULES)  # 3.49.3: each once
    assert rules[1] == {
        "id": "PTE201",
        "name": "vocabulary-width",
        "shortDescription": {"text": "Vocabulary width."},
        "fullDescription": {"text": "A sampler reads as many logits as the vocabulary is wide."},
        "help": {
            "text": "# PTE201 vocabulary-width\n\nA sampler reads as many logits as the vocabulary is wide.\n",
            "markdown": "# PTE201 vocabulary-width\n\nA sampler reads as many logits as the vocabulary is wide.\n",
        },
        "defaultConfiguration": {"level": "error"},
    }
    assert [rule["defaultConfiguration"]["level"] for rule in rules] == ["error", "error", "warning", "note"]


@pytest.mark.parametrize("which", RUNS)
def test_a_result_is_of_a_rule_that_is_described(which: str) -> None:
    found = told(which)
    for result in found["results"]:
        rule = found["tool"]["driver"]["rules"][result["ruleIndex"]]  # 3.27.6
        assert result["ruleId"] == rule["id"]
        assert result["level"] in ("error", "warning", "note")  # 3.27.10
    for notification in found["invocations"][0]["toolExecutionNotifications"]:
        descriptor = notification["descriptor"]
        assert found["tool"]["driver"]["notifications"][descriptor["index"]]["id"] == descriptor["id"]


def test_a_result_has_the_severity_that_its_contract_gives_the_rule() -> None:
    milder = replace(NARROW, rule=replace(WIDTH, severity=Severity.NOTE))
    found = json.loads(sarif.document(run(report(milder))))["runs"][0]
    assert found["results"][0]["level"] == "note"
    assert found["tool"]["driver"]["rules"][1]["defaultConfiguration"]["level"] == "error"


def test_a_result_is_where_and_what_it_was_found_on() -> None:
    assert told("bad")["results"][0] == {
        "ruleId": "PTE101",
        "ruleIndex": 0,
        "level": "error",
        "message": {"text": "get_eos_ids is missing; expected one or more token ids. Rebuild the artifact."},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": "build/bad.pte", "uriBaseId": "%SRCROOT%"},
                    "region": {"byteOffset": 0, "byteLength": 269162244},
                },
                "logicalLocations": [{"name": "get_eos_ids"}],
            }
        ],
        "partialFingerprints": {
            "primaryLocationLineHash": sha256(b"PTE101\nget_eos_ids\noff_graph@1").hexdigest(),
        },
    }


@pytest.mark.parametrize("which", RUNS)
def test_a_location_is_a_uri_that_a_base_completes(which: str) -> None:
    for location in locations(told(which)):
        artifact = location["physicalLocation"]["artifactLocation"]
        assert URI.fullmatch(artifact["uri"]), artifact["uri"]
        relative = not urlsplit(artifact["uri"]).scheme
        assert ("uriBaseId" in artifact) == relative  # 3.4.4
        assert relative or artifact["uri"].startswith("file:///")
        assert ".." not in artifact["uri"].split("/")


@pytest.mark.parametrize("which", RUNS)
def test_a_region_of_bytes_is_no_region_of_text(which: str) -> None:
    for location in locations(told(which)):
        region = location["physicalLocation"].get("region", {})
        assert set(region) <= {"byteOffset", "byteLength"}  # 3.30.1


def test_every_byte_of_a_name_is_in_its_uri() -> None:
    for location in locations(told("hostile")):
        uri = location["physicalLocation"]["artifactLocation"]["uri"]
        assert unquote_to_bytes(uri).startswith(HOSTILE.encode("utf-8", "surrogateescape")[:40])


def test_a_file_elsewhere_has_an_absolute_uri() -> None:
    (result,) = told("above")["results"]
    artifact = result["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact == {"uri": f"file://{Path.cwd().parent.as_posix()}/other%20dir/model.pte"}


@pytest.mark.parametrize("which", RUNS)
def test_no_message_has_a_placeholder_or_a_link(which: str) -> None:
    for text in messages(told(which)):
        assert text
        assert not re.search(r"[{}]", text.replace("{{", "").replace("}}", "")), text  # 3.11.5
        assert not re.search(r"\[[^\]]*\]\([^)]*\)", text), text  # 3.11.6


def test_an_unreadable_file_is_a_failed_run_and_no_result() -> None:
    found = told("unreadable")
    assert found["results"] == []
    assert found["invocations"] == [
        {
            "executionSuccessful": False,
            "exitCode": 3,
            "toolExecutionNotifications": [
                {
                    "descriptor": {"id": "unreadable", "index": 0},
                    "level": "error",
                    "message": {"text": "cut.pte: it ends after 7 bytes; expected a .pte. Build it again."},
                    "locations": [
                        {
                            "physicalLocation": {
                                "artifactLocation": {"uri": "cut.pte", "uriBaseId": "%SRCROOT%"},
                            }
                        }
                    ],
                }
            ],
        }
    ]


def test_a_result_is_known_again_by_its_rule_and_subject_whatever_the_message_says() -> None:
    def prints(*findings: Any) -> list[str]:
        log = json.loads(sarif.document(run(report(*findings))))
        return [result["partialFingerprints"]["primaryLocationLineHash"] for result in log["runs"][0]["results"]]

    first, same, other, another = prints(
        NARROW, replace(NARROW, message="Other words."), replace(NARROW, subject="x"), replace(NARROW, contract=None)
    )
    assert first == same
    assert len({first, other, another}) == 3
