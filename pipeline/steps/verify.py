"""``model.pte`` becomes ``metadata.json``: what it publishes, once that is shown to be true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import VerifyError
from pipeline.pte import PteFile
from pipeline.spec import BuildSpec
from pipeline.verify import Question, Severity, examine

METADATA = "metadata.json"


def run(spec: BuildSpec, artifact: Path, tokenizer: Path, out: Path) -> None:
    """Writes ``out/metadata.json``: what is published, the contracts that it keeps, and findings that are no errors.

    ``tokenizer`` is the directory of the model's tokenizer; the build's report lies beside the artifact.

    Raises VerifyError with every finding when one of them is an error, PteError when the file cannot be read.
    """
    report = examine(artifact, Question(asked=spec, tokenizer=tokenizer))
    if report.worst() == Severity.ERROR:
        told = (f"{report.file}: {finding.rule.id} {finding.message}" for finding in report.findings)
        raise VerifyError("\n".join(told))
    with PteFile.open(artifact) as pte:
        metadata = {
            "constant_methods": pte.program.constants(),
            "contracts": report.contracts,
            "findings": [
                {"rule": finding.rule.id, "severity": str(finding.rule.severity), "message": finding.message}
                for finding in report.findings
            ],
            "size_bytes": report.size_bytes,
        }
    (out / METADATA).write_text(json.dumps(metadata, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def summary(metadata: Mapping[str, Any]) -> list[str]:
    """A line for each warning: the build has told already what is merely worth a note."""
    return [
        f"  {finding['severity']}: {finding['rule']} {finding['message']}"
        for finding in metadata["findings"]
        if finding["severity"] != str(Severity.NOTE)
    ]
