"""Real artifacts far beyond their windows, and with windows imposed, held against Transformers' eager attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from pipeline.contract import Contract
from pipeline.delegate import Program
from pipeline.errors import CacheError
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.kv_cache import KVCache
from pipeline.runtime.policy import CachePolicy
from tests.tiny_models import VOCAB_SIZE, Artifact

WINDOW, LONGEST_STEP, LONGEST = 16, 12, 200

# Float32 rounding of logits that spread by 1; a lost or stale token of history moves them by 1e-2 and more.
CLOSE = 1e-4

# What storing K and V otherwise costs: the root mean square of differences, as part of the logits' deviation. Measured
# were 2e-3, 2e-4, 5e-3 and 1e-1; each is a bound from above, and a twentieth of it from below.
STORED = {"bf16": 6e-3, "fp16": 7e-4, "q8": 1.5e-2, "q4": 3e-1}


def eager(snapshot: Path, texts: list[list[int]], **changes: Any) -> np.ndarray:
    """Logits of every position of texts of one length, each in one forward pass, [texts, tokens, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(snapshot, attn_implementation="eager", **changes).eval()
    with torch.no_grad():
        batches = [
            model(torch.tensor(texts[start : start + 28]), use_cache=False).logits for start in range(0, len(texts), 28)
        ]
    return torch.cat(batches).numpy()


def drawn(chance: Random, length: int) -> list[int]:
    return [chance.randrange(VOCAB_SIZE) for _ in range(length)]


@pytest.fixture(scope="module")
def long(artifact: Callable[[str], Artifact]) -> Artifact:
    """One layer slides over 16 positions, one does not; steps of at most 12, so that the ring has 27 slots."""
    return artifact("long")


@pytest.fixture(scope="module")
def program(long: Artifact) -> Iterator[Program]:
    with Program.load(long.pte) as program:
        contract = Contract.read(program.constants, "model.pte")
        assert [cache.window for cache in contract.caches] == [WINDOW, 0]
        assert contract.max_seq_len == LONGEST_STEP
        yield program


def test_prompts_of_5_to_200_tokens_give_the_eager_logits_at_every_position(long: Artifact, program: Program) -> None:
    """Every length until the ring has wrapped twice, then some."""
    chance = Random(1)
    lengths = [*range(5, 62), *range(62, LONGEST, 11), LONGEST]
    texts = [drawn(chance, LONGEST) for _ in lengths]
    expected = eager(long.snapshot, texts)
    decoder = Decoder(program)
    for length, text, rows in zip(lengths, texts, expected, strict=True):
        prompt = text[:length]
        decoder.clear()
        found: list[np.ndarray] = []
        for _ in decoder.prefill(prompt, seen=lambda positions, logits, found=found: found.append(np.array(logits))):  # type: ignore[misc]
            pass
        assert len(found) == -(-len(prompt) // LONGEST_STEP)
        np.testing.assert_allclose(np.concatenate(found), rows[: len(prompt)], atol=CLOSE, rtol=0)


def test_after_rewinds_every_position_still_has_the_eager_logits(long: Artifact, program: Program) -> None:
    """Steps of any length, and every few of them some tokens are taken back, as many as the rings still have."""
    chance = Random(2)
    contract = Contract.read(program.constants, "model.pte")
    cache = KVCache.of(CachePolicy(initial_capacity=4).plan(contract))
    forward = program.method(cache=cache)
    text: list[int] = []
    texts, steps = [], []
    refused = 0
    for _ in range(25):
        parts = []
        for _ in range(chance.randint(1, 5)):
            ids = drawn(chance, chance.randint(1, LONGEST_STEP))
            positions = mx.arange(len(text), len(text) + len(ids), dtype=mx.int64)
            (logits,) = forward(mx.array([ids], mx.int64), positions)
            parts.append((len(text), np.array(logits[0])))
            text = text + ids
        texts.append(text)
        steps.append(parts)
        back = chance.choice((1, 3, 8, LONGEST_STEP, LONGEST_STEP + 1, 20))
        if len(text) > LONGEST - 60:
            cache.clear()
            text = []
        elif cache.rewind(max(0, len(text) - back)):
            text = text[: max(0, len(text) - back)]
        else:
            refused += 1
    assert refused > 2
    assert sum(len(each) > WINDOW + LONGEST_STEP for each in texts) > 10
    # What follows a text moves none of its logits.
    expected = eager(long.snapshot, [each + [0] * (LONGEST - len(each)) for each in texts])
    for rows, parts in zip(expected, steps, strict=True):
        for start, logits in parts:
            np.testing.assert_allclose(logits, rows[start : start + len(logits)], atol=CLOSE, rtol=0)


@pytest.mark.parametrize("storage", STORED)
def test_storage_of_fewer_bits_costs_what_it_should(long: Artifact, program: Program, storage: str) -> None:
    text = drawn(Random(3), 150)
    (expected,) = eager(long.snapshot, [text])
    found: list[np.ndarray] = []
    decoder = Decoder(program, policy=CachePolicy(storage=storage))
    for _ in decoder.prefill(text, seen=lambda positions, logits: found.append(np.array(logits))):
        pass
    error = np.sqrt(np.mean((np.concatenate(found) - expected) ** 2)) / expected.std()
    assert STORED[storage] / 20 < error < STORED[storage]


FULL, SLIDING = "full_attention", "sliding_attention"

IMPOSED = {
    (0,): (4, {"layer_types": [FULL, FULL]}),
    (5,): (4, {"layer_types": [SLIDING, SLIDING], "sliding_window": 5}),
    (0, 3): (3, {"layer_types": [FULL, SLIDING], "sliding_window": 3}),
    (6, 0): (4, {"layer_types": [SLIDING, FULL], "sliding_window": 6}),
    (1,): (1, {"layer_types": [SLIDING, SLIDING], "sliding_window": 1}),
}
"""Patterns of windows, the longest step that comes of them, and the same model's configuration."""


@pytest.mark.parametrize("windows", IMPOSED)
def test_imposed_windows_make_the_model_that_its_configuration_would(
    artifact: Callable[[str], Artifact], windows: tuple[int, ...]
) -> None:
    """The artifact was exported with windows 0 and 8 and steps of 4."""
    longest_step, changes = IMPOSED[windows]
    built = artifact("full")
    text = drawn(Random(4), 40)
    (expected,) = eager(built.snapshot, [text], **changes)
    with Program.load(built.pte) as program:
        decoder = Decoder(program, policy=CachePolicy(windows=windows))
    steps: list[np.ndarray] = []
    for _ in decoder.prefill(text, seen=lambda positions, logits: steps.append(np.array(logits))):
        pass
    assert len(steps) == -(-40 // longest_step)
    np.testing.assert_allclose(np.concatenate(steps), expected, atol=CLOSE, rtol=0)


def test_an_artifact_whose_heads_are_too_narrow_is_refused_quantized_storage(
    artifact: Callable[[str], Artifact],
) -> None:
    with (
        Program.load(artifact("full").pte) as program,
        pytest.raises(CacheError, match=r"^K and V have head_dim 16, which is no multiple of 32, so they cannot be"),
    ):
        Decoder(program, policy=CachePolicy(storage="q8"))


def test_a_smaller_capacity_ends_the_text_there(artifact: Callable[[str], Artifact]) -> None:
    with Program.load(artifact("full").pte) as program:
        decoder = Decoder(program, policy=CachePolicy(capacity=10, initial_capacity=0))
    assert len(list(decoder.prefill([5] * 10))) == 3
    with pytest.raises(CacheError, match="1 tokens at position 10 exceed the context of 10"):
        next(decoder.prefill([5]))
