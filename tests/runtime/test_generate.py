"""Ids in, ids out: what is fed, what is chosen, why it ends; and a cache that holds what its text says, always."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest

from pipeline.errors import CacheError, SamplingError
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import CANCELLED, LENGTH, STOP, Engine, Request
from pipeline.runtime.policy import CachePolicy
from pipeline.runtime.sampling import Sampler, Sampling, tokens_of
from tests.tiny_models import Artifact

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


@pytest.fixture(scope="module")
def shared(artifact: Callable[[str], Artifact]) -> Any:
    """One layer of two slides over 8 positions; steps of at most 4 tokens, 64 in all."""
    with PteFile.open(artifact("mixed").pte) as pte:
        return Decoder(pte)


@pytest.fixture
def engine(shared: Decoder) -> Engine:
    shared.clear()
    return Engine(shared)


def one_by_one(decoder: Decoder, prompt: Sequence[int], num_tokens: int, sampling: Sampling) -> list[int]:
    """Token by token with nothing ahead: each text is fed anew, whole."""
    sampler = Sampler(sampling)
    text = list(prompt)
    for _ in range(num_tokens):
        decoder.clear()
        *_, logits = decoder.prefill(text)
        text += tokens_of(sampler.choose(logits, len(text), text)[None], "model.pte")
    decoder.clear()
    return text[len(prompt) :]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=1.5, seed=7),
        Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, repetition_penalty=1.3, seed=3),
        Sampling(repetition_penalty=1.5),
    ],
    ids=str,
)
def test_every_kind_of_choice_is_the_same_with_a_step_ahead_and_without(engine: Engine, sampling: Sampling) -> None:
    expected = one_by_one(engine.decoder, PROMPT, 12, sampling)
    assert list(engine.generate(PROMPT, Request(max_new_tokens=12, sampling=sampling))) == expected


def test_a_token_is_discouraged_at_once_though_nobody_knew_it_when_the_step_after_it_began(
    artifact: Callable[[str], Artifact],
) -> None:
    with PteFile.open(artifact("long").pte) as pte:
        engine = Engine(Decoder(pte))
    free = list(engine.generate(PROMPT, Request(max_new_tokens=6)))
    assert len(set(free)) < len(free)
    sampling = Sampling(repetition_penalty=100)
    expected = one_by_one(engine.decoder, PROMPT, 6, sampling)
    found = list(engine.generate(PROMPT, Request(max_new_tokens=6, sampling=sampling)))
    assert found == expected
    assert len(set(found)) == len(found)


def test_a_stop_id_ends_it_and_is_left_out(engine: Engine) -> None:
    free = list(engine.generate(PROMPT, Request(max_new_tokens=8)))
    stop = next(token for token in free[1:] if token not in free[: free.index(token)])
    generation = engine.generate(PROMPT, Request(max_new_tokens=8, stop_ids={stop, 259}))
    assert list(generation) == free[: free.index(stop)]
    assert (generation.finish, generation.stop_id) == (STOP, stop)
    assert engine.held == generation.text


def test_the_budget_ends_it_and_the_last_token_is_not_held(engine: Engine) -> None:
    generation = engine.generate(PROMPT, Request(max_new_tokens=3))
    assert len(list(generation)) == 3
    assert (generation.finish, generation.stop_id) == (LENGTH, None)
    assert engine.held == generation.text[:-1]


def test_capacity_bounds_the_budget(engine: Engine) -> None:
    generation = engine.generate([7] * 60, Request(max_new_tokens=100))
    assert (generation.asked, generation.budget) == (100, 4)
    assert len(list(generation)) == 4
    assert generation.finish == LENGTH
    assert len(list(engine.generate([7] * 63, Request(max_new_tokens=1)))) == 1


def test_a_text_that_leaves_no_room_is_refused_before_it_is_fed(engine: Engine) -> None:
    list(engine.generate(PROMPT, Request(max_new_tokens=1)))
    with pytest.raises(CacheError) as caught:
        engine.generate([7] * 64, Request(max_new_tokens=1))
    assert str(caught.value) == (
        "model.pte: the text has 64 tokens, and the cache holds 64; expected room for at least one more. Shorten the "
        "text, or raise the capacity (--kv-max-capacity), which the artifact's context bounds."
    )
    assert engine.held == PROMPT


def test_no_new_tokens_only_feed_the_text(engine: Engine) -> None:
    generation = engine.generate([7] * 64, Request(max_new_tokens=0))
    assert list(generation) == []
    assert generation.finish == LENGTH
    assert len(engine.held) == 64


@pytest.mark.parametrize("number", [0, 1, 4])
def test_left_early_it_holds_what_was_read_but_for_the_last_token(engine: Engine, number: int) -> None:
    generation = engine.generate(PROMPT, Request(max_new_tokens=10))
    for _ in zip(range(number), generation, strict=False):
        pass
    generation.close()
    assert generation.finish == CANCELLED
    assert engine.held == (generation.text[:-1] if number else [])
    again = engine.generate(generation.text, Request(max_new_tokens=10 - number))
    assert [*generation.tokens, *again] == list(engine.generate(PROMPT, Request(max_new_tokens=10)))


@pytest.mark.parametrize("number", [1, 2, 3, 6])
def test_cancelled_it_ends_after_the_step_under_way(engine: Engine, number: int) -> None:
    """The prompt takes three steps."""
    times = itertools.count(1)
    generation = engine.generate(PROMPT, Request(max_new_tokens=10), lambda: next(times) >= number)
    tokens = list(generation)
    assert generation.finish == CANCELLED
    assert len(tokens) == {1: 0, 2: 0, 3: 0, 6: 2}[number]
    assert len(engine.held) == {1: 4, 2: 8, 3: 11, 6: 12}[number]
    expected = list(engine.generate(PROMPT, Request(max_new_tokens=10)))
    assert expected[: len(tokens)] == tokens


def test_an_interrupt_in_the_middle_leaves_the_engine_sound(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = list(engine.generate(PROMPT, Request(max_new_tokens=10)))
    engine.clear()
    generation = iter(engine.generate(PROMPT, Request(max_new_tokens=10)))
    for _ in range(4):
        next(generation)

    def interrupted(token: mx.array) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipeline.runtime.decoder.number_of", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    monkeypatch.undo()
    assert list(engine.generate(PROMPT, Request(max_new_tokens=10))) == expected


def test_what_the_cache_holds_is_not_fed_again(engine: Engine) -> None:
    first = engine.generate(PROMPT, Request(max_new_tokens=4))
    list(first)
    longer = [*first.text, 8, 8]
    second = engine.generate(longer, Request(max_new_tokens=4))
    found = list(second)
    # All but the last new token, which nothing had been fed after.
    assert (first.num_reused, second.num_reused) == (0, len(first.text) - 1)
    engine.clear()
    assert found == list(engine.generate(longer, Request(max_new_tokens=4)))


@pytest.mark.parametrize(("kept", "reused"), [(11, 10), (9, 9), (4, 0)])
def test_a_text_that_parts_from_it_goes_back_where_a_ring_still_can(engine: Engine, kept: int, reused: int) -> None:
    """The ring has 11 slots; what was written in the last 4 positions can be taken back, and so can everything."""
    list(engine.generate([*PROMPT, 7, 7], Request(max_new_tokens=0)))
    other = [*PROMPT[:kept], *([] if kept == 11 else [250, 251])]
    generation = engine.generate(other, Request(max_new_tokens=5))
    found = list(generation)
    assert generation.num_reused == reused
    engine.clear()
    assert found == list(engine.generate(other, Request(max_new_tokens=5)))


def test_another_generation_ends_the_one_before(engine: Engine) -> None:
    first = iter(engine.generate(PROMPT, Request(max_new_tokens=10)))
    next(first)
    second = engine.generate([9, 9, 9], Request(max_new_tokens=2))
    found = list(second)
    assert next(first, None) is None
    assert engine.held == second.text[:-1]
    engine.clear()
    assert found == list(engine.generate([9, 9, 9], Request(max_new_tokens=2)))


def test_logits_that_choose_nothing_are_an_error_and_the_text_before_them_stands(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    generation = iter(engine.generate(PROMPT, Request(max_new_tokens=10)))
    for _ in range(3):
        next(generation)
    monkeypatch.setattr(Sampler, "choose", lambda *_: mx.array(-1))
    next(generation)
    with pytest.raises(SamplingError, match=r"^model\.pte: the logits are not finite numbers"):
        next(generation)
    assert len(engine.held) == len(PROMPT) + 4
    monkeypatch.undo()
    held = engine.held
    found = list(engine.generate(held, Request(max_new_tokens=2)))
    engine.clear()
    assert found == list(engine.generate(held, Request(max_new_tokens=2)))


def test_times_are_in_order(engine: Engine) -> None:
    generation = engine.generate(PROMPT, Request(max_new_tokens=4))
    list(generation)
    timings = generation.timings
    assert timings.start < timings.prompt_end < timings.end
    assert 0 < timings.sampling < timings.end - timings.start


@pytest.mark.parametrize(
    ("prompt", "number", "message"),
    [
        ([], 1, "model.pte: the prompt has no tokens; expected at least 1 to continue."),
        ([1], -1, "-1 new tokens are asked for; expected 0 or more."),
    ],
)
def test_nonsense_is_refused(engine: Engine, prompt: list[int], number: int, message: str) -> None:
    with pytest.raises(CacheError) as caught:
        engine.generate(prompt, Request(max_new_tokens=number))
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["full", "selected"])
def test_every_logits_mode_and_policy_generates_the_same(
    engine: Engine, artifact: Callable[[str], Artifact], name: str
) -> None:
    expected = list(engine.generate(PROMPT, Request(max_new_tokens=12)))
    with PteFile.open(artifact(name).pte) as pte:
        other = Engine(Decoder(pte, policy=replace(CachePolicy(), capacity=40, initial_capacity=1)))
    assert list(other.generate(PROMPT, Request(max_new_tokens=12))) == expected
