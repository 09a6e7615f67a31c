"""Text that came from outside, fit to be shown: no control character reaches a terminal, a log or an XML parser."""

from __future__ import annotations


def plain(text: str, keep: str = "") -> str:
    """The text with everything escaped that is not printable: line ends, ANSI sequences, bytes that are no UTF-8.

    Characters in ``keep`` stay; whoever wants that escapes them in another way.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else repr(c)[1:-1] for c in text)


def name(path: str) -> str:
    """A file's name on one line: as it is, or as Python would write it where that would not be plain."""
    return path if path.isprintable() else repr(path)


def unicode(text: str) -> str:
    """The text with nothing escaped but bytes that are no UTF-8, for which JSON has no character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
