"""What a method's inputs and outputs are called, and between which sizes they may be: its delegates' graphs know."""

from __future__ import annotations

from pipeline.anatomy.opening import Opened
from pipeline.pte.mlx_graph import Dim, MlxGraph, Slot
from pipeline.pte.program import Method


def slot_name(graph: MlxGraph, slot: Slot, otherwise: str) -> str:
    """The name of an input, output or buffer, without the exporter's prefix."""
    key = graph.names.get(slot, "")
    return key.partition("/")[2] or key or otherwise


def taken(found: Opened, method: Method) -> dict[int, list[str]]:
    """By a delegate's number, what its graph calls its inputs, in the order of its arguments."""
    names: dict[int, list[str]] = {}
    taken_by: dict[int, list[str]] = {}
    for number in range(len(method.delegates)):
        graph = found.graphs.get((method.name, number))
        if graph is not None:
            if id(graph) not in taken_by:
                taken_by[id(graph)] = [
                    slot_name(graph, slot, f"input {place}") for place, slot in enumerate(graph.input_map)
                ]
            names[number] = taken_by[id(graph)]
    return names


def argument_names(found: Opened, method: Method) -> dict[int, str]:
    """What the graphs of a method's delegates call its values, by the value's index."""
    return described(method, found)[0]


def described(method: Method, found: Opened) -> tuple[dict[int, str], dict[int, tuple[Dim, ...]]]:
    """What graphs know of the values they are given and give: names and bounds, by the value's index."""
    names: dict[int, str] = {}
    dims: dict[int, tuple[Dim, ...]] = {}
    for instruction in method.instructions:
        graph = None
        if instruction.delegate is not None:
            graph = found.graphs.get((method.name, instruction.delegate))
        if graph is not None:
            for index, slot in zip(instruction.args, (*graph.input_map, *graph.output_map), strict=False):
                _note(index, slot, graph, names, dims)
    return names, dims


def _note(index: int, slot: Slot, graph: MlxGraph, names: dict[int, str], dims: dict[int, tuple[Dim, ...]]) -> None:
    if slot in graph.names:
        names.setdefault(index, slot_name(graph, slot, ""))
    meta = graph.meta(slot.idx) if slot.kind == "tensor" else None
    if meta is not None:
        dims.setdefault(index, meta.shape)
