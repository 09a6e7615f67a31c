"""The documentation's pages about rules, which ship with the package.

Knows where they lie: inside an installed package, or beside it in a checkout.
"""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import PipelineError

_PACKAGE = Path(__file__).resolve().parents[1]
_PLACES = (_PACKAGE / "docs" / "rules", _PACKAGE.parent / "docs" / "rules")


def page(rule: str) -> str:
    """The page of the rule with that id, in Markdown."""
    for place in _PLACES:
        file = place / f"{rule}.md"
        if file.is_file():
            return file.read_text(encoding="utf-8")
    looked = " and ".join(map(str, _PLACES))
    raise PipelineError(f"{rule}.md: not found in {looked}; it ships with pte-pipeline. Reinstall the package.")
