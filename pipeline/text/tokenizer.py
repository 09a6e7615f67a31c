"""What every tokenizer does, whatever file it comes in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property

from pipeline.errors import TextError


class Tokenizer(ABC):
    """Text to token ids, and each id to its piece of text.

    ``where`` names the file in errors. ``specials`` are the pieces, with their ids, that ``encode`` recognizes in a
    text whatever is around them; ``controls`` those of them that structure a text rather than being some. ``prefix``
    are the ids that the tokenizer puts before a whole text: its BOS, or nothing. ``vocab_size`` is one more than the
    highest id.
    """

    where: str
    specials: Mapping[str, int]
    controls: frozenset[str]
    prefix: tuple[int, ...]
    bos_id: int | None
    eos_id: int | None
    vocab_size: int

    is_piecewise = True
    """Whether the text of several tokens is that of each, one after the other."""

    replaces_each_byte = False
    """Whether U+FFFD stands for each byte that is no UTF-8, as in SentencePiece, or for as many as Unicode advises."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of a text, special pieces in it as specials; nothing is added. Raises TextError if it has no ids."""

    @abstractmethod
    def id_of(self, piece: str) -> int | None:
        """The id of a piece as the vocabulary spells it, or None."""

    @abstractmethod
    def piece(self, token: int) -> str | bytes:
        """A token's text, or its bytes where characters may span tokens; empty for an id that is no token's.

        Defined where the tokenizer is piecewise.
        """

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of all the tokens at once, special pieces included."""

    def opening(self, piece: str | bytes) -> str | bytes:
        """What of a piece is left where it opens a text: less, if the tokenizer puts a space before every text."""
        return piece

    def encode_literally(self, piece: str) -> list[int]:
        """The ids of a special piece taken as ordinary text, in the middle of a text.

        Raises TextError if the tokenizer knows it in no other way.
        """
        ids = [token for part in (piece[:1], piece[1:]) if part for token in self.encode_on(part)]
        return self._literal(piece, ids)

    def encode_on(self, text: str) -> list[int]:
        """The ids of a text that goes on after some other: without the space that some put before a text."""
        if not self._puts_a_space_first:
            return self.encode(text)
        newline, both = self.encode("\n"), self.encode("\n" + text)
        return both[len(newline) :] if both[: len(newline)] == newline else self.encode(text)

    def told(self, model_vocab_size: int) -> list[str]:
        """What the user should know of ids that the tokenizer has and the model of that vocabulary has not.

        Raises TextError if some of them are of ordinary text: the tokenizer belongs to another model.
        """
        beyond = {piece: token for piece, token in self.specials.items() if token >= model_vocab_size}
        if self.vocab_size - model_vocab_size > len(set(beyond.values())):
            raise TextError(
                f"{self.where}: its ids go up to {self.vocab_size - 1}, and the model's vocabulary ends at "
                f"{model_vocab_size - 1}; expected no more. Use the tokenizer that belongs to the model."
            )
        if not beyond:
            return []
        shown = ", ".join(repr(piece) for piece in sorted(beyond, key=beyond.__getitem__)[:3])
        more = f" and {len(beyond) - 3} more" if len(beyond) > 3 else ""
        return [f"the model has no token for the tokenizer's {shown}{more}: a text with such a piece is refused"]

    @cached_property
    def _puts_a_space_first(self) -> bool:
        """Seen from what a space before a letter changes; a tokenizer that has no letter x puts none there."""
        try:
            ids = self.encode("x")
        except TextError:
            return False
        pieces = [self.piece(token) for token in ids[:1]] if self.is_piecewise else []
        return any(piece[:1] in (" ", b" ") for piece in pieces)

    def _literal(self, piece: str, ids: list[int]) -> list[int]:
        if self.specials.get(piece) in ids:
            raise TextError(
                f"{self.where}: a message contains {piece!r}, which this tokenizer reads as a special token in any "
                "text; expected a message without it. Take it out, or allow markup in messages."
            )
        return ids
