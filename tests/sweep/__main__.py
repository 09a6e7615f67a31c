"""``python -m tests.sweep [name ...] [--json FILE] [--record]``: tries model types, and prints a table."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.sweep", description=__doc__)
    parser.add_argument("names", nargs="*", help="model types or variants; all by default")
    parser.add_argument("--json", type=Path, help="writes every result there")
    parser.add_argument("--record", action="store_true", help="writes known.json and docs/architectures.md")
    arguments = parser.parse_args()
    if arguments.record and arguments.names:
        parser.error("--record is of all model types; leave out the names")

    import transformers

    from tests.sweep import page, sweep

    chosen = sweep.cases(arguments.names)
    unknown = set(arguments.names) - {case.name for case in chosen}
    if unknown:
        parser.error(f"no model type or variant is called {', '.join(sorted(unknown))}")
    results = []
    for result in sweep.sweep(chosen):
        results.append(result)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{len(results)}/{len(chosen)} {result.name:40}")
    sys.stdout.write(sweep.table(results) + "\n")
    if arguments.json:
        sweep.write(results, arguments.json)
    if arguments.record:
        page.record(results, transformers.__version__)


main()
