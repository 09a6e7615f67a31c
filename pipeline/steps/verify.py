"""``model.pte`` becomes ``metadata.json``: what it publishes, once that is shown to be true."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.errors import VerifyError
from pipeline.pte import PteFile
from pipeline.spec import BuildSpec
from pipeline.verify import Question, Severity, examine

METADATA = "metadata.json"


def run(spec: BuildSpec, artifact: Path, out: Path) -> None:
    """Writes ``out/metadata.json``. Raises VerifyError with every finding, PteError when the file cannot be read."""
    report = examine(artifact, Question(asked=spec))
    if report.worst() == Severity.ERROR:
        raise VerifyError("\n".join(f"{report.file}: {finding.message}" for finding in report.findings))
    with PteFile.open(artifact) as pte:
        published = {"constant_methods": pte.program.constants(), "size_bytes": pte.size_bytes}
    (out / METADATA).write_text(json.dumps(published, indent=2, sort_keys=True) + "\n", encoding="utf-8")
