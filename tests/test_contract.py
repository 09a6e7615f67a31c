"""Published constants become a contract, or one sentence about why not."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.contract import LOGITS_MODE, SCALAR_TYPE, CacheGeometry, Contract
from pipeline.errors import PteError


def tensor(*values: int) -> dict[str, Any]:
    return {"dtype": "int32", "sizes": [len(values)], "values": list(values)}


PUBLISHED: dict[str, Any] = {
    "get_max_seq_len": 6,
    "get_max_context_len": 32,
    "get_vocab_size": 11,
    "get_activation_dtype": 15,
    "get_logits_to_keep_mode": 1,
    "get_n_caches": 2,
    "get_kv_heads": tensor(2, 4),
    "get_head_dims": tensor(8, 16),
    "get_windows": tensor(0, 6),
    "get_eos_ids": [2, 7],
}


def test_a_contract_is_what_was_published() -> None:
    assert Contract.read(PUBLISHED, "model.pte") == Contract(
        max_seq_len=6,
        max_context_len=32,
        vocab_size=11,
        dtype="bf16",
        logits="last",
        caches=(
            CacheGeometry(num_kv_heads=2, head_dim=8, window=0),
            CacheGeometry(num_kv_heads=4, head_dim=16, window=6),
        ),
        eos_ids=frozenset({2, 7}),
    )


def test_one_end_of_text_id_may_be_published_alone() -> None:
    assert Contract.read(PUBLISHED | {"get_eos_ids": 2}, "model.pte").eos_ids == {2}


@pytest.mark.parametrize(("name", "code"), SCALAR_TYPE.items())
def test_an_activation_dtype_is_read_by_its_code(name: str, code: int) -> None:
    assert Contract.read(PUBLISHED | {"get_activation_dtype": code}, "model.pte").dtype == name


@pytest.mark.parametrize(("name", "code"), LOGITS_MODE.items())
def test_a_logits_mode_is_read_by_its_code(name: str, code: int) -> None:
    assert Contract.read(PUBLISHED | {"get_logits_to_keep_mode": code}, "model.pte").logits == name


@pytest.mark.parametrize("name", sorted(set(PUBLISHED) - {"get_n_caches"}))
def test_a_constant_that_is_absent_is_named(name: str) -> None:
    constants = {key: value for key, value in PUBLISHED.items() if key != name}
    with pytest.raises(PteError) as caught:
        Contract.read(constants, "model.pte")
    assert str(caught.value) == (
        f"model.pte: its constant methods do not describe a runner's contract ('{name}'). Run pte verify on it."
    )


@pytest.mark.parametrize(
    ("constants", "reason"),
    [
        ({"get_activation_dtype": 99}, "code 99 is none of 5 (fp16), 6 (fp32), 15 (bf16)"),
        ({"get_logits_to_keep_mode": 7}, "code 7 is none of 0 (full), 1 (last), 2 (selected)"),
        ({"get_windows": tensor(0)}, "zip() argument 3 is shorter than arguments 1-2"),
        ({"get_kv_heads": 5}, "'int' object is not subscriptable"),
        ({"get_eos_ids": None}, "'NoneType' object is not iterable"),
        ({"get_eos_ids": PUBLISHED["get_windows"]}, "get_eos_ids is a tensor, and plain ids are read"),
    ],
)
def test_a_constant_that_makes_no_sense_is_a_sentence(constants: dict[str, Any], reason: str) -> None:
    with pytest.raises(PteError) as caught:
        Contract.read(PUBLISHED | constants, "model.pte")
    assert str(caught.value) == (
        f"model.pte: its constant methods do not describe a runner's contract ({reason}). Run pte verify on it."
    )
