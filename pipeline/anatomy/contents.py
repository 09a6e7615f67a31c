"""Whether bytes are the same, without holding more of them than a moment needs."""

from __future__ import annotations

import hashlib
from pathlib import Path

from pipeline.errors import PteError
from pipeline.pte.segments import SegmentedFile

CHUNK_BYTES = 1 << 20
HELD_BYTES = 32 << 20
MAX_ROUNDS = 32


class Reader:
    """Compares and digests parts of open files; gives back the pages that it has read.

    Raises ``PteError`` when all is read many times over: only segments that lie on each other come to that.
    """

    def __init__(self, *files: SegmentedFile) -> None:
        self._files = files
        self._held = 0
        self._left = MAX_ROUNDS * sum(file.size_bytes for file in files) + HELD_BYTES

    def same(self, a: memoryview, b: memoryview) -> bool:
        """Whether the bytes are equal; stops at the first chunk that differs."""
        if len(a) != len(b):
            return False
        for start in range(0, len(a), CHUNK_BYTES):
            # Copies compare at memory speed, views element by element.
            if bytes(a[start : start + CHUNK_BYTES]) != bytes(b[start : start + CHUNK_BYTES]):
                return False
            self._count(2 * min(CHUNK_BYTES, len(a) - start))
        return True

    def digest(self, data: memoryview) -> bytes:
        """What stands for the bytes in a comparison with many."""
        found = hashlib.sha256()
        for start in range(0, len(data), CHUNK_BYTES):
            found.update(data[start : start + CHUNK_BYTES])
            self._count(min(CHUNK_BYTES, len(data) - start))
        return found.digest()

    def _count(self, num_bytes: int) -> None:
        self._left -= num_bytes
        if self._left < 0:
            names = " or ".join(str(file.path) for file in self._files)
            raise PteError(
                f"{names}: its parts lie on each other, and comparing them has read all of it {MAX_ROUNDS} times; "
                "expected parts of their own. The file is damaged; build or copy it again."
            )
        self._held += num_bytes
        if self._held >= HELD_BYTES:
            self._held = 0
            for file in self._files:
                file.forget_pages()


def same_files(a: Path, b: Path) -> bool:
    """Whether two files are one, or hold the same bytes. Raises ``OSError``."""
    if a.samefile(b):
        return True
    if a.stat().st_size != b.stat().st_size:
        return False
    with a.open("rb") as one, b.open("rb") as other:
        while chunk := one.read(CHUNK_BYTES):
            if chunk != other.read(CHUNK_BYTES):
                return False
    return True
