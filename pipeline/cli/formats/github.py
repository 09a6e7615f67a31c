"""A workflow command for each finding, which GitHub Actions shows as an annotation of the file.

The escapes are those of actions/toolkit, ``packages/core/src/command.ts``.
"""

from __future__ import annotations

from pipeline.cli.formats import Run, Unreadable
from pipeline.cli.plain import plain
from pipeline.verify.findings import Severity

_COMMAND = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def document(run: Run) -> str:
    """One line for each finding and each file that cannot be read; nothing for a run without them."""
    lines = []
    for outcome in run.outcomes:
        if isinstance(outcome, Unreadable):
            lines.append(_line("error", outcome.file, "cannot be read", f"{outcome.file}: {outcome.problem}"))
            continue
        for finding in outcome.findings:
            title = f"{finding.rule.id} {finding.rule.name}"
            message = f"{outcome.file}: {finding.message}"
            lines.append(_line(_COMMAND[finding.rule.severity], outcome.file, title, message))
    return "".join(f"{line}\n" for line in lines)


def _line(command: str, file: str, title: str, message: str) -> str:
    # The runner undoes its own escapes, so that a line end in a name is that name's; what it has none for is spelt out.
    where, title, message = plain(file, keep="\r\n"), plain(title), plain(message)
    return f"::{command} file={_property(where)},title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
