"""Which version of pte-pipeline is installed. Looking it up takes longer than reading a ``.pte`` does."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed() -> str | None:
    """``None`` where the code runs without having been installed."""
    try:
        return version("pte-pipeline")
    except PackageNotFoundError:
        return None
