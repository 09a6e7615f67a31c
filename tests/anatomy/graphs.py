"""Small MLX graphs by hand."""

from __future__ import annotations

from typing import Any

from pipeline.pte import Dim, MlxGraph, Node, Slot, TensorMeta, Tid, Vid


def graph(
    *chains: list[Node],
    constants: dict[str, tuple[str, tuple[int, ...]]] | None = None,
    inputs: dict[str, tuple[int | None, ...]] | None = None,
    outputs: tuple[str, ...] = (),
    buffers: tuple[str, ...] = (),
    temporaries: int = 9,
    init_chain: int | None = None,
) -> MlxGraph:
    """``constants`` are tensors 0, 1, … in order, with dtype and shape; inputs, outputs and buffers follow them."""
    constants, inputs = constants or {}, inputs or {}
    names = [*(f"abcd/{name}" for name in (*constants, *inputs, *outputs, *buffers))]
    shapes: list[tuple[str, tuple[int | None, ...]]] = [*constants.values()]
    shapes += [("float32", shape) for shape in inputs.values()]
    shapes += [("float32", ())] * (len(outputs) + len(buffers))
    first_output = len(constants) + len(inputs)
    return MlxGraph(
        version=1,
        num_constant_tensors=len(constants),
        num_input_tensors=len(inputs),
        num_output_tensors=len(outputs),
        num_mutable_buffer_tensors=len(buffers),
        num_temp_tensors=temporaries,
        num_values=8,
        chains=tuple(tuple(chain) for chain in chains),
        main_chain=0,
        init_chain=init_chain,
        input_map=tuple(Slot("tensor", len(constants) + place) for place in range(len(inputs))),
        output_map=tuple(Slot("tensor", first_output + place) for place in range(len(outputs))),
        mutable_buffer_map=tuple(Slot("tensor", first_output + len(outputs) + place) for place in range(len(buffers))),
        names={Slot("tensor", tid): name for tid, name in enumerate(names)},
        tensor_meta=tuple(
            TensorMeta(tuple(Dim(None, 1, 8) if size is None else Dim(size) for size in shape), dtype)
            for dtype, shape in shapes
        ),
    )


def node(name: str, **fields: Any) -> Node:
    """``t3`` is a tensor slot, ``v3`` a value slot; a list is a vector of these."""

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return tuple(read(item) for item in value)
        if isinstance(value, str) and value[0] in "tv" and value[1:].isdigit():
            return Tid(int(value[1:])) if value[0] == "t" else Vid(int(value[1:]))
        return value

    return Node(f"{name}Node", {field: read(value) for field, value in fields.items()})
