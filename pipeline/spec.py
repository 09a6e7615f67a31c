"""What each step is told: exactly what its output depends on, and no more.

A step receives its spec and its inputs' files, nothing else, so its key, which hashes both, is complete by
construction. ``pipeline.manifest`` is where the values come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_MAX_NEW_TOKENS = 32


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A Hugging Face repository (``org/name``) at a revision, as written."""

    repo: str
    revision: str


@dataclass(frozen=True, kw_only=True)
class PathSource:
    """A local directory or ``.gguf`` file; absolute, links not followed, not known to exist."""

    path: Path


@dataclass(frozen=True, kw_only=True)
class WheelSource:
    """A ``.gguf`` file inside one exact wheel of the package index."""

    package: str
    version: str
    sha256: str
    file: str


Source = HubSource | PathSource | WheelSource


@dataclass(frozen=True, kw_only=True)
class SmokePrompt:
    """A question, and a text its answer of at most ``max_new_tokens`` tokens must contain."""

    name: str
    user: str
    expect: str
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS


@dataclass(frozen=True, kw_only=True)
class FetchSpec:
    """Where the model comes from."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """What the ``.pte`` is made to be."""

    dtype: str
    linear: str
    embedding: str
    max_seq_len: int
    max_context_len: int
    placement: str
    backend: str
    logits: str


@dataclass(frozen=True, kw_only=True)
class SmokeSpec:
    """What is decoded, and what the answers must contain."""

    prompts: tuple[SmokePrompt, ...]
