"""A conversation that is edited goes on as if it had always been what it is now."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import CacheError, TextError
from pipeline.runtime.generate import Request
from pipeline.runtime.policy import CachePolicy
from pipeline.session.opened import Choices, Opened, open_artifact
from pipeline.session.talk import Talk
from tests.bundles import Bundle

NEVER: Callable[[], bool] = lambda: False  # noqa: E731


@pytest.fixture(scope="module")
def opened(bundle: Bundle) -> Opened:
    """One of two layers slides over 8 positions; steps of at most 8 tokens, 256 in all."""
    return open_artifact(bundle("talk"), Choices())


def said(talk: Talk, question: str, is_cancelled: Callable[[], bool] = NEVER) -> str:
    return "".join(talk.ask(question, is_cancelled))


def history(talk: Talk) -> list[int]:
    return list(talk._conversation.tokens)


def request(opened: Opened, max_new_tokens: int = 8) -> Request:
    return Request(max_new_tokens=max_new_tokens, stop_ids=opened.stop_ids)


def told(opened: Opened, talk: Talk, question: str) -> list[int]:
    """What a new cache, fed the whole conversation, answers."""
    feed = talk._conversation.ask(question)
    prompt = [*history(talk)[: feed.keep], *feed.tokens]
    opened.engine.clear()
    return list(opened.engine.generate(prompt, request(opened)))


def answered(talk: Talk, question: str) -> list[int]:
    turn = talk.ask(question, NEVER)
    for _ in turn:
        pass
    return turn.answer.generation.tokens


def test_four_turns_with_undo_and_reset_answer_as_a_fresh_run_of_what_is_left(opened: Opened) -> None:
    edits: list[Callable[[Talk], Any]] = [
        lambda talk: None,
        lambda talk: talk.undo(1),
        lambda talk: talk.undo(2),
        lambda talk: talk.undo_tokens(3),
        lambda talk: talk.undo_tokens(40),
        lambda talk: talk.reset(),
    ]
    for edit in edits:
        talk = Talk(opened, request(opened))
        for question in ("hello", "and you?", "why", "so what"):
            said(talk, question)
        edit(talk)
        found = answered(talk, "at last")
        talk.undo(1)
        assert found == told(opened, talk, "at last")


def test_only_what_is_new_is_fed(opened: Opened) -> None:
    talk = Talk(opened, request(opened))
    said(talk, "hello")
    before = talk.num_tokens
    turn = talk.ask("again", NEVER)
    for _ in turn:
        pass
    # The answer's last token was not fed when its budget ended it.
    assert turn.answer.generation.num_reused == before - 1
    assert not turn.was_fed_anew


def test_what_a_ring_cannot_take_back_is_fed_anew(opened: Opened) -> None:
    talk = Talk(opened, request(opened, 20))
    for question in ("hello", "and you?", "why"):
        said(talk, question)
    talk.undo(1)
    turn = talk.ask("instead", NEVER)
    for _ in turn:
        pass
    assert turn.was_fed_anew


def turn_end_of(opened: Opened, question: str) -> tuple[list[int], int] | None:
    """What is answered up to a token that was nowhere before, and that token."""
    asked = opened.engine.generate(opened.chat.prompt([{"role": "user", "content": question}]), request(opened, 12))
    tokens = list(asked)
    new = (index for index in range(1, 12) if tokens[index] not in (*asked.prompt, *tokens[:index]))
    index = next(new, None)
    return None if index is None else (tokens[:index], tokens[index])


def test_the_token_that_ends_a_turn_is_part_of_it(bundle: Bundle, opened: Opened) -> None:
    found = {question: turn_end_of(opened, question) for question in ("hi", "hello", "why")}
    question, (tokens, end) = next((question, pair) for question, pair in found.items() if pair is not None)
    ending = open_artifact(bundle("talk", end), Choices())
    assert ending.chat.turn_end == end
    talk = Talk(ending, request(ending, 12))
    turn = talk.ask(question, NEVER)
    for _ in turn:
        pass
    generation = turn.answer.generation
    assert (turn.answer.finish, turn.answer.stopped_by) == ("stop", end)
    assert generation.tokens == tokens
    assert "</s>" not in turn.answer.text
    assert history(talk) == [*generation.text, end]
    following = talk.ask("and", NEVER)
    for _ in following:
        pass
    # The token that ended the turn is the first that is new to the cache.
    assert following.feed.keep == len(generation.text) + 1
    assert following.answer.generation.num_reused == len(generation.text)


def test_a_cancelled_answer_stays_as_far_as_it_came_and_is_closed(opened: Opened) -> None:
    talk = Talk(opened, request(opened))
    shown: list[str] = []
    turn = talk.ask("hello", lambda: len(shown) >= 3)
    for piece in turn:
        shown.append(piece)
    assert turn.answer.was_cancelled
    assert turn.answer.generation.tokens
    assert history(talk) == [*turn.answer.generation.text, opened.chat.turn_end]
    assert talk.messages[-1] == {"role": "assistant", "content": "".join(shown)}
    found = answered(talk, "go on")
    talk.undo(1)
    assert found == told(opened, talk, "go on")


def test_cancelled_before_an_answer_began_the_question_is_taken_back(opened: Opened) -> None:
    talk = Talk(opened, request(opened))
    said(talk, "hello")
    before = history(talk), talk.messages
    assert said(talk, "a question of more tokens than one step", lambda: True) == ""
    assert (history(talk), talk.messages) == before
    found = answered(talk, "why")
    talk.undo(1)
    assert found == told(opened, talk, "why")


def test_left_by_its_reader_an_answer_is_kept_as_far_as_it_was_read(opened: Opened) -> None:
    talk = Talk(opened, request(opened))
    turn = iter(talk.ask("hello", NEVER))
    first = next(turn)
    turn.close()  # type: ignore[attr-defined]
    assert talk.messages[-1]["content"].startswith(first)
    assert talk.num_turns == 1


def test_a_stop_string_ends_an_answer_and_the_transcript_has_what_was_shown(opened: Opened) -> None:
    whole = said(Talk(opened, request(opened)), "hello")
    stop = whole[4:6]
    talk = Talk(opened, request(opened), stop_strings=[stop])
    turn = talk.ask("hello", NEVER)
    text = "".join(turn)
    assert text == whole[: whole.index(stop)]
    assert (turn.answer.finish, turn.answer.stopped_by) == ("stop_string", stop)
    assert talk.messages[-1]["content"] == text
    found = answered(talk, "why")
    talk.undo(1)
    assert found == told(opened, talk, "why")


def test_the_budget_is_what_the_capacity_leaves_and_a_full_cache_refuses_the_next_turn(bundle: Bundle) -> None:
    opened = open_artifact(bundle("talk"), Choices(policy=CachePolicy(capacity=48)))
    # Nothing ends it but the budget.
    talk = Talk(opened, Request(max_new_tokens=1000))
    turn = talk.ask("hello", NEVER)
    for _ in turn:
        pass
    generation = turn.answer.generation
    assert generation.budget == 48 - len(generation.prompt)
    assert talk.num_tokens == 48
    with pytest.raises(CacheError) as caught:
        talk.ask("more", NEVER)
    assert str(caught.value) == (
        "cache full: 48/48 tokens, and the turn has 23; expected room for them and one more. /undo takes turns back, "
        "/reset all of them."
    )
    assert talk.num_turns == 1
    talk.undo(1)
    assert said(talk, "hello") == turn.answer.text


def test_an_answer_is_admitted_with_room_for_one_token_and_not_with_none(bundle: Bundle) -> None:
    wanted = len(open_artifact(bundle("talk"), Choices()).chat.prompt([{"role": "user", "content": "hello"}]))
    for capacity in (wanted, wanted + 1):
        opened = open_artifact(bundle("talk"), Choices(policy=CachePolicy(capacity=capacity)))
        talk = Talk(opened, request(opened))
        if capacity == wanted:
            with pytest.raises(CacheError, match=r"^cache full: 0/"):
                talk.ask("hello", NEVER)
        else:
            assert len(answered(talk, "hello")) == 1


def test_the_system_needs_a_template_to_speak(bundle: Bundle) -> None:
    opened = open_artifact(bundle("talk"), Choices(chat="none"))
    with pytest.raises(TextError) as caught:
        Talk(opened, request(opened), system="Be brief.")
    assert str(caught.value) == (
        "--system: there is no chat template, so nobody to speak as the system; expected a template. Choose one with "
        "--chat, or put the text in the prompt."
    )


def test_without_a_template_a_text_goes_on_where_it_ended(bundle: Bundle) -> None:
    opened = open_artifact(bundle("talk"), Choices(chat="none"))
    talk = Talk(opened, request(opened, 4))
    first = answered(talk, "once")
    second = answered(talk, "upon")
    ids = opened.tokenizer.encode
    assert history(talk) == [*ids("once"), *first, *ids("upon"), *second]


def test_a_bundle_is_opened_by_its_directory_or_its_file(bundle: Bundle, tmp_path: Path) -> None:
    directory = bundle("llama")
    by_file = open_artifact(directory / "model.pte", Choices())
    assert by_file.path == open_artifact(directory, Choices()).path
    lone = tmp_path / "lone.pte"
    lone.write_bytes((directory / "model.pte").read_bytes())
    with pytest.raises(TextError) as caught:
        open_artifact(lone, Choices())
    assert str(caught.value) == (
        f"{tmp_path}: it has no tokenizer; expected tokenizer.json, tokenizer.model or *.tiktoken in it. Or name "
        "another with --tokenizer."
    )
    assert open_artifact(lone, Choices(tokenizer=directory / "tokenizer.json")).stop_ids == by_file.stop_ids == {1}
