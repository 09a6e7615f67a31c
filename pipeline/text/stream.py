"""Tokens become text as they come: never half a character, and never without the space a piece begins with."""

from __future__ import annotations

from pipeline.text.tokenizer import Tokenizer

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextStream:
    """The text of a sequence of tokens, piece by piece: together, what the tokenizer decodes at once.

    Bytes that are no UTF-8 become U+FFFD once that is certain. ``after`` is the last token before the sequence: where
    there is none, or it is the BOS, the space that SentencePiece puts before a text is left out as in a whole decode;
    anywhere else a space is part of the text. ``hides_controls`` leaves control pieces out.
    """

    def __init__(self, tokenizer: Tokenizer, *, after: int | None = None, hides_controls: bool = False) -> None:
        self._tokenizer = tokenizer
        self._opens = after is None or after == tokenizer.bos_id
        controls = tokenizer.controls if hides_controls else ()
        self._hidden = {tokenizer.specials[piece] for piece in controls}
        self._pending = b""
        self._tokens: list[int] = []
        self._num_given = 0

    def add(self, token: int) -> str:
        """The text that the token completes; empty while a character is incomplete."""
        if token in self._hidden:
            return ""
        if not self._tokenizer.is_piecewise:
            return self._whole(token)
        piece = self._tokenizer.piece(token)
        if self._opens and piece:
            piece = self._tokenizer.opening(piece)
            self._opens = False
        if isinstance(piece, str):
            # A piece that is text ends a character that its bytes left incomplete.
            return self.flush() + piece
        text, self._pending = _decoded(self._pending + piece, self._tokenizer.replaces_each_byte)
        return text

    def flush(self) -> str:
        """The text of what is still incomplete: no more tokens come."""
        if self._tokens:
            text = self._tokenizer.decode(self._tokens)
            rest, self._tokens, self._num_given = text[self._num_given :], [], 0
            return rest
        pending, self._pending = self._pending, b""
        return REPLACEMENT * (len(pending) if self._tokenizer.replaces_each_byte else bool(pending))

    def _whole(self, token: int) -> str:
        """Of all the text so far, what is new and ends in a whole character."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith(REPLACEMENT):
            return ""
        new, self._num_given = text[self._num_given :], max(self._num_given, len(text))
        return new


def _decoded(data: bytes, replaces_each_byte: bool) -> tuple[str, bytes]:
    """The text of UTF-8, and the bytes at the end that may still become a character."""
    text = ""
    while data:
        try:
            return text + data.decode(), b""
        except UnicodeDecodeError as error:
            text += data[: error.start].decode()
            # Python's word for a sequence that is valid as far as it goes.
            if error.reason == "unexpected end of data":
                return text, data[error.start :]
            num_bad = error.end - error.start
            text += REPLACEMENT * (num_bad if replaces_each_byte else 1)
            data = data[error.end :]
    return text, b""
