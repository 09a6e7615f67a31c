"""Decoding drives the artifact by what it publishes, and never past what it can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from pipeline.errors import CacheError, DelegateError
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from tests.tiny_models import VOCAB_SIZE, Artifact

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
CAPACITY = 64


@pytest.fixture
def pte(artifact: Callable[[str], Artifact]) -> Iterator[PteFile]:
    """Two layers, one of which slides over 8 positions; steps of at most 4 tokens, 64 in all."""
    with PteFile.open(artifact("mixed").pte) as opened:
        yield opened


@pytest.fixture
def decoder(pte: PteFile) -> Decoder:
    return Decoder(pte)


def refusal(kind: type[Exception], action: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        action()
    return str(caught.value)


def continued(decoder: Decoder, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    return [token for token, _ in decoder.greedy(prompt, max_new_tokens)]


def test_every_chunk_size_gives_the_same_last_logits(decoder: Decoder) -> None:
    rows = []
    for chunk in (None, 1, 2, 3, 4):
        decoder.clear()
        *_, logits = decoder.prefill(PROMPT, chunk)
        assert logits.shape == (VOCAB_SIZE,)
        assert decoder.position == len(PROMPT)
        rows.append(np.array(logits))
    for row in rows[1:]:
        np.testing.assert_allclose(row, rows[0], atol=1e-4)


def test_prefill_yields_one_row_for_each_chunk(decoder: Decoder) -> None:
    assert len(list(decoder.prefill(PROMPT))) == 3
    assert len(list(decoder.prefill(PROMPT, 2))) == 6


def test_greedy_continues_with_the_likeliest_token_and_shows_the_logits_it_chose_from(decoder: Decoder) -> None:
    history = list(PROMPT)
    for token, logits in list(decoder.greedy(PROMPT, 8)):
        decoder.clear()
        *_, expected = decoder.prefill(history)
        np.testing.assert_allclose(np.array(logits), np.array(expected), atol=1e-4)
        assert token == int(np.argmax(expected))
        history.append(token)
    assert len(history) == len(PROMPT) + 8


def test_the_last_token_asked_for_is_not_fed(decoder: Decoder) -> None:
    assert len(continued(decoder, PROMPT, 3)) == 3
    assert decoder.position == len(PROMPT) + 2


def test_a_stop_token_is_yielded_and_ends_the_text(decoder: Decoder) -> None:
    free = continued(decoder, PROMPT, 8)
    stop = next(token for token in free[1:] if token not in free[: free.index(token)])
    decoder.clear()
    decoder.contract = replace(decoder.contract, eos_ids=frozenset({stop}))
    assert continued(decoder, PROMPT, 8) == free[: free.index(stop) + 1]


def test_a_full_context_ends_the_text(decoder: Decoder) -> None:
    decoder.contract = replace(decoder.contract, eos_ids=frozenset())
    assert len(continued(decoder, PROMPT * 5, 1000)) == CAPACITY - len(PROMPT) * 5 + 1
    assert decoder.position == CAPACITY


def test_a_text_longer_than_the_context_is_refused_before_anything_is_written(decoder: Decoder) -> None:
    list(decoder.prefill(PROMPT))
    found = refusal(CacheError, lambda: next(decoder.prefill([1] * (CAPACITY - len(PROMPT) + 1))))
    assert found == (
        "model.pte: 54 tokens at position 11 exceed the context of 64. Shorten the text, or export with a larger "
        "max_context_len."
    )
    assert decoder.position == len(PROMPT)
    list(decoder.prefill([1] * (CAPACITY - len(PROMPT))))


def test_a_step_longer_than_the_artifact_admits_is_refused_and_changes_nothing(decoder: Decoder) -> None:
    list(decoder.prefill(PROMPT))
    expected = np.array(decoder.feed([7]))
    decoder.clear()
    list(decoder.prefill(PROMPT))
    found = refusal(DelegateError, lambda: decoder.feed([1] * 5))
    assert found == "model.pte: forward: input 0 is [1, 5] of mlx.core.int64; expected at most [1, 4] of int64."
    assert decoder.position == len(PROMPT)
    np.testing.assert_array_equal(np.array(decoder.feed([7])), expected)


def test_clear_starts_a_new_text(decoder: Decoder) -> None:
    first = continued(decoder, PROMPT, 5)
    decoder.clear()
    assert decoder.position == 0
    assert continued(decoder, PROMPT, 5) == first


def fed_one_by_one(decoder: Decoder, tokens: Sequence[int]) -> np.ndarray:
    decoder.clear()
    *_, logits = decoder.prefill(tokens)
    return np.array(logits)


@pytest.mark.parametrize("taken", [1, 4])
def test_a_text_that_is_left_early_ends_where_its_reader_is(decoder: Decoder, taken: int) -> None:
    """The step that runs ahead is not part of the text."""
    text = decoder.greedy(PROMPT, 8)
    tokens = [next(text)[0] for _ in range(taken)]
    assert decoder.position == len(PROMPT) + taken - 1
    text.close()
    assert decoder.position == len(PROMPT) + taken - 1
    found = np.array(decoder.feed([tokens[-1]]))
    np.testing.assert_allclose(found, fed_one_by_one(decoder, [*PROMPT, *tokens]), atol=1e-4)


def test_a_stop_token_is_not_fed_though_the_step_after_it_was_begun(decoder: Decoder) -> None:
    first, second = continued(decoder, PROMPT, 2)
    decoder.clear()
    decoder.contract = replace(decoder.contract, eos_ids=frozenset({second}))
    assert continued(decoder, PROMPT, 8) == [first, second]
    assert decoder.position == len(PROMPT) + 1
    found = np.array(decoder.feed([9]))
    np.testing.assert_allclose(found, fed_one_by_one(decoder, [*PROMPT, first, 9]), atol=1e-4)


def test_a_text_goes_on_after_what_was_fed_in_between(decoder: Decoder) -> None:
    text = decoder.greedy(PROMPT, 4)
    first, _ = next(text)
    decoder.feed([42])
    _, logits = next(text)
    found = np.array(logits)
    np.testing.assert_allclose(found, fed_one_by_one(decoder, [*PROMPT, 42, first]), atol=1e-4)


def test_a_text_goes_on_after_its_history_was_cleared_in_between(decoder: Decoder) -> None:
    text = decoder.greedy(PROMPT, 4)
    first, _ = next(text)
    decoder.clear()
    _, logits = next(text)
    assert decoder.position == 1
    np.testing.assert_allclose(np.array(logits), fed_one_by_one(decoder, [first]), atol=1e-4)


def test_a_step_that_fails_while_the_next_one_is_under_way_takes_both_back(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = decoder.greedy(PROMPT, 8)
    tokens = [next(text)[0] for _ in range(6)]

    def broken(token: mx.array) -> int:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("pipeline.runtime.decoder.number_of", broken)
    found = refusal(DelegateError, lambda: next(text))
    assert found == f"model.pte failed on {mx.default_device()}: out of memory"
    assert decoder.position == len(PROMPT) + 5
    monkeypatch.undo()
    logits = np.array(decoder.feed([tokens[-1]]))
    np.testing.assert_allclose(logits, fed_one_by_one(decoder, [*PROMPT, *tokens]), atol=1e-4)


def test_where_steps_are_of_one_token_none_runs_ahead_and_the_text_is_the_same(decoder: Decoder) -> None:
    expected = continued(decoder, PROMPT, 6)
    decoder.clear()
    decoder.max_write = 1
    assert continued(decoder, PROMPT, 6) == expected


def test_the_plain_graph_gives_the_same_text(decoder: Decoder, pte: PteFile) -> None:
    assert continued(Decoder(pte, fused=False, device=mx.cpu), PROMPT, 6) == continued(decoder, PROMPT, 6)


def test_every_mode_decodes_the_same_text(artifact: Callable[[str], Artifact], decoder: Decoder) -> None:
    expected = continued(decoder, PROMPT, 12)
    for name in ("full", "selected"):
        with PteFile.open(artifact(name).pte) as pte:
            assert continued(Decoder(pte), PROMPT, 12) == expected


def rows_one_by_one(decoder: Decoder) -> np.ndarray:
    decoder.clear()
    return np.stack([np.array(decoder.feed([token])) for token in PROMPT])


def test_a_step_gives_all_the_rows_of_its_mode(artifact: Callable[[str], Artifact], decoder: Decoder) -> None:
    expected = rows_one_by_one(decoder)
    cases = {
        "mixed": ([None, None], [[3], [7]]),
        "full": ([None, None], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        "selected": ([[1], [3, 0, 2]], [[1], [7, 4, 6]]),
        "selected by default": ([None, None], [[3], [7]]),
    }
    for name, (selections, positions) in cases.items():
        with PteFile.open(artifact(name.split()[0]).pte) as pte:
            decoder = Decoder(pte)
        for start, selected, rows in zip((0, 4), selections, positions, strict=True):
            told, logits = decoder.step(PROMPT[start : start + 4], selected)
            assert told == rows
            np.testing.assert_allclose(np.array(logits), expected[rows], atol=1e-4)


def test_prefill_and_greedy_show_all_the_rows_of_every_step(artifact: Callable[[str], Artifact]) -> None:
    for name, expected in {"full": range(len(PROMPT) + 2), "selected": [3, 7, 10, 11, 12]}.items():
        with PteFile.open(artifact(name).pte) as pte:
            decoder = Decoder(pte)
        seen: list[int] = []
        for _ in decoder.greedy(PROMPT, 3, lambda positions, logits, seen=seen: seen.extend(positions)):  # type: ignore[misc]
            pass
        assert seen == list(expected)


@pytest.mark.parametrize("selected", [[], [4], [-1], [0, 1, 2, 3, 4]])
def test_rows_that_a_step_does_not_have_are_refused(artifact: Callable[[str], Artifact], selected: list[int]) -> None:
    with PteFile.open(artifact("selected").pte) as pte:
        decoder = Decoder(pte)
    found = refusal(DelegateError, lambda: decoder.step([1, 2, 3], selected))
    assert found == (
        f"model.pte: rows {selected} of logits are selected in a step of 3 tokens; expected one or more of 0 to 2."
    )
    assert decoder.position == 0


def test_rows_are_selected_of_an_artifact_that_lets_them_be(decoder: Decoder) -> None:
    found = refusal(DelegateError, lambda: decoder.step([1, 2, 3], [0]))
    assert found == (
        "model.pte: rows of logits are selected, and it gives last logits. Export it with logits: selected."
    )


@pytest.mark.parametrize(("name", "published", "rows", "expected"), [("mixed", "full", 1, 3), ("full", "last", 3, 1)])
def test_an_artifact_that_gives_other_rows_than_it_publishes_is_refused(
    artifact: Callable[[str], Artifact], name: str, published: str, rows: int, expected: int
) -> None:
    with PteFile.open(artifact(name).pte) as pte:
        decoder = Decoder(pte)
    decoder.contract = replace(decoder.contract, logits=published)
    assert refusal(DelegateError, lambda: decoder.feed([1, 2, 3])) == (
        f"model.pte: a step of 3 tokens gave logits [1, {rows}, 260]; expected [1, {expected}, 260] for {published} "
        "logits. Run pte verify on it."
    )


@pytest.mark.parametrize("token", [-1, VOCAB_SIZE, 2**40])
def test_a_token_outside_the_vocabulary_is_refused(decoder: Decoder, token: int) -> None:
    found = refusal(DelegateError, lambda: decoder.feed([1, token]))
    assert found == (
        f"model.pte: token id {token} is outside the vocabulary of 260. Use the tokenizer that belongs to the model."
    )
    assert decoder.position == 0


def test_a_step_and_a_prompt_without_tokens_are_refused(decoder: Decoder) -> None:
    found = refusal(CacheError, lambda: decoder.feed([]))
    assert found == "model.pte: the step has no tokens; expected at least 1."
    found = refusal(CacheError, lambda: continued(decoder, [], 3))
    assert found == "model.pte: the prompt has no tokens; expected at least 1 to continue."


def test_the_cache_has_the_activation_dtype_that_is_published(artifact: Callable[[str], Artifact]) -> None:
    with PteFile.open(artifact("llama-bf16").pte) as pte:
        decoder = Decoder(pte)
    assert decoder.contract.dtype == "bf16"
    assert decoder.feed(PROMPT[:8]).dtype == mx.bfloat16
