"""Ends of text come from everywhere they are named; ids that a prompt or a runner would trip over are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.errors import ExportError
from pipeline.model.vocabulary import EndsOfText, disagreements, ends_of_text, start_of_text, turn_end
from tests.tiny_models import VOCAB_SIZE, tokenizer

# One after the other, from the first id behind the bytes on.
TOKENS = [
    "<|end|>",
    "<|im_start|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|eot_id|>",
    "<think>",
    "</think>",
    "\n\n",
    "<|end|>x",
]
IDS = {token: VOCAB_SIZE + index for index, token in enumerate(TOKENS)}


def with_tokens(template: str | None, **changes: Any) -> Any:
    made = tokenizer(chat_template=template, **changes)
    made.add_tokens(TOKENS[:1], special_tokens=True)
    made.add_tokens(TOKENS[1:])
    return made


def each(body: str) -> str:
    return "{% for m in messages %}" + body + "{% endfor %}"


CHATML = each("<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n")
REASONING = each(
    "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n\n</think>\n\n{% endif %}"
    "{{ m.content }}<|im_end|>\n"
)
TEMPLATES: dict[str, tuple[str, str]] = {
    "ChatML": (CHATML, "<|im_end|>"),
    "a reasoning block before the text": (REASONING, "<|im_end|>"),
    "Llama 3": (each("[{{ m.role }}]\n\n{{ m.content | trim }}<|eot_id|>"), "<|eot_id|>"),
    "Gemma": (each("{{ m.role }}\n{{ m.content | trim }}<end_of_turn>\n"), "<end_of_turn>"),
    "Phi, which ends with the end of text too": (
        each("{{ m.role }}{{ m.content }}<|end|>")
        + "{% if add_generation_prompt %}assistant{% else %}{{ eos_token }}{% endif %}",
        "<|end|>",
    ),
    "Mistral, blanks before the token": (each("{{ m.content }} {{ eos_token }}"), "</s>"),
    "a token of blanks first": (each("{{ m.content }}\n\n<|im_end|>"), "<|im_end|>"),
    "the longest of two at one place": (each("{{ m.content }}<|end|>x"), "<|end|>x"),
}


@pytest.mark.parametrize("family", TEMPLATES)
def test_the_turn_end_is_the_token_that_the_template_puts_behind_an_answer(family: str) -> None:
    template, expected = TEMPLATES[family]
    made = with_tokens(template)
    assert turn_end(made) == (made.convert_tokens_to_ids(expected), "")


WITHOUT: dict[str, tuple[str, str]] = {
    "no token": (each("{{ m.role }}: {{ m.content }}\n"), "puts no token behind an assistant's text"),
    "text that is no token": (each("{{ m.content }}<|stop|>"), "puts no token behind an assistant's text"),
    "no answers": (
        each("{% if m.role == 'user' %}{{ m.content }}<|im_end|>{% endif %}"),
        "leaves out an assistant's text",
    ),
    "it raises": ("{{ raise_exception('System role first.') }}", "fails on an assistant's turn (System role first)"),
    "it is no template": ("{% for %}", "fails on an assistant's turn ("),
}


@pytest.mark.parametrize("case", WITHOUT)
def test_a_template_without_a_turn_end_yields_none_and_the_report_says_why(case: str) -> None:
    template, reason = WITHOUT[case]
    made = with_tokens(template)
    token, why = turn_end(made)
    assert token is None
    assert why.startswith(reason)
    ends = ends_of_text(model(), made)
    assert "chat_template" not in ends.sources
    assert ends.notes == (f"the chat template {why}: no end of a turn is derived from it",)


def model(
    generation: Any = None,
    config: Any = None,
    text: Any = None,
    *,
    rows: int = VOCAB_SIZE,
    vocab_size: int = VOCAB_SIZE,
    bos: int | None = None,
    text_bos: int | None = None,
) -> Any:
    """What a model's numbers are read from: a composite whose language model has a configuration of its own."""
    text_config = SimpleNamespace(eos_token_id=text, bos_token_id=text_bos, vocab_size=vocab_size)
    return SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=generation),
        config=SimpleNamespace(eos_token_id=config, bos_token_id=bos, get_text_config=lambda: text_config),
        get_input_embeddings=lambda: SimpleNamespace(weight=SimpleNamespace(shape=(rows, 8))),
    )


@pytest.mark.parametrize(
    ("generation", "config", "text", "eos", "template", "expected"),
    [
        ([106, 1], 1, None, "</s>", None, [1, 106]),
        (2, [2, 3], 7, None, None, [2, 3, 7]),
        (0, None, None, None, None, [0]),
        (None, None, None, None, None, []),
        (1, None, None, "</s>", CHATML, [1, IDS["<|im_end|>"]]),
        (None, None, None, None, CHATML, [IDS["<|im_end|>"]]),
    ],
)
def test_every_place_that_names_an_end_counts(
    generation: Any, config: Any, text: Any, eos: str | None, template: str | None, expected: list[int]
) -> None:
    ends = ends_of_text(model(generation, config, text), with_tokens(template, eos_token=eos))
    assert ends.ids == expected
    assert ends.notes == ()


def test_each_end_is_reported_with_the_place_that_names_it() -> None:
    ends = ends_of_text(model([106, 1], 1, 2), with_tokens(CHATML))
    assert ends.sources == {
        "generation_config": [1, 106],
        "config": [1, 2],
        "tokenizer": [1],
        "chat_template": [IDS["<|im_end|>"]],
    }


@pytest.mark.parametrize(
    ("bos", "text_bos", "token", "expected"), [(0, 5, "<s>", 0), (None, 5, "<s>", 5), (None, None, "<s>", 0)]
)
def test_the_configurations_start_token_comes_before_the_tokenizers(
    bos: int | None, text_bos: int | None, token: str, expected: int
) -> None:
    assert start_of_text(model(bos=bos, text_bos=text_bos), tokenizer(bos_token=token)) == expected


def test_a_model_may_have_no_start_token() -> None:
    assert start_of_text(model(), tokenizer(bos_token=None)) is None


def ends(**sources: Sequence[int]) -> EndsOfText:
    return EndsOfText(sources=sources)


def test_a_tokenizer_of_the_models_size_leaves_nothing_to_note() -> None:
    assert disagreements(model(), tokenizer(), ends(generation_config=[1]), VOCAB_SIZE) == []


def test_padded_logits_are_noted() -> None:
    padded = model(rows=272, vocab_size=272)
    assert disagreements(padded, tokenizer(), ends(tokenizer=[1]), 272) == [
        "12 of the 272 logits belong to no token of the tokenizer: padding"
    ]


def test_a_configuration_of_another_size_is_noted() -> None:
    assert disagreements(model(vocab_size=256), tokenizer(), ends(), VOCAB_SIZE) == [
        "the configuration's vocab_size is 256; the logits have 260 entries, and so they say"
    ]


def test_an_end_that_is_no_token_is_noted() -> None:
    found = disagreements(model(rows=272, vocab_size=272), tokenizer(), ends(generation_config=[1, 270]), 272)
    assert found[-1] == "the generation config ends a text with token 270, which the tokenizer has not"


def test_added_tokens_beyond_the_vocabulary_that_no_prompt_needs_are_noted() -> None:
    """As the Gemma 3 of one billion has one for images, which it cannot see."""
    made = with_tokens(each("{{ m.content }}{{ eos_token }}"))
    assert disagreements(model(), made, ends(tokenizer=[1]), VOCAB_SIZE) == [
        "no prompt may contain '\\n\\n' (267), '</think>' (266), '<end_of_turn>' (263) and 6 more: the model's "
        "vocabulary ends at 259"
    ]


def beyond(largest: int, last: int) -> str:
    return (
        f"the tokenizer's ids go up to {largest}, and the model's vocabulary ends at {last}; expected no higher id, "
        "since a prompt would read beyond the embedding. Use the tokenizer that belongs to the checkpoint, or resize "
        "the checkpoint's embeddings to it."
    )


REFUSED: dict[str, tuple[Any, Any, EndsOfText, int, str]] = {
    "bytes beyond the embedding": (model(rows=200), tokenizer(), ends(), 200, beyond(259, 199)),
    "a chat turn beyond the embedding": (model(), with_tokens(CHATML), ends(), VOCAB_SIZE, beyond(268, 259)),
    "every prompt begins beyond the embedding": (
        model(),
        with_tokens(None, bos_token="<|bos|>"),
        ends(),
        VOCAB_SIZE,
        beyond(269, 259),
    ),
    "an end that cannot be chosen": (
        model(),
        tokenizer(),
        ends(tokenizer=[1], generation_config=[1, 260]),
        VOCAB_SIZE,
        "the generation config ends a text with token 260, and the logits have 260 entries; expected a token that can "
        "be chosen. Correct eos_token_id.",
    ),
    "a negative end": (
        model(),
        tokenizer(),
        ends(config=[-1]),
        VOCAB_SIZE,
        "the configuration ends a text with token -1, and the logits have 260 entries; expected a token that can be "
        "chosen. Correct eos_token_id.",
    ),
    "a choice that cannot be fed back": (
        model(rows=259),
        tokenizer(),
        ends(),
        VOCAB_SIZE,
        "the logits have 260 entries and the embedding 259 rows; expected at least as many, since a token that is "
        "chosen is fed back. The checkpoint is damaged, or its vocabulary was extended by half.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_id_that_cannot_be_read_or_chosen_is_refused(case: str) -> None:
    numbers, made, named, width, message = REFUSED[case]
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        disagreements(numbers, made, named, width)
