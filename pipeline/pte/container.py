"""Opens a ``.pte``: its head, its program, its segments and its named data.

Knows the file's layout. Does not know what a segment or a delegate's payload means.
"""

from __future__ import annotations

from struct import unpack_from
from typing import Any

from pipeline.pte import program_tables
from pipeline.pte.program import Program
from pipeline.pte.segments import Head, SegmentedFile

EXTENDED_MAGIC = b"eh00"
MIN_EXTENDED_HEADER_BYTES = 24


class PteFile(SegmentedFile):
    """An open ``.pte``. Use ``PteFile.open(path)`` in a ``with``, or ``PteFile.from_bytes``."""

    kind = ".pte"
    identifier = b"ET12"
    program: Program

    def _head(self) -> Head:
        data = self._data
        if bytes(data[8:12]) != EXTENDED_MAGIC:
            return Head(data, 0, 0)
        length = unpack_from("<I", data, 12)[0] if len(data) >= 16 else 0
        if length < MIN_EXTENDED_HEADER_BYTES or 8 + length > len(data):
            raise self._wrong(f"has an extended header of {length} bytes in a file of {len(data)}")
        program_size, base = unpack_from("<QQ", data, 16)
        data_size = unpack_from("<Q", data, 32)[0] if length >= 32 else 0
        return self._fitting(program_size, base, data_size)

    def _decoded(self, tables: memoryview) -> dict[str, Any]:
        decoded: dict[str, Any] = program_tables.SCHEMA.decode("Program", tables, self._name)
        return decoded

    def _read(self, tables: dict[str, Any]) -> None:
        self.program = program_tables.build(tables, self.segment, self._name)
