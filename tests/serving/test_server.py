"""What OpenAI's own client gets from a server: the artifact's answers, whole or streamed, and errors it can read."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from pipeline.errors import DelegateError
from tests.bundles import Bundle
from tests.serving.servers import Running, alone, ends_by_itself, serving

QUESTIONS = ["hello", "why", "a", "1 + 1 =", "?", "the end", "[1, 2]", "def f:"]

NEW = 12


def said(question: str) -> list[Any]:
    return [{"role": "user", "content": question}]


@pytest.fixture(scope="module")
def running(bundle: Bundle) -> Iterator[Running]:
    """One server for the tests that leave it as it was."""
    with serving(bundle("selected")) as running:
        yield running


def raw(
    running: Running, method: str, path: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """A request as no client library would send it: status, JSON and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
    given = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
    connection.request(method, path, body, given)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, json.loads(content), {name.lower(): text for name, text in answer.getheaders()}


def slowed(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its steps take so long that a test can come between them."""
    step = running.served.engine.step
    monkeypatch.setattr(running.served.engine, "step", lambda: (time.sleep(0.05), step()))


def until(condition: Callable[[], bool]) -> bool:
    """Whether it has come true within some seconds."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_the_one_model_is_listed_by_the_bundles_name(running: Running) -> None:
    (listed,) = running.client.models.list().data
    assert (listed.id, listed.object) == ("selected", "model")
    assert running.client.models.retrieve("selected").id == "selected"
    assert raw(running, "GET", "/health")[:2] == (200, {"status": "ok", "texts": 0})


def test_a_question_is_answered_as_the_artifact_answers_it_alone(running: Running, bundle: Bundle) -> None:
    answer = running.client.chat.completions.create(model=running.model, messages=said("hello"), max_tokens=NEW)
    (choice,) = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == alone(bundle("selected"), said("hello"), NEW)
    assert (answer.object, answer.model, choice.finish_reason) == ("chat.completion", "selected", "length")
    assert answer.usage is not None
    prompt = len(running.served.chat.prompt(said("hello")))
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (prompt, NEW)
    assert answer.usage.total_tokens == prompt + NEW


def test_streamed_pieces_are_the_whole_answer_and_usage_comes_last_if_asked_for(running: Running) -> None:
    asked: dict[str, Any] = {"model": running.model, "messages": said("why"), "max_tokens": NEW}
    whole = running.client.chat.completions.create(**asked).choices[0].message.content
    stream = running.client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len(chunks) > 4
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == NEW
    assert {chunk.id for chunk in chunks} == {last.id}
    assert all(chunk.usage is None for chunk in running.client.chat.completions.create(**asked, stream=True))


def test_texts_are_continued_streamed_and_whole(running: Running, bundle: Bundle) -> None:
    tokens = running.served.chat.text("once upon")
    expected = alone(bundle("selected"), "once upon", 16)
    done = running.client.completions.create(model=running.model, prompt=["once upon", "a"])
    assert [choice.text for choice in done.choices] == [expected, alone(bundle("selected"), "a", 16)]
    assert [choice.index for choice in done.choices] == [0, 1]
    stream = running.client.completions.create(model=running.model, prompt=tokens, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == expected


def test_eight_clients_at_once_get_what_each_would_get_alone(running: Running, bundle: Bundle) -> None:
    def ask(question: str) -> str | None:
        answer = running.client.chat.completions.create(model=running.model, messages=said(question), max_tokens=NEW)
        return answer.choices[0].message.content

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(ask, QUESTIONS))
    assert answers == [alone(bundle("selected"), said(question), NEW) for question in QUESTIONS]


def test_a_seed_repeats_itself_and_several_choices_are_none_alike(running: Running, bundle: Bundle) -> None:
    asked: dict[str, Any] = {"model": running.model, "messages": said("a"), "max_tokens": NEW, "temperature": 1.5}
    first, second = (
        [choice.message.content for choice in running.client.chat.completions.create(**asked, n=3, seed=4).choices]
        for _ in range(2)
    )
    assert first == second
    assert first == [alone(bundle("selected"), said("a"), NEW, temperature=1.5, seed=seed) for seed in (4, 5, 6)]
    assert len(set(first)) == 3


def test_an_answer_ends_before_a_stop_string(running: Running, bundle: Bundle) -> None:
    whole = alone(bundle("selected"), said("hello"), NEW)
    stop = whole[4:7]
    asked: dict[str, Any] = {"model": running.model, "messages": said("hello"), "max_tokens": NEW}
    for given in (stop, ["never", stop]):
        (choice,) = running.client.chat.completions.create(**asked, stop=given).choices
        assert (choice.message.content, choice.finish_reason) == (whole[: whole.index(stop)], "stop")


def test_an_answer_ends_with_the_turn(bundle: Bundle) -> None:
    for ends_with in range(4, 260):
        ending = bundle("selected", ends_with)
        shown = alone(ending, said("hello"), NEW)
        if shown and ends_by_itself(ending, said("hello"), NEW):
            break
    with serving(ending) as running:
        answer = running.client.chat.completions.create(model=running.model, messages=said("hello"), max_tokens=NEW)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == (shown, "stop")


@pytest.mark.parametrize(
    ("changes", "kind", "param", "code", "message"),
    [
        (
            {"model": "gpt-4"},
            openai.NotFoundError,
            "model",
            "model_not_found",
            "model is 'gpt-4', and there is only 'selected' here.",
        ),
        (
            {"temperature": -1},
            openai.BadRequestError,
            "temperature",
            "invalid_value",
            "temperature is -1; expected 0 for greedy decoding, or a number from 0.000001 to 1000000.",
        ),
        (
            {"logprobs": True},
            openai.BadRequestError,
            "logprobs",
            "unsupported_parameter",
            "logprobs is true, and this server does not do that; expected it to be left out.",
        ),
        (
            {"max_tokens": 60},
            openai.BadRequestError,
            "messages",
            "context_length_exceeded",
            "messages: 24 tokens, and 60 more are asked for; expected at most 64 together, which is the context here. "
            "Shorten the text, or ask for fewer.",
        ),
    ],
    ids=["model", "temperature", "logprobs", "context"],
)
def test_errors_are_those_of_openai(
    running: Running, changes: dict[str, Any], kind: type[openai.APIStatusError], param: str, code: str, message: str
) -> None:
    asked: dict[str, Any] = {"model": running.model, "messages": said("hello"), **changes}
    with pytest.raises(kind) as refused:
        running.client.chat.completions.create(**asked)
    assert refused.value.body == {"message": message, "type": "invalid_request_error", "param": param, "code": code}


def test_tokens_that_the_model_has_not_are_refused(running: Running) -> None:
    for prompt, problem in (([5, 260], "prompt has token 260"), ([-1], "prompt has token -1")):
        with pytest.raises(openai.BadRequestError) as refused:
            running.client.completions.create(model=running.model, prompt=prompt)
        assert refused.value.body == {
            "message": f"{problem}; expected at least one, from 0 to 259.",
            "type": "invalid_request_error",
            "param": "prompt",
            "code": "invalid_value",
        }


@pytest.mark.parametrize(
    ("request_", "status", "message"),
    [
        (("POST", "/v1/completions", b"x" * (4 << 20 | 1)), 413, "the body is larger than 4194304 bytes; expected at"),
        (("GET", "/v2"), 404, "GET /v2: Not Found; see /v1/models, /v1/chat/completions, /v1/completions and /health."),
        (("GET", "/v1/completions"), 405, "GET /v1/completions: Method Not Allowed; see "),
        (("POST", "/v1/completions", b"{"), 400, "the body is no JSON ("),
    ],
    ids=["large", "path", "method", "json"],
)
def test_what_is_no_request_is_refused_in_json(
    running: Running, request_: tuple[Any, ...], status: int, message: str
) -> None:
    found, content, _ = raw(running, *request_)
    assert found == status
    assert content["error"]["message"].startswith(message)
    assert content["error"]["type"] == "invalid_request_error"


def test_web_pages_can_neither_reach_the_server_by_a_name_of_theirs_nor_send_without_asking(running: Running) -> None:
    status, content, _ = raw(running, "GET", "/v1/models", Host="evil.example:80")
    assert (status, content["error"]["code"]) == (403, "unknown_host")
    for host in (f"localhost:{running.port}", f"[::1]:{running.port}", "127.0.0.1"):
        assert raw(running, "GET", "/v1/models", Host=host)[0] == 200
    status, content, _ = raw(running, "POST", "/v1/completions", b"{}", Content_Type="text/plain")
    assert (status, content["error"]["message"]) == (
        415,
        "the body is text/plain; expected application/json as Content-Type.",
    )
    assert "access-control-allow-origin" not in raw(running, "GET", "/v1/models", Origin="http://evil.example")[2]


def test_pages_of_an_origin_that_is_let_in_may_read_answers(bundle: Bundle) -> None:
    with serving(bundle("selected"), origins=("http://localhost:3000",)) as running:
        for origin, allowed in (("http://localhost:3000", "http://localhost:3000"), ("http://evil.example", None)):
            headers = raw(running, "GET", "/v1/models", Origin=origin)[2]
            assert headers.get("access-control-allow-origin") == allowed


def test_a_client_that_leaves_is_not_computed_for(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(bundle("talk"), at_once=1) as running:
        slowed(running, monkeypatch)
        asked: dict[str, Any] = {"model": "talk", "messages": said("hello"), "max_tokens": 200}
        stream = running.client.chat.completions.create(**asked, stream=True)
        next(iter(stream))
        stream.close()
        assert until(lambda: running.worker.num_jobs == 0)
        # Whole answers too, and those that still wait.
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", running.port)
            body = json.dumps(asked)
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
            assert until(lambda: running.worker.num_jobs > 0)
            connection.close()
        assert until(lambda: running.worker.num_jobs == 0)


def test_more_than_may_wait_are_refused_and_told_to_come_again(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(bundle("talk"), at_once=1, max_waiting=1) as running:
        slowed(running, monkeypatch)
        asked: dict[str, Any] = {"model": "talk", "messages": said("hello"), "max_tokens": 20, "stream": True}
        streams = [running.client.chat.completions.create(**asked) for _ in range(2)]
        with pytest.raises(openai.InternalServerError) as refused:
            running.client.chat.completions.create(**asked)
        assert refused.value.status_code == 503
        assert refused.value.response.headers["retry-after"] == "1"
        assert refused.value.body == {
            "message": "2 texts are being continued or wait, and 1 more are asked for; at most 2 together are "
            "expected. Try again later, or start the server with a longer --queue.",
            "type": "server_error",
            "param": None,
            "code": "queue_full",
        }
        for stream in streams:
            assert list(stream)[-1].choices[0].finish_reason in ("length", "stop")


def test_an_artifact_of_last_logits_is_served_one_text_after_another(bundle: Bundle) -> None:
    with serving(bundle("talk")) as running:
        assert running.served.at_once == 1
        assert running.served.notes == (
            "model.pte: one text at a time, the others wait: a step of it gives the logits of one token (last); export "
            "it with logits: selected",
        )

        def ask(question: str) -> str | None:
            answer = running.client.chat.completions.create(model="talk", messages=said(question), max_tokens=NEW)
            return answer.choices[0].message.content

        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(ask, QUESTIONS[:4]))
        assert answers == [alone(bundle("talk"), said(question), NEW) for question in QUESTIONS[:4]]


def test_messages_need_a_template(bundle: Bundle) -> None:
    with serving(bundle("selected"), chat="none") as running:
        with pytest.raises(openai.BadRequestError) as refused:
            running.client.chat.completions.create(model=running.model, messages=said("hello"))
        assert refused.value.code == "no_chat_template"
        assert running.client.completions.create(model=running.model, prompt="hello", max_tokens=2).choices


def test_a_text_that_fails_is_told_of_and_the_server_goes_on(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(bundle("selected")) as running:
        decoder = running.served.engine.decoder  # type: ignore[union-attr]
        asked: dict[str, Any] = {"model": running.model, "messages": said("hello"), "max_tokens": 4}
        with monkeypatch.context() as patched:

            def fails(*_: Any) -> Any:
                raise DelegateError("model.pte failed on cpu: no memory")

            patched.setattr(decoder, "begin", fails)
            with pytest.raises(openai.InternalServerError) as refused:
                running.client.chat.completions.create(**asked)
            assert refused.value.body == {
                "message": "model.pte failed on cpu: no memory",
                "type": "server_error",
                "param": None,
                "code": None,
            }
            with pytest.raises(openai.APIError, match=r"^model\.pte failed on cpu: no memory$"):
                list(running.client.chat.completions.create(**asked, stream=True))
        assert running.client.chat.completions.create(**asked).choices[0].finish_reason == "length"


def test_a_server_that_is_told_to_end_tells_who_is_being_answered(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(bundle("talk"), grace_seconds=0.0) as running:
        slowed(running, monkeypatch)
        stream = running.client.chat.completions.create(
            model="talk", messages=said("hello"), max_tokens=200, stream=True
        )
        next(iter(stream))
        running.worker.dismiss()
        with pytest.raises(openai.APIError, match=r"^the server has stopped\. Start it again\.$"):
            list(stream)
        assert raw(running, "GET", "/health")[:2] == (503, {"status": "stopped", "texts": 0})
        with pytest.raises(openai.InternalServerError, match=r"the server has stopped\. Start it again\."):
            running.client.chat.completions.create(model="talk", messages=said("hello"))
