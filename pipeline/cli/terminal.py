"""What the terminal at hand can show, if it is one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TextIO

NARROWEST = 40
_COLOURS = {"red": "31", "green": "32", "yellow": "33", "cyan": "36", "bold": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """``width`` in columns, ``None`` where lines are not to be broken: a log is searched line by line."""

    width: int | None = None
    colours: bool = False

    @classmethod
    def of(cls, stream: TextIO) -> Terminal:
        """Colours and line breaks are for a terminal alone, and colours where nobody refuses them (no-color.org)."""
        if not stream.isatty():
            return cls()
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        return cls(width=_width(), colours=not plain)

    def coloured(self, text: str, colour: str) -> str:
        """The text in a colour, or ``bold``."""
        return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if self.colours else text

    def wrapped(self, text: str, indent: int) -> str:
        """The text at the indent, broken between words; all lines but the first are four columns further in."""
        if self.width is None:
            return f"{'':{indent}}{text}"
        import textwrap

        return textwrap.fill(
            text,
            width=max(self.width, NARROWEST),
            initial_indent=" " * indent,
            subsequent_indent=" " * (indent + 4),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _width() -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdigit() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or None
    except OSError:
        return None
