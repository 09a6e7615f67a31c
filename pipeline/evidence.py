"""What a ``.pte`` shows about the contract it publishes, gathered in one place and judged in none.

Knows where to look: the constant methods, ``forward``'s signature, its one delegate's graph, the data of that graph's
constants. Does not know what is right: ``pipeline.verify`` does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from pipeline.contract import LOGITS_MODE, SCALAR_TYPE
from pipeline.pte import dtypes
from pipeline.pte.container import PteFile
from pipeline.pte.flatbuffer import quoted
from pipeline.pte.mlx_graph import MlxGraph, Slot, parse_mlx_payload
from pipeline.pte.mlx_shapes import Attend, Shape, Shapes
from pipeline.pte.program import Method, Value

BACKEND = "MLXBackend"
DTYPES = {code: name for name, code in SCALAR_TYPE.items()}
MODES = {code: name for name, code in LOGITS_MODE.items()}


MULTIPLYING_NODES = ("QuantizedMatmulNode", "GatherQmmNode")
LOOKING_UP_NODES = ("DequantizeNode",)


class QuantizedFormat(NamedTuple):
    """How a node reads quantized weights: MLX's mode, bits a weight, and weights that share a scale."""

    mode: str
    bits: int
    group_size: int


@dataclass(frozen=True, kw_only=True)
class GraphFacts:
    """What an MLX graph shows about the contract.

    ``absent_data`` and ``short_data`` are constants whose data is not there, or not all of it: a name and a sentence.
    ``multiplied`` are the formats of the weights that activations are multiplied by, ``looked_up`` those of embeddings.
    ``rows_of`` is what the graph computes a row of logits for each of, ``token`` or ``selected row``, if that follows.
    """

    attends: tuple[Attend, ...]
    logits: Shape
    num_slots: int
    num_mutable_buffers: int
    float_dtypes: frozenset[str]
    multiplied: frozenset[QuantizedFormat] = frozenset()
    looked_up: frozenset[QuantizedFormat] = frozenset()
    rows_of: str | None = None
    absent_data: tuple[tuple[str, str], ...] = ()
    short_data: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class ForwardFacts:
    """``others`` counts the instructions beside delegate calls; ``graph`` is there for exactly one MLX delegate."""

    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    delegates: tuple[str, ...]
    others: Mapping[str, int]
    num_delegate_args: int = 0
    graph: GraphFacts | None = None


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """``segment_starts`` are the file's bytes at which its segments begin, empty ones left out.

    ``unused_data`` are named data that no constant of the program's only graph uses, with their sizes in bytes; there
    are none where another backend may use them.
    """

    program_version: int = 0
    segment_starts: tuple[int, ...] = ()
    unused_data: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was found in one file; ``forward`` is ``None`` when there is no such method."""

    where: str
    constants: Mapping[str, Any]
    methods: tuple[str, ...]
    forward: ForwardFacts | None
    file: FileFacts = FileFacts()

    @classmethod
    def of(cls, pte: PteFile) -> Evidence:
        """Raises ``PteError`` when constants or the graph cannot be read."""
        methods = pte.program.methods
        forward, used = methods.get("forward"), None
        facts = None
        if forward is not None:
            facts, used = _forward_facts(forward, pte)
        return cls(
            where=str(pte.path),
            constants=pte.program.constants(),
            methods=tuple(methods),
            forward=facts,
            file=_file_facts(pte, used),
        )


def heads_and_dim(shape: Shape) -> tuple[int, int] | None:
    """Of [1, heads, T, head_dim], where both follow from the graph."""
    if shape is None or len(shape) != 4:
        return None
    _, heads, _, dim = shape
    return (heads, dim) if isinstance(heads, int) and isinstance(dim, int) else None


def _file_facts(pte: PteFile, used: Collection[str] | None) -> FileFacts:
    only = sum(len(method.delegates) for method in pte.program.methods.values()) == 1
    unused = [name for name in pte.named_data if name not in used] if used is not None and only else []
    return FileFacts(
        program_version=pte.program.version,
        segment_starts=tuple(start for start, end in pte.segments if start < end),
        unused_data=tuple((name, len(pte.named_data[name])) for name in unused),
    )


def _forward_facts(method: Method, pte: PteFile) -> tuple[ForwardFacts, Collection[str] | None]:
    """What ``forward`` shows, and the names by which its one MLX graph knows data."""
    calls = [instruction for instruction in method.instructions if instruction.delegate is not None]
    delegates = [method.delegates[call.delegate] for call in calls if call.delegate is not None]
    others = Counter(
        instruction.operator or instruction.kind for instruction in method.instructions if instruction.delegate is None
    )
    graph = used = None
    if [delegate.id for delegate in delegates] == [BACKEND]:
        parsed = parse_mlx_payload(delegates[0].payload, f"{pte.path}: forward")
        graph = _graph_facts(parsed, _sized_axes(method, parsed, calls[0].args), pte)
        used = frozenset(parsed.names.values())
    facts = ForwardFacts(
        inputs=method.inputs,
        outputs=method.outputs,
        delegates=tuple(delegate.id for delegate in delegates),
        others=others,
        num_delegate_args=len(calls[0].args) if calls else 0,
        graph=graph,
    )
    return facts, used


def _sized_axes(method: Method, graph: MlxGraph, args: Sequence[int]) -> list[tuple[str, tuple[int, int]]]:
    """Where the graph is given how many tokens and selected rows a step has, each as tensor id and axis.

    That is axis 1 of tokens and axis 0 of positions, one size by contract, and axis 0 of a selector. The delegate's
    inputs need not be in the order of the method's; its arguments say which is which.
    """
    slots = dict(zip(args, graph.input_map, strict=False))
    found = zip(method.input_ids, (("token", 1), ("token", 0), ("selected row", 0)), strict=False)
    return [
        (what, (slots[index].idx, axis))
        for index, (what, axis) in found
        if index in slots and slots[index].kind == "tensor"
    ]


def _graph_facts(graph: MlxGraph, sized_axes: Sequence[tuple[str, tuple[int, int]]], pte: PteFile) -> GraphFacts:
    shapes = Shapes(graph, [place for what, place in sized_axes if what == "token"])
    logits = shapes.outputs[0] if shapes.outputs else None
    names = {shapes.name(*place): what for what, place in sized_axes}
    constants = [meta for meta in map(graph.meta, graph.constant_tids) if meta is not None]
    return GraphFacts(
        attends=tuple(shapes.attends),
        logits=logits,
        num_slots=len(graph.input_map) + len(graph.output_map),
        num_mutable_buffers=graph.num_mutable_buffer_tensors,
        float_dtypes=frozenset(meta.dtype for meta in constants if "float" in meta.dtype),
        multiplied=_formats(graph, MULTIPLYING_NODES),
        looked_up=_formats(graph, LOOKING_UP_NODES),
        rows_of=names.get(str(logits[1])) if logits is not None and len(logits) == 3 else None,
        absent_data=tuple(_absent_data(graph, pte)),
        short_data=tuple(_short_data(graph, pte)),
    )


def _formats(graph: MlxGraph, nodes: Sequence[str]) -> frozenset[QuantizedFormat]:
    return frozenset(
        QuantizedFormat(*(node.fields[name] for name in QuantizedFormat._fields))
        for node in graph.chains[graph.main_chain]
        if node.name in nodes
    )


def _absent_data(graph: MlxGraph, pte: PteFile) -> Iterator[tuple[str, str]]:
    for tid in graph.constant_tids:
        name = graph.names.get(Slot("tensor", tid))
        if name is None:
            yield f"constant {tid}", f"the graph's constant {tid} has no name; expected that of its data"
        elif name not in pte.named_data:
            yield name, f"the graph's constant {tid} is {quoted(name)}, which is not among the file's named data"


def _short_data(graph: MlxGraph, pte: PteFile) -> Iterator[tuple[str, str]]:
    for tid in graph.constant_tids:
        name, meta = graph.names.get(Slot("tensor", tid)), graph.meta(tid)
        assert meta is not None, "a graph's constants have metadata"
        if name is None or name not in pte.named_data:
            continue
        needed = prod(dim.value or 0 for dim in meta.shape) * dtypes.BY_NAME[meta.dtype].size_bytes
        if len(pte.named_data[name]) < needed:
            text = f"{quoted(name)} has {len(pte.named_data[name])} bytes but its shape and dtype need {needed}"
            yield name, text
