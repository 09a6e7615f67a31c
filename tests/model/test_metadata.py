"""The constant methods of both generations of the runner's contract, in the types a runner reads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from pipeline.contract import CacheGeometry
from pipeline.model.metadata import constant_methods
from tests.tiny_models import SPEC

CACHES = [CacheGeometry(num_kv_heads=2, head_dim=16, window=0), CacheGeometry(num_kv_heads=1, head_dim=32, window=8)]


def published(**changes: Any) -> dict[str, Any]:
    return constant_methods(SPEC, CACHES, **{"vocab_size": 260, "eos_ids": [1, 7], "bos_id": 0} | changes)


def test_every_value_is_published_under_its_name() -> None:
    plain = {name: value for name, value in published().items() if not isinstance(value, torch.Tensor)}
    assert plain == {
        "get_max_seq_len": 4,
        "get_max_context_len": 64,
        "get_vocab_size": 260,
        "get_activation_dtype": 6,
        "get_logits_to_keep_mode": 1,
        "get_n_caches": 2,
        "get_eos_ids": [1, 7],
        "get_bos_id": 0,
        "get_max_ctx_len": 64,
        "get_prefill_chunk_size": 4,
    }


def test_what_is_told_of_each_cache_is_an_int32_vector() -> None:
    tensors = {name: value for name, value in published().items() if isinstance(value, torch.Tensor)}
    assert {name: value.tolist() for name, value in tensors.items()} == {
        "get_kv_heads": [2, 1],
        "get_head_dims": [16, 32],
        "get_windows": [0, 8],
    }
    assert {value.dtype for value in tensors.values()} == {torch.int32}


def test_a_model_without_a_start_token_publishes_none() -> None:
    assert "get_bos_id" not in published(bos_id=None)


@pytest.mark.parametrize(("dtype", "code"), [("fp16", 5), ("fp32", 6), ("bf16", 15)])
def test_the_activation_dtype_is_executorchs_code(dtype: str, code: int) -> None:
    methods = constant_methods(replace(SPEC, dtype=dtype), CACHES, vocab_size=1, eos_ids=[1], bos_id=None)
    assert methods["get_activation_dtype"] == code
