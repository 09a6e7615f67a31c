"""What a client asks for: OpenAI's fields, read from JSON, each refused by name if it is not what it should be.

Fields that only identify or account (``user``, ``metadata``, …) are accepted and change nothing. Those that would
change the answer and are not built are refused unless their value asks for nothing; so is any field not known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.errors import RequestError

MAX_CHOICES = 16
MAX_STOPS = 16
DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's, for ``/v1/completions`` alone."""

ROLES = ("system", "developer", "user", "assistant", "tool")

SAMPLING = ("temperature", "top_p", "seed", "top_k", "min_p", "repetition_penalty")
"""The last three are not OpenAI's, and are named as other servers name them."""

WITHOUT_EFFECT = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})

# What asks for nothing, besides null.
NOTHING: Mapping[str, tuple[Any, ...]] = {
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}

COMMON = {"model", "n", "max_tokens", "stop", "stream", "stream_options", *SAMPLING, *WITHOUT_EFFECT, *NOTHING}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """``sampling`` has the fields that were given. ``max_tokens`` None is as many as fit."""

    model: str
    n: int
    max_tokens: int | None
    stop: tuple[str, ...]
    stream: bool
    include_usage: bool
    sampling: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ChatAsked(Asked):
    """``messages`` have a role and a text each, as templates take them."""

    messages: tuple[dict[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class CompletionAsked(Asked):
    """Each prompt is a text, or tokens."""

    prompts: tuple[str | tuple[int, ...], ...]


def chat(data: bytes) -> ChatAsked:
    """The body of ``/v1/chat/completions``. Raises RequestError, which names the field."""
    body = _body(data, {*COMMON, "messages", "max_completion_tokens"})
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise _wrong("messages", messages, "a list of at least one message")
    most = _whole(body, "max_completion_tokens", least=1)
    older = _whole(body, "max_tokens", least=1)
    if None not in (most, older) and most != older:
        raise _wrong("max_tokens", older, f"the same as max_completion_tokens, {most}, or only one of them")
    return ChatAsked(
        **_common(body, most if older is None else older),
        messages=tuple(_message(message, f"messages[{index}]") for index, message in enumerate(messages)),
    )


def completion(data: bytes) -> CompletionAsked:
    """The body of ``/v1/completions``. Raises RequestError, which names the field."""
    body = _body(data, {*COMMON, "prompt"})
    most = _whole(body, "max_tokens", least=1)
    return CompletionAsked(
        **_common(body, DEFAULT_COMPLETION_TOKENS if most is None else most), prompts=_prompts(body.get("prompt"))
    )


def _body(data: bytes, known: set[str]) -> dict[str, Any]:
    try:
        # Python reads numbers that JSON has not.
        body = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is no JSON ({error}); expected an object.") from error
    if not isinstance(body, dict):
        raise RequestError(f"the body is {_shown(body)}; expected a JSON object.")
    for name, value in body.items():
        if name not in known:
            raise RequestError(
                f"{name[:64]} is no field that is known here; expected none but {', '.join(sorted(known))}.",
                param=name[:64],
                code="unknown_parameter",
            )
        nothing = NOTHING.get(name)
        if nothing is not None and value is not None and not any(_same(value, other) for other in nothing):
            raise RequestError(
                f"{name} is {_shown(value)}, and this server does not do that; expected it to be left out.",
                param=name,
                code="unsupported_parameter",
            )
    return body


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _common(body: Mapping[str, Any], max_tokens: int | None) -> dict[str, Any]:
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise _wrong("model", model, "a model's name; GET /v1/models lists it")
    stream = _flag(body, "stream")
    options = body.get("stream_options")
    if options is not None and not (isinstance(options, dict) and set(options) <= {"include_usage"} and stream):
        raise _wrong("stream_options", options, "include_usage alone, and stream to be true")
    n = _whole(body, "n", least=1, most=MAX_CHOICES)
    return {
        "model": model,
        "n": 1 if n is None else n,
        "max_tokens": max_tokens,
        "stop": _stops(body.get("stop")),
        "stream": stream,
        "include_usage": _flag(options or {}, "include_usage"),
        "sampling": {name: _numeric(body, name) for name in SAMPLING if body.get(name) is not None},
    }


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise _wrong(where, message, "an object with a role and content")
    role = message.get("role")
    if role not in ROLES:
        raise _wrong(f"{where}.role", role, f"one of {', '.join(ROLES)}")
    for name in message:
        if name not in ("role", "content", "name", "refusal", "tool_calls", "tool_call_id", "annotations", "audio"):
            raise _wrong(f"{where}.{name[:64]}", message[name], "only role, content and name")
    for name in ("tool_calls", "tool_call_id", "audio"):
        if message.get(name):
            raise _wrong(f"{where}.{name}", message[name], "none: this server does not do that")
    text = _content(message.get("content"), f"{where}.content", role)
    read = {"role": "system" if role == "developer" else role, "content": text}
    if message.get("name") is not None:
        read["name"] = _text(message["name"], f"{where}.name")
    return read


def _content(content: Any, where: str, role: str) -> str:
    if isinstance(content, str):
        return _text(content, where)
    if content is None and role == "assistant":
        return ""
    if not isinstance(content, list) or not content:
        raise _wrong(where, content, "text, or a list of text parts")
    for index, part in enumerate(content):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise _wrong(f"{where}[{index}]", part, "a part of type text; this server takes no images, sounds or files")
    return "".join(_text(part["text"], where) for part in content)


def _prompts(prompt: Any) -> tuple[str | tuple[int, ...], ...]:
    several = prompt if isinstance(prompt, list) and not _is_tokens(prompt) else [prompt]
    if not several or len(several) > MAX_CHOICES or not all(isinstance(one, str) or _is_tokens(one) for one in several):
        raise _wrong("prompt", prompt, f"a text, a list of tokens, or a list of 1 to {MAX_CHOICES} of either")
    return tuple(_text(one, "prompt") if isinstance(one, str) else tuple(one) for one in several)


def _is_tokens(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)


def _stops(value: Any) -> tuple[str, ...]:
    strings = [] if value is None else [value] if isinstance(value, str) else value
    fits = isinstance(strings, list) and all(isinstance(string, str) and string for string in strings)
    if not fits or len(strings) > MAX_STOPS:
        raise _wrong("stop", value, f"a text that is not empty, or a list of at most {MAX_STOPS}")
    return tuple(_text(string, "stop") for string in strings)


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong(where, value, "text")
    try:
        # JSON can write half of a surrogate pair, which is no character.
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{where} has {value[error.start]!a}, which is no character.", param=where) from error
    return value


def _flag(body: Mapping[str, Any], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    return bool(value)


def _whole(body: Mapping[str, Any], name: str, *, least: int, most: int | None = None) -> int | None:
    value = body.get(name)
    if value is not None and (type(value) is not int or value < least or (most is not None and value > most)):
        raise _wrong(name, value, f"a whole number, {least} or more" if most is None else f"{least} to {most}")
    return value


def _numeric(body: Mapping[str, Any], name: str) -> int | float:
    value = body[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _wrong(name, value, "a number")
    return value


def _same(value: Any, other: Any) -> bool:
    # In Python, false is 0.
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _wrong(name: str, value: Any, expected: str) -> RequestError:
    found = "missing" if value is None else f"{_shown(value)}"
    return RequestError(f"{name} is {found}; expected {expected}.", param=name, code="invalid_value")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
