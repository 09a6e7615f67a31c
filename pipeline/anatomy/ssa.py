"""Instructions as lines that each compute new values: a slot that is used again becomes another value.

Knows the order in which a graph's chains run and which fields of a node are written. Does not know what a node
computes. A line refers to values by number, to constants, inputs and buffers by name.

What a nested chain (of ``IfNode`` or ``ScanNode``) reads from outside is told as the slot it is read from, and what
a slot holds after a node that ran other chains, if they may have written it, as that slot after that node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from typing import Any

from pipeline.anatomy import mlx_dtypes
from pipeline.anatomy.uses import WRITTEN
from pipeline.pte import dtypes
from pipeline.pte.mlx_graph import NESTED_CHAINS, MlxGraph, Node, Slot, Tid, Vid
from pipeline.pte.mlx_shapes import Shape, Shapes
from pipeline.pte.program import Instruction, ListValue, Method, NoneValue, TensorValue

MAX_LIST = 64
DTYPE_FIELDS = ("scalar_type", "dtype", "out_dtype", "output_dtypes")


@dataclass(frozen=True, slots=True)
class Result:
    """The value with this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Named:
    """A constant, input, output, buffer or slot."""

    name: str


@dataclass(frozen=True, slots=True)
class After:
    """What a slot holds after the line whose number this is."""

    number: int
    slot: str


Operand = Result | Named | After | int | float | bool | str | tuple[Any, ...] | None


@dataclass(frozen=True, slots=True)
class Output:
    """``name`` is where the value also goes: an output, a buffer, a constant at load."""

    name: str | None
    dtype: str | None = None
    shape: Shape = None


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction; its outputs are numbered from ``first``.

    ``stated`` is what the file says of the tensors it is given, beyond their names: dtypes, sizes and layouts.
    """

    operator: str
    arguments: tuple[tuple[str, Operand], ...]
    outputs: tuple[Output, ...]
    first: int
    stated: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A chain, or a method's own instructions. ``results`` are what it gives back, by name."""

    title: str
    lines: tuple[Line, ...]
    results: tuple[tuple[str, Operand], ...] = ()


def of_graph(graph: MlxGraph, constants: Mapping[int, str]) -> tuple[Block, ...]:
    """The chains of a graph: main, init, then those that others run. ``constants`` are their names by id."""
    return _Graph(graph, constants).blocks()


class _Graph:
    def __init__(self, graph: MlxGraph, constants: Mapping[int, str]) -> None:
        self._graph = graph
        self._count = 0
        self._names = _slot_names(graph, constants)
        self._traced: dict[tuple[int, int], tuple[Shape, ...]] = {}
        Shapes(graph, seen=self._trace)
        main = (graph.main_chain, graph.init_chain)
        nested = [chain for index, chain in enumerate(graph.chains) if index not in main]
        self._written_inside = {slot for chain in nested for node in chain for slot in written(node)}

    def _trace(self, shapes: Shapes, chain: Sequence[Node], place: int) -> None:
        found = tuple(shapes.tensor(slot) for slot in written(chain[place]) if isinstance(slot, Tid))
        self._traced[id(chain), place] = found

    def blocks(self) -> tuple[Block, ...]:
        graph = self._graph
        results = tuple((self._name(slot), slot) for slot in (*graph.output_map, *graph.mutable_buffer_map))
        found = [self._block(graph.main_chain, "main chain", results)]
        if graph.init_chain is not None and graph.init_chain != graph.main_chain:
            found.append(self._block(graph.init_chain, "init chain, run once when loaded", ()))
        for index in range(len(graph.chains)):
            if index not in (graph.main_chain, graph.init_chain):
                found.append(self._block(index, f"chain {index}", ()))
        return tuple(found)

    def _name(self, slot: Slot) -> str:
        key: Tid | Vid = Tid(slot.idx) if slot.kind == "tensor" else Vid(slot.idx)
        return self._names.get(key) or _slot(key)

    def _block(self, index: int, title: str, results: tuple[tuple[str, Slot], ...]) -> Block:
        chain = self._graph.chains[index]
        now: dict[Tid | Vid, tuple[Operand, int]] = {}
        kinds = mlx_dtypes.Known(self._graph)
        control = -1

        def read(slot: Tid | Vid) -> Operand:
            operand, when = now.get(slot, (None, -1))
            if when < control and slot in self._written_inside:
                return After(control, _slot(slot))
            return Named(self._names.get(slot) or _slot(slot)) if operand is None else operand

        lines = []
        for place, node in enumerate(chain):
            runs_others = node.name in NESTED_CHAINS
            line = self._line(node, self._traced.get((id(chain), place), ()), kinds, read)
            lines.append(line)
            for number, slot in enumerate(written(node), start=line.first):
                now[slot] = Result(number), number
            self._count += max(len(line.outputs), 1)
            if runs_others:
                control = line.first
                kinds = mlx_dtypes.Known(self._graph)
        leaves = tuple(
            (name, read(Tid(slot.idx) if slot.kind == "tensor" else Vid(slot.idx))) for name, slot in results
        )
        return Block(title, tuple(lines), leaves)

    def _line(
        self,
        node: Node,
        shapes: tuple[Shape, ...],
        kinds: mlx_dtypes.Known,
        read: Callable[[Tid | Vid], Operand],
    ) -> Line:
        arguments = tuple(
            (name, _operand(name, value, read)) for name, value in node.fields.items() if name not in WRITTEN
        )
        slots = tuple(written(node))
        dtype = kinds.of(node)
        known = iter(shapes)
        outputs = []
        for slot in slots:
            tensor = isinstance(slot, Tid)
            outputs.append(
                Output(self._names.get(slot), dtype if tensor else "int", next(known, None) if tensor else ())
            )
            if isinstance(slot, Tid):
                kinds.note(slot, dtype)
        return Line(node.name.removesuffix("Node"), arguments, tuple(outputs), self._count)


def written(node: Node) -> Iterator[Tid | Vid]:
    """The slots that a node writes, in order; a scan writes what it carries too."""
    for name in (*WRITTEN, "carry") if node.name == "ScanNode" else WRITTEN:
        value = node.fields.get(name)
        for item in value if type(value) is tuple else (value,):
            if isinstance(item, Tid | Vid):
                yield item


def _slot(slot: Tid | Vid) -> str:
    return f"{'t' if isinstance(slot, Tid) else 'v'}{slot.idx}"


def _slot_names(graph: MlxGraph, constants: Mapping[int, str]) -> dict[Tid | Vid, str]:
    """Constants, inputs, outputs and buffers: temporaries have no name, whatever the file says."""
    names: dict[Tid | Vid, str] = {Tid(tid): constants[tid] for tid in graph.constant_tids}
    for what, slots in (
        ("output", graph.output_map),
        ("buffer", graph.mutable_buffer_map),
        ("input", graph.input_map),
    ):
        for number, slot in enumerate(slots):
            key: Tid | Vid = Tid(slot.idx) if slot.kind == "tensor" else Vid(slot.idx)
            if slot.kind != "tensor" or slot.idx not in graph.constant_tids:
                given = graph.names.get(slot, "")
                names[key] = given.partition("/")[2] or given or f"{what} {number}"
    return names


def _operand(name: str, value: Any, read: Callable[[Tid | Vid], Operand]) -> Operand:
    if isinstance(value, Tid | Vid):
        return read(value)
    if type(value) is tuple:
        return tuple(_operand(name, item, read) for item in value)
    if name in DTYPE_FIELDS and isinstance(value, int) and value in dtypes.BY_CODE:
        return dtypes.BY_CODE[value].name
    plain: Operand = value
    return plain


def of_method(
    method: Method,
    names: Mapping[int, str],
    constants: Callable[[TensorValue], str],
    takes: Mapping[int, Sequence[str]],
) -> Block:
    """A method's own instructions.

    ``names`` are those of inputs and outputs, by the value's index; ``constants`` names a constant. ``takes`` are the
    names of what a delegate is given, in the order of its arguments: by them they are listed.

    A tensor that nothing gave before is what the instruction computes, of a kernel only if it is named twice: as the
    place for the result and as the result. Else it is a buffer.
    """
    return _Method(method, names, constants, takes).block()


class _Method:
    def __init__(
        self,
        method: Method,
        names: Mapping[int, str],
        constants: Callable[[TensorValue], str],
        takes: Mapping[int, Sequence[str]],
    ) -> None:
        self._method = method
        self._takes = takes
        self._constant_name = constants
        self._known: dict[int, Operand] = {
            index: Named(names.get(index) or f"input {number}") for number, index in enumerate(method.input_ids)
        }
        self._ends = {index: names.get(index) or f"output {number}" for number, index in enumerate(method.output_ids)}
        self._plain: dict[int, Operand] = {}
        self._count = 0

    def block(self) -> Block:
        lines = tuple(self._line(instruction) for instruction in self._method.instructions)
        return Block("instructions", lines, tuple((name, self._value(index)) for index, name in self._ends.items()))

    def _line(self, instruction: Instruction) -> Line:
        # A jump's last argument is an instruction, not a value.
        is_jump = instruction.kind == "jump_false"
        indices = instruction.args[:1] if is_jump else instruction.args
        fresh = self._fresh(instruction.kind, indices)
        called = self._takes.get(instruction.delegate, ()) if instruction.delegate is not None else ()
        given = [
            (name or "", index)
            for name, index in zip_longest(called[: len(indices)], indices)
            if index not in fresh and not fresh.intersection(self._items(index))
        ]
        # The order in which a delegate takes them is its exporter's choice.
        arguments = tuple((name, self._value(index)) for name, index in (sorted(given) if called else given))
        if is_jump:
            arguments += (("to", instruction.args[1]),)
        operator = instruction.operator or instruction.kind
        if instruction.delegate is not None:
            operator = f"{self._method.delegates[instruction.delegate].id}[{instruction.delegate}]"
        first = self._count
        outputs = tuple(self._output(index) for index in sorted(fresh))
        self._count += not outputs
        return Line(operator, arguments, outputs, first, self._stated(indices))

    def _stated(self, indices: Sequence[int]) -> tuple[tuple[Any, ...], ...]:
        values = [self._method.values[index] for index in indices]
        for value in list(values):
            if isinstance(value, ListValue) and "tensor" in value.kind:
                values += self._method.listed(ListValue(value.kind, value.items[:MAX_LIST]))
        return tuple(
            (value.dtype, value.sizes, value.dynamic, value.dim_order)
            for value in values
            if isinstance(value, TensorValue)
        )

    def _output(self, index: int) -> Output:
        value = self._method.values[index]
        assert isinstance(value, TensorValue), "only tensors are fresh"
        self._known[index] = Result(self._count)
        self._count += 1
        return Output(self._ends.get(index), value.dtype, value.sizes)

    def _fresh(self, kind: str, indices: Sequence[int]) -> set[int]:
        """What the instruction computes."""
        found: Counter[int] = Counter()
        for index in indices:
            found.update(one for one in (index, *self._items(index)) if self._is_fresh(one))
        twice = {index for index, count in found.items() if count > 1}
        return twice if kind == "kernel_call" and twice else set(found)

    def _items(self, index: int) -> tuple[int, ...]:
        value = self._method.values[index]
        if not isinstance(value, ListValue) or "tensor" not in value.kind or index in self._plain:
            # Written out as an argument before: then nothing in it was fresh, or is since.
            return ()
        return tuple(int(item) for item in value.items if 0 <= item < len(self._method.values))

    def _is_fresh(self, index: int) -> bool:
        value = self._method.values[index]
        if not isinstance(value, TensorValue) or index in self._known:
            return False
        return value.data is None and value.key is None and value.initial is None

    def _value(self, index: int) -> Operand:
        if index in self._known:
            return self._known[index]
        if index not in self._plain:
            self._plain[index] = self._written_out(index)
        return self._plain[index]

    def _written_out(self, index: int) -> Operand:
        value = self._method.values[index]
        if isinstance(value, ListValue):
            of_numbers = value.kind in ("double", "bool")
            items = value.items if of_numbers else tuple(self._item(int(item)) for item in value.items)
            if len(items) <= MAX_LIST:
                return items
            # Every instruction that is given the list would be as long as it.
            return f"{len(items)} items, sha256 {sha256(repr(items).encode()).hexdigest()[:16]}"
        return self._item(index)

    def _item(self, index: int) -> Operand:
        """One value that is no list; an entry of -1 is none at all."""
        if not 0 <= index < len(self._method.values):
            return None
        value = self._method.values[index]
        if index in self._known:
            return self._known[index]
        if isinstance(value, TensorValue):
            has_name = value.data is not None or value.key is not None
            return Named(self._constant_name(value) if has_name else value.name or f"value {index}")
        if isinstance(value, ListValue):
            return Named(f"value {index}")
        return None if isinstance(value, NoneValue) else value.value
