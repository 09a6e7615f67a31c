"""An answer as it is generated: the text that may be shown, and why it ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.runtime.generate import CANCELLED, Generation
from pipeline.text.reply import Reply
from pipeline.text.tokenizer import Tokenizer

STOP_STRING = "stop_string"


class Answer:
    """Iterate over it for pieces of text. ``text`` is all of them; close it, or leave off, to end it early.

    ``finish`` is that of the generation, or ``stop_string``; ``stopped_by`` the id or string that ended it, if one did.
    """

    def __init__(self, tokenizer: Tokenizer, generation: Generation, stop_strings: Sequence[str] = ()) -> None:
        self.generation = generation
        self.text = ""
        self._reply = Reply(tokenizer, stop_ids=(), stop_strings=stop_strings, after=generation.prompt[-1])

    def __iter__(self) -> Iterator[str]:
        try:
            for token in self.generation:
                yield from self._shown(self._reply.add(token))
                if self._reply.stopped_by is not None:
                    return
            # What was held back might have become a character, or a stop string.
            yield from self._shown(self._reply.flush())
        finally:
            self.generation.close()

    @property
    def finish(self) -> str:
        return self.generation.finish if self._reply.stopped_by is None else STOP_STRING

    @property
    def stopped_by(self) -> int | str | None:
        return self.generation.stop_id if self._reply.stopped_by is None else self._reply.stopped_by

    @property
    def was_cancelled(self) -> bool:
        return self.finish == CANCELLED

    def _shown(self, piece: str) -> Iterator[str]:
        self.text += piece
        if piece:
            yield piece
