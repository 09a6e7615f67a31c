"""Finds the JSON schemas that ship with the package.

Knows where they lie: inside an installed package, or beside it in a checkout. Does not know
what any of them says, nor how to validate against one.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.errors import PipelineError

_PACKAGE = Path(__file__).resolve().parent
_PLACES = (_PACKAGE / "schemas", _PACKAGE.parent / "schemas")


SUFFIX = ".schema.json"


def names(folder: str) -> list[str]:
    """The schemas in a folder of them, as ``load`` takes them, in order."""
    for place in _PLACES:
        found = sorted(file.name.removesuffix(SUFFIX) for file in place.joinpath(folder).glob(f"*{SUFFIX}"))
        if found:
            return [f"{folder}/{name}" for name in found]
    raise _missing(f"{folder}/*{SUFFIX}")


@cache
def load(name: str) -> dict[str, Any]:
    """The schema ``<name>.schema.json``, parsed once and shared: read it, never change it."""
    filename = f"{name}{SUFFIX}"
    for place in _PLACES:
        file = place / filename
        if file.is_file():
            schema: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return schema
    raise _missing(filename)


def _missing(what: str) -> PipelineError:
    looked = " and ".join(str(place) for place in _PLACES)
    return PipelineError(f"{what}: not found in {looked}; it ships with pte-pipeline. Reinstall the package.")
