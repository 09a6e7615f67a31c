"""What an MLX graph does with its constants: which nodes read them, and which are quantized weights and their scales.

A weight may reach the node that says how it is packed through others that only move or choose rows, as an embedding's
does through ``TakeNode``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.anatomy import names
from pipeline.anatomy.facts import Quantization
from pipeline.pte.mlx_graph import MlxGraph, Node, Slot, Tid

QUANTIZED = ("QuantizedMatmulNode", "GatherQmmNode", "DequantizeNode")
MOVING = ("TakeNode", "ReshapeNode", "TransposeNode", "ExpandDimsNode", "SqueezeNode", "SliceNode")
MOVING_AS_IT_IS = ("IdCopyNode", "ContiguousNode", "BroadcastToNode")
WRITTEN = ("out", "outs", "outputs")
_COMPANIONS = ("scales", "biases", "global_scale")


@dataclass(slots=True)
class Use:
    """Of one constant. ``of`` is the id of the packed weight that it accompanies, ``name`` what to call it.

    A packed weight is called what the weight was called, its scales that and ``.scales``.
    """

    nodes: Counter[str] = field(default_factory=Counter)
    quantization: Quantization | None = None
    role: str | None = None
    of: int | None = None
    name: str = ""


def of_constants(graph: MlxGraph) -> dict[int, Use]:
    """The use of every constant of the graph, by its tensor id."""
    uses = {tid: Use() for tid in graph.constant_tids}
    for chain in graph.chains:
        _read(chain, uses)
    keys = {tid: graph.names.get(Slot("tensor", tid), f"constant {tid}") for tid in uses}
    for tid, use in uses.items():
        packed = tid if use.role == "packed" else use.of
        short = names.without_prefix(keys[tid])
        use.name = short if packed is None else names.of_weight(names.without_prefix(keys[packed]))
        if use.of is not None:
            use.name += f".{use.role}"
    # Two that would be called the same keep the names that the file gives them.
    taken = Counter(use.name for use in uses.values())
    for tid, use in uses.items():
        if taken[use.name] > 1:
            use.name = names.without_prefix(keys[tid])
    return uses


def _read(chain: Sequence[Node], uses: dict[int, Use]) -> None:
    origin: dict[int, int] = {}
    for node in chain:
        for tid in _read_tids(node):
            if tid in uses:
                uses[tid].nodes[node.name] += 1
        if node.name in QUANTIZED:
            _note_quantized(node.fields, uses, origin)
        source = node.fields.get("x") if node.name in (*MOVING, *MOVING_AS_IT_IS) else None
        start = origin.get(source.idx, source.idx) if isinstance(source, Tid) else None
        for tid in _written_tids(node):
            if start in uses and start is not None:
                origin[tid] = start
            else:
                origin.pop(tid, None)


def _note_quantized(fields: dict[str, Any], uses: dict[int, Use], origin: dict[int, int]) -> None:
    def constant(tid: Tid | None) -> int | None:
        found = None if tid is None else origin.get(tid.idx, tid.idx)
        return found if found in uses else None

    packed = constant(fields["w"])
    if packed is None or not 1 <= fields["bits"] <= 32:
        return
    uses[packed].quantization = Quantization(fields["mode"], fields["bits"], fields["group_size"])
    uses[packed].role = "packed"
    for role in _COMPANIONS:
        tid = constant(fields.get(role))
        # What is a weight for another node is that first.
        if tid is not None and uses[tid].role != "packed":
            uses[tid].role, uses[tid].of = role, packed


def _read_tids(node: Node) -> Iterator[int]:
    for name, value in node.fields.items():
        if name not in WRITTEN:
            for item in value if type(value) is tuple else (value,):
                if type(item) is Tid:
                    yield item.idx


def _written_tids(node: Node) -> Iterator[int]:
    for name in WRITTEN:
        value = node.fields.get(name)
        for item in value if type(value) is tuple else (value,):
            if type(item) is Tid:
                yield item.idx
