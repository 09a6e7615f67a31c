"""A mapped file of segments with names for some of them: what a ``.pte`` and a ``.ptd`` have in common.

Maps a file instead of reading it, so opening costs by the size of its tables, not of its weights. Does not know the
tables, nor what a segment means.
"""

from __future__ import annotations

import mmap
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from pipeline.errors import PteError
from pipeline.pte.flatbuffer import quoted


class Head(NamedTuple):
    """Where a file's tables are, where its segments begin, and how many bytes they have: 0 where it does not say."""

    tables: memoryview
    base: int
    data_size: int


class NamedData(Mapping[str, memoryview]):
    """Named blobs; a view is made when a name is asked for. Several names may share a segment."""

    def __init__(self, file: SegmentedFile, segment_of: dict[str, int]) -> None:
        self._file = file
        self._segment_of = segment_of

    def __getitem__(self, name: str) -> memoryview:
        return self._file.segment(self._segment_of[name])

    def segment_of(self, name: str) -> int:
        """The index of the segment that holds it."""
        return self._segment_of[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._segment_of)

    def __len__(self) -> int:
        return len(self._segment_of)


class SegmentedFile(ABC):
    """An open file. Use ``open(path)`` in a ``with``, or ``from_bytes``.

    Views given out stay valid after ``close``: the mapping goes when the last of them does.

    ``segments`` says where in the file each segment starts and ends, ``tables_bytes`` how much is before them.
    """

    kind: ClassVar[str]
    """As in ".pte"."""

    identifier: ClassVar[bytes]
    """What stands at byte 4."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.size_bytes = len(data)
        self._data = data
        self._owner = data.obj
        self._name = str(path)
        if not data:
            raise PteError(f"{self._name}: the file is empty; expected a {self.kind}. Build or copy it again.")
        found = bytes(data[4:8])
        if found != self.identifier:
            raise PteError(
                f"{self._name}: bytes 4 to 8 are {found!r}; expected {self.identifier!r}, the mark of a {self.kind}. "
                "Check that this is the right file."
            )
        head = self._head()
        self.tables_bytes = len(head.tables)
        tables = self._decoded(head.tables)
        self.segments = self._ranges(tables["segments"] or (), head)
        self.named_data = NamedData(self, self._names(tables["named_data"] or ()))
        self._read(tables)

    @abstractmethod
    def _head(self) -> Head:
        """Raises ``PteError`` where it contradicts the file's size."""

    @abstractmethod
    def _decoded(self, tables: memoryview) -> dict[str, Any]:
        """The root table, with its ``segments`` and ``named_data``."""

    @abstractmethod
    def _read(self, tables: dict[str, Any]) -> None:
        """What else the tables hold."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Maps the file and reads its tables. Raises ``PteError`` if it is not a file we can trust."""
        path = Path(path)
        try:
            # A pipe would be waited for, and a device has no size.
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise PteError(f"{path}: it is no regular file; expected a {cls.kind}. Check the path.")
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except FileNotFoundError:
            raise PteError(
                f"{path}: there is no such file; expected a {cls.kind}. Build it, or correct the path."
            ) from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PteError(f"{path}: cannot be read ({reason}); expected a {cls.kind} file. Check the path.") from None
        return cls(path, memoryview(mapped))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, name: str) -> Self:
        """The same from memory; ``name`` stands for the path in messages."""
        return cls(Path(name), memoryview(data).cast("B"))

    def segment(self, index: int) -> memoryview:
        """The bytes of a segment. Raises ``PteError`` when the file has no such segment."""
        if not 0 <= index < len(self.segments):
            raise self._wrong(f"refers to segment {index} of {len(self.segments)}")
        start, end = self.segments[index]
        return self._data[start:end]

    def forget_pages(self) -> None:
        """The process holds none of the file's pages in memory any more; what is looked at again is mapped again.

        Without this, everything that was ever read through the mapping counts as the process's memory.
        """
        if isinstance(self._owner, mmap.mmap) and not self._owner.closed:
            self._owner.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Releases the file; views given out keep their bytes alive."""
        self._data.release()
        if isinstance(self._owner, mmap.mmap):
            with suppress(BufferError):
                self._owner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wrong(self, what: str) -> PteError:
        return PteError(f"{self._name}: {what}. The file is damaged; build or copy it again.")

    def _fitting(self, tables_end: int, base: int, data_size: int) -> Head:
        """The head, if the file is as long as it says."""
        end = max(tables_end, base + data_size)
        if end > self.size_bytes:
            raise self._wrong(f"needs {end} bytes and has {self.size_bytes}; it was cut short")
        return Head(self._data[:tables_end], base, data_size)

    def _ranges(self, segments: tuple[dict[str, Any], ...], head: Head) -> tuple[tuple[int, int], ...]:
        base = head.base
        end = base + head.data_size if head.data_size else self.size_bytes
        ranges = []
        for index, segment in enumerate(segments):
            start = base + segment["offset"]
            # A program whose constants are all elsewhere has an empty segment, and no place for segments.
            if (segment["size"] and not base) or start + segment["size"] > end:
                raise self._wrong(
                    f"has segment {index} of {segment['size']} bytes at byte {start}, outside {base} to {end}"
                )
            ranges.append((start, start + segment["size"]))
        return tuple(ranges)

    def _names(self, entries: tuple[dict[str, Any], ...]) -> dict[str, int]:
        names: dict[str, int] = {}
        for entry in entries:
            key, index = entry["key"], entry["segment_index"]
            if key in names:
                raise self._wrong(f"has named data {quoted(key)} twice")
            if index >= len(self.segments):
                raise self._wrong(f"has named data {quoted(key)} in segment {index} of {len(self.segments)}")
            names[key] = index
        return names
