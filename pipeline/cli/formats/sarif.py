"""SARIF 2.1.0, the OASIS standard for results of static analysis, as code scanning reads it.

A result is about a whole file, and a file here has bytes and no lines; so is its region. GitHub would hash lines of the
file to know a result again, so each result brings a fingerprint: the rule and what it was found on.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pipeline.cli import rule_pages
from pipeline.cli.formats import Run, Unreadable
from pipeline.cli.plain import name, plain
from pipeline.cli.version import installed
from pipeline.verify.findings import Finding, Report, Rule

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/os/schemas/sarif-schema-2.1.0.json"


def document(run: Run) -> str:
    """One JSON object with one SARIF run, in ASCII."""
    reports = [outcome for outcome in run.outcomes if isinstance(outcome, Report)]
    unreadable = [outcome for outcome in run.outcomes if isinstance(outcome, Unreadable)]
    order = {rule: index for index, rule in enumerate(run.rules)}
    version = installed()
    driver = {
        "name": "pte verify",
        **({"version": version} if version else {}),
        "rules": [_descriptor(rule) for rule in run.rules.values()],
        "notifications": [
            {"id": "unreadable", "shortDescription": {"text": "The file cannot be read, so nothing is known about it."}}
        ],
    }
    invocation = {
        "executionSuccessful": not unreadable,
        "exitCode": run.exit_code,
        "toolExecutionNotifications": [_notification(outcome) for outcome in unreadable],
    }
    found = {
        "tool": {"driver": driver},
        "invocations": [invocation],
        "results": [_result(finding, report, order) for report in reports for finding in report.findings],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [found]}, indent=2) + "\n"


def _descriptor(rule: Rule) -> dict[str, Any]:
    page = rule_pages.page(rule.id)
    return {
        "id": rule.id,
        "name": rule.name,
        "shortDescription": {"text": rule.name.replace("-", " ").capitalize() + "."},
        "fullDescription": {"text": rule.reason},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": str(rule.severity)},
    }


def _result(finding: Finding, report: Report, order: Mapping[str, int]) -> dict[str, Any]:
    location = _location(report.file)
    location["physicalLocation"]["region"] = {"byteOffset": 0, "byteLength": report.size_bytes}
    location["logicalLocations"] = [{"name": plain(finding.subject)}]
    known = "\n".join([finding.rule.id, plain(finding.subject), finding.contract or ""])
    return {
        "ruleId": finding.rule.id,
        "ruleIndex": order[finding.rule.id],
        "level": str(finding.rule.severity),
        "message": _message(finding.message),
        "locations": [location],
        "partialFingerprints": {"primaryLocationLineHash": hashlib.sha256(known.encode()).hexdigest()},
    }


def _notification(outcome: Unreadable) -> dict[str, Any]:
    return {
        "descriptor": {"id": "unreadable", "index": 0},
        "level": "error",
        "message": _message(f"{name(outcome.file)}: {outcome.problem}"),
        "locations": [_location(outcome.file)],
    }


def _message(text: str) -> dict[str, str]:
    """The text as a message: braces alone would stand for an argument (3.11.5), brackets for a link (3.11.6)."""
    return {"text": plain(text).replace("{", "{{").replace("}", "}}").replace("](", "] (")}


def _location(file: str) -> dict[str, Any]:
    """Relative to the working directory for a file below it, else absolute. Every byte of the name is kept."""
    path = Path(os.path.abspath(file))  # noqa: PTH100 - Path.absolute leaves "..", which no relative URI should have
    here = Path.cwd()
    if path.is_relative_to(here):
        artifact = {"uri": quote(os.fsencode(path.relative_to(here))), "uriBaseId": "%SRCROOT%"}
    else:
        artifact = {"uri": f"file://{quote(os.fsencode(path))}"}
    return {"physicalLocation": {"artifactLocation": artifact}}
