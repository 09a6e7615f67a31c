"""Programs that executorch's own serializer writes from its own schema, with what exporting a model never brings along.

Everything a reader must know of the schema is in one of them: constant methods of every kind of value and of every
scalar type, inline or in a segment; kernels, jumps, moves, mutable state with initial data, tensors of every dynamism,
compile specs, data named and external.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from executorch.exir import schema as et
from executorch.exir._serialize import _PTEFile, _serialize_pte_binary
from executorch.exir._serialize._flatbuffer_program import _program_to_flatbuffer
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize.data_serializer import DataEntry, DataPayload
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.scalar_type import ScalarType
from executorch.exir.tensor_layout import TensorLayout
from executorch.extension.flat_tensor.serialize.serialize import FlatTensorSerializer

ELEMENT_BYTES = (1, 1, 2, 4, 8, 2, 4, 8, 4, 8, 16, 1, 1, 1, 4, 2, 1, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1, 2, 4, 8)
"""By code; what ``elementSize`` gives in executorch's ``scalar_type_util.h``."""

SIZES = (2, 3)


def tensor(code: int, sizes: Sequence[int], **changes: Any) -> Any:
    """A tensor of theirs; row-major, static and without data unless told."""
    given: dict[str, Any] = {
        # The schema's enum lacks the types that are not implemented; files hold a number.
        "scalar_type": code,
        "storage_offset": 0,
        "sizes": list(sizes),
        "dim_order": list(range(len(sizes))),
        "requires_grad": False,
        "layout": 0,
        "data_buffer_idx": 0,
        "allocation_info": None,
        "shape_dynamism": et.TensorShapeDynamism.STATIC,
    }
    return et.Tensor(**given | changes)


def plan(name: str, values: Sequence[Any], outputs: Sequence[int], **changes: Any) -> Any:
    """A method of theirs; without inputs and instructions unless told."""
    given: dict[str, Any] = {
        "name": name,
        "container_meta_type": et.ContainerMetadata("", ""),
        "values": [et.EValue(value) for value in values],
        "inputs": [],
        "outputs": list(outputs),
        "chains": [et.Chain([], [], [], None)],
        "operators": [],
        "delegates": [],
        "non_const_buffer_sizes": [0],
    }
    return et.ExecutionPlan(**given | changes)


def program(plans: Sequence[Any], buffers: Sequence[bytes] = (), blobs: Sequence[bytes] = ()) -> Any:
    """A program of theirs; the first buffer is the reserved one, which it is given here."""
    return et.Program(
        version=0,
        execution_plan=list(plans),
        constant_buffer=[et.Buffer(b""), *map(et.Buffer, buffers)],
        backend_delegate_data=list(map(et.BackendDelegateInlineData, blobs)),
        segments=[],
        constant_segment=et.SubsegmentOffsets(segment_index=0, offsets=[]),
    )


def in_segments(
    whole: Any, mutable: Sequence[bytes] | None = None, named: Mapping[str, tuple[bytes, int]] | None = None
) -> bytes:
    """The file as it is written today. ``named`` gives data and their alignment."""
    store = NamedDataStore()
    for name, (data, alignment) in (named or {}).items():
        store.add_named_data(name, data, alignment)
    file = _PTEFile(
        program=whole,
        mutable_data=None if mutable is None else [et.Buffer(b""), *map(et.Buffer, mutable)],
        named_data=store.get_named_data_store_output() if named else None,
    )
    return bytes(_serialize_pte_binary(file, extract_delegate_segments=True))


def inline(whole: Any) -> bytes:
    """The file as it was written before there were segments: one FlatBuffer."""
    return bytes(_program_to_flatbuffer(whole).data)


def of_every_dtype(codes: Sequence[int] = range(len(ELEMENT_BYTES))) -> Any:
    """A constant method ``code_N`` for each scalar type, which publishes a 2 x 3 tensor of arbitrary bits.

    Booleans are 0 and 1. Nothing else is left out: there are infinities and NaNs among the floats.
    """
    rng = random.Random(20_26)
    count = math.prod(SIZES)
    buffers = [rng.randbytes(count * ELEMENT_BYTES[code]) if code != 11 else b"\1\0\1\1\0\0" for code in codes]
    plans = [
        plan(f"code_{code}", [tensor(code, SIZES, data_buffer_idx=index)], [0])
        for index, code in enumerate(codes, start=1)
    ]
    return program(plans, buffers)


def of_every_kind() -> Any:
    """A constant method for each kind of value, alone or several, and for tensors of unusual shape and layout."""
    number, text = et.Int(-(2**40)), et.String("zażółć 🐟")
    column = tensor(4, (2, 3), data_buffer_idx=1, dim_order=[1, 0])
    methods: dict[str, tuple[list[Any], list[int]]] = {
        "int": ([number], [0]),
        "largest_int": ([et.Int(2**63 - 1)], [0]),
        "bool": ([et.Bool(True)], [0]),
        "double": ([et.Double(0.1)], [0]),
        "infinity": ([et.Double(math.inf)], [0]),
        "string": ([text], [0]),
        "empty_string": ([et.String("")], [0]),
        "none": ([et.Null()], [0]),
        "several": ([number, text, et.Bool(False), et.Null()], [0, 1, 2, 3, 0]),
        "nothing": ([], []),
        "scalar_tensor": ([tensor(7, (), data_buffer_idx=1)], [0]),
        "empty_tensor": ([tensor(6, (0, 3), data_buffer_idx=1)], [0]),
        "column_major_tensor": ([column], [0]),
        "tensors": ([column, tensor(3, (12,), data_buffer_idx=1)], [1, 0]),
        "int_list": ([number, et.Int(7), et.IntList([1, 0, 1])], [2]),
        "double_list": ([et.DoubleList([0.5, -2.25])], [0]),
        "bool_list": ([et.BoolList([True, False])], [0]),
        "tensor_list": ([column, et.TensorList([0, 0])], [1]),
        "optional_tensor_list": ([column, et.OptionalTensorList([0, -1])], [1]),
    }
    plans = [plan(name, values, outputs) for name, (values, outputs) in methods.items()]
    return program(plans, [struct.pack("<6q", *range(-3, 3))])


STATE, WEIGHT, LEARNT = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", *range(4)), bytes(range(8))


def of_everything_else() -> bytes:
    """A method of kernels, delegates, moves, jumps, frees, with tensors that come from everywhere; named data."""
    allocated = et.AllocationDetails(memory_id=1, memory_offset_low=16, memory_offset_high=1)
    dynamism = et.TensorShapeDynamism
    values = [
        tensor(6, (1, 8), allocation_info=allocated, shape_dynamism=dynamism.DYNAMIC_BOUND),
        tensor(4, (3,), shape_dynamism=dynamism.DYNAMIC_UNBOUND),
        tensor(6, (4,), data_buffer_idx=1),
        tensor(6, (2, 2), data_buffer_idx=1, allocation_info=allocated),
        tensor(
            0, (8,), data_buffer_idx=2, allocation_info=allocated, extra_tensor_info=et.ExtraTensorInfo(0, "mod.state")
        ),
        tensor(6, (4, 4), extra_tensor_info=et.ExtraTensorInfo(0, "mod.linear.weight", et.TensorDataLocation.EXTERNAL)),
        et.Int(3),
        et.Bool(True),
        et.IntList([6, 6]),
        et.TensorList([0, 2]),
        et.OptionalTensorList([-1, 2]),
        et.Null(),
        tensor(6, (1, 8), allocation_info=replace(allocated, memory_id=2)),
    ]
    instructions = [
        et.KernelCall(0, [0, 2, 6, 12]),
        et.KernelCall(1, [9, 12]),
        et.DelegateCall(1, [0, 12]),
        et.DelegateCall(0, [12]),
        et.MoveCall(6, 8),
        et.JumpFalseCall(7, 0),
        et.FreeCall(1),
    ]
    forward = plan(
        "forward",
        values,
        [12, 6],
        inputs=[0, 1],
        chains=[et.Chain([0], [12], list(map(et.Instruction, instructions)), None)],
        operators=[et.Operator("aten::add", "out"), et.Operator("aten::stack", "")],
        delegates=[
            et.BackendDelegate(
                "Kelvin", et.BackendDelegateDataReference(et.DataLocation.INLINE, 0), [CompileSpec("k", b"\0v")]
            ),
            et.BackendDelegate("Celsius", et.BackendDelegateDataReference(et.DataLocation.INLINE, 1), []),
        ],
        non_const_buffer_sizes=[0, 4096, 128],
    )
    named = {"one": (b"1" * 40, 64), "two": (b"2" * 3, 1), "the same": (b"1" * 40, 256)}
    return in_segments(program([forward], [WEIGHT], [b"kelvin", b"celsius"]), [STATE, LEARNT], named)


def flat_tensor() -> bytes:
    """A ``.ptd``: a tensor under two names, a tensor in another order, and bytes that are no tensor."""
    weight = TensorLayout(ScalarType.FLOAT, [2, 3], [0, 1])
    turned = TensorLayout(ScalarType.BFLOAT16, [1, 2, 4], [0, 2, 1])
    entries = {
        "weight": DataEntry(0, 16, weight),
        "tied": DataEntry(0, 16, weight),
        "turned": DataEntry(1, 16, turned),
        "blob": DataEntry(2, 1, None),
    }
    payload = DataPayload([struct.pack("<6f", *range(6)), bytes(range(16)), b"anything"], entries)
    return bytes(FlatTensorSerializer().serialize(payload))


def delegated(payload: bytes, inputs: int = 2, outputs: int = 1) -> bytes:
    """A ``forward`` that is one call of an MLX delegate, with the inputs of a model and any payload."""
    sizes = [(1, 8), (8,), (8,)][:inputs]
    values = [tensor(4, size, shape_dynamism=et.TensorShapeDynamism.DYNAMIC_BOUND) for size in sizes]
    values += [tensor(6, (1, 1, 11))] * outputs
    indices = list(range(len(values)))
    forward = plan(
        "forward",
        values,
        indices[inputs:],
        inputs=indices[:inputs],
        chains=[et.Chain([], [], [et.Instruction(et.DelegateCall(0, indices))], None)],
        delegates=[et.BackendDelegate("MLXBackend", et.BackendDelegateDataReference(et.DataLocation.INLINE, 0), [])],
    )
    return in_segments(program([forward], [b"constant"], [payload]), named={"abcd/weight": (bytes(64), 16)})
