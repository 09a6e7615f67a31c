"""Which rows of logits a model returns."""

from __future__ import annotations

import inspect
from typing import Any


def keeps_all_rows(model: Any) -> bool:
    """Whether the model returns logits of every token, whichever it is asked for."""
    return "logits_to_keep" not in inspect.signature(model.forward).parameters
