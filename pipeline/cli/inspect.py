"""``pte inspect``: what is this artifact? Reads its tables and none of its weights."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.arguments import artifact

if TYPE_CHECKING:
    from pipeline.anatomy.drawing import Canvas
    from pipeline.anatomy.facts import Report

MAX_ROWS = 20
PLAIN_WIDTH = 100


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``inspect``."""
    parser = subparsers.add_parser("inspect", help="show what an artifact is", description=__doc__)
    parser.add_argument(
        "file", nargs="?", type=artifact, metavar="FILE", help="a .pte, a .ptd, or a bundle's directory"
    )
    parser.add_argument("--format", choices=("text", "json", "html"), default="text", help="default: text")
    parser.add_argument(
        "--instructions",
        nargs="?",
        const="",
        action="append",
        metavar="METHOD",
        help="list the instructions of METHOD, or of every method; may be given several times",
    )
    parser.add_argument("--all", action="store_true", help="show every row, where otherwise the first are shown")
    parser.add_argument("--output", type=Path, metavar="PATH", help="write to this file instead of standard output")
    parser.set_defaults(run=run, parser=parser)


def run(args: argparse.Namespace) -> int:
    """Shows the report; 0 done, 1 it could not be written. Raises ``PteError``, an exit code of 3."""
    _settle(args)
    from pipeline.anatomy import inspect

    methods = None if args.instructions is None else [name for name in args.instructions if name]
    return _write(_rendered(inspect(args.file, methods), args), args.output)


def _settle(args: argparse.Namespace) -> None:
    """In ``--instructions FILE``, what follows is the file; a usage error where there is none."""
    if args.file is None and args.instructions and args.instructions[-1]:
        args.file, args.instructions[-1] = Path(args.instructions[-1]), ""
    if args.file is None:
        args.parser.error("the following arguments are required: FILE")


def _rendered(report: Report, args: argparse.Namespace) -> str:
    if args.format == "json":
        from pipeline.anatomy import document

        return document.of_report(report, "pte-inspect") + "\n"
    if args.format == "html":
        from pipeline.anatomy import page

        return page.of_report(report)
    from pipeline.anatomy import text

    return "".join(f"{line}\n" for line in text.of_report(report, canvas(args.all, args.output)))


def canvas(everything: bool, output: Path | None) -> Canvas:
    """As wide as the terminal, if that is where it goes; a file takes any character."""
    from pipeline.anatomy.drawing import Canvas

    on_terminal = output is None and sys.stdout.isatty()
    return Canvas(
        width=shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if on_terminal else PLAIN_WIDTH,
        unicode=output is not None or _says_bars(sys.stdout.encoding),
        limit=None if everything else MAX_ROWS,
    )


def _says_bars(encoding: str | None) -> bool:
    from pipeline.anatomy import drawing

    try:
        f"█▏{drawing.Canvas().times}…→".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _write(text: str, output: Path | None) -> int:
    """To standard output, or to a file as UTF-8; 1 where the file cannot be written."""
    if output is None:
        print(text, end="")
        return 0
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{output}: cannot be written ({error.strerror}). Choose another path.", file=sys.stderr)
        return 1
    return 0
