"""Where a text begins and ends, and whether tokenizer, embedding and logits agree about the token ids there are.

Knows a tokenizer and a model's numbers; runs no model. What contradicts is refused; what is merely odd, and ordinary in
published checkpoints, is told in the build's report.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ExportError

QUESTION, ANSWER = "quillquestion", "quillanswer"
"""Texts of one conversation, in letters that no template trims, quotes or rewrites."""

SHOWN = 3
"""How many tokens or ids a message lists."""


@dataclass(frozen=True, kw_only=True)
class EndsOfText:
    """The ids that end a generation, ascending, by where they are named; and what there is to say about them."""

    sources: Mapping[str, Sequence[int]]
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> list[int]:
        """All of them, ascending."""
        return sorted({token for ids in self.sources.values() for token in ids})


def ends_of_text(model: Any, tokenizer: Any) -> EndsOfText:
    """Every id that ends a generation: of generation config, configuration, tokenizer and chat template together.

    The chat template's is derived from what it does (``turn_end``). Where a template yields none, the others are all
    there is, and a note says so; a tokenizer without a template, as a base model has, is nothing to note.
    """
    config = model.config
    named = {
        "generation_config": _ids(model.generation_config),
        "config": sorted({*_ids(config), *_ids(config.get_text_config())}),
        "tokenizer": _ids(tokenizer),
    }
    if tokenizer.chat_template is None:
        return EndsOfText(sources=named)
    token, reason = turn_end(tokenizer)
    if token is None:
        note = f"the chat template {reason}: no end of a turn is derived from it"
        return EndsOfText(sources=named, notes=(note,))
    return EndsOfText(sources={**named, "chat_template": [token]})


def start_of_text(model: Any, tokenizer: Any) -> int | None:
    """The id that opens a text, where the model has one: the configuration's, or else the tokenizer's."""
    for holder in (model.config, model.config.get_text_config(), tokenizer):
        token: int | None = getattr(holder, "bos_token_id", None)
        if token is not None:
            return token
    return None


def turn_end(tokenizer: Any) -> tuple[int | None, str]:
    """The id of the token that the chat template puts behind an assistant's text, or None and the reason.

    It is read off a conversation that the template renders: of the tokenizer's special and added tokens, the first one
    behind the assistant's text. That is ``<|eot_id|>`` for Llama 3 and ``<|im_end|>`` for ChatML, whatever a template
    puts before the text (a reasoning block) or behind the token (a newline, an end of text). Tokens of blanks alone,
    such as Gemma's for newlines, end nothing.
    """
    try:
        text = _conversation(tokenizer)
    except Exception as error:
        # A template is a program that comes with the model; it can fail in any way, or refuse by raising.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        return None, f"fails on an assistant's turn ({reason})"
    _, answered, behind = text.rpartition(ANSWER)
    if not answered:
        return None, "leaves out an assistant's text"
    added = {token: index for token, index in _added(tokenizer).items() if token.strip()}
    # Where several begin at one place, the longest is the one that is tokenized.
    found = [(behind.index(token), -len(token), index) for token, index in added.items() if token in behind]
    if not found:
        return None, "puts no token behind an assistant's text"
    return min(found)[2], ""


def disagreements(model: Any, tokenizer: Any, ends: EndsOfText, width: int) -> list[str]:
    """What tokenizer, configuration, embedding and logits, of ``width`` entries, say differently, in sentences.

    Ordinary, and noted: logits that belong to no token (padding), a ``vocab_size`` of another value, an end of text
    that is no token, added tokens beyond the vocabulary which no text and no chat turn needs (``<image_soft_token>`` of
    a Gemma 3 without eyes).

    Raises ExportError when an id that a text, a chat turn or an end of text needs lies beyond the embedding or the
    logits, or when a token that is chosen could not be fed back.
    """
    rows = _embedding_rows(model)
    if rows is not None and rows < width:
        raise ExportError(
            f"the logits have {width} entries and the embedding {rows} rows; expected at least as many, since a token "
            "that is chosen is fed back. The checkpoint is damaged, or its vocabulary was extended by half."
        )
    for source, ids in ends.sources.items():
        for token in ids:
            if not 0 <= token < width:
                raise ExportError(
                    f"{_SHOWN_SOURCES[source]} ends a text with token {token}, and the logits have {width} entries; "
                    "expected a token that can be chosen. Correct eos_token_id."
                )
    notes = []
    vocabulary = tokenizer.get_vocab()
    beyond = {token: index for token, index in vocabulary.items() if index >= width}
    if beyond:
        _refuse_needed(tokenizer, set(beyond.values()), max(beyond.values()), width)
        shown = ", ".join(f"{token!r} ({index})" for token, index in sorted(beyond.items())[:SHOWN])
        more = f" and {len(beyond) - SHOWN} more" if len(beyond) > SHOWN else ""
        notes.append(f"no prompt may contain {shown}{more}: the model's vocabulary ends at {width - 1}")
    padding = width - len(set(vocabulary.values()) - set(beyond.values()))
    if padding:
        notes.append(f"{padding} of the {width} logits belong to no token of the tokenizer: padding")
    declared = getattr(model.config.get_text_config(), "vocab_size", None)
    if declared is not None and declared != width:
        notes.append(f"the configuration's vocab_size is {declared}; the logits have {width} entries, and so they say")
    known = set(vocabulary.values())
    for source, ids in ends.sources.items():
        for token in ids:
            if token not in known:
                notes.append(f"{_SHOWN_SOURCES[source]} ends a text with token {token}, which the tokenizer has not")
    return notes


_SHOWN_SOURCES = {
    "generation_config": "the generation config",
    "config": "the configuration",
    "tokenizer": "the tokenizer",
    "chat_template": "the chat template",
}


def _refuse_needed(tokenizer: Any, beyond: set[int], largest: int, width: int) -> None:
    """Added tokens come up in a text only by their name; what is left is met by accident."""
    needed = set(tokenizer.get_vocab().values()) - set(_added(tokenizer).values())
    needed |= {index for index in (tokenizer.bos_token_id, tokenizer.unk_token_id) if index is not None}
    if tokenizer.chat_template is not None:
        # Where a template fails is told where its turn end is looked for.
        with contextlib.suppress(Exception):
            needed |= set(tokenizer(_conversation(tokenizer), add_special_tokens=False)["input_ids"])
    if needed & beyond:
        raise ExportError(
            f"the tokenizer's ids go up to {largest}, and the model's vocabulary ends at {width - 1}; expected no "
            "higher id, since a prompt would read beyond the embedding. Use the tokenizer that belongs to the "
            "checkpoint, or resize the checkpoint's embeddings to it."
        )


def _conversation(tokenizer: Any) -> str:
    """One question and its answer, as the chat template renders them."""
    turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=False))


def _added(tokenizer: Any) -> dict[str, int]:
    """Special and added tokens; a tokenizer may name special ones that it was not told to add."""
    vocabulary = tokenizer.get_vocab()
    special = {token: vocabulary[token] for token in tokenizer.all_special_tokens if token in vocabulary}
    return {**special, **tokenizer.get_added_vocab()}


def _ids(holder: Any) -> list[int]:
    ids = getattr(holder, "eos_token_id", None)
    if ids is None:
        return []
    return [ids] if isinstance(ids, int) else sorted(ids)


def _embedding_rows(model: Any) -> int | None:
    weight = getattr(model.get_input_embeddings(), "weight", None)
    return None if weight is None else int(weight.shape[0])
