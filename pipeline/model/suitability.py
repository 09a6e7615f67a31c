"""What a configuration alone says against exporting its model with the off-graph cache.

Only what is certain: everything else is seen when the model runs, at the price of loading its weights first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.errors import ExportError

_STATE = "keeps state besides K and V from one step to the next"
_CHOICE = "chooses the keys it attends by what they hold"

# Kinds of layers, as configurations name them in ``layer_types``.
UNSUITABLE_LAYERS = {
    "chunked_attention": "attends from the start of a chunk on, which is neither full nor sliding-window attention",
    "compressed_sparse_attention": _CHOICE,
    "conv": _STATE,
    "heavily_compressed_attention": _CHOICE,
    "hybrid": _STATE,
    "hybrid_sliding": _STATE,
    "indexed_attention": _CHOICE,
    "linear_attention": _STATE,
    "minimax_m3_sparse": _CHOICE,
}


def refuse_unsuitable(config: Any) -> None:
    """Raises ExportError when the text configuration asks for what the off-graph cache op cannot do."""
    for reason in _reasons(config):
        raise ExportError(
            f"model type '{config.model_type}': {reason}. It cannot be exported with the off-graph cache."
        )


def _reasons(config: Any) -> Iterator[str]:
    for index, layer_type in enumerate(getattr(config, "layer_types", None) or ()):
        if layer_type in UNSUITABLE_LAYERS:
            yield f"layer {index} is '{layer_type}', which {UNSUITABLE_LAYERS[layer_type]}"
    softcap = getattr(config, "attn_logit_softcapping", None)
    if softcap is not None:
        yield f"attn_logit_softcapping is {softcap}, and the off-graph cache op does not cap scores"
    for holder in (config, getattr(config, "attn_config", None)):
        if getattr(holder, "alibi", False):
            yield "alibi is true, and the off-graph cache op adds no bias to scores"
    if getattr(config, "attn_temperature_tuning", False):
        yield "attn_temperature_tuning is true: it scales queries by positions that it counts from 0 in every step"
    for rope in _rope_parameters(config):
        if rope.get("rope_type") in {"dynamic", "longrope"}:
            yield (
                f"rope_type '{rope['rope_type']}' changes the rotary frequencies with the length of the sequence, and "
                "a graph traced once would be wrong beyond the first regime"
            )


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """One set, or one for each type of layer."""
    parameters = getattr(config, "rope_parameters", None) or {}
    return [value for value in parameters.values() if isinstance(value, dict)] or [parameters]
