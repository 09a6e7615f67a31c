"""Sequences that share a cache's cells are each attended as if they were alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import count
from random import Random

import mlx.core as mx
import numpy as np
import pytest

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError
from pipeline.runtime.cell_cache import CellCache

SCALE = 0.3
HEADS = 4

# Rounding of float32 softmax and products over at most 40 keys; a lost or foreign key moves results by 1e-2 and more.
TOLERANCE = 2e-6

FLAT = CacheGeometry(num_kv_heads=2, head_dim=8, window=0)
SLIDING = CacheGeometry(num_kv_heads=1, head_dim=4, window=5)
NARROW = CacheGeometry(num_kv_heads=4, head_dim=8, window=1)
MIXED = (FLAT, SLIDING, NARROW)


def cache_of(caches: Sequence[CacheGeometry] = MIXED, dtype: mx.Dtype = mx.float32, **others: int) -> CellCache:
    return CellCache(caches, **{"capacity": 64, **others}, dtype=dtype)


def token_kv(geometry: CacheGeometry, tokens: Sequence[int]) -> tuple[mx.array, mx.array]:
    """K and V [1, KV heads, T, head_dim] that name the token: K is its number, V that and a half."""
    shape = (1, geometry.num_kv_heads, len(tokens), geometry.head_dim)
    keys = mx.broadcast_to(mx.array(tokens, mx.float32)[None, None, :, None], shape)
    return keys, keys + 0.5


def seen(
    cache: CellCache, layer_id: int, geometry: CacheGeometry, tokens: list[int], positions: list[int]
) -> list[set[int]]:
    """The tokens that each query of a layer attends, read from K, V and mask as they are handed back."""
    keys, values, mask = cache.update_and_fetch(layer_id, *token_kv(geometry, tokens), positions)
    k, v, rows = (np.array(array) for array in (keys, values, mask))
    assert k.shape == v.shape == (1, geometry.num_kv_heads, rows.shape[3], geometry.head_dim)
    assert rows.shape[:3] == (1, 1, len(tokens))
    assert (k == k[:, :1, :, :1]).all()
    assert (v == k + 0.5).all()
    return [set(k[0, 0, row, 0].astype(int).tolist()) for row in rows[0, 0]]


def test_the_worked_example_is_stored_and_masked_as_written() -> None:
    """A is 0, 1 and 2; B 10 and 11; C shares A's first two and goes on with 22. Six cells; the second layer slides."""
    caches = (FLAT, CacheGeometry(num_kv_heads=1, head_dim=4, window=2))
    cache = cache_of(caches, capacity=6, initial_capacity=1)
    a, b = cache.table.seq_new(), cache.table.seq_new()
    c = 2
    steps = [
        ([a, a, b], [0, 1, 0], [0, 1, 10], ["100", "110", "001"], ["100", "110", "001"], [0, 1, 10]),
        ([b, a], [1, 2], [11, 2], ["00110", "11001"], ["00110", "01001"], [0, 1, 10, 11, 2]),
        ([c], [2], [22], ["110001"], ["010001"], [0, 1, 10, 11, 2, 22]),
        ([b], [2], [12], ["001110"], ["000110"], [0, 1, 10, 11, 12, 22]),
    ]
    for sequences, positions, tokens, flat, sliding, cells in steps:
        if sequences == [c]:
            assert cache.table.seq_clone(a, 2) == c
        if cells[4:5] == [12]:
            with pytest.raises(CacheError, match="0 of 6 cells are free"):
                cache.table.declare_step(sequences)
            cache.table.seq_rm(a)
        cache.table.declare_step(sequences)
        for layer_id, expected in enumerate((flat, sliding)):
            keys, _, mask = cache.update_and_fetch(layer_id, *token_kv(caches[layer_id], tokens), positions)
            assert keys[0, 0, :, 0].tolist() == cells
            assert mask.dtype == mx.bool_
            assert ["".join(str(int(each)) for each in row) for row in mask[0, 0].tolist()] == expected
        cache.commit_step()


def test_pools_double_from_their_initial_size_and_stop_at_the_capacity() -> None:
    cache = cache_of([FLAT], capacity=10, initial_capacity=2)
    cell = 2 * 2 * 8 * 4
    a, b = cache.table.seq_new(), cache.table.seq_new()
    sizes = [cache.nbytes // cell]
    for position, sequences in enumerate(([a, b, b], [a], [a], [b, b, b, b], [b])):
        cache.table.declare_step(sequences)
        following = {each: cache.table.pos(each) for each in (a, b)}
        positions = [following[each] + sequences[:token].count(each) for token, each in enumerate(sequences)]
        assert seen(cache, 0, FLAT, list(range(10 * position, 10 * position + len(sequences))), positions)
        cache.commit_step()
        sizes.append(cache.nbytes // cell)
    assert sizes == [2, 4, 4, 8, 10, 10]


def dense(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int) -> np.ndarray:
    """A whole sequence at once, in float64: [heads, tokens, head_dim] each."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    k, v = (array.repeat(q.shape[0] // array.shape[0], axis=0) for array in (k, v))
    age = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])[None, :]
    scores = np.where((age >= 0) & ((age < window) if window else True), q @ k.transpose(0, 2, 1) * SCALE, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@pytest.mark.parametrize("initial_capacity", [0, 512])
def test_each_sequence_of_a_batch_is_attended_as_densely_alone(initial_capacity: int) -> None:
    """Three sequences of 14 tokens in steps of any mixture, their layers with queries, keys and values of their own."""
    chance, make = Random(3), np.random.default_rng(4)
    cache = cache_of(initial_capacity=initial_capacity)
    sequences = [cache.table.seq_new() for _ in range(3)]
    texts = [
        [
            [make.normal(size=(heads, 14, each.head_dim)).astype(np.float32) for _ in sequences]
            for heads in (HEADS, each.num_kv_heads, each.num_kv_heads)
        ]
        for each in MIXED
    ]
    outputs = [[np.zeros((HEADS, 14, each.head_dim)) for _ in sequences] for each in MIXED]
    left = sorted(sequences * 14, key=lambda _: chance.random())
    lengths = dict.fromkeys(sequences, 0)
    while left:
        step, left = left[:5], left[5:]
        positions = []
        for each in step:
            positions.append(lengths[each])
            lengths[each] += 1
        cache.table.declare_step(step)
        for layer_id, text in enumerate(texts):
            q, k, v = (
                mx.array(np.stack([part[each][:, at] for each, at in zip(step, positions, strict=True)], 1)[None])
                for part in text
            )
            keys, values, mask = cache.update_and_fetch(layer_id, k, v, positions)
            attended = mx.fast.scaled_dot_product_attention(q, keys, values, scale=SCALE, mask=mask)
            for token, (each, at) in enumerate(zip(step, positions, strict=True)):
                outputs[layer_id][each][:, at] = np.array(attended[0, :, token])
        cache.commit_step()
    for layer_id, geometry in enumerate(MIXED):
        for each in sequences:
            q, k, v = (part[each] for part in texts[layer_id])
            np.testing.assert_allclose(outputs[layer_id][each], dense(q, k, v, geometry.window), atol=TOLERANCE, rtol=0)


def trace(number: int) -> None:
    """Random steps, clones, rewinds and removals; what every query is handed is its own sequence's latest tokens."""
    chance = Random(number)
    window = chance.randint(1, 6)
    caches = (FLAT, CacheGeometry(num_kv_heads=1, head_dim=4, window=window))
    cache = cache_of(caches, capacity=chance.randint(6, 24), initial_capacity=chance.randint(0, 8))
    texts: dict[int, list[int]] = {}
    fresh = count()
    for _ in range(16):
        operation, each = chance.random(), chance.choice([*texts, 0])
        if not texts or operation < 0.1:
            texts[cache.table.seq_new()] = []
        elif operation < 0.15 and each in texts:
            cache.table.seq_rm(each)
            del texts[each]
        elif operation < 0.25 and each in texts:
            upto = chance.randint(0, len(texts[each]))
            texts[cache.table.seq_clone(each, upto)] = texts[each][:upto]
        elif operation < 0.35 and each in texts:
            length = chance.randint(0, len(texts[each]))
            assert cache.table.rewind(each, length)
            texts[each] = texts[each][:length]
        elif texts and cache.table.can_extend():
            step = [chance.choice([*texts]) for _ in range(chance.randint(1, min(6, cache.table.num_free)))]
            tokens = [next(fresh) for _ in step]
            after = {key: list(text) for key, text in texts.items()}
            positions, expected = [], []
            for key, token in zip(step, tokens, strict=True):
                positions.append(len(after[key]))
                after[key].append(token)
                expected.append(list(after[key]))
            cache.table.declare_step(step)
            # An abandoned step may have failed before its last layer.
            abandoned = chance.random() < 0.2
            for layer_id, geometry in list(enumerate(caches))[: chance.choice((1, 2)) if abandoned else 2]:
                found = seen(cache, layer_id, geometry, tokens, positions)
                assert found == [set(text[-geometry.window :]) for text in expected], f"trace {number}"
            if abandoned:
                cache.abandon_step()
            else:
                cache.commit_step()
                texts = after


def test_random_traces_hand_every_query_its_own_history() -> None:
    for number in range(200):
        trace(number)


def test_readers_of_a_step_attend_what_its_writer_wrote() -> None:
    cache = cache_of([SLIDING])
    cache.table.seq_new(), cache.table.seq_new()
    cache.table.declare_step([0, 1, 0])
    keys, values = token_kv(SLIDING, [1, 2, 3])
    first = cache.update_and_fetch(0, keys, values, [0, 0, 1])
    for k, v in ((keys, values), (keys + 0, values + 0)):
        again = cache.update_and_fetch(0, k, v, [0, 0, 1])
        assert all(mx.array_equal(one, other) for one, other in zip(first, again, strict=True))
    expected = (
        "cache 0 is written twice in one step, with different K/V; expected one writer, or readers that repeat its K/V."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        cache.update_and_fetch(0, keys + 1, values, [0, 0, 1])
    cache.commit_step()
    assert cache.table.pos(0) == 2


def test_arrays_of_another_shape_and_a_cache_that_there_is_not_are_refused() -> None:
    cache = cache_of()
    cache.table.seq_new()
    cache.table.declare_step([0])
    with pytest.raises(CacheError, match=r"^layer_id 3 has no cache; expected 0 to 2\.$"):
        cache.update_and_fetch(3, *token_kv(FLAT, [1]), [0])
    with pytest.raises(CacheError, match=r"^cache 1: K has shape \(1, 2, 1, 8\); expected \(1, 1, 1, 4\)\.$"):
        cache.update_and_fetch(1, *token_kv(FLAT, [1]), [0])
    assert seen(cache, 0, FLAT, [7], [0]) == [{7}]


def test_a_step_abandoned_between_its_layers_is_over_for_those_that_follow() -> None:
    cache = cache_of()
    cache.table.seq_new()
    cache.table.declare_step([0])
    positions = [0]
    seen(cache, 0, FLAT, [7], positions)
    cache.table.rewind(0, 0)
    with pytest.raises(CacheError, match="0 were declared"):
        seen(cache, 1, SLIDING, [7], positions)
    other = cache.table.seq_new()
    cache.table.declare_step([0, other])
    assert seen(cache, 0, FLAT, [8, 9], [0, 0]) == [{8}, {9}]


@pytest.mark.parametrize(
    ("caches", "numbers"), [([], {}), ([FLAT], {"capacity": 0}), ([FLAT], {"initial_capacity": -1})]
)
def test_a_cache_of_nothing_is_refused(caches: list[CacheGeometry], numbers: dict[str, int]) -> None:
    asked = {"capacity": 64, "initial_capacity": 512, **numbers}
    expected = (
        f"a cache of {len(caches)} layers, {asked['capacity']} cells and initially {asked['initial_capacity']} was "
        "asked for; expected at least 1 of each, and 0 or more to begin with."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        cache_of(caches, **numbers)
