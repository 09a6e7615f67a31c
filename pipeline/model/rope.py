"""Rotary embeddings whose frequencies change with the length of the sequence: where, and how to stay below.

Two of Transformers' kinds do (``dynamic_rope_update`` in modeling_rope_utils.py): ``dynamic`` (NTK) beyond
``max_position_embeddings``, and ``longrope`` beyond ``original_max_position_embeddings``. There a model computes all
of a text's keys anew, and those in a cache were rotated with other frequencies; so no artifact is right on both sides,
nor is one that is fixed to the second regime on texts that are still short. Up to that length, in the first regime,
frequencies are constants. The other kinds (linear, YaRN, llama3, proportional) scale them once and for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

CHANGING = ("dynamic", "longrope")
_FIXED = "default"


def first_regimes(config: Any) -> Iterator[tuple[str, int]]:
    """Kinds of rotary embedding that change, and the longest sequence before they do."""
    parameters = getattr(config, "rope_parameters", None) or {}
    # One set, or one for each type of layer.
    for rope in [value for value in parameters.values() if isinstance(value, dict)] or [parameters]:
        kind = rope.get("rope_type")
        if kind == "dynamic":
            yield kind, config.max_position_embeddings
        elif kind == "longrope":
            yield kind, rope.get("original_max_position_embeddings") or config.max_position_embeddings


@contextmanager
def in_first_regime(model: Any) -> Iterator[None]:
    """Rotary embeddings keep the frequencies they have while the block runs, for a trace that must not branch.

    They are those of the first regime, unless the model has computed beyond it.
    """
    kinds = [(module, module.rope_type) for module in model.modules() if hasattr(module, "rope_type")]
    for module, kind in kinds:
        module.rope_type = (
            {layer_type: _fixed(one) for layer_type, one in kind.items()} if isinstance(kind, dict) else _fixed(kind)
        )
    try:
        yield
    finally:
        for module, kind in kinds:
            module.rope_type = kind


def _fixed(kind: str) -> str:
    return _FIXED if kind in CHANGING else kind
