"""A stop string is found however the text is cut, and nothing of it is given."""

from __future__ import annotations

import random
import re

import pytest

from pipeline.errors import TextError
from pipeline.text.stop import StopStrings


def passed(strings: list[str], pieces: list[str]) -> tuple[str, str | None]:
    stop = StopStrings(strings)
    return "".join(map(stop.add, pieces)) + stop.flush(), stop.met


def expected(strings: list[str], text: str) -> tuple[str, str | None]:
    """Read character by character: the first moment at which the text so far ends in a stop string."""
    for end in range(len(text) + 1):
        for string in sorted(strings, key=len, reverse=True):
            if text[:end].endswith(string):
                return text[: end - len(string)], string
    return text, None


@pytest.mark.parametrize(
    ("strings", "text", "given", "met"),
    [
        (["END"], "the END is", "the ", "END"),
        (["END"], "the EN", "the EN", None),
        (["\n\n", "User:"], "Paris.\n\nUser: x", "Paris.", "\n\n"),
        (["abcd", "bc"], "xabcd", "xa", "bc"),
        (["bc", "abc"], "xabcd", "x", "abc"),
        (["aab"], "aaab", "a", "aab"),
        (["😀!"], "hi 😀!", "hi ", "😀!"),
        ([], "anything", "anything", None),
    ],
)
def test_the_string_that_is_complete_first_ends_the_text(
    strings: list[str], text: str, given: str, met: str | None
) -> None:
    for pieces in ([text], list(text), [text[:2], text[2:]], ["", *text, ""]):
        assert passed(strings, pieces) == (given, met)


def test_any_text_in_any_pieces_stops_where_reading_it_by_character_does() -> None:
    for seed in range(3000):
        chance = random.Random(seed)
        strings = ["".join(chance.choices("ab", k=chance.randint(1, 5))) for _ in range(chance.randint(1, 3))]
        pieces = ["".join(chance.choices("abc", k=chance.randrange(4))) for _ in range(8)]
        assert passed(strings, pieces) == expected(strings, "".join(pieces)), (strings, pieces)


def test_only_what_may_begin_a_stop_string_is_held_back() -> None:
    stop = StopStrings(["STOP", "TON"])
    assert [stop.add(piece) for piece in ("a", " S", "T", "O", "R", "E ")] == ["a", " ", "", "", "STOR", "E "]
    assert stop.add("ST") == ""
    assert stop.flush() == "ST"
    assert stop.flush() == ""


def test_nothing_follows_a_stop_string() -> None:
    stop = StopStrings(["."])
    assert stop.add("Paris. And") == "Paris"
    assert stop.add(" then") == stop.flush() == ""
    assert stop.met == "."


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(
        TextError,
        match=re.escape("a stop string is empty; expected some text, since every text begins with an empty one."),
    ):
        StopStrings(["a", ""])
