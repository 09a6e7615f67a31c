"""``pte verify``: do these artifacts publish the truth? Reads them and runs nothing."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.errors import ManifestError, PteError

if TYPE_CHECKING:
    from pipeline.spec import BuildSpec


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``verify``."""
    parser = subparsers.add_parser("verify", help="check what .pte files publish", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a .pte")
    parser.add_argument("--manifest", type=Path, metavar="M", help="the manifest the files were built from")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """A line per file that holds, every finding to stderr; 0 all hold, 1 findings, 2 no good manifest, 3 unreadable."""
    try:
        asked = _asked(args.manifest)
    except ManifestError as error:
        print(error, file=sys.stderr)
        return 2
    return max(_verify(file, asked) for file in args.files)


def _asked(path: Path | None) -> BuildSpec | None:
    if path is None:
        return None
    # Imported here: without a manifest there is no YAML to read.
    from pipeline import manifest, plan

    return plan.build_spec(manifest.load(path))


def _verify(file: Path, asked: BuildSpec | None) -> int:
    from pipeline.verify import Question, Severity, examine

    try:
        report = examine(file, Question(asked=asked))
    except PteError as error:
        print(error, file=sys.stderr)
        return 3
    for finding in report.findings:
        print(f"{report.file}: {finding.message}", file=sys.stderr)
    if report.worst() == Severity.ERROR:
        return 1
    print(f"ok  {report.file}  ({report.summary})")
    return 0
