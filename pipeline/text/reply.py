"""An answer as it is generated: a token in, the text that may be shown out."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pipeline.text.stop import StopStrings
from pipeline.text.stream import TextStream
from pipeline.text.tokenizer import Tokenizer


class Reply:
    """Decodes tokens, and ends at any of ``stop_ids`` or ``stop_strings``; neither is part of the text.

    ``after`` is the last token of the prompt; ``hides_controls`` leaves control pieces out, as an API's clients expect.
    ``stopped_by`` is what ended the reply, an id or a string, and None as long as nothing has.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop_ids: Collection[int],
        stop_strings: Sequence[str] = (),
        after: int | None = None,
        hides_controls: bool = False,
    ) -> None:
        self._stream = TextStream(tokenizer, after=after, hides_controls=hides_controls)
        self._stop_ids = frozenset(stop_ids)
        self._strings = StopStrings(stop_strings)
        self.stopped_by: int | str | None = None

    def add(self, token: int) -> str:
        """The text that may be shown now; empty once the reply has ended."""
        if self.stopped_by is not None:
            return ""
        if token in self._stop_ids:
            text = self.flush()
            if self.stopped_by is None:
                self.stopped_by = token
            return text
        return self._passed(self._stream.add(token))

    def flush(self) -> str:
        """What was held back: no more tokens come."""
        return self._passed(self._stream.flush()) + self._strings.flush()

    def _passed(self, text: str) -> str:
        text = self._strings.add(text)
        if self._strings.met is not None:
            self.stopped_by = self._strings.met
        return text
