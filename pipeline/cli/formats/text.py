"""The run for people: a block for each file, a line when its contract holds and what that line rests on."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.cli.formats import Outcome, Run, Unreadable, exit_code, fails, pairs
from pipeline.cli.plain import name, plain
from pipeline.cli.terminal import Terminal
from pipeline.verify.findings import Finding, Report, Severity

_COLOUR = {"ok": "green", "note": "cyan", "warning": "yellow", "error": "red", "fail": "red"}
_INDENT = 4


def document(run: Run) -> str:
    """All blocks, and the end."""
    parts = [block(outcome, run.fail_on, Terminal()) for outcome in run.outcomes]
    return "".join(f"{part}\n" for part in [*parts, *end(run, Terminal())])


def block(outcome: Outcome, fail_on: Severity | None, terminal: Terminal) -> str:
    """What there is to say about one file, without a line end at its end."""
    if isinstance(outcome, Unreadable):
        return f"{name(outcome.file)}: {plain(outcome.problem)}"
    verdict = _verdict(outcome, fail_on)
    head = f"{terminal.coloured(verdict, _COLOUR[verdict])}  {name(outcome.file)}"
    lines = [f"{head}  ({plain(outcome.summary)})" if outcome.summary else head]
    lines += [terminal.wrapped(line, _INDENT) for line in _basis(outcome)]
    lines += [_finding(finding, terminal) for finding in outcome.findings]
    return "\n".join(lines)


def end(run: Run, terminal: Terminal) -> Iterator[str]:
    """Where to read on, and for several files how many of each kind there were."""
    rules = [finding.rule for outcome in run.outcomes if isinstance(outcome, Report) for finding in outcome.findings]
    if rules:
        yield f"Why a rule is there: pte verify --explain {min(rule.id for rule in rules)}"
    if len(run.outcomes) > 1:
        codes = [exit_code(outcome, run.fail_on) for outcome in run.outcomes]
        files = _counts((codes.count(0), "passed"), (codes.count(1), "failed"), (codes.count(3), "cannot be read"))
        severities = [rule.severity for rule in rules]
        found = _counts(*((severities.count(each), f"{each}s") for each in sorted(Severity, reverse=True)))
        yield terminal.wrapped(f"{len(codes)} files: {files}{found and f'; {found}'}", 0)


def _verdict(report: Report, fail_on: Severity | None) -> str:
    if any(fails(finding, fail_on) for finding in report.findings):
        return "fail"
    worst = report.worst()
    return "ok" if worst is None else str(worst)


def _basis(report: Report) -> Iterator[str]:
    held = ", ".join(map(plain, report.contracts)) or "no contract"
    yield f"{_size(report.size_bytes)}, held to {held}"
    told: dict[str | None, list[str]] = {None: []}
    for pair, why_not, _ in pairs(report):
        told.setdefault(why_not, []).append(str(pair))
    for why_not, names in told.items():
        if why_not is not None:
            yield f"not compared: {'; '.join(names)} ({plain(why_not)})"
        elif names:
            yield f"compared: {'; '.join(names)}"


def _finding(finding: Finding, terminal: Terminal) -> str:
    severity = str(finding.rule.severity)
    asks = f" ({plain(finding.contract)})" if finding.contract else ""
    text = f"{severity} {finding.rule.id} {finding.rule.name}: {plain(finding.message)}{asks}"
    return terminal.wrapped(text, _INDENT).replace(severity, terminal.coloured(severity, _COLOUR[severity]), 1)


def _counts(*counts: tuple[int, str]) -> str:
    return ", ".join(f"{count} {what if count > 1 else what.removesuffix('s')}" for count, what in counts if count)


def _size(num_bytes: int) -> str:
    """Three digits: enough to know a file by."""
    if num_bytes < 1000:
        return f"{num_bytes} bytes"
    size, units = num_bytes / 1000, ["TB", "GB", "MB", "kB"]
    while size >= 999.5 and len(units) > 1:
        size, _ = size / 1000, units.pop()
    return f"{size:.3g} {units[-1]}"
