"""Edits what a ``.pte`` publishes, in its bytes, by flatbuffers' own tables: independent of our reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from flatbuffers.number_types import Int32Flags, Uint8Flags, Uint32Flags, Uint64Flags
from flatbuffers.table import Table

# Where fields stand in the vtables of executorch's program.fbs: 4 and two bytes for each field before.
PROGRAM_PLANS, PROGRAM_SEGMENTS, PROGRAM_CONSTANTS = 6, 12, 14
PLAN_NAME, PLAN_VALUES, PLAN_OUTPUTS = 4, 8, 12
VALUE_KIND, VALUE = 4, 6
TENSOR_DTYPE, TENSOR_SIZES, TENSOR_DATA = 4, 8, 14
CONSTANTS_SEGMENT, CONSTANTS_OFFSETS = 4, 6
FIRST = 4

INT, DOUBLE, TENSOR = 2, 4, 5
"""Kinds of values."""


class Editor:
    """A file's bytes in ``data``. What is edited keeps its size, so nothing else moves."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        (root,) = struct.unpack_from("<I", self.data)
        self._program = Table(self.data, root)
        self._plans = {self._text(plan, PLAN_NAME): plan for plan in self._tables(self._program, PROGRAM_PLANS)}

    def rename(self, method: str) -> None:
        """The method is not there any more; another one is."""
        plan = self._plans[method]
        start = plan.Vector(plan.Offset(PLAN_NAME))
        self.data[start : start + 3] = b"got"

    def set_int(self, method: str, value: int) -> None:
        """The method's only output, an Int, is another."""
        number = self._content(method, INT)
        assert number.Offset(FIRST), f"{method} publishes 0, which is not stored"
        struct.pack_into("<q", self.data, number.Pos + number.Offset(FIRST), value)

    def make_double(self, method: str) -> None:
        """The eight bytes of the method's Int are a Double's."""
        assert self._content(method, INT)
        value = self._value(method)
        self.data[value.Pos + value.Offset(VALUE_KIND)] = DOUBLE

    def set_entry(self, method: str, index: int, entry: int) -> None:
        """One entry of the method's int32 tensor is another."""
        tensor = self._content(method, TENSOR)
        number = tensor.Get(Uint32Flags, tensor.Pos + tensor.Offset(TENSOR_DATA))
        constants = Table(
            self.data, self._program.Indirect(self._program.Pos + self._program.Offset(PROGRAM_CONSTANTS))
        )
        segment = list(self._tables(self._program, PROGRAM_SEGMENTS))[
            constants.GetSlot(CONSTANTS_SEGMENT, 0, Uint32Flags)
        ]
        offset = constants.Get(Uint64Flags, constants.Vector(constants.Offset(CONSTANTS_OFFSETS)) + 8 * number)
        (base,) = struct.unpack_from("<Q", self.data, 24)
        struct.pack_into("<i", self.data, base + segment.GetSlot(FIRST, 0, Uint64Flags) + offset + 4 * index, entry)

    def set_length(self, method: str, length: int) -> None:
        """The method's tensor has another number of entries; there have to be bytes for them."""
        tensor = self._content(method, TENSOR)
        struct.pack_into("<i", self.data, tensor.Vector(tensor.Offset(TENSOR_SIZES)), length)

    def set_dtype(self, method: str, code: int) -> None:
        """The method's tensor is of another scalar type."""
        tensor = self._content(method, TENSOR)
        self.data[tensor.Pos + tensor.Offset(TENSOR_DTYPE)] = code

    def _text(self, table: Table, field: int) -> str:
        text: bytes = table.String(table.Pos + table.Offset(field))
        return text.decode()

    def _tables(self, table: Table, field: int) -> Iterator[Table]:
        start = table.Vector(table.Offset(field))
        for index in range(table.VectorLen(table.Offset(field))):
            yield Table(self.data, table.Indirect(start + 4 * index))

    def _value(self, method: str) -> Table:
        plan = self._plans[method]
        assert plan.VectorLen(plan.Offset(PLAN_OUTPUTS)) == 1
        output = plan.Get(Int32Flags, plan.Vector(plan.Offset(PLAN_OUTPUTS)))
        return list(self._tables(plan, PLAN_VALUES))[output]

    def _content(self, method: str, kind: int) -> Table:
        value = self._value(method)
        assert value.Get(Uint8Flags, value.Pos + value.Offset(VALUE_KIND)) == kind
        content = Table(self.data, 0)
        value.Union(content, value.Offset(VALUE))
        return content
