"""Receipts: what a finished step was asked, and which objects it left."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

SHA256 = re.compile(r"[0-9a-f]{64}")


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
            receipt = cls(**json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, RecursionError):
            return None
        return receipt if receipt._is_sound() else None

    def _is_sound(self) -> bool:
        return (
            isinstance(self.asked, dict)
            and isinstance(self.outputs, dict)
            and all(
                isinstance(item, dict)
                and item.keys() == {"sha256", "size_bytes"}
                and isinstance(item["sha256"], str)
                and SHA256.fullmatch(item["sha256"]) is not None
                and type(item["size_bytes"]) is int
                for item in self.outputs.values()
            )
        )
