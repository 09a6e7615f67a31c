"""Attention over a bound cache: what the node is given reaches the cache, and what comes back is attended."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.ops.attention import BLOCK, UpdateAndAttend
from pipeline.errors import DelegateError


class History:
    """A cache that hands back fixed keys, values and mask, and notes what it was given."""

    def __init__(self, keys: mx.array, values: mx.array, mask: mx.array | str | None) -> None:
        self.returned = keys, values, mask
        self.given: list[tuple[int, list[int]]] = []

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]:
        self.given.append((layer_id, list(positions)))
        return self.returned

    def commit_step(self) -> None: ...

    def abandon_step(self) -> None: ...


def drawn(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


Q, K, V = drawn(1, 4, 3, 8, seed=1), drawn(1, 2, 5, 8, seed=2), drawn(1, 2, 5, 8, seed=3)
BAND = np.array([[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], bool)
CAUSAL = np.tril(np.ones((3, 5), bool), 2)


def attended(mask: mx.array | str | None = None, **others: Any) -> mx.array:
    fields: dict[str, Any] = {
        "q": mx.array(Q),
        "k": mx.array(K[:, :, :3]),
        "v": mx.array(V[:, :, :3]),
        "position": mx.array([[2], [3], [4]], mx.int64),
        "layer_id": 1,
        "scale": 0.7,
        "out_dtype": None,
    }
    return UpdateAndAttend(History(mx.array(K), mx.array(V), mask))(**fields | others)


def reference(mask: np.ndarray | None) -> np.ndarray:
    k, v = (torch.from_numpy(array).double().repeat_interleave(2, dim=1) for array in (K, V))
    scores = torch.from_numpy(Q).double() @ k.transpose(2, 3) * 0.7
    if mask is not None:
        scores = scores.masked_fill(~torch.from_numpy(mask), -torch.inf)
    return (scores.softmax(-1) @ v).numpy()


@pytest.mark.parametrize(
    ("mask", "meaning"), [(None, None), ("causal", CAUSAL), (mx.array(BAND)[None, None], BAND)], ids=str
)
def test_what_the_cache_returns_is_attended_with_its_mask(
    mask: mx.array | str | None, meaning: np.ndarray | None
) -> None:
    """Heads are grouped, causality is aligned to the newest key; float32 over five keys."""
    np.testing.assert_allclose(np.array(attended(mask)), reference(meaning), atol=2e-6)


@pytest.mark.parametrize("num_queries", [BLOCK + 1, 2 * BLOCK, 3 * BLOCK - 7])
@pytest.mark.parametrize("num_before", [0, 5])
def test_many_queries_are_attended_in_blocks_with_the_same_sums(num_queries: int, num_before: int) -> None:
    q = mx.array(drawn(1, 4, num_queries, 8, seed=4))
    keys, values = (mx.array(drawn(1, 2, num_before + num_queries, 8, seed=seed)) for seed in (5, 6))
    position = mx.arange(num_before, num_before + num_queries)
    whole, blocks = (
        UpdateAndAttend(History(keys, values, "causal"), on_cpu=on_cpu)(q, keys, values, position, 0, 0.7, None)
        for on_cpu in (False, True)
    )
    np.testing.assert_allclose(np.array(blocks), np.array(whole), rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_heads_that_share_keys_are_rows_of_one_product_with_the_same_sums(num_kv_heads: int) -> None:
    q = mx.array(drawn(1, 4, 1, 8, seed=4))
    keys, values = (mx.array(drawn(1, num_kv_heads, 9, 8, seed=seed)) for seed in (5, 6))
    whole, grouped = (
        UpdateAndAttend(History(keys, values, None), on_cpu=on_cpu)(q, keys, values, mx.array([8]), 0, 0.7, None)
        for on_cpu in (False, True)
    )
    assert grouped.shape == whole.shape
    np.testing.assert_allclose(np.array(grouped), np.array(whole), rtol=0, atol=1e-6)


def test_blocks_leave_a_mask_of_the_caches_own_alone() -> None:
    num_queries = 2 * BLOCK
    q, keys, values = (mx.array(drawn(1, 2, num_queries, 8, seed=seed)) for seed in (4, 5, 6))
    only_itself = mx.eye(num_queries).astype(mx.bool_)[None, None]
    attend = UpdateAndAttend(History(keys, values, only_itself), on_cpu=True)
    attended = attend(q, keys, values, mx.arange(num_queries), 0, 0.7, None)
    np.testing.assert_allclose(np.array(attended), np.array(values), atol=1e-6)


def test_the_result_has_the_dtype_of_the_query_or_the_one_asked_for() -> None:
    assert attended().dtype == mx.float32
    assert attended(out_dtype=15).dtype == mx.bfloat16
    half = attended(q=mx.array(Q).astype(mx.float16))
    assert half.dtype == mx.float16
    np.testing.assert_allclose(np.array(half.astype(mx.float32)), reference(None), atol=5e-3)
    assert attended(q=mx.array(Q).astype(mx.float16), out_dtype=6).dtype == mx.float32


@pytest.mark.parametrize("dtype", [mx.int32, mx.int64], ids=str)
@pytest.mark.parametrize("shape", [(3,), (3, 1), (1, 3)], ids=str)
def test_positions_reach_every_layer_as_whole_numbers(shape: tuple[int, ...], dtype: mx.Dtype) -> None:
    cache = History(mx.array(K), mx.array(V), None)
    attend = UpdateAndAttend(cache)
    position = mx.array([7, 8, 9]).reshape(shape).astype(dtype)
    for layer_id in (0, 1):
        attend(mx.array(Q), mx.array(K), mx.array(V), position, layer_id, 1.0, None)
    attend(mx.array(Q), mx.array(K), mx.array(V), position + 1, 0, 1.0, None)
    assert cache.given == [(0, [7, 8, 9]), (1, [7, 8, 9]), (0, [8, 9, 10])]


@pytest.mark.parametrize("dtype", [mx.float32, mx.int16, mx.uint32], ids=str)
def test_positions_of_another_dtype_are_refused(dtype: mx.Dtype) -> None:
    expected = f"UpdateAndAttendNode has positions of {dtype}; expected int32 or int64."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        attended(position=mx.array([1, 2, 3]).astype(dtype))


@pytest.mark.parametrize("missing", ["layer_id", "scale"])
def test_a_node_without_its_layer_or_scale_is_refused(missing: str) -> None:
    expected = "UpdateAndAttendNode lacks its layer_id or scale; the file is damaged."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        attended(**{missing: None})


def test_a_layer_and_a_scale_of_zero_are_not_missing() -> None:
    uniform = attended(layer_id=0, scale=0.0)
    np.testing.assert_allclose(np.array(uniform)[0, 0, 0], V[0, 0].mean(axis=0), atol=1e-6)


def test_without_a_cache_nothing_is_attended() -> None:
    expected = "the graph attends over an off-graph KV cache and none is bound. Load it with a cache."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        UpdateAndAttend(None)(mx.array(Q), mx.array(K), mx.array(V), mx.array([1]), 0, 1.0, None)


def sdpa(**others: Any) -> mx.array:
    fields = {"q": mx.array(Q), "k": mx.array(K), "v": mx.array(V), "scale": 0.7, "mask": None, "causal": False}
    result: mx.array = OPERATORS["SdpaNode"](**fields | others)
    return result


@pytest.mark.parametrize(
    ("fields", "meaning"),
    [
        ({}, None),
        ({"causal": True}, CAUSAL),
        ({"mask": mx.array(BAND)}, BAND),
        ({"mask": mx.where(mx.array(BAND), 0.0, -mx.inf)}, BAND),
        ({"mask": mx.where(mx.array(BAND), 0.0, -mx.inf).astype(mx.float16)}, BAND),
    ],
)
def test_what_a_graph_keeps_itself_is_attended_alike(fields: dict[str, Any], meaning: np.ndarray | None) -> None:
    np.testing.assert_allclose(np.array(sdpa(**fields)), reference(meaning), atol=2e-6)


def test_a_wider_mask_leaves_the_dtype_of_the_query() -> None:
    half = {name: mx.array(array).astype(mx.bfloat16) for name, array in (("q", Q), ("k", K), ("v", V))}
    assert sdpa(**half, mask=mx.zeros((3, 5))).dtype == mx.bfloat16


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"causal": True, "mask": mx.array(BAND)}, "SdpaNode is causal and has a mask; expected one of them."),
        ({"k": mx.zeros((1, 0, 5, 8))}, "SdpaNode has keys [1, 0, 5, 8]; expected at least one head."),
    ],
)
def test_attention_that_the_runtime_has_not_is_refused(fields: dict[str, Any], expected: str) -> None:
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        sdpa(**fields)


def rotated(x: np.ndarray, positions: np.ndarray, divisors: np.ndarray, traditional: bool) -> np.ndarray:
    """Pairs (i, i + half), or neighbours, turned by position / divisor; what is beyond them stays."""
    half = len(divisors)
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if traditional else (slice(half), slice(half, 2 * half))
    angle = positions[:, None] / divisors
    first, second = (x[..., part] for part in pairs)
    result = x.copy()
    result[..., pairs[0]] = first * np.cos(angle) - second * np.sin(angle)
    result[..., pairs[1]] = second * np.cos(angle) + first * np.sin(angle)
    return result


@pytest.mark.parametrize("traditional", [True, False])
@pytest.mark.parametrize("dims", [8, 4])
@pytest.mark.parametrize("offset", [0, 5, mx.array(5), mx.array([5])], ids=repr)
def test_positions_rotate_the_first_features(offset: int | mx.array, dims: int, traditional: bool) -> None:
    given = np.array([7.0, 2.0, 30.0, 11.0])[: dims // 2].astype(np.float32)
    start = offset if isinstance(offset, int) else 5
    for freqs, divisors in ((None, 100.0 ** (np.arange(0, dims, 2) / dims)), (mx.array(given), given)):
        found = OPERATORS["RopeNode"](
            x=mx.array(Q), dims=dims, offset=offset, freqs=freqs, traditional=traditional, base=100.0, scale=0.5
        )
        expected = rotated(Q, (start + np.arange(3)) * 0.5, divisors, traditional)
        np.testing.assert_allclose(np.array(found), expected, atol=1e-5)
