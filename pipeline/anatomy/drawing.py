"""Tables and bars of characters, as wide as there is room, in what the output's encoding can say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_WIDTH = 40
MIN_FIRST_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Canvas:
    """``width`` is in columns. ``limit`` is how many rows of a kind are shown, ``None`` for all."""

    width: int = 80
    unicode: bool = True
    limit: int | None = 20

    @property
    def times(self) -> str:
        return "\u00d7" if self.unicode else "x"

    @property
    def ellipsis(self) -> str:
        return "…" if self.unicode else "..."

    @property
    def arrow(self) -> str:
        return "→" if self.unicode else "->"

    def bar(self, part: int, whole: int, width: int) -> str:
        """``part`` of ``whole`` as a bar of up to ``width`` columns: to an eighth of one, where eighths can be said."""
        if whole <= 0 or part <= 0 or width <= 0:
            return ""
        if not self.unicode:
            return "#" * max(1, round(part * width / whole))
        eighths = max(1, round(part * width * 8 / whole))
        return "█" * (eighths // 8) + ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")[eighths % 8]

    def cut(self, text: str, width: int) -> str:
        """The text in ``width`` columns, with its middle left out where it is longer: names differ at their ends."""
        if len(text) <= width:
            return text
        room = max(width - len(self.ellipsis), 1)
        return text[: room // 3] + self.ellipsis + text[len(text) - (room - room // 3) :]

    def shown(self, rows: Sequence[Sequence[str]], what: str, align: str) -> list[str]:
        """A table's rows, cut to the limit with a word on what is left out. See ``table`` for ``align``."""
        limit = len(rows) if self.limit is None else self.limit
        lines = self.table(rows[:limit], align)
        if len(rows) > limit:
            lines.append(f"  {self.ellipsis} and {len(rows) - limit} more {what} (--all shows them)")
        return lines

    def table(self, rows: Sequence[Sequence[str]], align: str) -> list[str]:
        """Rows as lines, two spaces in. ``align`` has ``<`` or ``>`` for each column; the first is cut if need be."""
        if not rows:
            return []
        widths = [max(len(row[column]) for row in rows) for column in range(len(align))]
        rest = sum(widths[1:]) + 2 * len(align)
        widths[0] = min(widths[0], max(max(self.width, MIN_WIDTH) - rest, MIN_FIRST_WIDTH))
        lines = []
        for row in rows:
            cells = [self.cut(row[0], widths[0]), *row[1:]]
            placed = [
                cell.rjust(width) if side == ">" else cell.ljust(width)
                for cell, width, side in zip(cells, widths, align, strict=True)
            ]
            lines.append(("  " + "  ".join(placed)).rstrip())
        return lines


def path_text(path: str) -> str:
    """A path that the caller named: whole, on one line."""
    return path if path.isprintable() else repr(path)


def bytes_text(size: int) -> str:
    """``269.2 MB``; thousands, as disks and file managers count."""
    if abs(size) < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB", "GB", "TB"):
        amount /= 1000
        if abs(amount) < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} PB"


def count_text(count: int) -> str:
    """``134.5 M``, as numbers of weights are told."""
    if abs(count) < 10_000:
        return str(count)
    amount = float(count)
    for unit in ("k", "M", "G"):
        amount /= 1000
        if abs(amount) < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} T"


def percent_text(part: int, whole: int) -> str:
    """``21.0 %``, and ``<0.1 %`` for what is there."""
    if whole <= 0 or part <= 0:
        return "0 %"
    share = 100 * part / whole
    return f"{share:.1f} %" if share >= 0.05 else "<0.1 %"
