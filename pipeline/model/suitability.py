"""What a configuration alone says against exporting its model with the off-graph cache.

Only what is certain: everything else is seen when the model runs, at the price of loading its weights first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pipeline.errors import ExportError
from pipeline.model.rope import first_regimes

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

_SINKS = "has sinks, which take a share of every softmax, and the off-graph cache op gives all of it to keys"
_ALIBI = "adds biases to scores by distance (ALiBi), and the off-graph cache op adds none"

# Model types whose attention is so in every configuration, and in which kind of layers, if not in all.
UNSUITABLE_TYPES: dict[str, tuple[str, str | None]] = {
    "bloom": (_ALIBI, None),
    "flint": (_SINKS, None),
    "gpt_oss": (_SINKS, None),
    "granite_swa": (_SINKS, None),
    "granitemoe_swa": (_SINKS, None),
    "mimo_v2_flash": (_SINKS, "sliding_attention"),
}


def refuse_unsuitable(config: Any, *, max_context_len: int = 0) -> None:
    """Raises ExportError when the text configuration asks for what the off-graph cache op cannot do.

    A context that is too long for it is one of those things, where there is one already, and the message says how long
    it may be.
    """
    for reason in _reasons(config):
        raise ExportError(
            f"model type '{config.model_type}': {reason}. It cannot be exported with the off-graph cache."
        )
    for kind, longest in first_regimes(config):
        if max_context_len > longest:
            raise ExportError(
                f"model type '{config.model_type}': max_context_len is {max_context_len}; its rope_type '{kind}' "
                f"rotates a whole text anew once it is longer than {longest} tokens, which the keys in a cache cannot "
                f"follow. Lower max_context_len to {longest}."
            )


def _reasons(config: Any) -> Iterator[str]:
    reason, where = UNSUITABLE_TYPES.get(config.model_type, (None, None))
    if reason and (where is None or where in (getattr(config, "layer_types", None) or ())):
        yield f"its attention {reason}"
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
