"""The run as JSON for programs of one's own. ``schemas/verify-report.schema.json`` describes it.

Within one version of the schema, fields are added and never changed or removed.
"""

from __future__ import annotations

import json
from typing import Any

from pipeline.cli.formats import Outcome, Run, Unreadable, exit_code, pairs
from pipeline.cli.plain import unicode
from pipeline.verify.findings import Finding, Report, Severity

SCHEMA = "pte-verify@1"
STATUS = {0: "passed", 1: "failed", 3: "unreadable"}


def document(run: Run) -> str:
    """One JSON object, in ASCII."""
    statuses = [STATUS[exit_code(outcome, run.fail_on)] for outcome in run.outcomes]
    severities = [
        finding.rule.severity for outcome in run.outcomes if isinstance(outcome, Report) for finding in outcome.findings
    ]
    found = {
        "schema": SCHEMA,
        "exit_code": run.exit_code,
        "fail_on": "never" if run.fail_on is None else str(run.fail_on),
        "totals": {
            "files": len(run.outcomes),
            **{status: statuses.count(status) for status in STATUS.values()},
            **{f"{severity}s": severities.count(severity) for severity in sorted(Severity, reverse=True)},
        },
        "files": [
            {"file": unicode(outcome.file), "status": status, **_told(outcome)}
            for outcome, status in zip(run.outcomes, statuses, strict=True)
        ],
    }
    return json.dumps(found, indent=2) + "\n"


def _told(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Unreadable):
        return {"problem": unicode(outcome.problem)}
    return {
        "size_bytes": outcome.size_bytes,
        "contracts": list(outcome.contracts),
        "summary": unicode(outcome.summary),
        "pairs": [
            {"pair": str(pair), "compared": why_not is None, "why_not": None if why_not is None else unicode(why_not)}
            for pair, why_not, _ in pairs(outcome)
        ],
        "findings": [_finding(finding) for finding in outcome.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule.id,
        "name": finding.rule.name,
        "severity": str(finding.rule.severity),
        "pair": str(finding.rule.pair),
        "subject": unicode(finding.subject),
        "contract": finding.contract,
        "message": unicode(finding.message),
    }
