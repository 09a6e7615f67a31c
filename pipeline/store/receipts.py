"""Receipts: what a finished step was asked, and which objects it left."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """One finished step.

    ``asked`` is all that its key was hashed from; ``outputs`` maps file names to ``{"sha256", "size_bytes"}``;
    ``seconds`` is how long the step ran.
    """

    step: str
    key: str
    asked: dict[str, Any]
    outputs: dict[str, dict[str, Any]]
    seconds: float

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, sort_keys=True) + "\n"

    @classmethod
    def read(cls, path: Path) -> Receipt | None:
        """The receipt in a file; None where there is none, or none that this version understands."""
        try:
            return cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
