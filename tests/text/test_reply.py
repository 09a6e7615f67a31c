"""A reply ends at a stop token or a stop string, and shows neither."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.text.reply import Reply
from tests.text.made import Made, opened


@pytest.mark.parametrize("name", ["byte-level", "byte-fallback-spaced", "sentencepiece", "llama3"])
def test_a_stop_string_that_spans_tokens_ends_a_reply(made: Callable[[str], Made], name: str) -> None:
    tokenizer = opened(made(name).directory)
    ids = tokenizer.encode_on("Paris, and then\nUser: what?")
    reply = Reply(tokenizer, stop_ids=(), stop_strings=["\nUser:"], after=ids[0])
    given = [reply.add(token) for token in ids]
    assert "".join(given) + reply.flush() == "Paris, and then"
    assert reply.stopped_by == "\nUser:"


def test_a_stop_token_ends_a_reply_and_gives_what_was_held_back(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("byte-level").directory)
    end = tokenizer.specials["<|im_end|>"]
    reply = Reply(tokenizer, stop_ids={end, 0}, stop_strings=["Paris!"], after=end)
    given = [reply.add(token) for token in tokenizer.encode("It is Paris")]
    assert reply.stopped_by is None
    held = reply.add(end)
    assert held
    assert "".join(given) + held == "It is Paris"
    assert reply.stopped_by == end
    assert reply.add(5) == reply.flush() == ""
    assert reply.stopped_by == end


def test_a_reply_that_is_cut_gives_what_was_held_back(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("llama3").directory)
    reply = Reply(tokenizer, stop_ids=(), stop_strings=["abc"])
    assert "".join(map(reply.add, b"xab\xf0\x9f")) == "x"
    assert reply.flush() == "ab\ufffd"
    assert reply.stopped_by is None


def test_a_stop_string_of_what_flushing_shows_ends_the_reply_too(made: Callable[[str], Made]) -> None:
    tokenizer = opened(made("llama3").directory)
    reply = Reply(tokenizer, stop_ids={128_009}, stop_strings=["\ufffd"])
    assert "".join(map(reply.add, (ord("x"), 0xF0))) == "x"
    assert reply.add(128_009) == ""
    assert reply.stopped_by == "\ufffd"
