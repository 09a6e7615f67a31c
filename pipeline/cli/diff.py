"""``pte diff``: what changed between two artifacts? Compares what they mean, not where their bytes lie."""

from __future__ import annotations

import argparse

from pipeline.cli.arguments import artifact


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``diff``."""
    parser = subparsers.add_parser("diff", help="show what changed between two artifacts", description=__doc__)
    parser.add_argument("old", type=artifact, metavar="A", help="a .pte, a .ptd or a bundle")
    parser.add_argument("new", type=artifact, metavar="B", help="the same, to compare with")
    parser.add_argument("--format", choices=("text", "json"), default="text", help="default: text")
    parser.add_argument(
        "--instructions", action="store_true", help="list every place where instructions differ, not those alike once"
    )
    parser.add_argument("--all", action="store_true", help="show every row, where otherwise the first are shown")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Shows the changes; 0 the same, 1 they differ. Raises ``PteError``, an exit code of 3."""
    from pipeline.anatomy import changes

    found = changes.compare(args.old, args.new)
    if args.format == "json":
        from pipeline.anatomy import document

        print(document.of_report(found, "pte-diff"))
    else:
        from pipeline.anatomy import changes_text
        from pipeline.cli.inspect import canvas

        for line in changes_text.of_comparison(found, canvas(args.all, None), args.instructions):
            print(line)
    return int(not found.same)
