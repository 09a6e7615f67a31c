"""Small files that may be anyone's, such as a record or a tokenizer's: read whole, never waited for, never endless."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


class TooLarge(Exception):  # noqa: N818 - each reader has words of its own for it
    """The file has more bytes than are read; ``size`` is how many."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def content(file: Path, limit: int) -> bytes:
    """All bytes of a file of at most ``limit``. Raises TooLarge, or OSError with a ``strerror`` to show."""
    status = file.stat()
    # A pipe would be waited for, and a device may have no end.
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise OSError(errno.EINVAL, "it is no regular file")
    if status.st_size > limit and stat.S_ISREG(status.st_mode):
        raise TooLarge(status.st_size)
    return file.read_bytes()
