"""Messages become tokens, with no way for one to speak for another.

Special pieces that the template writes become special tokens. Where a message itself contains such a piece, it stays
text: the model reads the letters, and a user cannot end their turn and begin the system's. That is Transformers'
``sanitize_control_tokens``, which there is not the default. An assistant's messages are what the model wrote, markup
included, and pass as they are.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import TextError
from pipeline.text.description import Description
from pipeline.text.template import BUILT_IN, MARKUP, ChatTemplate, Message
from pipeline.text.tokenizer import Tokenizer

NONE = "none"
CHOICES = (*BUILT_IN, NONE)

QUESTION, ANSWER = "quillquestion", "quillanswer"
"""Texts of one conversation, in letters that no template trims, quotes or rewrites."""

MARK = "\ufdd0"
"""Set behind the first character of a piece that is to stay text. Unicode will never give it a meaning of its own."""

NOTHING = re.compile("(?!)")


class Chat:
    """A tokenizer and the template it is used with; without one, texts are taken as they are, special pieces and all.

    ``turn_end`` is the id of the piece that ends an answer, a stop token, and None where the template has none.
    ``allows_markup`` makes special pieces in messages special tokens, as Transformers does by default: for those who
    write both. ``variables`` are further ones for the template.

    Raises TextError if a built-in template needs pieces that the tokenizer has not, or the model's own cannot render.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate | None,
        *,
        turn_end: str | None = None,
        allows_markup: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self._variables = dict(variables or {})
        self._markup, self._kept = NOTHING, NOTHING
        self.turn_end_piece = turn_end
        if template is None:
            return
        if turn_end is None:
            self.turn_end_piece = self._written_behind_an_answer()
        if not allows_markup:
            pieces = {piece for piece in tokenizer.specials if _structures(piece, tokenizer, template)}
            self._markup, self._kept = _any_of(pieces), _any_of({_kept(piece) for piece in pieces})

    @classmethod
    def choose(cls, tokenizer: Tokenizer, directory: Path, name: str | None = None, **options: Any) -> Chat:
        """With a built-in template, or none, by ``name``; or with the model's own, in the tokenizer's directory.

        A model without a template of its own has none. ``options`` are those of ``Chat``.
        """
        if name is None:
            description = Description.beside(directory)
            if description.template is None:
                return cls(tokenizer, None, **options)
            names = dict(description.names)
            return cls(tokenizer, ChatTemplate(description.template, str(description.template_file), names), **options)
        if name == NONE:
            return cls(tokenizer, None, **options)
        if name not in BUILT_IN:
            raise TextError(f"chat template '{name}': there is none of that name; expected {', '.join(CHOICES)}.")
        missing = [piece for piece in MARKUP[name] if piece not in tokenizer.specials]
        if missing:
            raise TextError(
                f"chat template '{name}': it writes {missing[0]!r}, which {tokenizer.where} has not; expected a "
                "tokenizer of that family. Use the model's own template, or none."
            )
        return cls(
            tokenizer, ChatTemplate(BUILT_IN[name], f"chat template '{name}'"), turn_end=MARKUP[name][-1], **options
        )

    @property
    def turn_end(self) -> int | None:
        return None if self.turn_end_piece is None else self.tokenizer.specials[self.turn_end_piece]

    def render(self, messages: Sequence[Message], *, generation_prompt: bool = True, **variables: Any) -> str:
        """The conversation as text, in which markup that came with a message is marked as such; for ``encode``.

        ``variables``, such as ``tools``, go before those that all conversations share.
        """
        assert self.template is not None, "texts without a template are not rendered"
        marked = [message if message.get("role") == "assistant" else self._marked(message) for message in messages]
        seen = self._marked({**self._variables, **variables})
        return self.template.render(marked, generation_prompt=generation_prompt, **seen)

    def encode(self, rendered: str, *, goes_on: bool = False) -> list[int]:
        """The tokens of a rendered conversation, or of the rest of one that ``goes_on`` after other tokens."""
        # A template may have taken a marked piece apart; its mark separates what is left all the same.
        parts = re.split(f"({self._kept.pattern})|{MARK}", rendered)
        encode = self.tokenizer.encode_on if goes_on else self.tokenizer.encode
        ids = encode(parts[0])
        for index, part in enumerate(parts[1:], start=1):
            if part:
                ids += self._literally(part) if index % 2 else self.tokenizer.encode_on(part)
        return ids

    def prompt(self, messages: Sequence[Message], **variables: Any) -> list[int]:
        """The tokens of a conversation, up to where the model's answer begins."""
        return self.encode(self.render(messages, **variables))

    def text(self, text: str, *, goes_on: bool = False) -> list[int]:
        """The tokens of a text without a template; what the tokenizer puts before a text stands at its start alone."""
        return self.tokenizer.encode_on(text) if goes_on else [*self.tokenizer.prefix, *self.tokenizer.encode(text)]

    def _literally(self, kept: str) -> list[int]:
        return self.tokenizer.encode_literally(kept.replace(MARK, ""))

    def _marked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._markup.sub(lambda found: _kept(found.group()), value)
        if isinstance(value, Mapping):
            return {key: self._marked(item) for key, item in value.items()}
        return [self._marked(item) for item in value] if isinstance(value, list | tuple) else value

    def _written_behind_an_answer(self) -> str | None:
        """Of the special pieces behind an assistant's text, the first: read off a conversation, whatever the family."""
        turns = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]
        try:
            _, answered, behind = self.render(turns, generation_prompt=False).rpartition(ANSWER)
        except TextError:
            # It may render other conversations; where it does not, those tell.
            return None
        if not answered:
            return None
        # Where several begin at one place, the longest is the one that is tokenized. Blanks alone end nothing.
        found = [(behind.index(p), -len(p), p) for p in self.tokenizer.specials if p.strip() and p in behind]
        return min(found)[2] if found else None


def _kept(piece: str) -> str:
    return piece[:1] + MARK + piece[1:]


def _any_of(pieces: Collection[str]) -> re.Pattern[str]:
    """The longest first: where several begin at one place, it is the one that is tokenized."""
    return re.compile("|".join(map(re.escape, sorted(pieces, key=len, reverse=True)))) if pieces else NOTHING


def _structures(piece: str, tokenizer: Tokenizer, template: ChatTemplate) -> bool:
    """Whether a special piece structures a conversation; those of blanks alone, as Gemma's for newlines, are text."""
    return piece in tokenizer.controls or (piece in template.source and not piece.isspace())
