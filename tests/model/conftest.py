"""The attention implementation is registered, and a plain cache can stand in for a runtime's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.model import attention
from tests.tiny_models import library_warnings_ignored


@pytest.fixture(scope="session", autouse=True)
def _registered() -> None:
    with library_warnings_ignored():
        attention.register()


class History:
    """Keeps every position of every cache, and masks by position: what the op's contract says, and nothing else."""

    def __init__(self, caches: Sequence[CacheGeometry]) -> None:
        self.caches = caches
        self.layers: list[tuple[torch.Tensor, torch.Tensor] | None] = [None] * len(caches)
        self.calls: list[tuple[int, list[int]]] = []

    def update_and_fetch(self, layer_id: int, k: torch.Tensor, v: torch.Tensor, position: torch.Tensor) -> Any:
        from executorch.extension.llm.cache.reference_cache import AttendSpec, MaskKind

        geometry, earlier = self.caches[layer_id], self.layers[layer_id]
        assert k.shape == v.shape == (1, geometry.num_kv_heads, len(position), geometry.head_dim)
        if earlier is not None:
            k, v = torch.cat([earlier[0], k], dim=2), torch.cat([earlier[1], v], dim=2)
        self.layers[layer_id] = k, v
        self.calls.append((layer_id, position[:, 0].tolist()))
        assert position[:, 0].tolist() == list(range(k.shape[2]))[-len(position) :]
        age = position - torch.arange(k.shape[2])
        mask = (age >= 0) & (age < geometry.window if geometry.window else True)
        return k, v, AttendSpec(MaskKind.EXPLICIT, mask[None, None])


@contextmanager
def history(caches: Sequence[CacheGeometry]) -> Iterator[History]:
    """A fresh one, which the op finds while the block runs."""
    from executorch.extension.llm.cache.update_and_attend import REGISTRY

    cache = History(caches)
    REGISTRY.install("history", cache)
    try:
        with REGISTRY.active("history"):
            yield cache
    finally:
        REGISTRY.uninstall("history")
