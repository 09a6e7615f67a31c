"""Graphs that executorch's own serializer writes from its own dataclasses, of every operator there is."""

from __future__ import annotations

import random
from types import ModuleType
from typing import Any

from pipeline.pte import Tid, Vid

NUM_TENSORS, NUM_VALUES = 40, 9


def schema() -> ModuleType:
    """executorch's dataclasses of the graph's schema."""
    from pipeline.model import serializer

    serializer.provide()
    from executorch.backends.mlx.serialization import mlx_graph_schema

    return mlx_graph_schema


def written(graph: Any) -> memoryview:
    from executorch.backends.mlx.serialization.mlx_graph_serialize import serialize_mlx_graph

    return memoryview(serialize_mlx_graph(graph))


def node_like(schema: ModuleType, name: str, text: str, rng: random.Random, full: bool) -> tuple[Any, dict[str, Any]]:
    """An op node of theirs with random fields, and the fields we should read; bare ones keep optionals absent."""
    given: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for word in text.split():
        field, _, kind = word.partition(":")
        kind, _, default = kind.partition("=")
        optional = kind.endswith("?") or default == "null"
        if optional and not full:
            given[field] = expected[field] = None
        else:
            given[field], expected[field] = pair(schema, kind.removesuffix("?"), rng)
    if name in ("IfNode", "ScanNode"):
        for field in given:
            if field.endswith("chain_idx"):
                given[field] = expected[field] = 1
    return getattr(schema, name)(**given), expected


def pair(schema: ModuleType, kind: str, rng: random.Random) -> tuple[Any, Any]:
    """A value for their dataclass, and the same as we read it."""
    if kind.startswith("["):
        pairs = [pair(schema, kind[1:-1], rng) for _ in range(rng.randint(1, 3))]
        return [mine for mine, _ in pairs], tuple(read for _, read in pairs)
    tid, vid, number = rng.randrange(NUM_TENSORS), rng.randrange(NUM_VALUES), rng.randint(-(2**40), 2**40)
    match kind:
        case "T":
            return schema.Tid(tid), Tid(tid)
        case "V":
            return schema.Vid(vid), Vid(vid)
        case "I":
            return rng.choice(
                [(schema.IntOrVid.from_literal(number), number), (schema.IntOrVid.from_vid(schema.Vid(vid)), Vid(vid))]
            )
        case "F":
            return rng.choice(
                [(schema.FloatOrVid.from_literal(0.1), 0.1), (schema.FloatOrVid.from_vid(schema.Vid(vid)), Vid(vid))]
            )
        case "VT":
            return rng.choice(
                [
                    (schema.VidOrTid.from_vid(schema.Vid(vid)), Vid(vid)),
                    (schema.VidOrTid.from_tid(schema.Tid(tid)), Tid(tid)),
                ]
            )
        case "IVT":
            return rng.choice(
                [
                    (schema.IntOrVidOrTid.from_literal(number), number),
                    (schema.IntOrVidOrTid.from_vid(schema.Vid(vid)), Vid(vid)),
                    (schema.IntOrVidOrTid.from_tid(schema.Tid(tid)), Tid(tid)),
                ]
            )
        case "str":
            return f"text {number}", f"text {number}"
        case "bool":
            value = rng.random() < 0.5
            return value, value
        case "f32":
            return 0.375, 0.375
    value = rng.randint(-100, 100) if kind.startswith("i") else rng.randint(0, 100)
    return value, value


def graph_of(schema: ModuleType, chains: list[list[Any]], **changes: Any) -> Any:
    def dims(*sizes: Any) -> list[Any]:
        return [schema.ShapeDim(value=size) if isinstance(size, int) else schema.ShapeDim(-1, *size) for size in sizes]

    def slot(idx: int, kind: int = 0) -> Any:
        return schema.SlotVariant(idx=idx, slot_type=schema.SlotType(kind))

    defaults: dict[str, Any] = {
        "version": "1",
        "num_constant_tensors": 1,
        "num_input_tensors": 1,
        "num_output_tensors": 1,
        "num_mutable_buffer_tensors": 1,
        "num_temp_tensors": NUM_TENSORS - 4,
        "num_values": NUM_VALUES,
        "instruction_chains": [
            schema.InstructionChain(instructions=[schema.Instruction(op=op) for op in chain]) for chain in chains
        ],
        "main_chain_idx": 0,
        "init_chain_idx": -1,
        "input_map": [slot(1), slot(3, 1)],
        "output_map": [slot(2)],
        "mutable_buffer_map": [slot(3)],
        "named_slots": [schema.NamedSlot(name="abcd/weight", slot=slot(0)), schema.NamedSlot(name="x", slot=slot(1))],
        "tensor_meta": [
            schema.TensorMeta(shape=dims(4, 8), scalar_type=15, dim_order=[0, 1]),
            schema.TensorMeta(shape=dims(1, (1, 512)), scalar_type=4, dim_order=[0, 1]),
            schema.TensorMeta(shape=dims((0, -1)), scalar_type=6, dim_order=[0]),
            schema.TensorMeta(shape=dims(), scalar_type=3, dim_order=None),
        ],
    }
    return schema.MLXGraph(**(defaults | changes))
