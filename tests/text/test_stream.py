"""Streamed text is the whole text, whatever the tokens; and no piece of it is half a character."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from pipeline.text.stream import TextStream
from pipeline.text.tokenizer import Tokenizer
from tests.text.made import MAKERS, TEXTS, Made, opened

NUM_SEQUENCES = 300

BYTES_IN_RUNS = {"byte-fallback", "byte-fallback-spaced"}
"""Where the library gives up a whole run of bytes for one that is wrong, valid characters included."""

ROUND_TRIP = sorted(set(MAKERS) - {"word-ends", "metaspace"})
"""Those that have a token for every text."""


def streamed(tokenizer: Tokenizer, ids: list[int], after: int | None = None, **options: bool) -> str:
    stream = TextStream(tokenizer, after=after, **options)
    return "".join(map(stream.add, ids)) + stream.flush()


def with_whole_characters(made: Made, tokenizer: Tokenizer, chance: random.Random) -> list[int]:
    """Random tokens; bytes among them are those of whole characters."""
    ids: list[int] = []
    for _ in range(chance.randrange(30)):
        if chance.random() < 0.4:
            for byte in chance.choice("aé東😀").encode():
                token = tokenizer.id_of(f"<0x{byte:02X}>")
                assert token is not None
                ids.append(token)
        else:
            token = chance.randrange(made.vocab_size)
            ids += [token] if isinstance(tokenizer.piece(token), str) else []
    return ids


@pytest.mark.parametrize("name", MAKERS)
def test_streamed_text_of_random_tokens_is_what_the_library_decodes_at_once(
    made: Callable[[str], Made], name: str
) -> None:
    reference = made(name)
    tokenizer = opened(reference.directory)
    for seed in range(NUM_SEQUENCES):
        chance = random.Random(seed)
        if name in BYTES_IN_RUNS:
            ids = with_whole_characters(reference, tokenizer, chance)
        else:
            ids = [chance.randrange(reference.vocab_size) for _ in range(chance.randrange(30))]
        assert streamed(tokenizer, ids) == reference.decode(ids), ids


@pytest.mark.parametrize("name", sorted(BYTES_IN_RUNS))
def test_a_wrong_byte_costs_no_valid_character_beside_it(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    ids = [tokenizer.id_of(f"<0x{byte:02X}>") or 0 for byte in b"\xc3\xa9\xff\xe2\x82\xc3\xa9\xf0\x9f"]
    # Each byte is one replacement, as in SentencePiece, which these tokenizers follow.
    assert streamed(tokenizer, ids, after=ids[0]) == "é\ufffd\ufffd\ufffdé\ufffd\ufffd"


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_every_text_comes_back_from_its_tokens(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    # A tokenizer like Llama 2's puts a space behind every special piece too.
    for text in TEXTS[:-1]:
        assert streamed(tokenizer, tokenizer.encode(text)) == text


@pytest.mark.parametrize("name", ROUND_TRIP)
def test_a_character_is_given_once_and_whole(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    stream = TextStream(tokenizer, after=tokenizer.id_of("a"))
    text = "x😀東é👩‍👩‍👧."
    given = [stream.add(token) for token in tokenizer.encode_on(text)]
    assert "".join(given) == text
    assert "\ufffd" not in "".join(given)
    assert stream.flush() == ""


def test_a_token_of_each_byte_gives_a_character_with_its_last_byte(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("llama3").directory)
    stream = TextStream(tokenizer)
    assert [stream.add(byte) for byte in "😀é".encode()] == ["", "", "", "😀", "", "é"]


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback-spaced", "sentencepiece"])
def test_an_answer_keeps_the_space_it_begins_with(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    prompt = tokenizer.encode("What is the capital of France?")
    answer = tokenizer.encode("What is the capital of France? Paris is")[len(prompt) :]
    assert streamed(tokenizer, answer, after=prompt[-1]) == " Paris is"


@pytest.mark.parametrize("name", ["byte-fallback-spaced", "sentencepiece", "metaspace"])
def test_the_space_put_before_a_whole_text_is_left_out(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    ids = tokenizer.encode("Paris is")
    assert streamed(tokenizer, ids) == streamed(tokenizer, ids, after=tokenizer.bos_id) == "Paris is"


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback", "llama3"])
def test_flushing_shows_what_is_incomplete_as_replaced(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    emoji = tokenizer.encode_on("🏴")
    stream = TextStream(tokenizer, after=0)
    assert "".join(map(stream.add, emoji[:-1])) == ""
    assert set(stream.flush()) == {"\ufffd"}
    assert stream.flush() == ""
    # Nothing is left for what comes next.
    assert "".join(map(stream.add, emoji)) == "🏴"


def test_text_ends_a_character_that_bytes_left_incomplete(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("sentencepiece").directory)
    first, word = tokenizer.id_of("<0xE2>"), tokenizer.encode_on("capital")
    assert first is not None
    stream = TextStream(tokenizer, after=word[0])
    assert [stream.add(first), stream.add(word[0])][1].startswith("\ufffd")


def test_controls_are_shown_unless_they_are_hidden(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("byte-level").directory)
    ids = tokenizer.encode("a<|im_end|><think>b")
    assert streamed(tokenizer, ids) == "a<|im_end|><think>b"
    assert streamed(tokenizer, ids, hides_controls=True) == "a<think>b"


@pytest.mark.parametrize("name", MAKERS)
def test_an_id_without_a_token_is_no_text(made: Callable[[str], Made], name: str) -> None:
    reference = made(name)
    tokenizer = opened(reference.directory)
    if tokenizer.is_piecewise:
        assert streamed(tokenizer, [reference.vocab_size + 5]) == ""
