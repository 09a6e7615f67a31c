"""The constant methods an artifact publishes: all that a runner must know before it can build a cache and decode.

Both generations of the runner's contract are published side by side; the newer names come from executorch's
``extension/llm/runner/model_metadata.h``, the older from ``backends/mlx/examples/llm/export_llm_hf.py`` of 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.contract import LOGITS_MODE, SCALAR_TYPE, CacheGeometry
from pipeline.spec import BuildSpec


def constant_methods(
    spec: BuildSpec, caches: Sequence[CacheGeometry], *, vocab_size: int, eos_ids: Sequence[int], bos_id: int | None
) -> dict[str, Any]:
    """Name to value, in the types that executorch's emitter turns into the encodings a runner reads.

    ``vocab_size`` is the width of the logits. Per-cache values are int32 tensors of one dimension; a window of 0 is a
    cache that keeps all history. ``get_bos_id`` is left out for a model without one.
    """
    import torch

    def per_cache(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    methods: dict[str, Any] = {
        "get_max_seq_len": spec.max_seq_len,
        "get_max_context_len": spec.max_context_len,
        "get_vocab_size": vocab_size,
        "get_activation_dtype": SCALAR_TYPE[spec.dtype],
        "get_logits_to_keep_mode": LOGITS_MODE[spec.logits],
        "get_n_caches": len(caches),
        "get_kv_heads": per_cache([cache.num_kv_heads for cache in caches]),
        "get_head_dims": per_cache([cache.head_dim for cache in caches]),
        "get_windows": per_cache([cache.window for cache in caches]),
        "get_eos_ids": list(eos_ids),
        "get_max_ctx_len": spec.max_context_len,
        "get_prefill_chunk_size": spec.max_seq_len,
    }
    if bos_id is not None:
        methods["get_bos_id"] = bos_id
    return methods
