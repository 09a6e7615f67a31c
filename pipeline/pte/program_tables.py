"""Turns the tables of a program into a ``Program``, checking every reference between them.

Knows the program schema (executorch's ``program.fbs``) and what its fields mean together. Does not know files: the
container hands over the flatbuffer and a way to reach segments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import Schema, quoted
from pipeline.pte.program import (
    BoolValue,
    Delegate,
    DoubleValue,
    Instruction,
    IntValue,
    ListValue,
    Method,
    NoneValue,
    Program,
    StringValue,
    TensorValue,
    Value,
)

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

TABLES: dict[str, str] = {
    "Program": "version:u32 execution_plan:[ExecutionPlan]? constant_buffer:[Buffer]? "
    "backend_delegate_data:[BackendDelegateInlineData]? segments:[DataSegment]? constant_segment:SubsegmentOffsets? "
    "mutable_data_segments:[SubsegmentOffsets]? named_data:[NamedData]?",
    "ExecutionPlan": "name:str _ values:[EValue]? inputs:[i32]? outputs:[i32]? chains:[Chain]? "
    "operators:[Operator]? delegates:[BackendDelegate]? non_const_buffer_sizes:[i64]? _",
    "Buffer": "storage:bytes?",
    "BackendDelegateInlineData": "data:bytes?",
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
    "ExtraTensorInfo": "mutable_data_segments_idx:u64 fully_qualified_name:str? location:i8 _ _",
    "Chain": "_ _ instructions:[Instruction]? _",
    "Instruction": "instr_args:InstructionArguments",
    "KernelCall": "op_index:i32 args:[i32]?",
    "DelegateCall": "delegate_index:i32 args:[i32]?",
    "MoveCall": "move_from:i32 move_to:i32",
    "JumpFalseCall": "cond_value_index:i32 destination_instruction:i32",
    "FreeCall": "value_index:i32",
    "Operator": "name:str overload:str?",
    "BackendDelegate": "id:str processed:BackendDelegateDataReference compile_specs:[CompileSpec]?",
    "BackendDelegateDataReference": "location:i8 index:u32",
    "CompileSpec": "key:str value:blob?",
}
"""In the order and by the names of ``program.fbs``."""

UNIONS = {"KernelTypes": _VALUES, "InstructionArguments": tuple(_INSTRUCTIONS)}

SCHEMA = Schema(
    TABLES,
    unions=UNIONS,
    make={
        "EValue": lambda fields: fields["val"],
        "Instruction": lambda fields: fields["instr_args"],
        "Chain": lambda fields: fields["instructions"] or (),
        "AllocationDetails": lambda _: True,
    },
)


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
    where = tables["constant_segment"]
    return Program(
        tables["version"],
        methods,
        name,
        constant_segment=where["segment_index"] if where and where["offsets"] else None,
        mutable_segments=tuple(entry["segment_index"] for entry in tables["mutable_data_segments"] or ()),
    )


class _Builder:
    """Turns decoded tables into a program, checking every reference between them."""

    def __init__(self, tables: dict[str, Any], segment: Callable[[int], memoryview], name: str) -> None:
        self._tables = tables
        self._segment = segment
        self._where = name
        self._payloads: dict[tuple[int, int], memoryview] = {}

    def method(self, plan: dict[str, Any]) -> Method:
        where = self._where
        self._where = f"{where}: method {quoted(plan['name'])}"
        num_values = len(plan["values"] or ())
        values = tuple(self._value(entry, num_values) for entry in plan["values"] or ())
        operators = [
            f"{op['name']}.{op['overload']}" if op["overload"] else op["name"] for op in plan["operators"] or ()
        ]
        delegates = tuple(self._delegate(delegate) for delegate in plan["delegates"] or ())
        instructions = tuple(
            self._instruction(instruction, operators, len(delegates), num_values)
            for chain in plan["chains"] or ()
            for instruction in chain
        )
        inputs, outputs = plan["inputs"] or (), plan["outputs"] or ()
        self._check_indices("input", inputs, num_values)
        self._check_indices("output", outputs, num_values)
        self._where = where
        # The first size is of constants, which need no buffer any more.
        planned_bytes = (plan["non_const_buffer_sizes"] or ())[1:]
        return Method(plan["name"], values, inputs, outputs, instructions, delegates, planned_bytes)

    def _wrong(self, what: str) -> PteError:
        return PteError(f"{self._where} {what}. The file is damaged; build or copy it again.")

    def _check_indices(self, what: str, indices: Iterable[int], num_values: int) -> None:
        for index in indices:
            if not 0 <= index < num_values:
                raise self._wrong(f"has {what} {index}; expected one of its {num_values} values")

    def _value(self, entry: tuple[str, dict[str, Any]] | None, num_values: int) -> Value:
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
        items = fields["items"] or ()
        if snake not in ("double", "bool"):
            given = (item for item in items if item != -1) if snake == "optional_tensor" else items
            self._check_indices("list item", given, num_values)
        return ListValue(snake, items)

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
        if order and (len(order) != len(sizes) or sorted(order) != list(range(len(sizes)))):
            raise self._wrong(f"has a tensor of dim_order {list(order[: MAX_RANK + 1])} and sizes {list(sizes)}")
        if fields["storage_offset"]:
            raise self._wrong(f"has a tensor that begins {fields['storage_offset']} elements into its data; expected 0")
        dynamism, extra = fields["shape_dynamism"], fields["extra_tensor_info"] or {}
        if not 0 <= dynamism <= 2:
            raise self._wrong(f"has a tensor of shape dynamism {dynamism}; expected 0, 1 or 2")
        name, planned, index = (
            extra.get("fully_qualified_name"),
            bool(fields["allocation_info"]),
            fields["data_buffer_idx"],
        )
        data = initial = constant = key = None
        size_bytes = prod(sizes) * dtype.size_bytes
        if extra.get("location") == 1:
            if not name:
                raise self._wrong("has a tensor in a file beside it and no name to find it by")
            key = name
        elif index and planned:
            initial = self._initial(index, extra.get("mutable_data_segments_idx", 0), size_bytes)
        elif index:
            constant, data = index, self._constant(index, size_bytes)
        dynamic, unbounded = dynamism != 0, dynamism == 2
        return TensorValue(
            dtype.name, sizes, dynamic, data, order, constant, key, unbounded, initial, name, planned=planned
        )

    def _constant(self, index: int, size_bytes: int) -> memoryview:
        inline = self._tables["constant_buffer"] or ()
        where = self._tables["constant_segment"]
        if where and where["offsets"]:
            return self._subsegment("constant", index, where, size_bytes)
        if index >= len(inline):
            raise self._wrong(f"has constant {index}; expected one of {len(inline)}")
        return self._cut("constant", index, inline[index]["storage"] or memoryview(b""), size_bytes)

    def _initial(self, index: int, number: int, size_bytes: int) -> memoryview:
        segments = self._tables["mutable_data_segments"] or ()
        if number >= len(segments):
            raise self._wrong(f"has initial data in mutable segment {number}; expected one of {len(segments)}")
        return self._subsegment("initial data", index, segments[number], size_bytes)

    def _subsegment(self, what: str, index: int, where: dict[str, Any], size_bytes: int) -> memoryview:
        offsets = where["offsets"] or ()
        if index >= len(offsets):
            raise self._wrong(f"has {what} {index}; expected one of {len(offsets)}")
        return self._cut(what, index, self._segment(where["segment_index"])[offsets[index] :], size_bytes)

    def _cut(self, what: str, index: int, data: memoryview, size_bytes: int) -> memoryview:
        if len(data) < size_bytes:
            raise self._wrong(f"has {what} {index} of {size_bytes} bytes where {len(data)} are left")
        return data[:size_bytes]

    def _delegate(self, fields: dict[str, Any]) -> Delegate:
        index, location = fields["processed"]["index"], fields["processed"]["location"]
        payload = self._payloads.get((location, index))
        if payload is None:
            payload = self._payloads[location, index] = self._payload(location, index)
        specs = tuple((spec["key"], spec["value"] or b"") for spec in fields["compile_specs"] or ())
        return Delegate(fields["id"], payload, specs, segment=index if location == 1 else None)

    def _payload(self, location: int, index: int) -> memoryview:
        inline = self._tables["backend_delegate_data"] or ()
        if location == 1:
            return self._segment(index)
        if location == 0 and index < len(inline):
            return inline[index]["data"] or memoryview(b"")
        raise self._wrong(f"has delegate data {index} at location {location}; {len(inline)} are inline")

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
