"""Opens a ``.ptd``: constants that a program exported with external data takes from a file beside it.

Knows the file's layout, ExecuTorch's FlatTensor (``extension/flat_tensor/serialize``). A blob that was a tensor may
come with its dtype and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import unpack_from
from typing import Any

from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import Schema, quoted
from pipeline.pte.program_tables import MAX_RANK
from pipeline.pte.segments import Head, SegmentedFile

HEADER_MAGIC = b"FH01"
MIN_HEADER_BYTES = 40
MAX_VERSION = 0

SCHEMA = Schema(
    {
        "FlatTensor": "version:u32 segments:[DataSegment]? named_data:[NamedData]?",
        "DataSegment": "offset:u64 size:u64",
        "NamedData": "key:str segment_index:u32 tensor_layout:TensorLayout?",
        "TensorLayout": "scalar_type:i8 sizes:[i32]? dim_order:[u8]?",
    }
)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a blob says it is."""

    dtype: str
    sizes: tuple[int, ...]
    row_major: bool


class PtdFile(SegmentedFile):
    """An open ``.ptd``. ``layouts`` are those of the named data that have one."""

    kind = ".ptd"
    identifier = b"FT01"
    layouts: dict[str, Layout]

    def _head(self) -> Head:
        data = self._data
        magic = bytes(data[8:12])
        if magic != HEADER_MAGIC or len(data) < 8 + MIN_HEADER_BYTES:
            raise self._wrong(f"has {magic!r} at byte 8 of {len(data)}; expected {HEADER_MAGIC!r} and a header")
        length, offset, size, base, data_size = unpack_from("<IQQQQ", data, 12)
        if length < MIN_HEADER_BYTES:
            raise self._wrong(f"has a header of {length} bytes; expected at least {MIN_HEADER_BYTES}")
        return self._fitting(offset + size, base, data_size)

    def _decoded(self, tables: memoryview) -> dict[str, Any]:
        decoded: dict[str, Any] = SCHEMA.decode("FlatTensor", tables, self._name)
        if decoded["version"] > MAX_VERSION:
            raise PteError(
                f"{self._name}: is of version {decoded['version']}; expected at most {MAX_VERSION}. Update this tool."
            )
        return decoded

    def _read(self, tables: dict[str, Any]) -> None:
        entries = tables["named_data"] or ()
        self.layouts = {
            entry["key"]: self._layout(entry["key"], entry["tensor_layout"])
            for entry in entries
            if entry["tensor_layout"] is not None
        }

    def _layout(self, key: str, fields: dict[str, Any]) -> Layout:
        dtype = dtypes.BY_CODE.get(fields["scalar_type"])
        sizes, order = fields["sizes"] or (), fields["dim_order"] or ()
        if dtype is None or len(sizes) > MAX_RANK or min(sizes, default=0) < 0:
            raise self._wrong(
                f"has named data {quoted(key)} of scalar type {fields['scalar_type']} and sizes "
                f"{list(sizes[: MAX_RANK + 1])}"
            )
        return Layout(dtype.name, sizes, not order or order == tuple(range(len(sizes))))
