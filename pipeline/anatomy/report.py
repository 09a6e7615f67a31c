"""Looks at a file and gathers what it is into one report. Judges nothing, and reads no weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.anatomy import accounting, published, tensors
from pipeline.anatomy.facts import (
    Argument,
    Bounds,
    CompileSpec,
    DelegatePart,
    Graph,
    Listing,
    MethodPart,
    Report,
    Shape,
)
from pipeline.anatomy.opening import Opened, opened
from pipeline.anatomy.signature import described
from pipeline.pte.mlx_graph import Dim, MlxGraph
from pipeline.pte.program import Delegate, ListValue, Method, NoneValue, TensorValue, Value

MAX_HEX_BYTES = 32
MAX_ITEMS = 100


def inspect(path: Path, instructions: Sequence[str] | None = None) -> Report:
    """What ``path`` is: a ``.pte``, a ``.ptd`` or a bundle's directory.

    ``instructions`` names the methods to list, an empty sequence all of them. Raises ``PteError`` for what cannot be
    read, and for a method that is not there.
    """
    with opened(path) as found:
        return report_of(found, instructions)


def report_of(found: Opened, instructions: Sequence[str] | None = None) -> Report:
    """The report on what is open."""
    # Delegates may share a graph.
    graphs = {id(graph): graph for graph in found.graphs.values()}
    stored = tensors.stored(found.files, found.program, list(graphs.values()))
    counted = {number: _graph(graph) for number, graph in graphs.items()}
    methods = found.program.methods.values() if found.program is not None else ()
    return Report(
        path=str(found.path),
        size_bytes=sum(file.size_bytes for file in found.files.values()),
        files=tuple(accounting.of_file(name, file) for name, file in found.files.items()),
        others=found.others,
        methods=tuple(_method(method, found, counted) for method in methods if not method.is_constant),
        constants=published.of_program(found.program) if found.program is not None else (),
        tensors=stored,
        weights=accounting.weights(stored),
        by_dtype=accounting.by_dtype(stored),
        by_layer=accounting.by_layer(stored),
        listings=() if instructions is None else _listings(found, instructions),
    )


def _listings(found: Opened, methods: Sequence[str]) -> tuple[Listing, ...]:
    # Imported here: it is only for those who ask.
    from pipeline.anatomy import listing

    return listing.of_methods(found, methods)


def _method(method: Method, found: Opened, graphs: Mapping[int, Graph]) -> MethodPart:
    names, dims = described(method, found)
    return MethodPart(
        name=method.name,
        inputs=tuple(_argument(method, index, names, dims) for index in method.input_ids),
        outputs=tuple(_argument(method, index, names, dims) for index in method.output_ids),
        num_values=len(method.values),
        planned_bytes=method.planned_bytes,
        instructions=_counted(Counter(instruction.kind for instruction in method.instructions)),
        operators=_counted(Counter(one.operator for one in method.instructions if one.operator is not None)),
        delegates=tuple(
            _delegate(
                delegate,
                graphs.get(id(found.graphs.get((method.name, number)))),
                found.unreadable.get((method.name, number)),
            )
            for number, delegate in enumerate(method.delegates)
        ),
    )


def _counted(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda item: (-item[1], item[0])))


def _argument(method: Method, index: int, names: dict[int, str], dims: dict[int, tuple[Dim, ...]]) -> Argument:
    value = method.values[index]
    name = names.get(index)
    if isinstance(value, TensorValue):
        return Argument(name=name, kind="tensor", dtype=value.dtype, shape=_shape(value, dims.get(index)))
    kind, plain = kind_of(value)
    return Argument(name=name, kind=kind, value=plain)


def kind_of(value: Value) -> tuple[str, Any]:
    """A value's kind, and what it holds if that is a number, text or a list."""
    if isinstance(value, NoneValue):
        return "none", None
    if isinstance(value, TensorValue):
        return "tensor", None
    if isinstance(value, ListValue):
        return f"{value.kind} list", list(value.items[:MAX_ITEMS])
    return type(value).__name__.removesuffix("Value").lower(), value.value


def _shape(value: TensorValue, dims: tuple[Dim, ...] | None) -> Shape:
    """The sizes, with the bounds that the graph gives; the program itself has the upper ones only."""
    if not value.dynamic:
        return value.sizes
    if dims is None or len(dims) != len(value.sizes):
        return tuple(Bounds(0, None if value.unbounded else size) for size in value.sizes)
    return tuple(
        size
        if dim.value == size
        else Bounds(dim.min if dim.value is None else dim.value, dim.max if value.unbounded else size)
        for size, dim in zip(value.sizes, dims, strict=True)
    )


def _delegate(delegate: Delegate, graph: Graph | None, unreadable: str | None) -> DelegatePart:
    return DelegatePart(
        backend=delegate.id,
        size_bytes=len(delegate.payload),
        segment=delegate.segment,
        compile_specs=tuple(_spec(key, value) for key, value in delegate.compile_specs),
        graph=graph,
        unreadable=unreadable,
    )


def _spec(key: str, value: bytes) -> CompileSpec:
    try:
        text: str | None = value.decode("utf-8").rstrip("\0")
    except UnicodeDecodeError:
        text = None
    if text is None or not text.isprintable():
        return CompileSpec(key=key, size_bytes=len(value), text=None, hex=value[:MAX_HEX_BYTES].hex())
    return CompileSpec(key=key, size_bytes=len(value), text=text, hex=None)


def _graph(graph: MlxGraph) -> Graph:
    counts = [Counter(node.name for node in chain) for chain in graph.chains]
    initial = counts[graph.init_chain] if graph.init_chain is not None else Counter[str]()
    later = sum((count for index, count in enumerate(counts) if index != graph.init_chain), Counter[str]())
    return Graph(
        version=graph.version,
        num_constants=graph.num_constant_tensors,
        num_inputs=graph.num_input_tensors,
        num_outputs=graph.num_output_tensors,
        num_mutable_buffers=graph.num_mutable_buffer_tensors,
        num_temporaries=graph.num_temp_tensors,
        num_values=graph.num_values,
        num_chains=len(graph.chains),
        nodes=_counted(later),
        init_nodes=_counted(initial),
    )
