"""The ``pte`` command: parses the command line, runs one verb, turns errors into an exit code.

Exit codes: 0 done, 1 what was asked about is wrong, 2 the command line is wrong, 3 a file cannot be read,
130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from pipeline.cli.output import tolerant
from pipeline.cli.plain import plain
from pipeline.errors import ContractError, ManifestError, PipelineError, PteError, UsageError

VERBS = {
    "chat": "talk to a .pte",
    "check": "check manifests without building anything",
    "run": "continue a prompt with a .pte",
    "serve": "serve a .pte to apps, as OpenAI's API",
    "verify": "check what .pte files publish",
    "inspect": "show what an artifact is",
    "diff": "show what changed between two artifacts",
}
_CODES = ((UsageError, 2), (ManifestError, 2), (ContractError, 2), (PteError, 3))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code; argparse's own exits pass through."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    with tolerant() as output:
        code = _run(arguments)
    if output.failure is not None:
        print(f"standard output: {output.failure.strerror}; the answer could not be written.", file=sys.stderr)
        return code or 1
    return code


def _run(arguments: Sequence[str]) -> int:
    args = _parser(arguments).parse_args(arguments)
    try:
        code: int = args.run(args)
    except PipelineError as error:
        # A file's name may have line breaks of its own; mistakes in manifests are told in several lines.
        print(plain(str(error), keep="" if isinstance(error, PteError) else "\n"), file=sys.stderr)
        return next((code for kind, code in _CODES if isinstance(error, kind)), 1)
    except KeyboardInterrupt:
        return 130
    return code


def _parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser with only the module of the verb at hand imported; the others are names with a line of help."""
    parser = argparse.ArgumentParser(
        prog="pte", description="Check manifests and ExecuTorch artifacts; doit builds them."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    asked = next((word for word in arguments if not word.startswith("-")), None)
    for verb, help_text in VERBS.items():
        if verb == asked:
            import_module(f"pipeline.cli.{verb}").add_parser(subparsers)
        else:
            subparsers.add_parser(verb, help=help_text)
    return parser


class _Version(argparse.Action):
    """Looks the version up when asked, which takes as long as everything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from pipeline.cli.version import installed

        version = installed()
        print(f"pte {version}" if version else "pte (not installed)")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
