"""The oracle is dense attention over a window of positions, however the text is split; anything else it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError
from pipeline.model.oracle import OracleCache, active

LENGTH = 23
SPLITS = [(23,), (1,) * 23, (5, 3, 1, 1, 7, 1, 5), (2, 21)]
FULL = CacheGeometry(num_kv_heads=2, head_dim=8, window=0)
SLIDING = CacheGeometry(num_kv_heads=1, head_dim=4, window=5)
LONE = CacheGeometry(num_kv_heads=3, head_dim=8, window=1)
WIDE = CacheGeometry(num_kv_heads=1, head_dim=4, window=64)
GEOMETRIES = [FULL, SLIDING, LONE, WIDE]
GROUPS = 2


def drawn(geometry: CacheGeometry, length: int = LENGTH, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Queries, keys and values of a text; two query heads read each KV head."""
    generator = torch.Generator().manual_seed(seed)
    heads = (GROUPS * geometry.num_kv_heads, geometry.num_kv_heads, geometry.num_kv_heads)
    return tuple(torch.randn(1, n, length, geometry.head_dim, generator=generator) for n in heads)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, scale: float) -> torch.Tensor:
    """Attention of every query over the whole text, in float64, one query head and one query at a time."""
    out = torch.zeros_like(q, dtype=torch.float64)
    for head in range(q.shape[1]):
        keys, values = k[0, head // GROUPS].double(), v[0, head // GROUPS].double()
        for place in range(q.shape[2]):
            oldest = max(0, place - window + 1) if window else 0
            scores = keys[oldest : place + 1] @ q[0, head, place].double() * scale
            out[0, head, place] = scores.softmax(0) @ values[oldest : place + 1]
    return out


def step(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, start: int, cache_id: int, dtype: Any = torch.float32
) -> Any:
    positions = torch.arange(start, start + k.shape[2]).reshape(-1, 1)
    return torch.ops.kvcache.update_and_attend(q, k, v, positions, layer_id=cache_id, scale=0.3, out_dtype=dtype)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_any_split_gives_dense_attention_in_every_cache_at_once(split: tuple[int, ...]) -> None:
    texts = [drawn(geometry, seed=index) for index, geometry in enumerate(GEOMETRIES)]
    parts: list[list[torch.Tensor]] = [[] for _ in GEOMETRIES]
    with active(OracleCache(GEOMETRIES, capacity=LENGTH)):
        start = 0
        for length in split:
            for cache_id, text in enumerate(texts):
                parts[cache_id].append(step(*(part[:, :, start : start + length] for part in text), start, cache_id))
            start += length
    for geometry, text, part in zip(GEOMETRIES, texts, parts, strict=True):
        expected = dense(*text, geometry.window, 0.3)
        torch.testing.assert_close(torch.cat(part, dim=2).double(), expected, rtol=0, atol=1e-6)


def test_keys_and_values_are_rounded_to_the_storage_dtype_and_queries_are_not() -> None:
    q, k, v = drawn(FULL)
    with active(OracleCache([FULL], capacity=LENGTH, dtype=torch.bfloat16)):
        out = torch.cat([step(q[:, :, a:b], k[:, :, a:b], v[:, :, a:b], a, 0) for a, b in ((0, 9), (9, LENGTH))], dim=2)
    expected = dense(q, k.bfloat16(), v.bfloat16(), 0, 0.3)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=1e-6)


def test_a_layer_that_reads_anothers_kv_repeats_its_write() -> None:
    q, k, v = drawn(SLIDING)
    reader_q, *_ = drawn(SLIDING, seed=1)
    parts = []
    with active(OracleCache([SLIDING], capacity=LENGTH)) as cache:
        for a, b in ((0, 9), (9, 10), (10, LENGTH)):
            keys, values = k[:, :, a:b], v[:, :, a:b]
            step(q[:, :, a:b], keys, values, a, 0)
            parts.append(step(reader_q[:, :, a:b], keys, values, a, 0))
        assert cache.length(0) == LENGTH
    expected = dense(reader_q, k, v, SLIDING.window, 0.3)
    torch.testing.assert_close(torch.cat(parts, dim=2).double(), expected, rtol=0, atol=1e-6)


def test_clear_starts_a_new_sequence() -> None:
    q, k, v = drawn(FULL)
    with active(OracleCache([FULL], capacity=LENGTH)) as cache:
        first = step(q, k, v, 0, 0)
        cache.clear()
        assert cache.length(0) == 0
        torch.testing.assert_close(step(q, k, v, 0, 0), first)


def test_the_cache_that_was_active_before_is_active_again() -> None:
    q, k, v = drawn(FULL)
    outer, inner = OracleCache([FULL], capacity=LENGTH), OracleCache([FULL], capacity=LENGTH)
    with active(outer):
        with active(inner):
            step(q, k, v, 0, 0)
        assert (outer.length(0), inner.length(0)) == (0, LENGTH)
        step(q, k, v, 0, 0)
    assert outer.length(0) == LENGTH
    with pytest.raises(RuntimeError, match="no active cache"):
        step(q, k, v, LENGTH, 0)


def positions(*values: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype).reshape(-1, 1)


K1, K2 = torch.ones(1, 2, 1, 8), torch.ones(1, 2, 2, 8)
REFUSED: dict[str, tuple[int, torch.Tensor, torch.Tensor, torch.Tensor, str]] = {
    "a gap": (0, K1, K1, positions(5), "cache 0: a step starts at position 5; expected 4, where its history ends."),
    "the past": (0, K1, K1, positions(1), "cache 0: a step starts at position 1; expected 4, where its history ends."),
    "before the beginning": (
        0,
        K1,
        K1,
        positions(-1),
        "cache 0: a step starts at position -1; expected 4, where its history ends.",
    ),
    "a second writer": (
        0,
        torch.ones(1, 2, 4, 8),
        torch.ones(1, 2, 4, 8),
        positions(0, 1, 2, 3),
        "cache 0: it is written twice in the step at position 0, with different K/V; expected one writer a step, or "
        "readers that repeat its K/V.",
    ),
    "positions that do not follow": (
        0,
        K2,
        K2,
        positions(4, 6),
        "cache 0: positions are [4, 6]; expected each to follow the one before.",
    ),
    "too many for the capacity": (
        0,
        K2,
        K2,
        positions(4, 5),
        "cache 0: a step of 2 tokens at position 4 does not fit; the capacity is 5 positions.",
    ),
    "no such cache": (2, K1, K1, positions(4), "cache 2 is addressed; there are caches 0 to 1."),
    "another geometry": (
        1,
        K1,
        K1,
        positions(4),
        "cache 1: K is [1, 2, 1, 8] and V [1, 2, 1, 8]; expected [1, 1, T, 4] for both, with T at least 1.",
    ),
    "narrower values": (
        0,
        K1,
        K1[..., :6],
        positions(4),
        "cache 0: K is [1, 2, 1, 8] and V [1, 2, 1, 6]; expected [1, 2, T, 8] for both, with T at least 1.",
    ),
    "no tokens": (
        0,
        K1[:, :, :0],
        K1[:, :, :0],
        positions(),
        "cache 0: K is [1, 2, 0, 8] and V [1, 2, 0, 8]; expected [1, 2, T, 8] for both, with T at least 1.",
    ),
    "too few positions": (
        0,
        K2,
        K2,
        positions(4),
        "cache 0: positions are torch.int64 [1, 1]; expected int32 or int64 [2, 1].",
    ),
    "positions of no integer type": (
        0,
        K1,
        K1,
        positions(4, dtype=torch.float32),
        "cache 0: positions are torch.float32 [1, 1]; expected int32 or int64 [1, 1].",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_that_breaks_the_contract_is_refused_and_changes_nothing(case: str) -> None:
    cache_id, k, v, position, message = REFUSED[case]
    cache = OracleCache([FULL, SLIDING], capacity=5)
    _, keys, values = drawn(FULL, length=4)
    cache.update_and_fetch(0, keys, values, positions(0, 1, 2, 3))
    with pytest.raises(CacheError, match=f"^{re.escape(message)}$"):
        cache.update_and_fetch(cache_id, k, v, position)
    assert (cache.length(0), cache.length(1)) == (4, 0)
    after = cache.update_and_fetch(0, keys, values, positions(0, 1, 2, 3))
    torch.testing.assert_close(after[0], keys)
    torch.testing.assert_close(after[1], values)


def test_a_repeated_write_must_repeat_the_values_too() -> None:
    cache = OracleCache([FULL], capacity=5)
    _, keys, values = drawn(FULL, length=4)
    cache.update_and_fetch(0, keys, values, positions(0, 1, 2, 3))
    with pytest.raises(CacheError, match="written twice"):
        cache.update_and_fetch(0, keys, values + 1e-6, positions(0, 1, 2, 3))


def test_only_a_whole_step_can_be_repeated() -> None:
    cache = OracleCache([FULL], capacity=9)
    _, keys, values = drawn(FULL, length=4)
    cache.update_and_fetch(0, keys, values, positions(0, 1, 2, 3))
    with pytest.raises(CacheError, match="written twice"):
        cache.update_and_fetch(0, keys[:, :, :3], values[:, :, :3], positions(0, 1, 2))
    with pytest.raises(CacheError, match="a step starts at position 2; expected 4"):
        cache.update_and_fetch(0, keys[:, :, 2:], values[:, :, 2:], positions(2, 3))


def test_a_capacity_of_nothing_is_refused() -> None:
    with pytest.raises(CacheError, match=r"^capacity is 0; expected at least one position\.$"):
        OracleCache([FULL], capacity=0)
