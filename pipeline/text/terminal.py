"""Text that cannot drive a terminal.

For terminals alone: what goes to a file or a pipe is passed on as it is, since there another program reads it.
Every control sequence begins with a control character, so that none works once those are shown instead.
"""

from __future__ import annotations

KEPT = "\n\t"

# Marks, embeddings, overrides and isolates of the bidirectional algorithm: they reorder what is around them.
BIDIRECTIONAL = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

PICTURES = 0x2400
"""Unicode's pictures of the C0 controls, in their order."""

_SHOWN: dict[int, str] = {
    **{code: chr(PICTURES + code) for code in range(0x20) if chr(code) not in KEPT},
    0x7F: "␡",
    **{code: f"\\x{code:02x}" for code in range(0x80, 0xA0)},
    **{code: f"\\u{code:04x}" for code in (*BIDIRECTIONAL, 0x2028, 0x2029)},
}


def visible(text: str) -> str:
    r"""The text with all control characters but newline and tab shown: ESC as ``␛``, CSI as ``\x9b``.

    So are bidirectional controls and Unicode's own line separators, as ``\u202e``. Characters are replaced one by one:
    pieces of a stream give what the whole would.
    """
    return text.translate(_SHOWN)
