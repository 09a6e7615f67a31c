"""A SentencePiece ``tokenizer.model``, as Llama 2, Gemma and Mistral are published by their makers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.errors import TextError
from pipeline.text.tokenizer import Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class SentencePieceTokenizer(Tokenizer):
    """A control piece, such as the BOS, decodes to nothing; in a text to encode it is recognized.

    Raises TextError for a damaged file.
    """

    replaces_each_byte = True

    def __init__(self, path: Path) -> None:
        try:
            from sentencepiece import SentencePieceProcessor
        except ImportError as error:
            raise TextError(
                f"{path}: a SentencePiece model is read with the sentencepiece library, which is not installed. Run "
                "pip install 'pte-pipeline[run]'."
            ) from error
        self.where = str(path)
        self._library: Any = SentencePieceProcessor()
        try:
            self._library.LoadFromSerializedProto(path.read_bytes())
        except (RuntimeError, OSError) as error:
            raise TextError(f"{path}: it is no SentencePiece model. Fetch the tokenizer's files anew.") from error
        self.vocab_size = int(self._library.vocab_size())
        structural = {self._library.id_to_piece(i): i for i in range(self.vocab_size) if self._library.is_control(i)}
        # Pieces that a model was given, rather than learned, score 0; they too are found in any text.
        given = {self._library.id_to_piece(i): i for i in range(self.vocab_size) if self._is_given(i)}
        self.specials = structural | given
        self.controls = frozenset(self.specials)
        bos, eos = int(self._library.bos_id()), int(self._library.eos_id())
        self.bos_id, self.eos_id = (bos if bos >= 0 else None), (eos if eos >= 0 else None)
        self.prefix = () if self.bos_id is None else (self.bos_id,)
        self._structural = re.compile("|".join(map(re.escape, sorted(structural, key=len, reverse=True))) or "(?!)")

    def encode(self, text: str) -> list[int]:
        # The library finds given pieces in a text, and takes structural ones for ordinary letters.
        ids: list[int] = []
        begun = 0
        for found in self._structural.finditer(text):
            ids += [*self._part(text[begun : found.start()], ids), self.specials[found.group()]]
            begun = found.end()
        return ids + self._part(text[begun:], ids)

    def id_of(self, piece: str) -> int | None:
        index = int(self._library.piece_to_id(piece))
        return index if self._library.id_to_piece(index) == piece else None

    def piece(self, token: int) -> str | bytes:
        if not 0 <= token < self.vocab_size or self._library.is_control(token):
            return ""
        piece = str(self._library.id_to_piece(token))
        if self._library.is_byte(token):
            return bytes([int(piece[3:5], 16)])
        return str(self._library.decode([token])) if self._library.is_unknown(token) else piece.replace(SPACE, " ")

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens)))

    def opening(self, piece: str | bytes) -> str | bytes:
        return piece.removeprefix(" ") if isinstance(piece, str) else piece

    def _is_given(self, token: int) -> bool:
        library = self._library
        learned_none = library.is_unknown(token) or library.is_byte(token) or library.is_unused(token)
        if learned_none or library.is_control(token) or library.get_score(token) != 0:
            return False
        # The first of the learned pieces of a BPE model scores 0 as well.
        piece = library.id_to_piece(token)
        return len(piece) > 1 and SPACE not in piece and token in library.encode(f"x{piece}x")

    def _part(self, text: str, before: Sequence[int]) -> list[int]:
        """Text between structural pieces; only where nothing but those came before does it open the text."""
        if not text:
            return []
        ids = list(self._library.encode(text))
        if all(self._library.is_control(token) for token in before):
            return ids
        newline, both = list(self._library.encode("\n")), list(self._library.encode("\n" + text))
        return both[len(newline) :] if both[: len(newline)] == newline else ids
