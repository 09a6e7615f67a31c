"""A ``tokenizer.json``, read by the tokenizers library alone: Transformers takes seconds to import, it a tenth.

What Transformers adds to such a file when it loads one is added here too: pieces that ``tokenizer_config.json`` has and
the file has not, and the special ones that it names. Whether a BOS opens a text, the file alone says.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.errors import TextError
from pipeline.text.description import CONFIG, Description
from pipeline.text.tokenizer import Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""What SentencePiece, and those that follow it, write for a space."""


class HuggingFaceTokenizer(Tokenizer):
    """Raises TextError for a file that the tokenizers library cannot read."""

    def __init__(self, path: Path, description: Description) -> None:
        from tokenizers import Tokenizer as Library

        self.where = str(path)
        try:
            self._library: Any = Library.from_file(str(path))
        except Exception as error:
            # The library raises no narrower one.
            raise TextError(f"{path}: it is no tokenizer.json ({error}). Fetch the tokenizer's files anew.") from error
        # A file may ask for texts of one length, cut or filled up: that was for training.
        self._library.no_truncation()
        self._library.no_padding()
        self._add(description)
        self._decoding = _Decoding(self._library.decoder)
        self.is_piecewise = self._decoding.text_of is not None
        self.replaces_each_byte = self._decoding.falls_back_to_bytes
        added = self._library.get_added_tokens_decoder()
        self.specials = {token.content: index for index, token in added.items()}
        named = set(description.names.values())
        self.controls = frozenset(t.content for t in added.values() if t.special or t.content in named)
        self.vocab_size = 1 + max(self._library.get_vocab(with_added_tokens=True).values(), default=-1)
        self.bos_id, self.eos_id = (self.id_of(description.names.get(name, "")) for name in ("bos_token", "eos_token"))
        self.prefix = self._prefix()

    def encode(self, text: str) -> list[int]:
        return self._encoded(lambda: self._library.encode(text, add_special_tokens=False).ids, text)

    def encode_literally(self, piece: str) -> list[int]:
        # After a newline, since no text begins here; see encode_on.
        newline, both = (self._encoded(partial(self._without_added, text), text) for text in ("\n", "\n" + piece))
        follows = both[: len(newline)] == newline
        return self._literal(piece, both[len(newline) :] if follows else self._without_added(piece))

    def id_of(self, piece: str) -> int | None:
        index: int | None = self._library.token_to_id(piece)
        return index

    def piece(self, token: int) -> str | bytes:
        assert self._decoding.text_of is not None, "not piecewise"
        piece = self._library.id_to_token(token)
        return "" if piece is None else self._decoding.text_of(piece)

    def decode(self, tokens: Sequence[int]) -> str:
        return str(self._library.decode(list(tokens), skip_special_tokens=False))

    def opening(self, piece: str | bytes) -> str | bytes:
        if isinstance(piece, bytes):
            return piece
        return self._decoding.opening(piece)

    def _without_added(self, text: str) -> list[int]:
        library = self._library
        if library.normalizer is not None:
            text = library.normalizer.normalize_str(text)
        parts = [text]
        if library.pre_tokenizer is not None:
            parts = [part for part, _ in library.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for part in parts for token in library.model.tokenize(part)]

    def _encoded(self, encode: Callable[[], list[int]], text: str) -> list[int]:
        try:
            return encode()
        except Exception as error:
            # No unknown token, for one; or text that is no Unicode, as of a broken terminal.
            shown = text if len(text) <= 40 else text[:40] + "…"
            raise TextError(
                f"{self.where}: the tokenizer cannot read {shown!r} ({error}). Put it in words that it has."
            ) from error

    def _add(self, description: Description) -> None:
        from tokenizers import AddedToken

        known = {token.content for token in self._library.get_added_tokens_decoder().values()}
        for index, fields in sorted(description.added.items()):
            if fields["content"] in known:
                continue
            flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
            token = AddedToken(fields["content"], **{flag: bool(fields[flag]) for flag in flags if flag in fields})
            self._library.add_tokens([token])
            given = self.id_of(fields["content"])
            if given != index:
                raise TextError(
                    f"{self.where}: {CONFIG} says that {fields['content']!r} is token {index}, and here it is {given}; "
                    "expected the same. The two files belong to different tokenizers."
                )
        named = [piece for piece in description.names.values() if self.id_of(piece) is not None and piece not in known]
        self._library.add_special_tokens(sorted(named))

    def _prefix(self) -> tuple[int, ...]:
        try:
            with_specials, without = (self._library.encode("x", add_special_tokens=flag).ids for flag in (True, False))
        except Exception:
            # A vocabulary of words, without x and without an unknown word, puts nothing in front.
            return ()
        return tuple(with_specials[: with_specials.index(without[0])]) if without else ()


class _Decoding:
    """What the decoder of a ``tokenizer.json`` does to one piece, if that can be said: ``text_of``, or None.

    It can of the two kinds that causal LMs have: byte-level BPE, and SentencePiece's spaces and byte pieces.
    """

    def __init__(self, decoder: Any) -> None:
        described: Any = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
        steps: list[dict[str, Any]] = described["decoders"] if described["type"] == "Sequence" else [described]
        kinds = [step["type"] for step in steps]
        self.falls_back_to_bytes = "ByteFallback" in kinds
        self.text_of: Callable[[str], str | bytes] | None = None
        self.opening: Callable[[str], str] = lambda piece: piece
        if kinds == ["ByteLevel"]:
            self.text_of = _bytes_of
        elif kinds == ["Metaspace"]:
            self.text_of = partial(_spaced, steps[0]["replacement"], False)
            if steps[0]["prepend_scheme"] != "never":
                self.opening = lambda piece: piece.replace(" ", "")
        elif _is_sentencepiece(steps):
            self.text_of = partial(_spaced, SPACE, self.falls_back_to_bytes)
            if kinds[-1] == "Strip":
                self.opening = lambda piece: piece.removeprefix(" ")


def _is_sentencepiece(steps: list[dict[str, Any]]) -> bool:
    """Spaces put back, bytes joined, and perhaps the one space removed that opens the text."""
    expected = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]
    return steps in (expected, expected[:3], expected[:1])


def _spaced(space: str, falls_back_to_bytes: bool, piece: str) -> str | bytes:
    piece = piece.replace(space, " ")
    if falls_back_to_bytes and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        try:
            return bytes([int(piece[3:5], 16)])
        except ValueError:
            pass
    return piece


def _bytes_of(piece: str) -> bytes:
    """The bytes that the characters of a byte-level piece stand for; a piece that has others is itself text."""
    try:
        return bytes(_BYTES[character] for character in piece)
    except KeyError:
        return piece.encode()


def _byte_level() -> dict[str, int]:
    """GPT-2's characters for bytes: a printable byte is itself in Latin-1, and the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(0x100) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + index): byte for index, byte in enumerate(others)}


_BYTES = _byte_level()
