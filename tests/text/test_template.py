"""A template renders what Transformers renders, and its failures are told."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import TextError
from pipeline.text.description import Description
from pipeline.text.template import BUILT_IN, MARKUP, ChatTemplate
from tests.tiny_models import tokenizer

NAMES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}

# In what published templates do, written anew: whitespace control, defaults, slices, macros, namespaces, tests.
TEMPLATES = {
    "a default system message": (
        "{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\nBe kind.<|im_end|>\n' }}{% endif %}\n"
        "{% for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}\n"
        "{% endfor %}\n"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}\n"
    ),
    "headers, a date and trimmed text": (
        "{{- bos_token }}\n"
        "{%- if not date is defined %}{%- set date = strftime_now('%d %b %Y') %}{%- endif %}\n"
        "{%- if messages[0]['role'] == 'system' %}\n"
        "    {%- set system = messages[0]['content'] | trim %}{%- set messages = messages[1:] %}\n"
        "{%- else %}{%- set system = '' %}{%- endif %}\n"
        "{{- '[system]\n\nToday: ' + date + '\n' + system + eos_token }}\n"
        "{%- for m in messages %}\n"
        "    {{- '[' + m.role + ']\n\n' + (m.content | trim) + eos_token }}\n"
        "{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- '[assistant]\n\n' }}{%- endif %}"
    ),
    "reasoning of earlier turns is dropped": (
        "{%- set ns = namespace(last=messages|length - 1) %}\n"
        "{%- for m in messages[::-1] %}\n"
        "    {%- if m.role == 'user' %}{%- set ns.last = messages|length - 1 - loop.index0 %}{% break %}{%- endif %}\n"
        "{%- endfor %}\n"
        "{%- for m in messages %}\n"
        "    {%- set text = m.content if m.content is string else '' %}\n"
        "    {%- if m.role == 'assistant' and loop.index0 < ns.last and '</think>' in text %}\n"
        "        {%- set text = text.split('</think>')[-1].lstrip('\n') %}\n"
        "    {%- endif %}\n"
        "    {{- '<|' + m.role + '|>' + (m.reasoning_content if m.reasoning_content else '') + text + '\n' }}\n"
        "{%- endfor %}"
    ),
    "turns that alternate": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate user/assistant.\nSee the card.') }}{% endif %}"
        "{% if m['role'] == 'user' %}{{ ' [INST] ' + m['content'] + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] + eos_token }}{% endif %}{% endfor %}"
    ),
    "tools as JSON": (
        "{% macro listed(tools) %}{% for tool in tools %}{{ tool | tojson }}\n{{ tool | tojson(indent=2) }}"
        "{{ tool | tojson(separators=(',', ':'), sort_keys=true) }}{% if not loop.last %},{% endif %}{% endfor %}"
        "{% endmacro %}"
        "{% if tools is not none %}[{{ listed(tools) }}]{% else %}no tools{% endif %}"
        "{% for m in messages %}{{ m | tojson }}{% if m.tool_calls is defined %}{{ m.tool_calls[0].name }}{% endif %}"
        "{% endfor %}{% if documents is none %}none{% endif %}"
    ),
    "what training counts": (
        "{% for m in messages %}{% if loop.index > 9 %}{% continue %}{% endif %}{{ m.role }}: "
        "{% generation %}{% set shout = m.content | upper %}{{ shout }}{% endgeneration %}\n"
        "{{ shout is defined }}\n{% endfor %}"
    ),
    "dictionaries and filters": (
        "{% set found = dict(a=1, b='<&>') %}{{ found | tojson }}{{ found.items() | list }}{{ dict.fromkeys('ab') }}"
        "{{ dict.fromkeys([1], 2) }}"
        "{% for key, group in messages | groupby('role') %}{{ key }}{{ group | length }}{% endfor %}"
        "{{ pad_token }}{{ unk_token }}{{ enable_thinking | default(true) }}{{ undefined_name }}"
    ),
}

ASK = [{"role": "user", "content": "Who's <there>? é\n"}]
TWO = [*ASK, {"role": "assistant", "content": "<think>\nhm\n</think>\n\n Nobody. "}, {"role": "user", "content": "Oh"}]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one turn": ASK,
    "two turns": TWO,
    "a system message": [{"role": "system", "content": " Be brief. "}, *TWO],
    "an answer last": TWO[:2],
    "fields of an API": [
        {"role": "user", "content": "Call it", "name": None},
        {"role": "assistant", "content": "", "reasoning": "because", "tool_calls": [{"name": "f", "arguments": {}}]},
    ],
}
TOOLS = [{"type": "function", "function": {"name": "f", "description": "Größe <b>", "parameters": {"z": 1, "a": []}}}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("options", [{}, {"tools": TOOLS, "enable_thinking": False, "date": "1 May"}], ids=["", "more"])
@pytest.mark.parametrize("prompted", [True, False])
def test_a_conversation_is_rendered_as_transformers_renders_it(
    name: str, conversation: str, options: dict[str, Any], prompted: bool
) -> None:
    messages = CONVERSATIONS[conversation]

    def theirs() -> str:
        return str(
            tokenizer(chat_template=TEMPLATES[name]).apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompted, **options
            )
        )

    template = ChatTemplate(TEMPLATES[name], "here", NAMES)
    if name == "turns that alternate" and conversation == "a system message":
        with pytest.raises(TextError) as caught:
            template.render(messages, generation_prompt=prompted, **options)
        assert str(caught.value) == (
            "here: the chat template refuses the conversation: Roles must alternate user/assistant. Change the "
            "messages, or choose another template."
        )
        with pytest.raises(Exception, match="Roles must alternate"):
            theirs()
        return
    assert template.render(messages, generation_prompt=prompted, **options) == theirs()


def test_a_date_is_todays() -> None:
    source = "{{ strftime_now('%Y-%m') }}"
    assert ChatTemplate(source, "here").render([], generation_prompt=True) == datetime.now().strftime("%Y-%m")


def user(name: str, *texts: str, system: str | None = None) -> str:
    """Questions and answers in turn, as a built-in template writes them up to an answer."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    roles = ("user", "assistant")
    messages += [{"role": roles[index % 2], "content": text} for index, text in enumerate(texts)]
    return ChatTemplate(BUILT_IN[name], name).render(messages, generation_prompt=True)


# Of runner.md's table and, behind an answer, of the turn that follows it.
LLAMA3 = "<|start_header_id|>user<|end_header_id|>\n\n{}<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
GEMMA = "<start_of_turn>user\n{}<end_of_turn>\n<start_of_turn>model\n"
GEMMA4 = "<|turn>user\n{}<turn|>\n<|turn>model\n"
CHATML = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("name", "prefix", "turn", "end"),
    [
        ("llama3", "<|begin_of_text|>", LLAMA3, "<|eot_id|>"),
        ("gemma", "<bos>", GEMMA, "<end_of_turn>"),
        ("gemma4", "<bos>", GEMMA4, "<turn|>"),
        ("chatml", "", CHATML, "<|im_end|>\n"),
    ],
)
def test_a_built_in_template_writes_a_users_turns_to_the_byte(name: str, prefix: str, turn: str, end: str) -> None:
    asked = " Hi,\n you "
    assert user(name, asked) == prefix + turn.format(asked)
    assert user(name, asked, "Yes. ", "So?") == prefix + turn.format(asked) + "Yes. " + end + turn.format("So?")
    assert MARKUP[name][-1] == end.strip()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe.<|eot_id|>" + LLAMA3),
        ("gemma", "<bos><start_of_turn>user\nBe.\n\n{}<end_of_turn>\n<start_of_turn>model\n"),
        ("gemma4", "<bos><|turn>system\nBe.<turn|>\n" + GEMMA4),
        ("chatml", "<|im_start|>system\nBe.<|im_end|>\n" + CHATML),
    ],
)
def test_a_built_in_template_writes_a_system_message_as_its_family_does(name: str, text: str) -> None:
    assert user(name, "Hi", system="Be.") == text.format("Hi")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for %}", "here:1: it is no Jinja template: "),
        ("\n{{ x", "here:2: it is no Jinja template: "),
        ("{{ messages[7].content.strip() }}", "here: the chat template refuses the conversation: list object has no"),
        ("{{ 1 / 0 }}", "here: the chat template fails: division by zero. Correct it, or choose another template."),
        ("{{ ''.__class__.__mro__ }}", "here: the chat template refuses the conversation: access to attribute"),
        ("{{ messages.append(1) }}", "here: the chat template refuses the conversation: access to attribute 'append'"),
        ("{% set n = namespace(__init__=1) %}", "here: the chat template refuses the conversation: a namespace has no"),
        ("{% set n = namespace() %}{% set n._a = 1 %}", "here: the chat template refuses the conversation: a namespac"),
        ("{% for i in range(10000000) %}{% endfor %}", "here: the chat template fails: Range too big."),
    ],
)
def test_what_fails_or_breaks_out_is_refused(source: str, message: str) -> None:
    with pytest.raises(TextError, match="^" + re.escape(message)):
        ChatTemplate(source, "here").render(ASK, generation_prompt=True)


def test_a_message_of_anything_but_plain_data_is_refused() -> None:
    with pytest.raises(TextError) as caught:
        ChatTemplate("", "here").render([{"role": "user", "content": {1, 2}}], generation_prompt=True)
    assert str(caught.value) == ("a message holds {1, 2}; expected text, numbers, lists and named fields, as in JSON.")


@pytest.mark.parametrize(
    ("files", "source", "place"),
    [
        ({"chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "C"}}, "J", "chat_template.jinja"),
        ({"tokenizer_config.json": {"chat_template": "C"}}, "C", "tokenizer_config.json"),
        ({"chat_template.json": {"chat_template": "X"}}, "X", "chat_template.json"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
            "tokenizer_config.json",
        ),
        ({"tokenizer_config.json": {}}, None, None),
        ({}, None, None),
    ],
)
def test_a_models_own_template_is_found_where_transformers_keeps_it(
    tmp_path: Path, files: dict[str, Any], source: str | None, place: str | None
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    found = Description.beside(tmp_path)
    assert (found.template, found.template_file) == (source, place and tmp_path / place)


def test_a_template_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(TextError) as caught:
        Description.beside(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/chat_template.jinja: it cannot be read: it is no UTF-8. Fetch the tokenizer's files anew."
    )
