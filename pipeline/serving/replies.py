"""What a client is answered, in OpenAI's shapes."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.errors import PipelineError, RequestError


class Shape:
    """The answers of one route: whole, or in chunks as they come."""

    def __init__(self, model: str, *, is_chat: bool, include_usage: bool) -> None:
        self._is_chat = is_chat
        self._include_usage = include_usage
        self._id = f"{'chatcmpl' if is_chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model

    def whole(self, texts: Sequence[str], reasons: Sequence[str], usage: Mapping[str, Any]) -> dict[str, Any]:
        """All choices at once."""
        choices = []
        for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
            said = (
                {"message": {"role": "assistant", "content": text, "refusal": None}}
                if self._is_chat
                else {"text": text}
            )
            choices.append({"index": index, **said, "logprobs": None, "finish_reason": reason})
        return {**self._head("chat.completion"), "choices": choices, "usage": usage}

    def opening(self, num_choices: int) -> Iterator[dict[str, Any]]:
        """What comes before any text: who speaks."""
        if self._is_chat:
            for index in range(num_choices):
                yield self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, index: int, text: str) -> dict[str, Any]:
        """Some text of a choice."""
        return self._chunk(index, {"content": text} if self._is_chat else text)

    def end(self, index: int, reason: str) -> dict[str, Any]:
        """The last of a choice."""
        return self._chunk(index, {} if self._is_chat else "", reason)

    def closing(self, usage: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What comes after all choices, if it was asked for."""
        if self._include_usage:
            yield {**self._head("chat.completion.chunk"), "choices": [], "usage": usage}

    def _chunk(self, index: int, said: Any, reason: str | None = None) -> dict[str, Any]:
        content = {"delta": said} if self._is_chat else {"text": said}
        chunk = {
            **self._head("chat.completion.chunk"),
            "choices": [{"index": index, **content, "logprobs": None, "finish_reason": reason}],
        }
        return chunk | ({"usage": None} if self._include_usage else {})

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind if self._is_chat else "text_completion",
            "created": self._created,
            "model": self._model,
        }


def error(problem: PipelineError) -> dict[str, Any]:
    """An error as OpenAI's clients read it."""
    found = problem if isinstance(problem, RequestError) else RequestError(str(problem), status=500)
    return {"error": {"message": str(found), "type": found.kind, "param": found.param, "code": found.code}}


def event(content: Mapping[str, Any] | str) -> bytes:
    """One server-sent event. JSON has no newline of its own."""
    return f"data: {content if isinstance(content, str) else json.dumps(content)}\n\n".encode()


DONE = event("[DONE]")
