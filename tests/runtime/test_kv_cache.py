"""What the cache hands back is the history: attention over it equals dense attention, however the text was fed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.errors import CacheError
from pipeline.runtime.kv_cache import KVCache

SCALE = 0.3
HEADS = 4
STORAGE = {mx.float32: torch.float32, mx.float16: torch.float16, mx.bfloat16: torch.bfloat16}

# Rounding of float32 softmax and products over at most 40 keys; a lost or foreign key moves results by 1e-2 and more.
TOLERANCE = 2e-6

FLAT = CacheGeometry(num_kv_heads=2, head_dim=8, window=0)
RING = CacheGeometry(num_kv_heads=1, head_dim=4, window=5)
NARROW = CacheGeometry(num_kv_heads=4, head_dim=8, window=1)
MIXED = (FLAT, RING, NARROW)

SPLITS = [
    [4] * 9 + [2],
    [1] * 38,
    [4, 1, 1, 1, 3, 2, 4, 4, 1, 1, 1, 1, 1, 1, 2, 2, 4, 4],
    [3, 4, 4, 4, 4, 4, 4, 4, 4, 3],
]


@dataclass(frozen=True)
class Text:
    """Queries, keys and values of one layer for a whole text, float32 [1, heads, tokens, head_dim]."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray

    @classmethod
    def random(cls, geometry: CacheGeometry, num_tokens: int, seed: int) -> Text:
        make = np.random.default_rng(seed)

        def draw(heads: int) -> np.ndarray:
            return make.normal(size=(1, heads, num_tokens, geometry.head_dim)).astype(np.float32)

        return cls(q=draw(HEADS), k=draw(geometry.num_kv_heads), v=draw(geometry.num_kv_heads))


def texts(caches: Sequence[CacheGeometry], num_tokens: int = 38, seed: int = 1) -> list[Text]:
    return [Text.random(cache, num_tokens, seed + index) for index, cache in enumerate(caches)]


def dense(text: Text, window: int, storage: torch.dtype) -> np.ndarray:
    """Attention of the whole text at once, in float64, over K and V rounded as the cache stores them."""
    q, k, v = (torch.from_numpy(array) for array in (text.q, text.k, text.v))
    k, v = (array.to(storage).double().repeat_interleave(HEADS // array.shape[1], dim=1) for array in (k, v))
    position = torch.arange(q.shape[2])
    age = position[:, None] - position[None, :]
    attended = (age >= 0) & ((age < window) if window else True)
    scores = (q.double() @ k.transpose(2, 3) * SCALE).masked_fill(~attended, -torch.inf)
    return (scores.softmax(dim=-1) @ v).numpy()


def step(cache: KVCache, layer_id: int, text: Text, start: int, length: int) -> np.ndarray:
    """One layer's part of a step, attended."""
    part = slice(start, start + length)
    q, k, v = (mx.array(array[:, :, part]) for array in (text.q, text.k, text.v))
    keys, values, mask = cache.update_and_fetch(layer_id, k, v, range(start, start + length))
    assert keys.dtype == values.dtype == cache.dtype
    attended = mx.fast.scaled_dot_product_attention(
        q, keys.astype(q.dtype), values.astype(q.dtype), scale=SCALE, mask=mask
    )
    return np.array(attended)


def fed(cache: KVCache, layers: Sequence[Text], split: Sequence[int]) -> list[np.ndarray]:
    """All layers over the text in steps, each layer's outputs joined."""
    outputs: list[list[np.ndarray]] = [[] for _ in layers]
    for length in split:
        start = cache.length
        for layer_id, text in enumerate(layers):
            outputs[layer_id].append(step(cache, layer_id, text, start, length))
        cache.commit_step()
        assert cache.length == start + length
    return [np.concatenate(parts, axis=2) for parts in outputs]


def cache_of(caches: Sequence[CacheGeometry], dtype: mx.Dtype = mx.float32, **others: int) -> KVCache:
    return KVCache(caches, **{"capacity": 64, "max_write": 4, **others}, dtype=dtype)


@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_every_split_of_a_text_gives_dense_attention(split: list[int]) -> None:
    layers = texts(MIXED)
    for geometry, text, output in zip(MIXED, layers, fed(cache_of(MIXED), layers, split), strict=True):
        expected = dense(text, geometry.window, torch.float32)
        np.testing.assert_allclose(output, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("dtype", STORAGE, ids=str)
def test_keys_and_values_are_rounded_to_the_storage_dtype_and_attended_in_that_of_the_query(dtype: mx.Dtype) -> None:
    layers = texts(MIXED, seed=9)
    for geometry, text, output in zip(MIXED, layers, fed(cache_of(MIXED, dtype), layers, SPLITS[0]), strict=True):
        expected = dense(text, geometry.window, STORAGE[dtype])
        np.testing.assert_allclose(output, expected, atol=TOLERANCE, rtol=0)
        if dtype != mx.float32:
            unrounded = dense(text, geometry.window, torch.float32)
            assert np.abs(unrounded - expected).max() > 20 * TOLERANCE, "the comparison could not tell"


def test_a_narrower_query_dtype_than_the_storage_is_attended_in_its_own() -> None:
    text = Text.random(FLAT, 6, 3)
    cache = cache_of([FLAT])
    k, v = mx.array(text.k).astype(mx.bfloat16), mx.array(text.v).astype(mx.bfloat16)
    keys, values, mask = cache.update_and_fetch(0, k[:, :, :4], v[:, :, :4], range(4))
    assert keys.dtype == values.dtype == mx.float32
    assert mask == "causal"
    assert mx.array_equal(keys, k[:, :, :4].astype(mx.float32))


@pytest.mark.parametrize("initial_capacity", [0, 1, 3, 64, 512])
def test_growth_changes_no_result(initial_capacity: int) -> None:
    layers = texts(MIXED)
    outputs = fed(cache_of(MIXED, initial_capacity=initial_capacity), layers, SPLITS[2])
    for expected, output in zip(fed(cache_of(MIXED), layers, SPLITS[2]), outputs, strict=True):
        assert np.array_equal(expected, output)


def test_a_ring_wider_than_the_text_equals_a_flat_cache() -> None:
    wide = CacheGeometry(num_kv_heads=2, head_dim=8, window=38)
    text = Text.random(FLAT, 38, 5)
    (ring,), (flat,) = (fed(cache_of([geometry]), [text], SPLITS[2]) for geometry in (wide, FLAT))
    assert np.array_equal(ring, flat)


def test_a_text_may_fill_the_capacity_and_no_more() -> None:
    layers = texts(MIXED, 10)
    cache = cache_of(MIXED, capacity=10, initial_capacity=2)
    for geometry, text, output in zip(MIXED, layers, fed(cache, layers, [3, 1, 1, 4, 1]), strict=True):
        np.testing.assert_allclose(output, dense(text, geometry.window, torch.float32), atol=TOLERANCE, rtol=0)
    assert not cache.can_extend()
    assert cache.can_extend(0)
    with pytest.raises(CacheError, match=r"^the step ends at position 11, the cache's capacity is 10\."):
        step(cache, 0, Text.random(FLAT, 11, 1), 10, 1)


MASKS = [
    (4, 4, [(0, 4)], "causal"),
    (4, 4, [(0, 4), (4, 3)], "111100 011110 001111"),
    (4, 4, [(0, 4), (4, 3), (7, 1)], "none"),
    (4, 4, [(0, 4), (4, 3), (7, 1), (8, 4)], "1111000 0111100 0011110 0001111"),
    (3, 2, [(0, 2), (2, 2)], "1110 0111"),
    (3, 2, [(0, 2), (2, 2), (4, 2), (6, 1), (7, 2)], "1110 0111"),
    (8, 2, [(0, 2), (2, 2), (4, 2), (6, 2)], "causal"),
    (8, 2, [(0, 2), (2, 2), (4, 2), (6, 2), (8, 2)], "111111110 011111111"),
    (1, 3, [(0, 3)], "100 010 001"),
    (1, 3, [(0, 3), (3, 2)], "10 01"),
]


@pytest.mark.parametrize(("window", "max_write", "steps", "expected"), MASKS)
def test_the_last_step_of_a_trace_is_masked_by_its_window(
    window: int, max_write: int, steps: list[tuple[int, int]], expected: str
) -> None:
    geometry = CacheGeometry(num_kv_heads=1, head_dim=2, window=window)
    cache = cache_of([geometry], max_write=max_write)
    mask: mx.array | str | None = None
    for start, length in steps:
        zeros = mx.zeros((1, 1, length, 2))
        _, _, mask = cache.update_and_fetch(0, zeros, zeros, range(start, start + length))
        cache.commit_step()
    if not isinstance(mask, mx.array):
        assert ("none" if mask is None else mask) == expected
        return
    assert mask.dtype == mx.bool_
    assert mask.shape[:2] == (1, 1)
    assert " ".join("".join(str(int(seen)) for seen in row) for row in mask[0, 0].tolist()) == expected


def test_clear_forgets_the_text_and_a_new_one_is_right() -> None:
    cache = cache_of(MIXED)
    fed(cache, texts(MIXED), SPLITS[0])
    cache.clear()
    assert cache.length == 0
    layers = texts(MIXED, 14, seed=7)
    for geometry, text, output in zip(MIXED, layers, fed(cache, layers, [4, 4, 1, 1, 4]), strict=True):
        np.testing.assert_allclose(output, dense(text, geometry.window, torch.float32), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("geometry", [FLAT, RING], ids=["flat", "ring"])
@pytest.mark.parametrize("copied", [False, True], ids=["the very arrays", "equal arrays"])
def test_readers_of_a_step_attend_what_its_writer_wrote_and_nothing_twice(
    geometry: CacheGeometry, copied: bool
) -> None:
    """Two layers over one cache, the second with queries of its own; the ring wraps while they read."""
    donor, queries = Text.random(geometry, 38, 2), Text.random(geometry, 38, 3)
    cache = cache_of([geometry], initial_capacity=2)
    outputs: list[np.ndarray] = []
    for length in SPLITS[2]:
        start = cache.length
        part = slice(start, start + length)
        k, v = mx.array(donor.k[:, :, part]), mx.array(donor.v[:, :, part])
        cache.update_and_fetch(0, k, v, range(start, start + length))
        if copied:
            k, v = k + 0, v + 0
        keys, values, mask = cache.update_and_fetch(0, k, v, range(start, start + length))
        q = mx.array(queries.q[:, :, part])
        outputs.append(np.array(mx.fast.scaled_dot_product_attention(q, keys, values, scale=SCALE, mask=mask)))
        cache.commit_step()
        assert cache.length == start + length
    expected = dense(Text(q=queries.q, k=donor.k, v=donor.v), geometry.window, torch.float32)
    np.testing.assert_allclose(np.concatenate(outputs, axis=2), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("geometry", [FLAT, RING], ids=["flat", "ring"])
def test_a_second_write_of_other_numbers_in_one_step_is_refused_and_leaves_the_first(geometry: CacheGeometry) -> None:
    text, other = Text.random(geometry, 12, 2), Text.random(geometry, 12, 3)
    cache = cache_of([geometry])
    fed(cache, [text], [4, 4])
    first = step(cache, 0, text, 8, 4)
    expected = (
        "cache 0 is written twice in one step, with different K/V; expected one writer, or readers that repeat its K/V."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        step(cache, 0, other, 8, 4)
    assert np.array_equal(first, step(cache, 0, text, 8, 4))


@pytest.mark.parametrize(("start", "length"), [(3, 1), (5, 2), (17, 4), (34, 4)])
def test_an_abandoned_step_leaves_the_sequence_as_it_was(start: int, length: int) -> None:
    """Before the rings wrap, and after: other tokens are written at the same positions, then the right ones."""
    layers, others = texts(MIXED), texts(MIXED, seed=50)
    cache = cache_of(MIXED)
    before = fed(cache, layers, [1] * start)
    for layer_id in range(len(MIXED) - 1):  # the last layer never gets its turn
        step(cache, layer_id, others[layer_id], start, length)
    cache.abandon_step()
    assert cache.length == start
    after = fed(cache, layers, [1] * (38 - start))
    for geometry, text, *outputs in zip(MIXED, layers, before, after, strict=True):
        expected = dense(text, geometry.window, torch.float32)
        np.testing.assert_allclose(np.concatenate(outputs, axis=2), expected, atol=TOLERANCE, rtol=0)


def zeros(geometry: CacheGeometry, length: int) -> mx.array:
    return mx.zeros((1, geometry.num_kv_heads, length, geometry.head_dim))


REFUSED = {
    "a gap after the history": (0, zeros(FLAT, 2), zeros(FLAT, 2), [7, 8]),
    "a position already taken": (0, zeros(FLAT, 2), zeros(FLAT, 2), [5, 6]),
    "positions with a hole": (0, zeros(FLAT, 2), zeros(FLAT, 2), [6, 8]),
    "positions that run backwards": (0, zeros(FLAT, 2), zeros(FLAT, 2), [6, 5]),
    "no tokens": (0, zeros(FLAT, 0), zeros(FLAT, 0), []),
    "no such cache": (3, zeros(FLAT, 1), zeros(FLAT, 1), [6]),
    "a negative cache": (-1, zeros(FLAT, 1), zeros(FLAT, 1), [6]),
    "other heads than the cache's": (1, zeros(FLAT, 1), zeros(RING, 1), [6]),
    "another head_dim for V": (0, zeros(FLAT, 1), mx.zeros((1, 2, 1, 4)), [6]),
    "fewer keys than positions": (0, zeros(FLAT, 1), zeros(FLAT, 1), [6, 7]),
    "a batch of two": (0, mx.zeros((2, 2, 1, 8)), mx.zeros((2, 2, 1, 8)), [6]),
    "a step too long for a ring": (1, zeros(RING, 5), zeros(RING, 5), range(6, 11)),
    "a step beyond the capacity": (0, zeros(FLAT, 35), zeros(FLAT, 35), range(6, 41)),
}
MESSAGES = {
    "a gap after the history": "the step starts at position 7, the sequence has 6 tokens; expected it to continue "
    "there.",
    "a position already taken": "the step starts at position 5, the sequence has 6 tokens; expected it to continue "
    "there.",
    "positions with a hole": "the step's positions [6, 8] are not contiguous; one sequence needs a run.",
    "positions that run backwards": "the step's positions [6, 5] are not contiguous; one sequence needs a run.",
    "no tokens": "the step has no tokens; expected at least 1.",
    "no such cache": "layer_id 3 has no cache; expected 0 to 2.",
    "a negative cache": "layer_id -1 has no cache; expected 0 to 2.",
    "other heads than the cache's": "cache 1: K has shape (1, 2, 1, 8); expected (1, 1, 1, 4).",
    "another head_dim for V": "cache 0: V has shape (1, 2, 1, 4); expected (1, 2, 1, 8).",
    "fewer keys than positions": "cache 0: K has shape (1, 2, 1, 8); expected (1, 2, 2, 8).",
    "a batch of two": "cache 0: K has shape (2, 2, 1, 8); expected (1, 2, 1, 8).",
    "a step too long for a ring": "the step has 5 tokens, a ring layer takes at most 4 at a time. Feed the text in "
    "smaller chunks.",
    "a step beyond the capacity": "the step ends at position 41, the cache's capacity is 40. Shorten the text, or bind "
    "a cache of larger capacity.",
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_step_is_refused_with_its_reason_and_can_be_tried_again(case: str) -> None:
    layers = texts(MIXED, 12)
    cache = cache_of(MIXED, capacity=40)
    before = fed(cache, layers, [4, 2])
    with pytest.raises(CacheError, match=f"^{re.escape(MESSAGES[case])}$"):
        cache.update_and_fetch(*REFUSED[case])
    cache.abandon_step()
    assert cache.length == 6
    for geometry, text, *outputs in zip(MIXED, layers, before, fed(cache, layers, [4, 2]), strict=True):
        expected = dense(text, geometry.window, torch.float32)
        np.testing.assert_allclose(np.concatenate(outputs, axis=2), expected, atol=TOLERANCE, rtol=0)


def test_layers_of_one_step_must_agree_about_it() -> None:
    cache = cache_of(MIXED)
    cache.update_and_fetch(0, zeros(FLAT, 2), zeros(FLAT, 2), [0, 1])
    expected = "layers of one step disagree about it: (0, 1) after (0, 2) (start, tokens)."
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        cache.update_and_fetch(1, zeros(RING, 1), zeros(RING, 1), [0])


@pytest.mark.parametrize(
    ("caches", "numbers"),
    [([], {}), ([FLAT], {"capacity": 0}), ([FLAT], {"max_write": 0}), ([FLAT], {"initial_capacity": -1})],
)
def test_a_cache_of_nothing_is_refused(caches: list[CacheGeometry], numbers: dict[str, int]) -> None:
    asked = {"capacity": 64, "max_write": 4, "initial_capacity": 512, **numbers}
    expected = (
        f"a cache of {len(caches)} layers, capacity {asked['capacity']}, max_write {asked['max_write']} and initial "
        f"capacity {asked['initial_capacity']} was asked for; expected at least 1 of each, and 0 or more to begin with."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        cache_of(caches, **numbers)


def test_committing_without_a_step_changes_nothing() -> None:
    cache = cache_of([FLAT])
    cache.commit_step()
    assert cache.length == 0
    assert cache.can_extend(64)
    assert not cache.can_extend(65)


def test_rewinding_and_feeding_again_is_as_if_the_tokens_had_never_been() -> None:
    layers, others = texts(MIXED, 9), texts(MIXED, 12, seed=50)
    cache = cache_of(MIXED)
    fed(cache, layers, [4, 4, 1])
    assert cache.rewind(6)
    assert cache.length == 6
    joined = [
        Text(**{name: np.concatenate([getattr(a, name)[:, :, :6], getattr(b, name)[:, :, 6:]], 2) for name in "qkv"})
        for a, b in zip(layers, others, strict=True)
    ]
    for layer_id, (geometry, text) in enumerate(zip(MIXED, joined, strict=True)):
        expected = dense(text, geometry.window, torch.float32)[:, :, 6:9]
        np.testing.assert_allclose(step(cache, layer_id, text, 6, 3), expected, atol=TOLERANCE, rtol=0)


def test_what_a_ring_has_overwritten_cannot_be_rewound_to() -> None:
    cache = cache_of([RING])
    fed(cache, texts([RING], 20), [4] * 5)
    assert not cache.rewind(15)
    assert cache.length == 20
    assert cache.rewind(17)
    assert not cache.rewind(15), "a second time counts from the furthest that was written"
    assert cache.rewind(16)


def test_only_tokens_that_are_there_can_be_rewound_to() -> None:
    cache = cache_of([FLAT])
    fed(cache, texts([FLAT], 8), [4, 4])
    assert not cache.rewind(9)
    assert not cache.rewind(-1)
    assert cache.rewind(8)
    assert cache.rewind(0)
    assert cache.length == 0


def test_an_abandoned_step_counts_among_what_a_ring_has_overwritten() -> None:
    text = Text.random(RING, 20, 1)
    cache = cache_of([RING])
    fed(cache, [text], [4] * 4)
    step(cache, 0, text, 16, 4)
    cache.abandon_step()
    assert not cache.rewind(15)
    assert cache.rewind(16)


def trace(number: int) -> None:
    """Random steps, abandoned anywhere, rewinds and clears; what every query is handed is the text as it is now."""
    chance = Random(number)
    windows = [0, chance.randint(1, 6), chance.randint(1, 9)]
    caches = [CacheGeometry(num_kv_heads=1, head_dim=2, window=window) for window in windows]
    capacity, max_write = chance.randint(8, 40), chance.randint(1, 6)
    cache = cache_of(caches, capacity=capacity, max_write=max_write, initial_capacity=chance.randint(0, 9))
    text: list[int] = []
    fresh = count()
    for _ in range(16):
        operation = chance.random()
        if operation < 0.05:
            cache.clear()
            text = []
        elif operation < 0.25:
            length = chance.randint(max(0, len(text) - 8), len(text))
            if cache.rewind(length):
                text = text[:length]
        elif cache.can_extend():
            tokens = [next(fresh) for _ in range(min(chance.randint(1, max_write), capacity - len(text)))]
            kv = mx.array(tokens, mx.float32)[None, None, :, None] * mx.ones((1, 1, 1, 2))
            longer = text + tokens
            positions = list(range(len(text), len(longer)))
            abandoned = chance.random() < 0.2
            for layer_id in range(chance.randint(1, 3) if abandoned else 3):
                keys, values, mask = cache.update_and_fetch(layer_id, kv, kv + 0.5, positions)
                assert mx.array_equal(keys + 0.5, values)
                held = np.array(keys)[0, 0, :, 0].astype(int)
                seen = np.tri(len(tokens), len(held), len(held) - len(tokens), bool)
                if isinstance(mask, mx.array):
                    seen = np.array(mask)[0, 0]
                for position, row in zip(positions, seen, strict=True):
                    oldest = max(0, position - windows[layer_id] + 1) if windows[layer_id] else 0
                    assert held[row].tolist() == longer[oldest : position + 1], f"trace {number}"
            if abandoned:
                cache.abandon_step()
            else:
                cache.commit_step()
                text = longer
        assert cache.length == len(text)


def test_random_traces_hand_every_query_its_history_oldest_first() -> None:
    for number in range(300):
        trace(number)
