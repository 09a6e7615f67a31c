"""A report as JSON: the fields of ``facts`` under their names (``schemas/inspect-report.schema.json``).

Numbers that JSON has not, infinities and what is no number, are strings: ``"inf"``, ``"-inf"``, ``"nan"``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

VERSION = 1


def of_report(report: Any, kind: str) -> str:
    """The JSON text of a report; ASCII, so that no terminal takes it for anything else."""
    content = {"report": kind, "version": VERSION, **plain(report)}
    return json.dumps(content, indent=1, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in JSON's kinds."""
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
