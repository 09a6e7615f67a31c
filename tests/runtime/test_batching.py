"""Several texts at once are, token for token, what each is alone; and what fails takes nobody else along."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate import Program
from pipeline.errors import CacheError, DelegateError, SamplingError, TextError
from pipeline.runtime.batching import FAILED, Batch, Job
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import CANCELLED, LENGTH, STOP, Engine, Request
from pipeline.runtime.one_by_one import OneByOne
from pipeline.runtime.packed import PackedDecoder
from pipeline.runtime.policy import CachePolicy
from pipeline.runtime.sampling import Sampling
from tests.tiny_models import VOCAB_SIZE, Artifact

DRAWN = Random(8)
PROMPTS = [[DRAWN.randrange(4, VOCAB_SIZE) for _ in range(length)] for length in (1, 2, 3, 5, 8, 13, 21, 34)]
NEW = 12

SEEDED = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=5)


@dataclass
class Heard:
    """What came of a text; ``wanted`` tokens are."""

    wanted: int = 1000
    tokens: list[int] = field(default_factory=list)
    ended: Job | None = None

    def token(self, token: int) -> bool:
        assert self.ended is None
        self.tokens.append(token)
        return len(self.tokens) < self.wanted

    def end(self, job: Job) -> None:
        assert self.ended is None
        self.ended = job

    @property
    def finish(self) -> str | None:
        return None if self.ended is None else self.ended.finish


@pytest.fixture(params=["selected", "full"])
def program(artifact: Callable[[str], Artifact], request: pytest.FixtureRequest) -> Iterator[Program]:
    """Two layers, one of which slides over 8 positions; steps of at most 4 tokens, 64 in all."""
    with Program.load(artifact(request.param).pte) as opened:
        yield opened


@pytest.fixture
def selected(artifact: Callable[[str], Artifact]) -> Iterator[Program]:
    with Program.load(artifact("selected").pte) as opened:
        yield opened


def batch(program: Program, *, at_once: int = 8, capacity: int | None = None, max_kept: int = 0) -> Batch:
    policy = CachePolicy(capacity=capacity, initial_capacity=8)
    return Batch(PackedDecoder(program, num_sequences=at_once, policy=policy), max_running=at_once, max_kept=max_kept)


def job(prompt: Sequence[int], new: int = NEW, wanted: int = 1000, **asked: Any) -> Job:
    return Job(prompt, Request(max_new_tokens=new, **asked), Heard(wanted))


def heard(each: Job) -> Heard:
    assert isinstance(each.listener, Heard)
    return each.listener


def finished(taken: Batch | OneByOne, jobs: Sequence[Job]) -> list[list[int]]:
    """The tokens that came of each, once all have ended."""
    for each in jobs:
        taken.submit(each)
    for _ in range(2000):
        if taken.is_idle:
            break
        taken.step()
    assert all(heard(each).ended is each for each in jobs)
    return [heard(each).tokens for each in jobs]


def alone(program: Program, prompt: Sequence[int], **asked: Any) -> list[int]:
    """What the artifact continues the prompt with in a cache of its own."""
    return list(Engine(Decoder(program)).generate(prompt, Request(**{"max_new_tokens": NEW, **asked})))


def test_eight_prompts_at_once_give_what_each_gives_alone(program: Program) -> None:
    jobs = [job(prompt) for prompt in PROMPTS]
    assert finished(batch(program), jobs) == [alone(program, prompt) for prompt in PROMPTS]
    assert {heard(each).finish for each in jobs} == {LENGTH}


def test_a_seed_draws_alike_whatever_else_is_in_the_batch(selected: Program) -> None:
    expected = [alone(selected, prompt, sampling=SEEDED) for prompt in PROMPTS]
    assert finished(batch(selected), [job(prompt, sampling=SEEDED) for prompt in PROMPTS]) == expected
    mixed = [job(prompt, sampling=SEEDED if index % 2 else Sampling()) for index, prompt in enumerate(PROMPTS)]
    assert finished(batch(selected, at_once=3), mixed)[1::2] == expected[1::2]


def test_texts_that_begin_alike_share_cells_and_are_what_they_are_alone(selected: Program) -> None:
    stem = PROMPTS[7][:20]
    taken = batch(selected, at_once=4, max_kept=200)
    jobs = [job([*stem, *prompt[:6]]) for prompt in PROMPTS]
    assert finished(taken, jobs) == [alone(selected, each.prompt) for each in jobs]
    assert jobs[0].num_reused == 0
    assert all(each.num_reused >= len(stem) for each in jobs[1:])
    again = [job([*stem, 9, 9]), job(jobs[-1].prompt)]
    assert finished(taken, again) == [alone(selected, each.prompt) for each in again]
    assert [each.num_reused for each in again] == [len(stem), len(jobs[-1].prompt) - 1]


def test_a_stop_id_is_left_out_and_a_listener_may_have_enough(selected: Program) -> None:
    whole = alone(selected, PROMPTS[3])
    jobs = [job(PROMPTS[3], stop_ids={whole[4]}), job(PROMPTS[3], wanted=2), job(PROMPTS[3], new=0)]
    assert finished(batch(selected), jobs) == [whole[: whole.index(whole[4])], whole[:2], []]
    assert [heard(each).finish for each in jobs] == [STOP, STOP, LENGTH]


def test_a_budget_ends_at_the_context(selected: Program) -> None:
    asked = job(PROMPTS[7], new=1000)
    (tokens,) = finished(batch(selected), [asked])
    assert tokens == alone(selected, PROMPTS[7], max_new_tokens=1000)
    assert len(tokens) == 64 - len(PROMPTS[7])


@pytest.mark.parametrize("seed", range(6))
def test_texts_come_and_go_and_the_others_are_what_they_are_alone(selected: Program, seed: int) -> None:
    draw = Random(seed)
    taken = batch(selected, at_once=draw.randrange(2, 5), capacity=draw.randrange(64, 100), max_kept=draw.randrange(60))
    coming = [
        job(
            draw.choice(PROMPTS)[: draw.randrange(1, 34)],
            new=draw.randrange(1, 20),
            sampling=draw.choice([SEEDED, Sampling()]),
        )
        for _ in range(10)
    ]
    came: list[Job] = []
    for _ in range(1000):
        if coming and draw.random() < 0.4:
            came.append(coming.pop())
            taken.submit(came[-1])
        if came and draw.random() < 0.05:
            taken.cancel(draw.choice(came))
        taken.step()
        if not coming and taken.is_idle:
            break
    assert len(came) == 10
    for each in came:
        expected = alone(
            selected, each.prompt, max_new_tokens=each.request.max_new_tokens, sampling=each.request.sampling
        )
        tokens = heard(each).tokens
        assert tokens == expected[: len(tokens)]
        assert (heard(each).finish == LENGTH and tokens == expected) or heard(each).finish == CANCELLED


def test_who_leaves_gives_the_cells_to_who_waits(selected: Program) -> None:
    taken = batch(selected, at_once=2, capacity=64)
    first, second = job(PROMPTS[5], new=50), job(PROMPTS[6], new=30)
    taken.submit(first)
    taken.submit(second)
    for _ in range(6):
        taken.step()
    assert (taken.num_running, heard(second).tokens) == (1, [])
    taken.cancel(first)
    assert finished(taken, []) == []
    assert (heard(first).finish, heard(second).finish) == (CANCELLED, LENGTH)
    assert taken.decoder.table.num_free == 64


def failing_with(monkeypatch: pytest.MonkeyPatch, taken: Batch, bad: int) -> None:
    """Every step that feeds this token fails."""
    begin = taken.decoder.begin

    def fails(sequences: Sequence[int], ids: Sequence[int], rows: Sequence[int]) -> Any:
        if bad in ids:
            raise DelegateError("model.pte failed on cpu: no memory")
        return begin(sequences, ids, rows)

    monkeypatch.setattr(taken.decoder, "begin", fails)


def test_a_step_that_fails_costs_only_the_text_that_it_fails_with(
    selected: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = batch(selected)
    failing_with(monkeypatch, taken, 7)
    jobs = [job(prompt) for prompt in PROMPTS]
    doomed = job([*PROMPTS[4], 7, 8])
    finished(taken, [*jobs[:4], doomed, *jobs[4:]])
    assert heard(doomed).finish == FAILED
    assert str(doomed.error) == "model.pte failed on cpu: no memory"
    expected = [alone(selected, prompt) for prompt in PROMPTS]
    for each, tokens in zip(jobs, expected, strict=True):
        # A text that chooses the token itself fails there too.
        assert heard(each).tokens == (tokens[: tokens.index(7) + 1] if 7 in tokens[:-1] else tokens)


def poisoned_with(monkeypatch: pytest.MonkeyPatch, taken: Batch, bad: int) -> None:
    """The values of this token are not finite, which reaches every query of any text."""
    begin, update = taken.decoder.begin, taken.decoder.cache.update_and_fetch
    fed: list[int] = []

    def begins(sequences: Sequence[int], ids: Sequence[int], rows: Sequence[int]) -> Any:
        fed[:] = ids
        return begin(sequences, ids, rows)

    def updates(layer: int, keys: mx.array, values: mx.array, positions: Sequence[int]) -> Any:
        is_bad = mx.array([token == bad for token in fed])[None, None, :, None]
        return update(layer, keys, mx.where(is_bad, mx.array(mx.inf, values.dtype), values), positions)

    monkeypatch.setattr(taken.decoder, "begin", begins)
    monkeypatch.setattr(taken.decoder.cache, "update_and_fetch", updates)


@pytest.mark.parametrize("storage", [None, "fp16"])
def test_numbers_that_are_not_finite_end_the_text_that_has_them_and_no_other(
    selected: Program, monkeypatch: pytest.MonkeyPatch, storage: str | None
) -> None:
    policy = CachePolicy(initial_capacity=8, storage=storage)
    taken = Batch(PackedDecoder(selected, num_sequences=4, policy=policy), max_running=4, max_kept=60)
    poisoned_with(monkeypatch, taken, 7)
    jobs = [job(prompt) for prompt in PROMPTS]
    # Its values are in the cells for some steps before it is to be continued itself.
    doomed = job([7, *PROMPTS[6]])
    finished(taken, [*jobs[:3], doomed, *jobs[3:]])
    assert heard(doomed).finish == FAILED
    assert isinstance(doomed.error, SamplingError)
    assert str(doomed.error).startswith("model.pte: the logits are not finite numbers, so no token can be chosen")
    decoder = Decoder(selected, policy=CachePolicy(storage=storage))
    for each in jobs:
        expected = list(Engine(decoder).generate(each.prompt, Request(max_new_tokens=NEW)))
        assert heard(each).tokens == (expected[: expected.index(7) + 1] if 7 in expected[:-1] else expected)


def test_what_a_text_leaves_in_its_cells_is_not_another_ones_fault(
    selected: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = batch(selected, at_once=4)
    poisoned_with(monkeypatch, taken, 7)
    leaving, staying, doomed, short = job(PROMPTS[4]), job(PROMPTS[3]), job([7, *PROMPTS[5]]), job(PROMPTS[1])
    for each in (leaving, staying, doomed, short):
        taken.submit(each)
    while not heard(staying).tokens:
        taken.step()
    # Cells before those of who stays are free now; the next one takes them and leaves more than the last needs.
    taken.cancel(leaving)
    finished(taken, [])
    assert (heard(doomed).finish, heard(doomed).tokens) == (FAILED, [])
    assert [heard(each).tokens for each in (staying, short)] == [
        alone(selected, each.prompt) for each in (staying, short)
    ]


def test_a_listener_that_fails_ends_its_own_text_alone(selected: Program) -> None:
    class Deaf(Heard):
        def token(self, token: int) -> bool:
            raise TextError("tokenizer.json: no such token")

    failed = Job(PROMPTS[2], Request(max_new_tokens=NEW), Deaf())
    other = job(PROMPTS[3])
    assert finished(batch(selected), [failed, other]) == [[], alone(selected, PROMPTS[3])]
    assert (failed.finish, str(failed.error)) == (FAILED, "tokenizer.json: no such token")


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "model.pte: the prompt has no tokens; expected at least 1 to continue."),
        (
            [9] * 64,
            "model.pte: the text has 64 tokens, and the cache holds 64 of it; expected room for at least one more. "
            "Shorten the text, or raise the capacity (--kv-max-capacity), which the artifact's context bounds.",
        ),
    ],
    ids=["empty", "long"],
)
def test_a_prompt_that_cannot_be_continued_is_refused(selected: Program, prompt: list[int], message: str) -> None:
    for taken in (batch(selected), OneByOne(Engine(Decoder(selected)))):
        with pytest.raises(CacheError) as refused:
            taken.submit(job(prompt))
        assert str(refused.value) == message
        assert taken.is_idle


def test_tokens_outside_the_vocabulary_fail_alone(selected: Program) -> None:
    jobs = [job([5, VOCAB_SIZE]), job(PROMPTS[1])]
    assert finished(batch(selected), jobs)[1] == alone(selected, PROMPTS[1])
    assert str(jobs[0].error) == (
        f"model.pte: token id {VOCAB_SIZE} is outside the vocabulary of {VOCAB_SIZE}. Use the tokenizer that belongs "
        "to the model."
    )


def test_an_artifact_of_last_logits_cannot_be_batched(artifact: Callable[[str], Artifact]) -> None:
    with Program.load(artifact("mixed").pte) as program, pytest.raises(DelegateError) as refused:
        PackedDecoder(program, num_sequences=2)
    assert str(refused.value) == (
        "model.pte decodes one text at a time: a step of it gives the logits of one token (last); export it with "
        "logits: selected."
    )


def test_one_by_one_texts_are_what_they_are_alone(artifact: Callable[[str], Artifact]) -> None:
    with Program.load(artifact("mixed").pte) as program:
        taken = OneByOne(Engine(Decoder(program)))
        jobs = [job(prompt, sampling=SEEDED) for prompt in PROMPTS]
        stopped, left = job(PROMPTS[3], wanted=2), job(PROMPTS[4])
        for each in (*jobs, stopped, left):
            taken.submit(each)
        taken.step()
        assert taken.num_running == 1
        taken.cancel(left)
        assert finished(taken, []) == []
        assert [heard(each).tokens for each in jobs] == [alone(program, each.prompt, sampling=SEEDED) for each in jobs]
        assert heard(stopped).tokens == alone(program, PROMPTS[3])[:2]
        assert (heard(stopped).finish, heard(left).finish) == (STOP, CANCELLED)
        unwanted = job(PROMPTS[7])
        unwanted.is_unwanted = True
        assert finished(taken, [unwanted]) == [[]]
        assert heard(unwanted).finish == CANCELLED
