"""PTE7xx: the file itself, whatever it publishes: versions, alignment, and the data of the graph's constants."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.pte.flatbuffer import quoted
from pipeline.verify.case import Case
from pipeline.verify.findings import Pair
from pipeline.verify.rules import ERROR, NOTE, WARNING, Broken, rule

ALIGNMENT = 16
"""The least that ExecuTorch's loaders promise for a program, its segments and what they hold."""

PROGRAM_VERSION = 0
"""The schema version that ExecuTorch writes into a program; its runtime refuses a higher one."""


@rule(
    "PTE701",
    "segment-alignment",
    WARNING,
    Pair.FILE,
    "A segment does not begin at a multiple of 16 bytes, so a mapped file is read misaligned.",
    "Export with segment_alignment of 16 or more; 128 is ExecuTorch's own",
)
def _alignment(case: Case) -> Iterator[Broken]:
    odd = [(index, start) for index, start in enumerate(case.evidence.file.segment_starts) if start % ALIGNMENT]
    if odd:
        index, start = odd[0]
        more = f", and {len(odd) - 1} more do as badly" if len(odd) > 1 else ""
        text = f"segment {index} begins at byte {start}{more}; expected multiples of {ALIGNMENT}, as delegates map them"
        yield Broken(f"segment {index}", text)


@rule(
    "PTE702",
    "program-version",
    ERROR,
    Pair.FILE,
    "The program is of a schema version that ExecuTorch's runtime does not load.",
    "Export it with the ExecuTorch of its runner",
)
def _version(case: Case) -> Iterator[Broken]:
    version = case.evidence.file.program_version
    if version > PROGRAM_VERSION:
        yield Broken("program", f"the program is of schema version {version}; expected at most {PROGRAM_VERSION}")


@rule("PTE703", "constant-data-absent", ERROR, Pair.FILE, "A constant of the graph has no data in the file.")
def _absent(case: Case) -> Iterator[Broken]:
    for subject, text in case.graph.absent_data if case.graph else ():
        yield Broken(subject, text)


@rule("PTE704", "constant-data-short", ERROR, Pair.FILE, "A constant of the graph has less data than its shape needs.")
def _short(case: Case) -> Iterator[Broken]:
    for subject, text in case.graph.short_data if case.graph else ():
        yield Broken(subject, text)


@rule(
    "PTE705",
    "data-unused",
    NOTE,
    Pair.FILE,
    "The file has named data that its graph does not use.",
    "Rebuild the artifact without it to make it smaller",
)
def _unused(case: Case) -> Iterator[Broken]:
    unused = case.evidence.file.unused_data
    if unused:
        name, _ = unused[0]
        more = f" and {len(unused) - 1} more" if len(unused) > 1 else ""
        size = sum(size for _, size in unused)
        yield Broken(name, f"{quoted(name)}{more}, {size} bytes, are used by no constant of the graph")
