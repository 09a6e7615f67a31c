"""What each step is told: exactly what its output depends on, and no more.

A step receives its spec and its inputs' files, nothing else, so its key, which hashes both, is complete by
construction. ``pipeline.manifest`` is where the values come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_MAX_NEW_TOKENS = 32

NONE = "none"
"""The scheme of weights that are not quantized."""

DEFAULT_GROUP_SIZE = {NONE: 0, "4w": 32, "8w": 0, "nvfp4": 16, "mxfp8": 32}
"""Quantization schemes, and how many weights share a scale unless the manifest says; 0 is a whole row.

Those of executorch's ``extension/llm/export/quantize.py`` and ``mx.py`` that its MLX backend lowers.
"""

GROUP_SIZE_CHOOSABLE = ("4w", "8w")
"""The schemes whose groups are not part of the format."""


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
class WeightFormat:
    """How the weights of one kind of layer are stored.

    ``group_size`` of them, along the input dimension, share a scale; 0 is a whole row.
    """

    scheme: str
    group_size: int

    @property
    def quantized(self) -> bool:
        return self.scheme != NONE

    def __str__(self) -> str:
        if not self.quantized:
            return "not quantized"
        return f"{self.scheme} in groups of {self.group_size}" if self.group_size else f"{self.scheme} by rows"


UNQUANTIZED = WeightFormat(scheme=NONE, group_size=0)


@dataclass(frozen=True, kw_only=True)
class Quantization:
    """Which weights are quantized, and how.

    A head that is tied to the embedding is stored as the embedding is, once, unless ``untie_head`` makes it a linear
    layer of its own. ``skip`` holds patterns of the names of layers that are left as they are.
    """

    linear: WeightFormat = UNQUANTIZED
    embedding: WeightFormat = UNQUANTIZED
    untie_head: bool = False
    skip: tuple[str, ...] = ()

    @property
    def asked(self) -> bool:
        """Whether anything is to be quantized."""
        return self.linear.quantized or self.embedding.quantized


@dataclass(frozen=True, kw_only=True)
class FetchSpec:
    """Where the model comes from."""

    source: Source


@dataclass(frozen=True, kw_only=True)
class QuantizeSpec:
    """Which weights are quantized, how, and from which dtype."""

    dtype: str
    quantization: Quantization


@dataclass(frozen=True, kw_only=True)
class BuildSpec:
    """What the ``.pte`` is made to be."""

    dtype: str
    linear: WeightFormat
    embedding: WeightFormat
    max_seq_len: int
    max_context_len: int
    placement: str
    backend: str
    logits: str


@dataclass(frozen=True, kw_only=True)
class SmokeSpec:
    """What is decoded, and what the answers must contain."""

    prompts: tuple[SmokePrompt, ...]
