"""``docs/architectures.md``: what the last sweep found, for people. Made from ``known.json`` and from nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.sweep.sweep import Result

KNOWN = Path(__file__).parent / "known.json"
PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"

INTRODUCTION = """# Architectures

Which model types of Transformers {version} the off-graph KV cache serves, of all that have a causal LM there. The page
is made by a sweep (`python -m tests.sweep --record`, about a minute), and tests hold it to what the sweep finds.

A tiny model of each type, with random weights, goes the way of a build up to the export: loaded, observed, rehearsed,
and stepped in eager float32 over a cache that knows nothing but the geometry that the artifact would publish. *Right*
means that its logits are those of the model's own eager attention over the whole text, in chunks and token by token,
and that they move when the history or the windows are taken away. *Refused* means that a build ends with that reason.
Nothing is known to be wrong.

Being right here is not yet a `.pte`: lowering may still find an operator that the backend lacks, and says which.
"""


def known(results: Sequence[Result], version: str) -> dict[str, Any]:
    """What is recorded of a sweep."""

    def named(verdict: str) -> list[str]:
        return sorted(result.name for result in results if result.verdict == verdict)

    reasons = {result.name: result.detail for result in results}
    return {
        "transformers": version,
        "right": named("right"),
        "wrong": named("wrong"),
        "refused": {name: reasons[name] for name in named("refused")},
        "unbuildable": named("unbuildable"),
    }


def record(results: Sequence[Result], version: str) -> None:
    """Writes ``known.json`` and the page."""
    found = known(results, version)
    KNOWN.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(found))


def page(known: Mapping[str, Any]) -> str:
    return "\n".join(_lines(known))


def _lines(known: Mapping[str, Any]) -> Iterator[str]:
    yield INTRODUCTION.format(version=known["transformers"])
    yield "| | model types | variants of their configurations |\n|---|---|---|"
    for verdict in ("right", "refused", "wrong", "unbuildable"):
        variants = sum(":" in name for name in known[verdict])
        yield f"| {verdict} | {len(known[verdict]) - variants} | {variants} |"
    yield f"\n## Right\n\n{_listed(known['right'])}\n"
    yield "## Refused\n\n| model type | reason |\n|---|---|"
    for name, reason in known["refused"].items():
        yield f"| `{name}` | {_short(reason)} |"
    yield "\n## Not tried\n"
    yield "Transformers cannot build or run these by themselves from a configuration alone:"
    yield f"{_listed(known['unbuildable'])}.\n"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _short(reason: str) -> str:
    """Without what the table says already."""
    reason = re.sub(r"^model type '[\w-]+': ", "", reason)
    reason = re.sub(r"\.? \(\w+: .*\)$", "", reason)
    return reason.removesuffix(" It cannot be exported with the off-graph cache.").removesuffix(".").replace("|", "\\|")
