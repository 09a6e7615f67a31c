"""What an artifact publishes and a runner relies on, as one value.

Knows the names and encodings of the runner's contract (executorch ``extension/llm/runner/model_metadata.h``); does
not know how they are stored in a file, nor what is done with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import PteError

# executorch's ScalarType codes (exir/scalar_type.py).
SCALAR_TYPE = {"fp16": 5, "fp32": 6, "bf16": 15}

# LogitsToKeepMode of extension/llm/runner/model_metadata.h.
LOGITS_MODE = {"full": 0, "last": 1, "selected": 2}


@dataclass(frozen=True, kw_only=True)
class CacheGeometry:
    """One cache: KV heads, head_dim, and the window (positions a query reaches, itself included; 0: all history)."""

    num_kv_heads: int
    head_dim: int
    window: int


@dataclass(frozen=True, kw_only=True)
class Contract:
    """The published values, decoded. ``caches`` are in the order of their ids."""

    max_seq_len: int
    max_context_len: int
    vocab_size: int
    dtype: str
    logits: str
    caches: tuple[CacheGeometry, ...]
    eos_ids: frozenset[int]

    @classmethod
    def read(cls, constants: Mapping[str, Any], where: str) -> Contract:
        """The contract of an artifact that was verified; ``where`` names the file in errors.

        Raises PteError for a value that is absent. Contradictions between values are verification's business.
        """
        try:
            heads, dims, windows = (
                constants[name]["values"] for name in ("get_kv_heads", "get_head_dims", "get_windows")
            )
            eos = constants["get_eos_ids"]
            if isinstance(eos, dict):
                raise TypeError("get_eos_ids is a tensor, and plain ids are read")
            return cls(
                max_seq_len=constants["get_max_seq_len"],
                max_context_len=constants["get_max_context_len"],
                vocab_size=constants["get_vocab_size"],
                dtype=_name_of(SCALAR_TYPE, constants["get_activation_dtype"]),
                logits=_name_of(LOGITS_MODE, constants["get_logits_to_keep_mode"]),
                caches=tuple(
                    CacheGeometry(num_kv_heads=h, head_dim=d, window=w)
                    for h, d, w in zip(heads, dims, windows, strict=True)
                ),
                eos_ids=frozenset([eos] if isinstance(eos, int) else eos),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise PteError(
                f"{where}: its constant methods do not describe a runner's contract ({error}). Run pte verify on it."
            ) from error


def _name_of(codes: Mapping[str, int], code: int) -> str:
    for name, known in codes.items():
        if known == code:
            return name
    raise ValueError(f"code {code} is none of {', '.join(f'{value} ({name})' for name, value in codes.items())}")
