"""The KV caches a model needs, read off the attention calls it really makes.

One eager forward pass over a few tokens is observed; what each call passes to attention is the geometry. Knows nothing
of how caches are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pipeline.contract import CacheGeometry
from pipeline.errors import ExportError
from pipeline.model.attention import AttentionCall, observed
from pipeline.model.forward import OffGraphForward, failures_explained


def geometry_of(model: Any) -> tuple[CacheGeometry, ...]:
    """The caches in the order of their ids, which is that of their first write in a forward pass.

    Raises ExportError as ``attention_calls`` and ``caches_of`` do.
    """
    return caches_of(attention_calls(model), model)


def attention_calls(model: Any) -> list[AttentionCall]:
    """Every call of attention in one forward pass, in order.

    Raises ExportError when attention asks for more than the off-graph cache can give.
    """
    import torch

    # Small ids are padding somewhere: a mask that is made from the tokens shows.
    tokens = torch.arange(3)
    with observed() as observation, torch.no_grad(), failures_explained(model):
        OffGraphForward(model)(tokens[None], tokens)
    return observation.calls


def caches_of(calls: Sequence[AttentionCall], model: Any) -> tuple[CacheGeometry, ...]:
    """The caches that the calls write, in the order of their ids.

    Raises ExportError when attention does not go through the registered implementation, or layers that share a cache
    attend with different windows.
    """
    model_type = model.config.get_text_config().model_type
    if not calls:
        raise ExportError(
            f"model type '{model_type}': none of its attention goes through Transformers' attention interface, where "
            "the off-graph cache takes its place. It cannot be exported with the off-graph cache."
        )
    caches: dict[int, CacheGeometry] = {}
    for call in calls:
        geometry = CacheGeometry(num_kv_heads=call.num_kv_heads, head_dim=call.head_dim, window=call.window)
        written = caches.setdefault(call.cache_id, geometry)
        if written != geometry:
            raise ExportError(
                f"model type '{model_type}': layers that share the K/V of cache {call.cache_id} attend with windows "
                f"{written.window} and {geometry.window}; expected the same. It cannot be exported with the off-graph "
                "cache."
            )
    return tuple(caches[cache_id] for cache_id in range(len(caches)))


def within_context(caches: Sequence[CacheGeometry], max_context_len: int) -> tuple[CacheGeometry, ...]:
    """The same caches for texts of at most ``max_context_len`` tokens: a window that none of them outgrows is none.

    A runtime allocates a window's ring whole: those of Phi-4-mini, 262144 positions in every layer, would take 34 GB
    that no text ever fills.
    """
    return tuple(replace(cache, window=0) if cache.window >= max_context_len else cache for cache in caches)
