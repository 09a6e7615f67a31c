"""What a client asks for is read as OpenAI's clients send it, and what is wrong is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.errors import RequestError
from pipeline.serving import requests

HELLO = {"role": "user", "content": "hello"}


def chat(**changes: Any) -> requests.ChatAsked:
    return requests.chat(json.dumps({"model": "m", "messages": [HELLO], **changes}).encode())


def completion(**changes: Any) -> requests.CompletionAsked:
    return requests.completion(json.dumps({"model": "m", "prompt": "hello", **changes}).encode())


def test_what_is_left_out_or_null_is_the_servers_choice() -> None:
    names = ("temperature", "top_p", "seed", "stop", "n", "stream", "stream_options", "max_tokens", "logprobs", "tools")
    for asked in (chat(), chat(**dict.fromkeys(names))):
        assert asked.messages == (HELLO,)
        assert (asked.n, asked.max_tokens, asked.stop, asked.stream, asked.include_usage) == (1, None, (), False, False)
        assert asked.sampling == {}
    assert completion().max_tokens == 16
    assert completion().prompts == ("hello",)


def test_what_is_given_is_read() -> None:
    asked = chat(
        max_completion_tokens=5,
        temperature=0.5,
        top_p=0.9,
        seed=3,
        top_k=4,
        stop="\n",
        n=2,
        stream=True,
        stream_options={"include_usage": True},
        user="me",
        logprobs=False,
        frequency_penalty=0.0,
        response_format={"type": "text"},
    )
    assert (asked.max_tokens, asked.stop, asked.n, asked.stream, asked.include_usage) == (5, ("\n",), 2, True, True)
    assert asked.sampling == {"temperature": 0.5, "top_p": 0.9, "seed": 3, "top_k": 4}


def test_messages_become_what_templates_take() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    asked = chat(
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts, "name": "ann"},
            {"role": "assistant", "content": None, "tool_calls": []},
        ]
    )
    assert asked.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "ab", "name": "ann"},
        {"role": "assistant", "content": ""},
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
    ids=str,
)
def test_prompts_are_texts_or_tokens(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert completion(prompt=prompt).prompts == prompts


CHAT_REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "model", "model is missing; expected a model's name; GET /v1/models lists it."),
    ({"messages": []}, "messages", "messages is []; expected a list of at least one message."),
    ({"messages": ["hi"]}, "messages[0]", 'messages[0] is "hi"; expected an object with a role and content.'),
    (
        {"messages": [{"role": "god", "content": "x"}]},
        "messages[0].role",
        'messages[0].role is "god"; expected one of system, developer, user, assistant, tool.',
    ),
    (
        {"messages": [{"role": "user", "content": None}]},
        "messages[0].content",
        "messages[0].content is missing; expected text, or a list of text parts.",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0]",
        'messages[0].content[0] is {"type": "image_url"}; expected a part of type text; this server takes no images, '
        "sounds or files.",
    ),
    (
        {"messages": [{"role": "user", "content": "\ud83d"}]},
        "messages[0].content",
        r"messages[0].content has '\ud83d', which is no character.",
    ),
    ({"max_tokens": 0}, "max_tokens", "max_tokens is 0; expected a whole number, 1 or more."),
    ({"max_tokens": True}, "max_tokens", "max_tokens is true; expected a whole number, 1 or more."),
    (
        {"max_tokens": 3, "max_completion_tokens": 4},
        "max_tokens",
        "max_tokens is 3; expected the same as max_completion_tokens, 4, or only one of them.",
    ),
    ({"temperature": "hot"}, "temperature", 'temperature is "hot"; expected a number.'),
    ({"n": 17}, "n", "n is 17; expected 1 to 16."),
    ({"stop": ""}, "stop", 'stop is ""; expected a text that is not empty, or a list of at most 16.'),
    ({"stream": 1}, "stream", "stream is 1; expected true or false."),
    (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        'stream_options is {"include_usage": true}; expected include_usage alone, and stream to be true.',
    ),
    ({"logprobs": True}, "logprobs", "logprobs is true, and this server does not do that; expected it to be left out."),
    (
        {"presence_penalty": 0.5},
        "presence_penalty",
        "presence_penalty is 0.5, and this server does not do that; expected it to be left out.",
    ),
    (
        {"tools": [{"type": "function"}]},
        "tools",
        'tools is [{"type": "function"}], and this server does not do that; expected it to be left out.',
    ),
]


@pytest.mark.parametrize(("changes", "param", "message"), CHAT_REFUSALS, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_refused_by_its_name(changes: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        chat(**changes)
    assert (str(refused.value), refused.value.param, refused.value.status) == (message, param, 400)
    assert refused.value.kind == "invalid_request_error"


def test_an_unknown_field_is_refused_with_those_there_are() -> None:
    with pytest.raises(RequestError, match=r"^temprature is no field that is known here; expected none but best_of, "):
        chat(temprature=1)


@pytest.mark.parametrize("prompt", [None, [], [True], [[]], [1, "a"], {"a": 1}], ids=str)
def test_a_prompt_that_is_neither_text_nor_tokens_is_refused(prompt: Any) -> None:
    with pytest.raises(RequestError, match=r"; expected a text, a list of tokens, or a list of 1 to 16 of either\.$"):
        completion(prompt=prompt)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is no JSON (Expecting value: line 1 column 1 (char 0)); expected an object."),
        (b"[1]", "the body is [1]; expected a JSON object."),
        (b'{"temperature": NaN}', "the body is no JSON (NaN is no JSON number); expected an object."),
        (b"[" * 100_000, "the body is no JSON ("),
        (b'{"a": "\xff"}', "the body is no JSON ("),
    ],
    ids=["empty", "list", "nan", "deep", "bytes"],
)
def test_a_body_that_is_no_object_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(RequestError) as refused:
        requests.chat(body)
    assert str(refused.value).startswith(message)
