"""What we read of a file, held against what executorch reads of it: its runtime, and its own deserializer.

Every artifact that the tests build is held against both as soon as it is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pipeline.pte import Delegate, Instruction, Method, PteFile, TensorValue, dtypes
from pipeline.pte.program import (
    BoolValue,
    DoubleValue,
    IntValue,
    ListValue,
    NoneValue,
    StringValue,
    Value,
)

CODES = {dtype.name: code for code, dtype in dtypes.BY_CODE.items()}


def assert_read_as_executorch_reads(path: Path) -> None:
    """Raises AssertionError where the runtime or the deserializer sees anything else than we do."""
    with warnings.catch_warnings(), PteFile.open(path) as pte:
        # The libraries' own deprecations, and that the runtime's metadata are experimental.
        warnings.simplefilter("ignore")
        assert_read_as_the_runtime_does(path, pte)
        assert_read_as_the_deserializer_does(path.read_bytes(), pte)


def assert_read_as_the_runtime_does(path: Path, pte: PteFile) -> None:
    """The methods, their inputs, outputs and attributes, and what constant methods return."""
    from executorch.runtime import Runtime

    runtime = Runtime.get().load_program(path)
    assert set(pte.program.methods) == runtime.method_names
    for name, method in pte.program.methods.items():
        meta = runtime.metadata(name)
        assert (len(method.inputs), len(method.outputs)) == (meta.num_inputs(), meta.num_outputs())
        for values, theirs in ((method.inputs, meta.input_tensor_meta), (method.outputs, meta.output_tensor_meta)):
            for index, value in enumerate(values):
                if isinstance(value, TensorValue):
                    assert_described(value, theirs(index), f"{name} {index}")
        named = [value for value in method.values if isinstance(value, TensorValue) and value.name]
        assert len(named) == meta.num_attributes()
        for index, value in enumerate(named):
            assert_described(value, meta.attribute_tensor_meta(index), f"{name} {value.name}")
    for name, published in pte.program.constants().items():
        if any(map(is_kept_back, pte.program.methods[name].outputs)):
            assert runtime.load_method(name) is not None
            continue
        outputs = [plain(output) for output in runtime.load_method(name).execute([])]
        # Told apart are also 1, 1.0 and True, and zeros by their sign; a NaN is equal to itself.
        assert repr(published) == repr(outputs[0] if len(outputs) == 1 else outputs), name


def is_kept_back(value: Value) -> bool:
    """Whether the runtime's Python side cannot hand it out: a list; a quantized tensor, which ends the process."""
    return isinstance(value, ListValue) or (isinstance(value, TensorValue) and value.dtype.startswith("q"))


def assert_described(value: TensorValue, info: Any, what: str) -> None:
    found = (value.sizes, CODES[value.dtype], value.size_bytes, value.planned or value.data is not None)
    assert found == (tuple(info.sizes()), info.dtype(), info.nbytes(), info.is_memory_planned()), what


def plain(value: Any) -> Any:
    """A runtime's value in the representation of ``Program.constants``."""
    if not isinstance(value, torch.Tensor):
        return value
    name = str(value.dtype).removeprefix("torch.")
    flat = value.flatten()
    if value.is_complex():
        flat = torch.view_as_real(flat)
    elif name.startswith("bits"):
        flat = flat.view(torch.uint16 if name == "bits16" else torch.uint8)
    elif name.startswith("float8"):
        flat = flat.to(torch.float64)
    return {"dtype": name, "sizes": list(value.shape), "values": flat.tolist()}


def assert_read_as_the_deserializer_does(data: bytes, pte: PteFile) -> None:
    """All of every method, the bytes of constants, of initial state and of delegates, and named data."""
    from executorch.exir._serialize import _deserialize_pte_binary

    theirs = _deserialize_pte_binary(data)
    assert pte.program.version == theirs.program.version
    assert list(pte.program.methods) == [plan.name for plan in theirs.program.execution_plan]
    for plan in theirs.program.execution_plan:
        assert_same_method(pte.program.methods[plan.name], plan, theirs)
    named = {}
    if theirs.named_data is not None:
        named = {
            name: theirs.named_data.buffers[entry.buffer_index] for name, entry in theirs.named_data.pte_data.items()
        }
    assert {name: bytes(held) for name, held in pte.named_data.items()} == {k: bytes(v) for k, v in named.items()}
    for name, held in pte.named_data.items():
        start, end = pte.segments[pte.named_data.segment_of(name)]
        assert data[start:end] == held, name


def assert_same_method(method: Method, plan: Any, file: Any) -> None:
    assert (list(method.input_ids), list(method.output_ids)) == (plan.inputs, plan.outputs)
    assert list(method.planned_bytes) == (plan.non_const_buffer_sizes or [0])[1:]
    assert len(method.values) == len(plan.values)
    for index, (ours, theirs) in enumerate(zip(method.values, plan.values, strict=True)):
        assert described(ours) == described_theirs(theirs.val, file), f"{plan.name} value {index}"
    assert list(method.instructions) == list(instructions(plan))
    blobs = file.program.backend_delegate_data
    assert [(held.id, bytes(held.payload), held.compile_specs) for held in method.delegates] == [
        (held.id, blobs[held.processed.index].data, tuple((spec.key, spec.value) for spec in held.compile_specs))
        for held in plan.delegates
    ]
    assert all(type(held) is Delegate for held in method.delegates)


def instructions(plan: Any) -> Iterator[Instruction]:
    for step in (instruction.instr_args for chain in plan.chains for instruction in chain.instructions):
        match type(step).__name__:
            case "KernelCall":
                operator = plan.operators[step.op_index]
                name = f"{operator.name}.{operator.overload}" if operator.overload else operator.name
                yield Instruction("kernel_call", name, None, tuple(step.args))
            case "DelegateCall":
                yield Instruction("delegate_call", None, step.delegate_index, tuple(step.args))
            case "MoveCall":
                yield Instruction("move", None, None, (step.move_from, step.move_to))
            case "JumpFalseCall":
                yield Instruction("jump_false", None, None, (step.cond_value_index, step.destination_instruction))
            case "FreeCall":
                yield Instruction("free", None, None, (step.value_index,))


def described(value: Value) -> Any:
    match value:
        case TensorValue():
            dynamism = 2 if value.unbounded else int(value.dynamic)
            data, initial = (None if held is None else bytes(held) for held in (value.data, value.initial))
            about = (dynamism, value.name, value.key is not None, value.planned)
            return "Tensor", CODES[value.dtype], value.sizes, value.dim_order, about, data, initial
        case ListValue():
            return value.kind, value.items
        case NoneValue():
            return "Null", None
        case IntValue() | BoolValue() | DoubleValue() | StringValue():
            return type(value).__name__.removesuffix("Value"), value.value


def described_theirs(value: Any, file: Any) -> Any:
    kind = type(value).__name__
    match kind:
        case "Tensor":
            extra, planned = value.extra_tensor_info, value.allocation_info is not None
            external = extra is not None and extra.location == 1
            size = value.scalar_type, tuple(value.sizes)
            data = initial = None
            if value.data_buffer_idx and not external:
                held = (file.mutable_data if planned else file.program.constant_buffer)[value.data_buffer_idx].storage
                cut = bytes(held[: TensorValue(dtypes.BY_CODE[size[0]].name, size[1], dynamic=False).size_bytes])
                data, initial = (None, cut) if planned else (cut, None)
            about = (int(value.shape_dynamism), extra and extra.fully_qualified_name, external, planned)
            return kind, *size, tuple(value.dim_order), about, data, initial
        case "Null":
            return kind, None
        case "Double":
            return kind, float(value.double_val)
        case "Int" | "Bool" | "String":
            return kind, getattr(value, f"{kind.lower()}_val")
    return {"OptionalTensorList": "optional_tensor"}.get(kind, kind.removesuffix("List").lower()), tuple(value.items)
