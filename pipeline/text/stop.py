"""Stop strings in a stream of text: nothing of one is ever shown."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import TextError


class StopStrings:
    """Passes text on until one of ``strings`` is complete, the string itself and what follows it left out.

    The one that is complete first ends the text, and of several at one character the longest. How the text is cut into
    pieces changes nothing: what might begin a stop string is held back.

    Raises TextError for an empty string.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        if "" in strings:
            raise TextError("a stop string is empty; expected some text, since every text begins with an empty one.")
        self._strings = tuple(strings)
        self._held = ""
        self.met: str | None = None

    def add(self, text: str) -> str:
        """What of the text so far, and not given yet, is certainly before any stop string."""
        if self.met is not None:
            return ""
        text = self._held + text
        found = [(text.find(string) + len(string), -len(string), string) for string in self._strings if string in text]
        if found:
            end, _, self.met = min(found)
            self._held = ""
            return text[: end - len(self.met)]
        held = max((_length_begun(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """What was held back: no more text comes."""
        held, self._held = self._held, ""
        return held


def _length_begun(text: str, string: str) -> int:
    """The length of the longest end of the text that the string begins with."""
    for length in range(min(len(text), len(string) - 1), 0, -1):
        if text.endswith(string[:length]):
            return length
    return 0
