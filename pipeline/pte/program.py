"""What an ExecuTorch program is: its methods, their values, and the constants they publish. Nothing here runs one.

A **constant method** has no inputs and no instructions; it publishes what its outputs hold::

    Int -> int   Bool -> bool   Double -> float   String -> str   nothing -> None
    a tensor     -> {"dtype": "int32", "sizes": [30], "values": [0, 128, ...]}
    a list value -> list of these
    several outputs -> list of these; none -> []

A Python list published at export time arrives as one output per element, so a list of one
reads as the bare element. A tensor's values are in the order of its sizes, whatever its layout
in memory; what they are for unusual dtypes says ``dtypes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import quoted

MAX_PUBLISHED = 1 << 16
"""Numbers that all constant methods publish together; a text of 256 characters counts as one."""


@dataclass(frozen=True, slots=True)
class NoneValue:
    """An absent optional."""


@dataclass(frozen=True, slots=True)
class IntValue:
    value: int


@dataclass(frozen=True, slots=True)
class BoolValue:
    value: bool


@dataclass(frozen=True, slots=True)
class DoubleValue:
    value: float


@dataclass(frozen=True, slots=True)
class StringValue:
    value: str


@dataclass(frozen=True, slots=True)
class ListValue:
    """``kind`` is int, double, bool, tensor or optional_tensor.

    Items of int and both tensor kinds are indices into the method's values (-1: none).
    """

    kind: str
    items: tuple[int | float | bool, ...]


@dataclass(frozen=True, slots=True)
class TensorValue:
    """``sizes`` are upper bounds when ``dynamic``, and nothing to go by when ``unbounded`` as well.

    ``data`` holds a constant's bytes, and ``constant`` is their number among the program's; ``key`` names bytes in a
    file beside it; ``initial`` is what a mutable tensor starts with. A ``planned`` tensor has its place in the memory
    that the method asks for. ``name`` is what the model calls it, where that is kept.
    """

    dtype: str
    sizes: tuple[int, ...]
    dynamic: bool
    data: memoryview | None = None
    dim_order: tuple[int, ...] = ()
    constant: int | None = None
    key: str | None = None
    unbounded: bool = False
    initial: memoryview | None = None
    name: str | None = None
    planned: bool = False

    @property
    def row_major(self) -> bool:
        return self.dim_order in ((), tuple(range(len(self.sizes))))

    @property
    def size_bytes(self) -> int:
        """Of ``sizes``, so the most that a dynamic tensor takes."""
        return prod(self.sizes) * dtypes.BY_NAME[self.dtype].size_bytes


Value = NoneValue | IntValue | BoolValue | DoubleValue | StringValue | ListValue | TensorValue


@dataclass(frozen=True, slots=True)
class Delegate:
    """A backend's share of a method: ``payload`` is whatever that backend wrote, in ``segment`` or in the tables.

    Delegates that share a payload have the same object.
    """

    id: str
    payload: memoryview
    compile_specs: tuple[tuple[str, bytes], ...] = ()
    segment: int | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """``kind`` is kernel_call, delegate_call, move, jump_false or free.

    ``operator`` is a kernel's full name (``aten::add.out``), ``delegate`` an index into the
    method's delegates, ``args`` are indices into its values. A jump's ``args`` are the
    condition's index and the destination instruction.
    """

    kind: str
    operator: str | None
    delegate: int | None
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Method:
    """One entry point. ``input_ids`` and ``output_ids`` index ``values``; the chains are joined.

    ``planned_bytes`` are the sizes of the buffers that a runtime provides for what is neither constant nor given.
    """

    name: str
    values: tuple[Value, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    delegates: tuple[Delegate, ...]
    planned_bytes: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.values[i] for i in self.input_ids)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.values[i] for i in self.output_ids)

    @property
    def is_constant(self) -> bool:
        # Each value once: any number of outputs may be one long list.
        outputs = (self.values[i] for i in set(self.output_ids))
        return not self.instructions and not self.input_ids and all(map(self._is_constant, outputs))

    def _is_constant(self, value: Value) -> bool:
        if isinstance(value, ListValue) and value.kind not in ("double", "bool"):
            items = (self.values[int(i)] for i in set(value.items) - {-1})
            return all(not isinstance(item, ListValue) and self._is_constant(item) for item in items)
        return not isinstance(value, TensorValue) or value.data is not None

    def listed(self, value: ListValue) -> list[Value]:
        """What the indices in a list lead to."""
        return [NoneValue() if item == -1 else self.values[int(item)] for item in value.items]


@dataclass(frozen=True, slots=True)
class Program:
    """The methods of a program, by name. ``name`` is used in messages.

    ``constant_segment`` and ``mutable_segments`` are the segments of its constants and of its buffers' first contents.
    """

    version: int
    methods: dict[str, Method]
    name: str = "program"
    constant_segment: int | None = None
    mutable_segments: tuple[int, ...] = ()

    @property
    def executable(self) -> tuple[str, ...]:
        """The names of methods that do something: all but constant ones."""
        return tuple(name for name, method in self.methods.items() if not method.is_constant)

    def constants(self) -> dict[str, Any]:
        """What each constant method publishes, in the representation shown at the top of this module.

        Raises ``PteError`` when that is too much to be metadata.
        """
        plain = _Plain()
        published = {}
        for name, method in self.methods.items():
            if method.is_constant:
                try:
                    values = [plain.value(value, method) for value in method.outputs]
                except PteError as error:
                    raise PteError(f"{self.name}: {quoted(name)} publishes {error}") from None
                published[name] = values[0] if len(values) == 1 else values
        return published


class _Plain:
    """Turns values into plain Python ones; many methods may publish one value, so all of them are counted together."""

    def __init__(self) -> None:
        self._left = MAX_PUBLISHED

    def value(self, value: Value, method: Method) -> Any:
        self._spend(1)
        match value:
            case NoneValue():
                return None
            case TensorValue():
                return self._tensor(value)
            case ListValue(kind="double" | "bool", items=items):
                self._spend(len(items))
                return list(items)
            case ListValue():
                return [self.value(item, method) for item in method.listed(value)]
            case StringValue():
                self._spend(len(value.value) // 256)
        return value.value

    def _tensor(self, value: TensorValue) -> dict[str, Any]:
        assert value.data is not None, "a tensor without data is not a constant"
        self._spend(prod(value.sizes))
        values = dtypes.numbers(dtypes.BY_NAME[value.dtype], value.data)
        if not value.row_major:
            values = _row_major(values, value.sizes, value.dim_order)
        return {"dtype": value.dtype, "sizes": list(value.sizes), "values": values}

    def _spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise PteError(
                f"what makes more than {MAX_PUBLISHED} numbers with the methods before it; expected metadata. "
                "Keep tables in named data."
            )


def _row_major(values: list[Any], sizes: tuple[int, ...], order: tuple[int, ...]) -> list[Any]:
    """Elements that lie in memory with the dimensions in ``order``, outermost first, in the order of ``sizes``."""
    if not values:
        return []
    strides = [0] * len(sizes)
    stride = 1
    for axis in reversed(order):
        strides[axis] = stride
        stride *= sizes[axis]
    places = [0]
    for size, stride in zip(sizes, strides, strict=True):
        places = [place + index * stride for place in places for index in range(size)]
    return [values[place] for place in places]
