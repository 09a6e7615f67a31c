"""What an ExecuTorch program says: its methods, their values, and the constants they publish.

Knows the program schema and what its fields mean together. Does not know files: the container
hands over the flatbuffer and a way to reach segments. Nothing here runs a program.

A **constant method** has no inputs and no instructions; it publishes what its outputs hold::

    Int -> int   Bool -> bool   Double -> float   String -> str   nothing -> None
    a tensor     -> {"dtype": "int32", "sizes": [30], "values": [0, 128, ...]}
    several outputs -> list of these; none -> []

A Python list published at export time arrives as one output per element, so a list of one
reads as the bare element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import Schema, quoted

MAX_RANK = 16

_VALUES = (
    "Null",
    "Int",
    "Bool",
    "Double",
    "Tensor",
    "String",
    "IntList",
    "DoubleList",
    "BoolList",
    "TensorList",
    "OptionalTensorList",
)
_INSTRUCTIONS = {
    "KernelCall": "kernel_call",
    "DelegateCall": "delegate_call",
    "MoveCall": "move",
    "JumpFalseCall": "jump_false",
    "FreeCall": "free",
}

SCHEMA = Schema(
    {
        "Program": "version:u32 execution_plan:[ExecutionPlan]? constant_buffer:[Buffer]? "
        "backend_delegate_data:[InlineData]? segments:[DataSegment]? constant_segment:SubsegmentOffsets? "
        "_ named_data:[NamedData]?",
        "ExecutionPlan": "name:str _ values:[EValue]? inputs:[i32]? outputs:[i32]? chains:[Chain]? "
        "operators:[Operator]? delegates:[BackendDelegate]? _ _",
        "Buffer": "storage:bytes?",
        "InlineData": "data:bytes?",
        "DataSegment": "offset:u64 size:u64",
        "SubsegmentOffsets": "segment_index:u32 offsets:[u64]?",
        "NamedData": "key:str segment_index:u32",
        "EValue": "val:KernelTypes",
        "Null": "",
        "Int": "int_val:i64",
        "Bool": "bool_val:bool",
        "Double": "double_val:f64",
        "String": "string_val:str",
        "IntList": "items:[i64]?",
        "DoubleList": "items:[f64]?",
        "BoolList": "items:[bool]?",
        "TensorList": "items:[i32]?",
        "OptionalTensorList": "items:[i32]?",
        "Tensor": "scalar_type:i8 storage_offset:i32 sizes:[i32]? dim_order:[u8]? _ data_buffer_idx:u32 "
        "allocation_info:AllocationDetails? _ shape_dynamism:i8 extra_tensor_info:ExtraTensorInfo?",
        "AllocationDetails": "_ _ _",
        "ExtraTensorInfo": "_ fully_qualified_name:str? location:i8 _ _",
        "Chain": "_ _ instructions:[Instruction]? _",
        "Instruction": "instr_args:InstructionArguments",
        "KernelCall": "op_index:i32 args:[i32]?",
        "DelegateCall": "delegate_index:i32 args:[i32]?",
        "MoveCall": "move_from:i32 move_to:i32",
        "JumpFalseCall": "cond_value_index:i32 destination_instruction:i32",
        "FreeCall": "value_index:i32",
        "Operator": "name:str overload:str?",
        "BackendDelegate": "id:str processed:DataReference compile_specs:[CompileSpec]?",
        "DataReference": "location:i8 index:u32",
        "CompileSpec": "key:str value:bytes?",
    },
    unions={"KernelTypes": _VALUES, "InstructionArguments": list(_INSTRUCTIONS)},
)


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
    """``sizes`` are upper bounds when ``dynamic``; ``data`` holds a constant's bytes, else ``None``."""

    dtype: str
    sizes: tuple[int, ...]
    dynamic: bool
    data: memoryview | None = None
    dim_order: tuple[int, ...] = ()

    @property
    def row_major(self) -> bool:
        return self.dim_order in ((), tuple(range(len(self.sizes))))


Value = NoneValue | IntValue | BoolValue | DoubleValue | StringValue | ListValue | TensorValue


@dataclass(frozen=True, slots=True)
class Delegate:
    """A backend's share of a method: ``payload`` is whatever that backend wrote."""

    id: str
    payload: memoryview
    compile_specs: tuple[tuple[str, bytes], ...] = ()


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
    """One entry point. ``input_ids`` and ``output_ids`` index ``values``; the chains are joined."""

    name: str
    values: tuple[Value, ...]
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    delegates: tuple[Delegate, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return tuple(self.values[i] for i in self.input_ids)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.values[i] for i in self.output_ids)

    @property
    def is_constant(self) -> bool:
        return not self.instructions and not self.input_ids and all(_is_constant(value) for value in self.outputs)


@dataclass(frozen=True, slots=True)
class Program:
    """The methods of a program, by name. ``name`` is used in messages."""

    version: int
    methods: dict[str, Method]
    name: str = "program"

    @property
    def executable(self) -> tuple[str, ...]:
        """The names of methods that do something: all but constant ones."""
        return tuple(name for name, method in self.methods.items() if not method.is_constant)

    def constants(self) -> dict[str, Any]:
        """What each constant method publishes, in the representation shown at the top of this module."""
        return {
            name: self._published(name, method.outputs) for name, method in self.methods.items() if method.is_constant
        }

    def _published(self, method: str, outputs: tuple[Value, ...]) -> Any:
        try:
            values = [_plain(value) for value in outputs]
        except PteError as error:
            raise PteError(f"{self.name}: {quoted(method)} publishes {error}") from None
        return values[0] if len(values) == 1 else values


def _is_constant(value: Value) -> bool:
    return value.data is not None if isinstance(value, TensorValue) else not isinstance(value, ListValue)


def _plain(value: Value) -> Any:
    if isinstance(value, NoneValue):
        return None
    if not isinstance(value, TensorValue):
        assert not isinstance(value, ListValue), "a list value is not a constant"
        return value.value
    assert value.data is not None, "a tensor without data is not a constant"
    if not value.row_major:
        raise PteError(f"a tensor laid out as {list(value.dim_order)}; expected row-major. Export it contiguous.")
    values = dtypes.numbers(dtypes.BY_NAME[value.dtype], value.data)
    if values is None:
        raise PteError(f"a {value.dtype} tensor, which has no plain numbers. Publish another dtype.")
    return {"dtype": value.dtype, "sizes": list(value.sizes), "values": values}


def build(tables: dict[str, Any], segment: Callable[[int], memoryview], name: str) -> Program:
    """The program in decoded ``tables``; ``segment`` maps a segment's index to its bytes.

    Raises ``PteError`` when an index, a size or a constant's bytes lead nowhere.
    """
    builder = _Builder(tables, segment, name)
    methods: dict[str, Method] = {}
    for plan in tables["execution_plan"] or ():
        if plan["name"] in methods:
            raise PteError(f"{name}: method {quoted(plan['name'])} appears twice; expected one. Rebuild the artifact.")
        methods[plan["name"]] = builder.method(plan)
    return Program(tables["version"], methods, name)


class _Builder:
    """Turns decoded tables into a program, checking every reference between them."""

    def __init__(self, tables: dict[str, Any], segment: Callable[[int], memoryview], name: str) -> None:
        self._tables = tables
        self._segment = segment
        self._where = name

    def method(self, plan: dict[str, Any]) -> Method:
        where = self._where
        self._where = f"{where}: method {quoted(plan['name'])}"
        values = tuple(self._value(entry["val"]) for entry in plan["values"] or ())
        operators = [
            f"{op['name']}.{op['overload']}" if op["overload"] else op["name"] for op in plan["operators"] or ()
        ]
        delegates = tuple(self._delegate(delegate) for delegate in plan["delegates"] or ())
        instructions = tuple(
            self._instruction(instruction["instr_args"], operators, len(delegates), len(values))
            for chain in plan["chains"] or ()
            for instruction in chain["instructions"] or ()
        )
        inputs, outputs = plan["inputs"] or (), plan["outputs"] or ()
        self._check_indices("input", inputs, len(values))
        self._check_indices("output", outputs, len(values))
        self._where = where
        return Method(plan["name"], values, inputs, outputs, instructions, delegates)

    def _wrong(self, what: str) -> PteError:
        return PteError(f"{self._where} {what}. The file is damaged; build or copy it again.")

    def _check_indices(self, what: str, indices: tuple[int, ...], num_values: int) -> None:
        for index in indices:
            if not 0 <= index < num_values:
                raise self._wrong(f"has {what} {index}; expected one of its {num_values} values")

    def _value(self, entry: tuple[str, dict[str, Any]] | None) -> Value:
        if entry is None:
            raise self._wrong(f"has a value of no kind; expected one of {', '.join(_VALUES)}")
        kind, fields = entry
        match kind:
            case "Null":
                return NoneValue()
            case "Int":
                return IntValue(fields["int_val"])
            case "Bool":
                return BoolValue(fields["bool_val"])
            case "Double":
                return DoubleValue(fields["double_val"])
            case "String":
                return StringValue(fields["string_val"])
            case "Tensor":
                return self._tensor(fields)
        snake = {"OptionalTensorList": "optional_tensor"}.get(kind, kind.removesuffix("List").lower())
        return ListValue(snake, fields["items"] or ())

    def _tensor(self, fields: dict[str, Any]) -> TensorValue:
        dtype = dtypes.BY_CODE.get(fields["scalar_type"])
        sizes = fields["sizes"] or ()
        order = fields["dim_order"] or ()
        if dtype is None:
            raise self._wrong(f"has a tensor of scalar type {fields['scalar_type']}, which is not one")
        if len(sizes) > MAX_RANK or min(sizes, default=0) < 0:
            raise self._wrong(
                f"has a tensor of sizes {list(sizes[: MAX_RANK + 1])}; expected at most {MAX_RANK}, none < 0"
            )
        if order and sorted(order) != list(range(len(sizes))):
            raise self._wrong(f"has a tensor of dim_order {list(order)} and sizes {list(sizes)}")
        data = None
        external = fields["extra_tensor_info"] is not None and fields["extra_tensor_info"]["location"] == 1
        if fields["data_buffer_idx"] and fields["allocation_info"] is None and not external:
            data = self._constant(fields["data_buffer_idx"], dtype, sizes)
        return TensorValue(dtype.name, sizes, fields["shape_dynamism"] != 0, data, order)

    def _constant(self, index: int, dtype: dtypes.DType, sizes: tuple[int, ...]) -> memoryview:
        inline = self._tables["constant_buffer"] or ()
        where = self._tables["constant_segment"]
        offsets = (where and where["offsets"]) or ()
        if offsets:
            if index >= len(offsets):
                raise self._wrong(f"has constant {index}; expected one of {len(offsets)}")
            data = self._segment(where["segment_index"])[offsets[index] :]
        elif index < len(inline):
            data = inline[index]["storage"] or memoryview(b"")
        else:
            raise self._wrong(f"has constant {index}; expected one of {len(inline)}")
        # Sub-byte elements fill whole bytes two or four at a time; bound them by one byte each.
        size_bytes = prod(sizes) * (dtype.size_bytes or 1)
        if dtype.size_bytes and len(data) < size_bytes:
            raise self._wrong(f"has constant {index} of {size_bytes} bytes where {len(data)} are left")
        return data[:size_bytes]

    def _delegate(self, fields: dict[str, Any]) -> Delegate:
        index, location = fields["processed"]["index"], fields["processed"]["location"]
        inline = self._tables["backend_delegate_data"] or ()
        if location == 1:
            payload = self._segment(index)
        elif location == 0 and index < len(inline):
            payload = inline[index]["data"] or memoryview(b"")
        else:
            raise self._wrong(f"has delegate data {index} at location {location}; {len(inline)} are inline")
        specs = tuple((spec["key"], bytes(spec["value"] or b"")) for spec in fields["compile_specs"] or ())
        return Delegate(fields["id"], payload, specs)

    def _instruction(
        self, entry: tuple[str, dict[str, Any]] | None, operators: list[str], num_delegates: int, num_values: int
    ) -> Instruction:
        if entry is None:
            raise self._wrong(f"has an instruction of no kind; expected one of {', '.join(_INSTRUCTIONS)}")
        kind, fields = entry
        operator = delegate = None
        args = fields.get("args") or ()
        match kind:
            case "KernelCall":
                index = fields["op_index"]
                if not 0 <= index < len(operators):
                    raise self._wrong(f"calls operator {index}; expected one of {len(operators)}")
                operator = operators[index]
            case "DelegateCall":
                delegate = fields["delegate_index"]
                if not 0 <= delegate < num_delegates:
                    raise self._wrong(f"calls delegate {delegate}; expected one of {num_delegates}")
            case "MoveCall":
                args = (fields["move_from"], fields["move_to"])
            case "JumpFalseCall":
                self._check_indices("condition", (fields["cond_value_index"],), num_values)
                return Instruction("jump_false", None, None, tuple(fields.values()))
            case "FreeCall":
                args = (fields["value_index"],)
        self._check_indices("argument", args, num_values)
        return Instruction(_INSTRUCTIONS[kind], operator, delegate, args)
