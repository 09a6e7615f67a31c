"""K and V as they are stored: how many bytes they take, and what is lost in few bits."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from pipeline.contract import CacheGeometry, Contract
from pipeline.errors import CacheError
from pipeline.runtime.cell_cache import CellCache
from pipeline.runtime.kv_cache import KVCache
from pipeline.runtime.policy import CachePolicy

TOKENS = 40
SPLIT = [4, 1, 1, 4, 3, 4, 4, 1, 4, 4, 4, 4, 2]

WIDE = CacheGeometry(num_kv_heads=2, head_dim=64, window=0)
RING = CacheGeometry(num_kv_heads=1, head_dim=96, window=6)
CACHES = (WIDE, RING)

CONTRACT = Contract(
    max_seq_len=4,
    max_context_len=64,
    vocab_size=260,
    dtype="fp32",
    logits="last",
    caches=CACHES,
    eos_ids=frozenset(),
)

# A step of a group, as part of its spread. MLX moves the grid so that zero is on it, and may cut off the far end.
STEPS = {8: 1 / 255, 4: 1 / 15}

# Of attention over random keys and values of deviation 1, whose outputs have a deviation of 0.36: the mean error.
# Measured were 1.6e-3 and 3.6e-2.
ATTENTION_ERROR = {8: 4e-3, 4: 8e-2}


def drawn(geometry: CacheGeometry, seed: int) -> np.ndarray:
    shape = (1, geometry.num_kv_heads, TOKENS, geometry.head_dim)
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fed(bind: Callable[[], KVCache | CellCache], layer_id: int, k: np.ndarray, v: np.ndarray) -> list[list[np.ndarray]]:
    """Of each step: K and V as they are read back, and which tokens those are for the last query."""
    cache = bind()
    if isinstance(cache, CellCache):
        cache.table.seq_new()
    found, start = [], 0
    for length in SPLIT:
        positions = list(range(start, start + length))
        if isinstance(cache, CellCache):
            cache.table.declare_step([0] * length)
        part = (mx.array(array[:, :, start : start + length]) for array in (k, v))
        keys, values, _ = cache.update_and_fetch(layer_id, *part, positions)
        cache.commit_step()
        start += length
        found.append([np.array(keys), np.array(values)])
    return found


def single(bits: int | None) -> Callable[[], KVCache]:
    return lambda: KVCache(CACHES, capacity=64, max_write=4, dtype=mx.float32, initial_capacity=2, bits=bits)


def cells(bits: int | None) -> Callable[[], CellCache]:
    return lambda: CellCache(CACHES, capacity=64, dtype=mx.float32, initial_capacity=2, bits=bits)


@pytest.mark.parametrize("layer_id", [0, 1], ids=["flat", "ring"])
@pytest.mark.parametrize("bits", STEPS)
@pytest.mark.parametrize("bind", [single, cells])
def test_what_is_read_back_is_off_by_less_than_a_step_of_its_group(
    bind: Callable[[int | None], Callable[[], KVCache | CellCache]], bits: int, layer_id: int
) -> None:
    """However the text is split, while pools grow and the ring wraps; a lost or foreign token is off by 1 and more."""
    geometry = CACHES[layer_id]
    k, v = drawn(geometry, 1), drawn(geometry, 2)
    group = 64 if geometry.head_dim % 64 == 0 else 32
    for kept, read in zip(fed(bind(None), layer_id, k, v), fed(bind(bits), layer_id, k, v), strict=True):
        for exact, found in zip(kept, read, strict=True):
            groups = exact.reshape(*exact.shape[:3], -1, group)
            spread = groups.max(axis=-1) - groups.min(axis=-1)
            error = np.abs(found - exact).reshape(groups.shape).max(axis=-1)
            assert (error <= STEPS[bits] * spread).all()
            assert error.max() > 0.4 * STEPS[bits] * spread.max(), "nothing was quantized"


@pytest.mark.parametrize("bits", STEPS)
def test_attention_over_quantized_storage_is_as_near_as_its_bits(bits: int) -> None:
    k, v, q = drawn(WIDE, 3), drawn(WIDE, 4), mx.array(drawn(WIDE, 5)[:, :, -1:])
    outputs = []
    for each in (None, bits):
        *_, (keys, values) = fed(single(each), 0, k, v)
        outputs.append(np.array(mx.fast.scaled_dot_product_attention(q, mx.array(keys), mx.array(values), scale=0.125)))
    error = np.abs(outputs[1] - outputs[0]).mean()
    assert ATTENTION_ERROR[bits] / 20 < error < ATTENTION_ERROR[bits]


@pytest.mark.parametrize("bits", STEPS)
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_scales_and_what_is_read_have_the_dtype_that_is_asked_for(bits: int, dtype: mx.Dtype) -> None:
    cache = KVCache([WIDE], capacity=64, max_write=4, dtype=dtype, bits=bits)
    keys, values, _ = cache.update_and_fetch(0, *(mx.array(drawn(WIDE, 1)[:, :, :4]) for _ in "kv"), range(4))
    assert keys.dtype == values.dtype == dtype


STORED = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "q8": 1 + 2 * 4 / 64, "q4": 0.5 + 2 * 4 / 64}
"""Bytes of one number of a head of 64; scales and biases are float32."""


@pytest.mark.parametrize("storage", STORED)
def test_pools_take_the_bytes_that_were_planned_now_and_at_capacity(storage: str) -> None:
    policy = CachePolicy(storage=storage, initial_capacity=8)
    for plan, cache in (
        (one := policy.plan(CONTRACT), KVCache.of(one)),
        (several := policy.plan(CONTRACT, num_sequences=2), CellCache.of(several)),
    ):
        assert cache.nbytes == plan.initial_bytes
        wide = plan.storage.slot_bytes(WIDE)
        assert wide == 2 * 2 * 64 * STORED[storage]
        if isinstance(cache, CellCache):
            cache.table.seq_new()
        for start in range(0, 64, 4):
            if isinstance(cache, CellCache):
                cache.table.declare_step([0] * 4)
            for layer_id, geometry in enumerate(CACHES):
                zeros = mx.zeros((1, geometry.num_kv_heads, 4, geometry.head_dim))
                cache.update_and_fetch(layer_id, zeros, zeros, list(range(start, start + 4)))
            cache.commit_step()
        filled = plan.bytes_at_capacity // (2 if plan.batched else 1)
        assert cache.nbytes == filled


def test_heads_that_no_group_divides_are_refused() -> None:
    expected = (
        "K and V have head_dim 80, which is no multiple of 32, so they cannot be stored in 4 bits. Store them as fp32, "
        "fp16, bf16."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        KVCache([replace(WIDE, head_dim=80)], capacity=8, max_write=4, dtype=mx.float32, bits=4)
