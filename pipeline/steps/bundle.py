"""All that a user ships, under the names they expect, and ``build.json``: what it was built from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RECORD = "build.json"


def run(asked: Mapping[str, Any], history: Mapping[str, Any], out: Path) -> None:
    """Writes ``out/build.json``; the other files are stored objects already.

    ``history`` maps each earlier step to what it was asked and the digests of what it made.
    """
    record = {
        "name": asked["spec"]["name"],
        "model": asked["spec"]["model"],
        "files": asked["inputs"],
        "steps": history,
    }
    (out / RECORD).write_text(json.dumps(record, indent=2, sort_keys=True) + "\n", encoding="utf-8")
