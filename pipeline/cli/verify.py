"""``pte verify``: do these artifacts publish the truth? Reads them and runs nothing.

Exit codes: 0 they do, 1 there is a finding at or above ``--fail-on``, 2 the command line is wrong, 3 a file cannot be
read; the greatest, when there are several.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.cli import targets
from pipeline.cli.examining import Asked, examine_each
from pipeline.cli.formats import FORMATS, Outcome, Run, Unreadable, document, text
from pipeline.cli.plain import name
from pipeline.cli.terminal import Terminal
from pipeline.verify import RULES, Severity

FAIL_ON = {str(severity): severity for severity in reversed(Severity)} | {"never": None}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``verify``."""
    description = __doc__.replace("``", "")
    parser = subparsers.add_parser("verify", help="check what .pte files publish", description=description)
    add = parser.add_argument
    add(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a .pte, a bundle, a directory of them, or a pattern such as '**/*.pte'",
    )
    add(
        "--contract",
        action="append",
        default=[],
        metavar="NAME",
        help="hold the files to this contract, by name or as a schema file of your own; may be repeated "
        "(default: all that a file claims)",
    )
    add("--manifest", type=Path, metavar="M", help="the manifest the files were built from")
    add(
        "--tokenizer",
        type=Path,
        metavar="DIR",
        help="the tokenizer's directory or file (default: what lies beside the model in a bundle)",
    )
    add("--format", choices=FORMATS, default="text", help="how to tell it (default: text)")
    add("--output", type=Path, metavar="FILE", help="write it to this file, and text to standard output")
    add(
        "--fail-on", choices=FAIL_ON, default="error", help="the least severity that gives exit code 1 (default: error)"
    )
    add("--jobs", type=_jobs, metavar="N", help="processes at most (default: what the number of files is worth)")
    add("--explain", action=_Explain, metavar="RULE", help="say why a rule is there, and exit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Tells what was found in the format asked for; the exit code is that of the worst file."""
    asked = Asked(contracts=tuple(args.contract), manifest=args.manifest, tokenizer=args.tokenizer)
    outcomes = examine_each(targets.find(args.paths), asked.question(), asked, args.jobs)
    fail_on = FAIL_ON[args.fail_on]
    for_people = args.format == "text" or args.output is not None
    found = Run(outcomes=tuple(_shown(outcomes, fail_on, for_people)), fail_on=fail_on, rules=RULES)
    if for_people:
        for line in text.end(found, Terminal.of(sys.stdout)):
            print(line)
    else:
        print(document(args.format, found), end="")
    return found.exit_code if args.output is None or _written(args, found) else found.exit_code or 1


def _shown(outcomes: Iterator[Outcome], fail_on: Severity | None, for_people: bool) -> Iterator[Outcome]:
    """The same outcomes, each shown to people as soon as it is there; one that is no report goes to standard error."""
    terminal = Terminal.of(sys.stdout)
    for outcome in outcomes:
        if isinstance(outcome, Unreadable):
            sys.stdout.flush()
            print(text.block(outcome, fail_on, terminal), file=sys.stderr, flush=True)
        elif for_people:
            print(text.block(outcome, fail_on, terminal))
        yield outcome


def _written(args: argparse.Namespace, found: Run) -> bool:
    try:
        args.output.write_text(document(args.format, found), encoding="utf-8")
    except OSError as error:
        print(f"{name(str(args.output))}: {error.strerror}; the report could not be written.", file=sys.stderr)
        return False
    return True


def _jobs(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of processes; expected 1 or more")
    return int(text)


class _Explain(argparse.Action):
    """Answers and exits, so that no file need be named."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: object, values: Any, option: Any = None) -> None:
        from pipeline.cli import rule_pages

        rule = RULES.get(values.upper())
        if rule is None:
            parser.error(f"argument --explain: {values!r} is no rule; expected one of {', '.join(RULES)}")
        print(rule_pages.page(rule.id), end="")
        parser.exit()
