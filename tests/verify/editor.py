"""Edits what a ``.pte`` publishes, in its bytes, by executorch's own reader of its schema: independent of ours."""

from __future__ import annotations

import struct
from typing import Any

from tests.tiny_models import library_warnings_ignored

with library_warnings_ignored():
    from executorch.exir._serialize.generated.executorch_flatbuffer.KernelTypes import KernelTypes
    from executorch.exir._serialize.generated.executorch_flatbuffer.Program import Program
    from executorch.exir._serialize.generated.executorch_flatbuffer.Tensor import Tensor

SCALAR_TYPE, SIZES, DATA_BUFFER = 4, 8, 14
"""Where in a Tensor's vtable these fields stand."""


class Editor:
    """A file's bytes in ``data``. What is edited keeps its size, so nothing else moves."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self._program = Program.GetRootAs(self.data, 0)
        plans = [self._program.ExecutionPlan(i) for i in range(self._program.ExecutionPlanLength())]
        self._plans = {plan.Name().decode(): plan for plan in plans}
        (self._base,) = struct.unpack_from("<Q", self.data, 24)

    def rename(self, method: str) -> None:
        """The method is not there any more; another one is."""
        name = self._plans[method]._tab
        start = name.Vector(name.Offset(4))
        self.data[start : start + 3] = b"got"

    def set_int(self, method: str, value: int) -> None:
        """The method's only output, an Int, is another."""
        table = self._value(method).Val()
        field = table.Offset(4)
        assert field, f"{method} publishes 0, which is not stored"
        struct.pack_into("<q", self.data, table.Pos + field, value)

    def make_double(self, method: str) -> None:
        """The eight bytes of the method's Int are a Double's."""
        value = self._value(method)._tab
        self.data[value.Pos + value.Offset(4)] = KernelTypes.Double

    def set_entry(self, method: str, index: int, entry: int) -> None:
        """One entry of the method's int32 tensor is another."""
        tensor = self._tensor(method)
        segment = self._program.ConstantSegment()
        start = self._base + self._program.Segments(segment.SegmentIndex()).Offset()
        struct.pack_into("<i", self.data, start + segment.Offsets(tensor.DataBufferIdx()) + 4 * index, entry)

    def set_length(self, method: str, length: int) -> None:
        """The method's tensor has another number of entries; there have to be bytes for them."""
        table = self._tensor(method)._tab
        struct.pack_into("<i", self.data, table.Vector(table.Offset(SIZES)), length)

    def set_dtype(self, method: str, code: int) -> None:
        """The method's tensor is of another scalar type."""
        table = self._tensor(method)._tab
        self.data[table.Pos + table.Offset(SCALAR_TYPE)] = code

    def _value(self, method: str) -> Any:
        plan = self._plans[method]
        assert plan.OutputsLength() == 1
        return plan.Values(plan.Outputs(0))

    def _tensor(self, method: str) -> Any:
        value = self._value(method)
        assert value.ValType() == KernelTypes.Tensor
        tensor, table = Tensor(), value.Val()
        tensor.Init(table.Bytes, table.Pos)
        return tensor
