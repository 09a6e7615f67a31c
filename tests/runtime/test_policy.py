"""What is chosen at run time becomes a plan in whole numbers, or is refused by name before an array is made."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pipeline.contract import CacheGeometry, Contract
from pipeline.errors import CacheError
from pipeline.runtime.policy import CachePolicy, Storage, parse_windows, with_windows

FLAT = CacheGeometry(num_kv_heads=2, head_dim=64, window=0)
RING = CacheGeometry(num_kv_heads=1, head_dim=32, window=48)

CONTRACT = Contract(
    max_seq_len=32,
    max_context_len=1024,
    vocab_size=260,
    dtype="bf16",
    logits="last",
    caches=(RING, RING, FLAT, RING),
    eos_ids=frozenset({1}),
)


def windows(*pattern: int) -> list[int]:
    return [cache.window for cache in CachePolicy(windows=pattern).plan(CONTRACT).caches]


def test_without_a_choice_the_cache_is_what_the_artifact_publishes() -> None:
    plan = CachePolicy().plan(CONTRACT)
    assert plan.caches == CONTRACT.caches
    assert (plan.capacity, plan.initial_capacity, plan.max_write, plan.max_context) == (1024, 512, 32, 1024)
    assert (plan.storage, plan.storage.name, plan.batched) == (Storage(dtype="bf16"), "bf16", False)


def test_the_bytes_of_a_cache_are_known_before_it_is_made() -> None:
    plan = CachePolicy(capacity=600, initial_capacity=100).plan(CONTRACT)
    ring, flat = 2 * 1 * 32 * 2 * (48 + 32 - 1), 2 * 2 * 64 * 2
    assert plan.initial_bytes == 3 * ring + 100 * flat
    assert plan.bytes_at_capacity == 3 * ring + 600 * flat


def test_a_small_capacity_bounds_rings_and_the_initial_size_too() -> None:
    plan = CachePolicy(capacity=10).plan(CONTRACT)
    assert plan.initial_bytes == plan.bytes_at_capacity == 10 * (3 * 2 * 32 * 2 + 2 * 2 * 64 * 2)


def test_cells_serve_every_sequence_and_a_window_saves_none() -> None:
    plan = CachePolicy().plan(CONTRACT, num_sequences=3)
    assert (plan.capacity, plan.max_context, plan.batched) == (3072, 1024, True)
    assert plan.bytes_at_capacity == 3072 * (3 * 2 * 32 * 2 + 2 * 2 * 64 * 2)
    assert plan.initial_bytes == 512 * (3 * 2 * 32 * 2 + 2 * 2 * 64 * 2)


@pytest.mark.parametrize(
    ("storage", "dtype", "name", "token_bytes"),
    [
        ("fp32", "bf16", "fp32", 2 * 2 * 64 * 4),
        ("fp16", "bf16", "fp16", 2 * 2 * 64 * 2),
        ("q8", "bf16", "q8", 2 * 2 * (64 + 2 * 2)),
        ("q4", "bf16", "q4", 2 * 2 * (32 + 2 * 2)),
        ("q8", "fp32", "q8", 2 * 2 * (64 + 2 * 4)),
    ],
)
def test_storage_is_apart_from_the_activations_and_quantized_is_smaller(
    storage: str, dtype: str, name: str, token_bytes: int
) -> None:
    plan = CachePolicy(storage=storage).plan(replace(CONTRACT, dtype=dtype, caches=(FLAT,)))
    assert plan.storage.name == name
    assert plan.bytes_at_capacity == 1024 * token_bytes


def test_a_head_that_64_does_not_divide_has_groups_of_32() -> None:
    assert Storage(dtype="fp16", bits=4).slot_bytes(RING) == 2 * (16 + 2 * 2)


def test_a_pattern_of_windows_repeats_over_the_caches_and_keeps_their_heads() -> None:
    assert windows(100) == [100] * 4
    assert windows(0) == [0] * 4
    assert windows(64, 0) == [64, 0, 64, 0]
    assert windows(64, 40, 0) == [64, 40, 0, 64]
    heads = [(cache.num_kv_heads, cache.head_dim) for cache in CONTRACT.caches]
    plan = CachePolicy(windows=(64, 0)).plan(CONTRACT)
    assert [(cache.num_kv_heads, cache.head_dim) for cache in plan.caches] == heads
    assert (plan.num_flat, plan.rings) == (2, {64: 2})


def test_the_longest_step_drops_to_the_narrowest_window_that_is_imposed() -> None:
    assert CachePolicy(windows=(64, 0)).plan(CONTRACT).max_write == 32
    assert CachePolicy(windows=(32, 0)).plan(CONTRACT).max_write == 32
    assert CachePolicy(windows=(64, 20, 0)).plan(CONTRACT).max_write == 20
    assert CachePolicy(windows=(0,)).plan(CONTRACT).max_write == 32
    assert CachePolicy(windows=(20,)).plan(CONTRACT, num_sequences=2).max_write == 32, "no ring is there to be shorter"


def test_caches_are_counted_by_their_window() -> None:
    plan = CachePolicy(windows=(64, 40, 0)).plan(CONTRACT)
    assert (plan.num_flat, plan.rings) == (1, {40: 1, 64: 2})


def test_windows_are_written_with_commas() -> None:
    assert parse_windows("512") == (512,)
    assert parse_windows("512, 512,0") == (512, 512, 0)


@pytest.mark.parametrize(
    ("text", "number", "field"),
    [
        ("", 1, ""),
        ("512,,0", 2, ""),
        ("512,", 2, ""),
        ("a", 1, "a"),
        ("1,-4", 2, "-4"),
        ("1;2", 1, "1;2"),
        ("1e3", 1, "1e3"),
        ("\u0661", 1, "\u0661"),
        ("1,0x10", 2, "0x10"),
        ("1234567890", 1, "1234567890"),
    ],
)
def test_windows_that_are_no_numbers_are_refused(text: str, number: int, field: str) -> None:
    expected = (
        f"the windows are '{text}', whose field {number} is '{field}'; expected numbers with commas between them, each "
        "0 for all history or the positions that a query reaches, as in 512,512,0."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        parse_windows(text)


@pytest.mark.parametrize(("pattern", "shown"), [((), "(none)"), ((4, -1), "4, -1"), ((1,) * 5, "1, 1, 1, 1, 1")])
def test_a_pattern_that_cannot_be_that_of_the_caches_is_refused(pattern: tuple[int, ...], shown: str) -> None:
    expected = (
        f"the windows {shown} are to be those of 4 caches; expected 1 to 4 numbers, each 0 for all history or the "
        "positions that a query reaches."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        with_windows(CONTRACT.caches, pattern)


REFUSED = {
    "no capacity": (
        CachePolicy(capacity=0),
        "the cache is to hold 0 tokens, 512 to begin with; expected at least 1, and 0 or more to begin with.",
    ),
    "less than nothing to begin with": (
        CachePolicy(initial_capacity=-1),
        "the cache is to hold 1024 tokens, -1 to begin with; expected at least 1, and 0 or more to begin with.",
    ),
    "more than the context": (
        CachePolicy(capacity=1025),
        "the cache is to hold 1025 tokens, and the artifact's context is 1024. Choose no more, or export it with a "
        "larger max_context_len.",
    ),
    "storage of another name": (
        CachePolicy(storage="int8"),
        "K and V are to be stored as 'int8'; expected one of fp32, fp16, bf16, q8, q4.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_choice_that_cannot_be_had_is_refused(case: str) -> None:
    policy, message = REFUSED[case]
    with pytest.raises(CacheError, match=f"^{re.escape(message)}$"):
        policy.plan(CONTRACT)


def test_more_cells_than_the_sequences_can_fill_are_refused() -> None:
    expected = (
        "the cache is to hold 3000 tokens, and the artifact's context is 1024, 2048 for 2 sequences. Choose no more, "
        "or export it with a larger max_context_len."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        CachePolicy(capacity=3000).plan(CONTRACT, num_sequences=2)


@pytest.mark.parametrize(("storage", "bits"), [("q8", 8), ("q4", 4)])
def test_heads_that_no_group_divides_are_refused_quantized_storage(storage: str, bits: int) -> None:
    contract = replace(CONTRACT, caches=(FLAT, replace(RING, head_dim=80)))
    expected = (
        f"K and V have head_dim 80, which is no multiple of 32, so they cannot be stored in {bits} bits. Store them as "
        "fp32, fp16, bf16."
    )
    with pytest.raises(CacheError, match=f"^{re.escape(expected)}$"):
        CachePolicy(storage=storage).plan(contract)
    assert CachePolicy(storage="fp16").plan(contract)
