"""What each step is told: exactly the manifest fields its output depends on, and no more.

A step receives its spec and its inputs' files, nothing else, so its key, which hashes both, is complete by
construction.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.manifest import HubSource, Manifest, PathSource, SmokePrompt, WheelSource


@dataclass(frozen=True, kw_only=True)
class FetchSpec:
    """Where the model comes from. For a local path the files' digests are inputs, and the path itself is not."""

    source: HubSource | PathSource | WheelSource


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

    @classmethod
    def of(cls, manifest: Manifest) -> BuildSpec:
        return cls(
            dtype=manifest.dtype,
            linear=manifest.quantization.linear,
            embedding=manifest.quantization.embedding,
            max_seq_len=manifest.max_seq_len,
            max_context_len=manifest.max_context_len,
            placement=manifest.cache.placement,
            backend=manifest.backend,
            logits=manifest.logits,
        )


@dataclass(frozen=True, kw_only=True)
class SmokeSpec:
    """What is decoded, and what the answers must contain."""

    prompts: tuple[SmokePrompt, ...]
