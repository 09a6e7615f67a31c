"""Chat templates: the model's own, rendered as Transformers renders it, or one of the well-known ones.

A model's own template is a Jinja program that comes with its files: it runs in Jinja's sandbox, on plain data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pipeline.errors import TextError

Message = Mapping[str, Any]
"""``role`` and ``content``, and what else a template may look at (``tool_calls``, ``reasoning_content``)."""

# A user's turns are what executorch's runner (run_llm_hf) writes, to the byte: so Gemma's answers end without the
# newline that its own template adds. The runner has no system messages: they are written as the family's template does.
BUILT_IN = {
    "llama3": (
        "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{{ '\n\n' }}"
        "{{ m.content }}<|eot_id|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}{% endif %}"
    ),
    "gemma": (
        "<bos>{% set lead = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}"
        "{% for m in messages if m.role != 'system' %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}{{ '\n' }}"
        "{{ lead if loop.first }}{{ m.content }}<end_of_turn>{{ '\n' if m.role != 'assistant' }}{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model{{ '\n' }}{% endif %}"
    ),
    "gemma4": (
        "<bos>{% for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}{{ '\n' }}"
        "{{ m.content }}<turn|>{{ '\n' if m.role != 'assistant' }}{% endfor %}"
        "{% if add_generation_prompt %}<|turn>model{{ '\n' }}{% endif %}"
    ),
    "chatml": (
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\n' }}{{ m.content }}<|im_end|>{{ '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}"
    ),
}

MARKUP = {
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
    "gemma4": ("<bos>", "<|turn>", "<turn|>"),
    "chatml": ("<|im_start|>", "<|im_end|>"),
}
"""The special pieces of each, all of which its tokenizer has; the last one ends a turn."""

REASONING = ("reasoning_content", "thinking", "reasoning")
"""The names that a message's reasoning comes under; templates read the first, and gpt-oss's the second."""


class ChatTemplate:
    """Renders messages. ``names`` are the special pieces that a template may name: bos_token, eos_token and others.

    ``where`` names the template in errors. Raises TextError for a source that is no template.
    """

    def __init__(self, source: str, where: str, names: Mapping[str, str] | None = None) -> None:
        self.source = source
        self.where = where
        self._names = dict(names or {})
        self._compiled = _compiled(source, where)

    def render(self, messages: Sequence[Message], *, generation_prompt: bool, **variables: Any) -> str:
        """The conversation as text; with a ``generation_prompt``, up to where the model's answer begins.

        ``variables`` are what else a template may look at, such as ``tools`` or ``enable_thinking``. Raises TextError
        when the template fails or refuses the conversation.
        """
        from jinja2.exceptions import TemplateError

        seen = {"tools": None, "documents": None, **self._names, **_plain(variables)}
        given = [_named_reasoning(_plain(message)) for message in messages]
        try:
            return str(self._compiled.render(messages=given, add_generation_prompt=generation_prompt, **seen))
        except TemplateError as error:
            raise TextError(
                f"{self.where}: the chat template refuses the conversation: {_reason(error)}. Change the messages, or "
                "choose another template."
            ) from error
        except Exception as error:
            # A template is a program that comes with the model; it can fail in any way.
            raise TextError(
                f"{self.where}: the chat template fails: {_reason(error)}. Correct it, or choose another template."
            ) from error


def _compiled(source: str, where: str) -> Any:
    """The template in the environment that Transformers documents for authors of chat templates."""
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError, TemplateError, TemplateSyntaxError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from jinja2.utils import Namespace

    class Generation(Extension):
        """Marks what training counts as an answer; for everybody else it is the text inside."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    class Dictionary:
        """Makes dictionaries as Python's own type does, and gives away nothing else of it."""

        def __call__(*args: Any, **kwargs: Any) -> dict[Any, Any]:
            return dict(*args[1:], **kwargs)

        def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
            return dict.fromkeys(keys, value)

    class Guarded(Namespace):
        """Jinja's namespace keeps what it is given under any name, Python's own included."""

        def __init__(*args: Any, **kwargs: Any) -> None:
            self, *given = args
            Namespace.__init__(self)
            for name, value in dict(*given, **kwargs).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if name.startswith("_"):
                raise SecurityError(f"a namespace has no attribute {name!r}")
            super().__setitem__(name, value)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    # Jinja's own filter escapes what HTML would read.
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": Dictionary(),
        "namespace": Guarded,
    }
    try:
        return environment.from_string(source)
    except TemplateSyntaxError as error:
        raise TextError(
            f"{where}:{error.lineno}: it is no Jinja template: {_reason(error)}. Fetch the tokenizer's files anew, or "
            "choose another template."
        ) from error


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _plain(value: Any) -> Any:
    """JSON's own types in place of what has methods; absent in place of a field that is None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None or type(value) in (str, int, float, bool):
        return value
    raise TextError(f"a message holds {value!r}; expected text, numbers, lists and named fields, as in JSON.")


def _named_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message without fields that are None, its reasoning under both names that templates know."""
    message = {name: value for name, value in message.items() if value is not None}
    found = next((message[name] for name in REASONING if name in message), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _reason(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
