"""``pte check``: are these manifests good? Reads them and nothing else."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pipeline import manifest
from pipeline.errors import ManifestError
from pipeline.manifest import Manifest


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``check``."""
    parser = subparsers.add_parser("check", help="check manifests without building anything", description=__doc__)
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        default=[Path("manifests")],
        metavar="PATH",
        help="a manifest, or a directory of them (default: manifests/)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints a line per good manifest, and every mistake to stderr; 1 when there is one."""
    failed = False
    for path in args.paths:
        good, problems = _check(path)
        for one in good:
            print(f"ok  {one.name}  {manifest.shown(one.path)}")
        for problem in problems:
            print(problem, file=sys.stderr)
        failed = failed or bool(problems)
    return int(failed)


def _check(path: Path) -> tuple[tuple[Manifest, ...], list[str]]:
    if path.is_dir():
        good, problems = manifest.survey(path)
        if not good and not problems:
            problems = [f"{manifest.shown(path)}: holds no *.yaml; expected a directory of manifests."]
        return good, problems
    if not path.exists() and not path.suffix:
        return (), [f"{manifest.shown(path)}: there is no such directory; expected one that holds manifests."]
    try:
        return (manifest.load(path),), []
    except ManifestError as error:
        return (), error.problems
