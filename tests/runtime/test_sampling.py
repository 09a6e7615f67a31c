"""Tokens are chosen as Transformers chooses them, reproducibly, and never from logits that are no numbers."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from transformers import GenerationConfig, LogitsProcessorList
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pipeline.errors import SamplingError
from pipeline.runtime.sampling import NO_TOKEN, Sampler, Sampling, choose_each, tokens_of

VOCAB_SIZE = 1000

# Rounding of float32: of logits up to 20 under an exponential, and of sums in another order.
TOLERANCE = 5e-6

SETTINGS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.7},
    "a high temperature": {"temperature": 5.0},
    "a low temperature": {"temperature": 1e-3},
    "top-k": {"temperature": 1.0, "top_k": 7},
    "top-k of one": {"temperature": 1.0, "top_k": 1},
    "top-k of more than there are": {"temperature": 1.0, "top_k": VOCAB_SIZE + 1},
    "top-p": {"temperature": 1.3, "top_p": 0.8},
    "a tiny top-p": {"temperature": 1.0, "top_p": 1e-50},
    "min-p": {"temperature": 1.0, "min_p": 0.05},
    "min-p of one": {"temperature": 1.0, "min_p": 1.0},
    "a penalty": {"temperature": 1.0, "repetition_penalty": 1.3},
    "an encouragement": {"temperature": 1.0, "repetition_penalty": 0.8},
    "top-k, then top-p": {"temperature": 1.5, "top_k": 20, "top_p": 0.6},
    "all of them": {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.2},
}


def drawn(seed: int, dtype: Any = np.float32, rows: int = 1) -> Any:
    """Logits [rows, vocab] that peak as a model's do."""
    return (np.random.default_rng(seed).normal(size=(rows, VOCAB_SIZE)) * 3).astype(dtype)


def reference(logits: Any, history: list[int], settings: dict[str, Any]) -> Any:
    """Transformers' processors, in the order of its ``generate``, and the softmax that it draws from."""
    steps = {
        "repetition_penalty": RepetitionPenaltyLogitsProcessor,
        "temperature": TemperatureLogitsWarper,
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
    }
    processors = LogitsProcessorList([make(settings[name]) for name, make in steps.items() if name in settings])
    scores = processors(torch.tensor([history]), torch.tensor(logits).float()[None])
    return torch.softmax(scores, -1)[0].numpy()


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("seed", range(3))
def test_filtered_probabilities_are_those_of_transformers(name: str, seed: int) -> None:
    settings = SETTINGS[name]
    logits = drawn(seed)[0]
    # Tokens that were seen more than once, likely ones among them.
    history = [*np.argsort(logits)[-5:].tolist(), 3, 3, 3, 999]
    ours = np.array(Sampler(Sampling(**settings)).probabilities(mx.array(logits), history))
    theirs = reference(logits, history, settings)
    assert np.array_equal(ours > 0, theirs > 0)
    assert np.abs(ours - theirs).max() <= TOLERANCE


def test_the_order_of_filters_is_that_of_transformers_generate() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes))
    asked = GenerationConfig(
        do_sample=True, temperature=0.5, top_k=5, top_p=0.5, min_p=0.1, repetition_penalty=2.0, num_beams=1
    )
    processors = model._get_logits_processor(asked, input_ids_seq_length=1)
    assert [type(step) for step in processors] == [
        RepetitionPenaltyLogitsProcessor,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
        MinPLogitsWarper,
    ]


def test_tokens_of_equal_logits_are_kept_or_removed_together() -> None:
    logits = mx.array([2.0, 1.0, 1.0, 1.0, 0.0])

    def kept(**settings: Any) -> list[int]:
        return np.flatnonzero(np.array(Sampler(Sampling(temperature=1.0, **settings)).probabilities(logits))).tolist()

    assert kept(top_k=2) == kept(top_k=4) == kept(top_p=0.5) == kept(top_k=2, top_p=0.9) == [0, 1, 2, 3]
    assert kept(top_k=1) == kept(top_p=0.4) == [0]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_logits_of_any_dtype_are_filtered_in_float32(dtype: Any) -> None:
    rounded = mx.array(drawn(4)[0]).astype(dtype)
    sampler = Sampler(Sampling(temperature=0.3))
    ours = sampler.probabilities(rounded)
    assert ours.dtype == mx.float32
    assert mx.array_equal(ours, sampler.probabilities(rounded.astype(mx.float32)))


def test_greedy_takes_the_first_of_several_maxima() -> None:
    logits = mx.array([-1.0, 3.0, 2.0, 3.0, -mx.inf])
    assert Sampler().choose(logits, 0).item() == 1
    assert Sampler(Sampling(top_k=3, top_p=0.5, min_p=0.5)).choose(logits, 0).item() == 1
    assert Sampler().probabilities(logits).tolist() == [0, 1, 0, 0, 0]


def test_greedy_heeds_the_repetition_penalty_once_for_each_token_seen() -> None:
    sampler = Sampler(Sampling(repetition_penalty=2.0))
    logits = mx.array([4.0, 3.0, -1.0])
    assert sampler.choose(logits, 0).item() == 0
    assert sampler.choose(logits, 0, [0]).item() == 1
    assert sampler.choose(logits, 0, [0, 1, 1, 1]).item() == 0
    assert sampler.choose(logits, 0, mx.array([0])).item() == 1
    assert sampler.choose(mx.array([-1.0, -1.5, -4.0]), 0, [0]).item() == 1


def test_a_token_without_a_logit_is_not_penalized_in_place_of_another() -> None:
    sampler = Sampler(Sampling(temperature=1.0, repetition_penalty=2.0))
    logits = mx.array([4.0, 3.0, 1.0])
    assert mx.array_equal(sampler.probabilities(logits, [3, 17, -1]), sampler.probabilities(logits))


@pytest.mark.parametrize("name", ["temperature", "all of them"])
def test_tokens_are_drawn_as_often_as_they_are_probable(name: str) -> None:
    logits = mx.array(drawn(5)[0][:40])
    sampler = Sampler(Sampling(**SETTINGS[name], seed=11))
    num_draws = 4000
    counts = Counter(mx.stack([sampler.choose(logits, draw) for draw in range(num_draws)]).tolist())
    expected = np.array(sampler.probabilities(logits)) * num_draws
    observed = np.array([counts[token] for token in range(40)])
    assert not observed[expected == 0].any()
    # Five standard deviations; the seed is fixed, so that this passes always or never.
    assert (np.abs(observed - expected) <= 5 * np.sqrt(expected) + 1).all()


def test_a_seed_and_the_number_of_the_draw_decide_it() -> None:
    logits = mx.array(drawn(6)[0])

    def tokens(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=2.0, seed=seed))
        return [int(sampler.choose(logits, draw).item()) for draw in range(20)]

    assert tokens(1) == tokens(1)
    assert len(set(tokens(1))) > 10
    assert tokens(1) != tokens(2)
    # Whatever was drawn before, and in whatever order.
    sampler = Sampler(Sampling(temperature=2.0, seed=1))
    assert [int(sampler.choose(logits, draw).item()) for draw in (7, 3, 7)] == [tokens(1)[draw] for draw in (7, 3, 7)]


def test_a_known_seed_gives_known_tokens_in_every_run() -> None:
    sampler = Sampler(Sampling(temperature=1.0, seed=2026))
    chosen = [int(sampler.choose(mx.zeros(1000), draw).item()) for draw in range(5)]
    assert chosen == [593, 336, 479, 291, 7]


def test_without_a_seed_samplers_differ_and_tell_theirs() -> None:
    first, second = Sampler(Sampling(temperature=1.0)), Sampler(Sampling(temperature=1.0))
    assert first.seed != second.seed
    again = Sampler(Sampling(temperature=1.0, seed=first.seed))
    logits = mx.array(drawn(7)[0])
    assert first.choose(logits, 3).item() == again.choose(logits, 3).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_rows_of_a_batch_are_chosen_as_if_each_were_alone(dtype: Any) -> None:
    logits = mx.array(drawn(8, rows=6)).astype(dtype)
    samplers = [Sampler()] + [
        Sampler(Sampling(**settings, seed=seed)) for seed, settings in enumerate(list(SETTINGS.values())[-5:])
    ]
    histories = [[1, 2, row] for row in range(6)]
    together = tokens_of(choose_each(logits, samplers, range(6), histories), "batch")
    for row, sampler in enumerate(samplers):
        assert together[row] == sampler.choose(logits[row], row, histories[row]).item()
    some = [4, 1]
    few = choose_each(logits[mx.array(some)], [samplers[row] for row in some], some, [histories[row] for row in some])
    assert few.tolist() == [together[row] for row in some]


def test_a_greedy_batch_takes_the_first_maximum_of_each_row() -> None:
    logits = mx.array([[1.0, 1.0, 0.0], [0.0, 2.0, 2.0], [0.0, mx.nan, 1.0]], mx.bfloat16)
    assert choose_each(logits, [Sampler()] * 3, [0, 0, 0]).tolist() == [0, 1, NO_TOKEN]


@pytest.mark.parametrize("bad", [mx.nan, mx.inf], ids=["not a number", "infinite"])
@pytest.mark.parametrize("settings", [{}, SETTINGS["all of them"]], ids=["greedy", "drawn"])
@pytest.mark.parametrize("at", [0, 500, 999])
def test_logits_that_are_no_numbers_are_an_error_and_not_a_token(bad: float, settings: dict[str, Any], at: int) -> None:
    logits = mx.array(drawn(9)[0])
    logits[at] = bad
    chosen = Sampler(Sampling(**settings)).choose(logits, 0)
    with pytest.raises(
        SamplingError,
        match=re.escape(
            "model.pte: the logits are not finite numbers, so no token can be chosen from them; expected at most minus "
            "infinities beside finite ones. The weights are damaged, or too large for the dtype: try fp32."
        ),
    ):
        tokens_of(chosen[None], "model.pte")


def test_all_logits_minus_infinite_choose_no_token() -> None:
    assert Sampler().choose(mx.full(5, -mx.inf), 0).item() == NO_TOKEN


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("temperature", (-0.1, 1e-9, 1e9, float("nan"), float("inf"), "1", True, None), "0 for greedy decoding, or"),
        ("top_k", (-1, 2.0, "2", True, None), "a number of tokens, or 0 for all."),
        ("top_p", (0, -1, 1.01, float("nan"), None), "a number above 0 and up to 1, which is off."),
        ("min_p", (-0.01, 1.01, float("nan"), None), "a number from 0, which is off, to 1."),
        ("repetition_penalty", (0, -1, 1e9, float("nan"), None), "a number from 0.01 to 100; 1 is off, and"),
        ("seed", (-1, 2**64, 1.0, "1"), "a whole number from 0 to 18446744073709551615."),
    ],
)
def test_a_setting_out_of_its_range_is_refused_by_name(name: str, values: tuple[Any, ...], expected: str) -> None:
    for value in values:
        with pytest.raises(SamplingError, match=re.escape(f"{name} is {value!r}; expected {expected}")):
            Sampling(**{name: value})
