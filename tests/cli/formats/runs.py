"""Runs made by hand, for every format to tell: what passes, what fails, what cannot be read, and what is hostile."""

from __future__ import annotations

from pathlib import Path

from pipeline.cli.formats import Outcome, Run, Unreadable
from pipeline.verify.findings import Finding, Pair, Report, Rule, Severity

STOPS = Rule(
    id="PTE101",
    name="stop-ids",
    severity=Severity.ERROR,
    pair=Pair.PUBLISHED,
    reason="A runner that knows no stop id generates until its context is full.",
)
WIDTH = Rule(
    id="PTE201",
    name="vocabulary-width",
    severity=Severity.ERROR,
    pair=Pair.PUBLISHED_GRAPH,
    reason="A sampler reads as many logits as the vocabulary is wide.",
)
AGE = Rule(
    id="PTE701", name="version", severity=Severity.WARNING, pair=Pair.FILE, reason="An older runtime may refuse it."
)
ALIGNMENT = Rule(
    id="PTE702", name="alignment", severity=Severity.NOTE, pair=Pair.FILE, reason="Weights are copied otherwise."
)
RULES = {rule.id: rule for rule in (STOPS, WIDTH, AGE, ALIGNMENT)}

NO_STOPS = Finding(
    rule=STOPS,
    subject="get_eos_ids",
    contract="off_graph@1",
    message="get_eos_ids is missing; expected one or more token ids. Rebuild the artifact.",
)
NARROW = Finding(
    rule=WIDTH,
    subject="get_vocab_size",
    contract="off_graph@1",
    message="get_vocab_size is 10 but the logits are 11 wide; they are one number. Rebuild the artifact.",
)
OLD = Finding(rule=AGE, subject="forward", message="The file is of executorch 1.4; expected 1.5. Rebuild the artifact.")
UNALIGNED = Finding(rule=ALIGNMENT, subject="'w'", message="'w' begins at byte 3; expected a multiple of 16.")

COMPARED: dict[Pair, str | None] = {
    Pair.PUBLISHED: None,
    Pair.PUBLISHED_GRAPH: None,
    Pair.PUBLISHED_MANIFEST: "no manifest is given",
    Pair.FILE: None,
}
UNREADABLE = Unreadable(file="cut.pte", problem="it ends after 7 bytes; expected a .pte. Build it again.")

# A newline, an escape sequence, a byte that is no UTF-8, what XML has no character for, what each format quotes.
HOSTILE = "a\n::error::b\x1b[31m\udcff\x00\ufffe,:%{0}[x](y)<&>\"'\u202e.pte"


def report(*findings: Finding, file: str = "build/model.pte") -> Report:
    return Report(
        file=file,
        size_bytes=269_162_244,
        contracts=("off_graph@1", "text@1"),
        compared=COMPARED,
        summary="2 caches, vocab 11",
        findings=findings,
    )


def run(*outcomes: Outcome, fail_on: Severity | None = Severity.ERROR) -> Run:
    return Run(outcomes=outcomes, fail_on=fail_on, rules=RULES)


GOOD = report()
BAD = report(NO_STOPS, NARROW, OLD, file="build/bad.pte")

RUNS = {
    "nothing": run(),
    "good": run(GOOD),
    "bad": run(BAD),
    "unreadable": run(UNREADABLE),
    "all": run(GOOD, BAD, UNREADABLE),
    "warned": run(report(OLD, UNALIGNED)),
    "strict": run(report(OLD, UNALIGNED), fail_on=Severity.WARNING),
    "lenient": run(BAD, fail_on=None),
    "hostile": run(
        report(Finding(rule=WIDTH, subject=HOSTILE, message=f"{HOSTILE} is it."), file=HOSTILE),
        Unreadable(file=f"{HOSTILE}.pte", problem=f"{HOSTILE} cannot be read."),
    ),
    "above": run(report(NO_STOPS, file="../other dir/model.pte"), report(file=str(Path("/abs/ü.pte")))),
}
"""Each must be complete and well formed in every format."""
