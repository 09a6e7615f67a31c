"""Types of arguments that several verbs take."""

from __future__ import annotations

import argparse
from pathlib import Path


def artifact(text: str) -> Path:
    """A path. The empty one, which an unset variable leaves, would mean the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("an empty path; expected an artifact or a bundle's directory")
    return Path(text)
