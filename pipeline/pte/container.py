"""Opens a ``.pte``: its head, its program, its segments and its named data.

Knows the file's layout. Maps it instead of reading it, so opening costs by the size of the
program, not of the weights. Does not know what a segment or a delegate's payload means.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from struct import unpack_from
from types import TracebackType
from typing import Any

from pipeline.errors import PteError
from pipeline.pte import program
from pipeline.pte.flatbuffer import quoted
from pipeline.pte.program import Program

IDENTIFIER = b"ET12"
EXTENDED_MAGIC = b"eh00"
MIN_EXTENDED_HEADER_BYTES = 24


class NamedData(Mapping[str, memoryview]):
    """Named blobs; a view is made when a name is asked for. Several names may share a segment."""

    def __init__(self, file: PteFile, segment_of: dict[str, int]) -> None:
        self._file = file
        self._segment_of = segment_of

    def __getitem__(self, name: str) -> memoryview:
        return self._file.segment(self._segment_of[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._segment_of)

    def __len__(self) -> int:
        return len(self._segment_of)


class PteFile:
    """An open ``.pte``. Use ``PteFile.open(path)`` in a ``with``, or ``PteFile.from_bytes``.

    Views given out stay valid after ``close``: the mapping goes when the last of them does.
    """

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path = path
        self.size_bytes = len(data)
        self._data = data
        self._owner = data.obj
        self._name = str(path)
        program_data, base, data_size = self._head()
        tables = program.SCHEMA.decode("Program", program_data, self._name)
        self._segments = self._ranges(tables["segments"] or (), base, data_size)
        self.named_data: Mapping[str, memoryview] = NamedData(self, self._names(tables["named_data"] or ()))
        self.program: Program = program.build(tables, self.segment, self._name)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> PteFile:
        """Maps the file and reads its program. Raises ``PteError`` if it is not a ``.pte`` we can trust."""
        path = Path(path)
        try:
            # A pipe would be waited for, and a device has no size.
            mode = path.stat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise PteError(f"{path}: it is no regular file; expected a .pte. Check the path.")
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except FileNotFoundError:
            raise PteError(f"{path}: there is no such file; expected a .pte. Build it, or correct the path.") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise PteError(f"{path}: cannot be read ({reason}); expected a .pte file. Check the path.") from None
        return cls(path, memoryview(mapped))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview, name: str) -> PteFile:
        """The same from memory; ``name`` stands for the path in messages."""
        return cls(Path(name), memoryview(data).cast("B"))

    def segment(self, index: int) -> memoryview:
        """The bytes of a segment. Raises ``PteError`` when the file has no such segment."""
        if not 0 <= index < len(self._segments):
            raise self._wrong(f"refers to segment {index} of {len(self._segments)}")
        start, end = self._segments[index]
        return self._data[start:end]

    def close(self) -> None:
        """Releases the file; views given out keep their bytes alive."""
        self._data.release()
        if isinstance(self._owner, mmap.mmap):
            with suppress(BufferError):
                self._owner.close()

    def __enter__(self) -> PteFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wrong(self, what: str) -> PteError:
        return PteError(f"{self._name}: {what}. The file is damaged; build or copy it again.")

    def _head(self) -> tuple[memoryview, int, int]:
        """``(program flatbuffer, segment base, segment bytes)``; the last two are 0 without segments."""
        data = self._data
        if not data:
            raise PteError(f"{self._name}: the file is empty; expected a .pte. Build or copy it again.")
        found = bytes(data[4:8])
        if found != IDENTIFIER:
            raise PteError(
                f"{self._name}: bytes 4 to 8 are {found!r}; expected {IDENTIFIER!r}, the mark of a .pte. "
                "Check that this is the right file."
            )
        if bytes(data[8:12]) != EXTENDED_MAGIC:
            return data, 0, 0
        length = unpack_from("<I", data, 12)[0] if len(data) >= 16 else 0
        if length < MIN_EXTENDED_HEADER_BYTES or 8 + length > len(data):
            raise self._wrong(f"has an extended header of {length} bytes in a file of {len(data)}")
        program_size, base = unpack_from("<QQ", data, 16)
        data_size = unpack_from("<Q", data, 32)[0] if length >= 32 else 0
        if program_size > len(data) or base > len(data) or base + data_size > len(data):
            raise self._wrong(
                f"needs {max(program_size, base + data_size)} bytes and has {len(data)}; it was cut short"
            )
        return data[:program_size], base, data_size

    def _ranges(self, segments: tuple[dict[str, Any], ...], base: int, data_size: int) -> list[tuple[int, int]]:
        end = base + data_size if data_size else self.size_bytes
        ranges = []
        for index, segment in enumerate(segments):
            start = base + segment["offset"]
            if not base or start + segment["size"] > end:
                raise self._wrong(
                    f"has segment {index} of {segment['size']} bytes at byte {start}, outside {base} to {end}"
                )
            ranges.append((start, start + segment["size"]))
        return ranges

    def _names(self, entries: tuple[dict[str, Any], ...]) -> dict[str, int]:
        names: dict[str, int] = {}
        for entry in entries:
            key, index = entry["key"], entry["segment_index"]
            if key in names:
                raise self._wrong(f"has named data {quoted(key)} twice")
            if index >= len(self._segments):
                raise self._wrong(f"has named data {quoted(key)} in segment {index} of {len(self._segments)}")
            names[key] = index
        return names
