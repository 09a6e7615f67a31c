"""Instructions as text, a line each: ``%5: bfloat16[1, s0, 576] = Addmm(%3, %4, alpha=1, beta=1)``.

What comes from the file is escaped and cut, so a line is a line whatever the file says.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack
from typing import Any

from pipeline.anatomy import names, ssa, uses
from pipeline.anatomy.facts import Listing
from pipeline.anatomy.opening import Opened
from pipeline.anatomy.signature import argument_names, taken
from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import quoted, shown
from pipeline.pte.mlx_graph import MlxGraph, Slot
from pipeline.pte.mlx_shapes import Shape
from pipeline.pte.program import TensorValue

MAX_ITEMS = 16
# Operands that need no name: the others are told by theirs.
_PLAIN = {"", "x", "a", "b", "q", "k", "v", "mat1", "mat2", "tensors", "dst", "update", "indices", "condition", "y"}


def of_methods(found: Opened, methods: Sequence[str]) -> tuple[Listing, ...]:
    """The listings of the named methods, or of all that do something. Raises ``PteError`` for one that is not there."""
    known = found.program.methods if found.program is not None else {}
    for name in methods:
        if name not in known:
            others = ", ".join(shown(other) for other in list(known)[:MAX_ITEMS]) or "none"
            raise PteError(f"{found.path}: there is no method {quoted(name)}; it has {others}. Name one of these.")
    chosen = methods or [name for name, method in known.items() if not method.is_constant]
    listed: dict[int, str] = {}
    return tuple(listing for name in chosen for listing in of_method(found, name, listed))


def of_method(found: Opened, name: str, listed: dict[int, str]) -> tuple[Listing, ...]:
    """A method's own instructions, then those of its delegates' graphs.

    ``listed`` says, and is told, where a graph is listed: delegates may share one.
    """
    method = found.method(name)
    own = ssa.of_method(method, argument_names(found, method), constant_name, taken(found, method))
    listings = [_listing(f"{shown(name)}: {own.title}", name, own)]
    for number in range(len(method.delegates)):
        graph = found.graphs.get((name, number))
        where = f"{shown(name)}: delegate {number}"
        if graph is not None and id(graph) in listed:
            same = f"# The graph of {listed[id(graph)]}, listed there."
            listings.append(Listing(title=where, method=name, lines=(same,)))
        elif graph is not None:
            listed[id(graph)] = where
            symbols = Symbols(graph)
            for block in ssa.of_graph(graph, constant_names(found, graph)):
                listings.append(_listing(f"{where}, {block.title}", name, block, symbols))
    return tuple(listings)


def constant_names(found: Opened, graph: MlxGraph) -> dict[int, str]:
    """What to call a graph's constants: a number that an exporter gave some name is called by its value."""
    called = {}
    for tid, use in uses.of_constants(graph).items():
        called[tid] = use.name
        meta, key = graph.meta(tid), graph.names.get(Slot("tensor", tid))
        if meta is not None and key is not None and use.role is None and not meta.shape:
            number = _scalar(found, key, meta.dtype)
            called[tid] = use.name if number is None else f"{meta.dtype}({operand_text(number)})"
    return called


def _scalar(found: Opened, key: str, dtype: str) -> int | float | bool | None:
    for file in found.files.values():
        if key in file.named_data:
            size = dtypes.BY_NAME[dtype].size_bytes
            numbers = dtypes.numbers(dtypes.BY_NAME[dtype], file.named_data[key][:size])
            return numbers[0] if numbers else None
    return None


def constant_name(value: TensorValue) -> str:
    """The name of a constant of kernels."""
    key = value.key or value.name
    return names.without_prefix(key) if key is not None else f"constant {value.constant}"


class Symbols:
    """Short names for sizes that are only known at run time, in the order they are met in a graph."""

    def __init__(self, graph: MlxGraph) -> None:
        self._graph = graph
        self._short: dict[str, str] = {}
        self._met: dict[str, None] = {}

    def of(self, size: str) -> str:
        """``s0`` and so on, for a name that ``mlx_shapes`` gave."""
        self._met[size] = None
        return self._short.setdefault(size, f"s{len(self._short)}")

    def legend(self) -> list[str]:
        """What the names stand for that were asked for since the last legend."""
        met, self._met = self._met, {}
        return [self._explained(size) for size in met]

    def _explained(self, size: str) -> str:
        tid, axis = map(int, size.split("."))
        key = self._graph.names.get(Slot("tensor", tid), f"t{tid}")
        meta = self._graph.meta(tid)
        assert meta is not None, "only described sizes have names"
        bounds = meta.shape[axis]
        reach = f"at least {bounds.min}" if bounds.max is None else f"{bounds.min} to {bounds.max}"
        return f"{self._short[size]}: size of {shown(key.partition('/')[2] or key)}, axis {axis}, {reach}"


def _listing(title: str, method: str, block: ssa.Block, symbols: Symbols | None = None) -> Listing:
    lines = [text_of(line, symbols) for line in block.lines]
    lines += [f"{shown(name)} <- {operand_text(operand)}" for name, operand in block.results]
    legend = [f"# {text}" for text in symbols.legend()] if symbols is not None else []
    return Listing(title=title, method=method, lines=(*legend, *lines))


def text_of(line: ssa.Line, symbols: Symbols | None = None) -> str:
    """One line of a listing; without ``symbols`` sizes of run time are question marks."""
    arguments = ", ".join(
        _argument(name, operand) for name, operand in line.arguments if operand is not None or not name
    )
    call = f"{shown(line.operator)}({arguments})"
    if not line.outputs:
        return f"%{line.first} = {call}"
    outputs = [
        f"%{line.first + number}{_type(output, symbols)}" for number, output in enumerate(line.outputs[:MAX_ITEMS])
    ]
    more = len(line.outputs) - len(outputs)
    lands = [shown(output.name) for output in line.outputs[:MAX_ITEMS] if output.name is not None]
    left = ", ".join(outputs) + (f", and {more} more" if more else "")
    return f"{left} = {call}" + (f" -> {', '.join(lands)}" if lands else "")


def _argument(name: str, operand: ssa.Operand) -> str:
    text = operand_text(operand)
    says_itself = not name or (name in _PLAIN and _is_reference(operand)) or operand == ssa.Named(name)
    return text if says_itself else f"{shown(name)}={text}"


def _is_reference(operand: ssa.Operand) -> bool:
    if isinstance(operand, tuple):
        return all(_is_reference(item) for item in operand[:MAX_ITEMS])
    return isinstance(operand, ssa.Result | ssa.Named | ssa.After)


def _type(output: ssa.Output, symbols: Symbols | None) -> str:
    if output.dtype == "int":
        return ": int"
    shape = shape_text(output.shape, symbols)
    return f": {output.dtype or '?'}{shape}" if output.dtype or output.shape is not None else ""


def shape_text(shape: Shape, symbols: Symbols | None = None) -> str:
    """``[1, s0, 576]``; ``?`` is a size that does not follow from the file."""
    if shape is None:
        return "[?]"
    sizes = [
        "?"
        if size is None
        else (symbols.of(size) if symbols is not None else "?")
        if isinstance(size, str)
        else str(size)
        for size in shape
    ]
    return f"[{', '.join(sizes)}]"


def operand_text(operand: Any) -> str:
    """A reference or a literal, on one line."""
    match operand:
        case ssa.Result():
            return f"%{operand.number}"
        case ssa.Named():
            return shown(operand.name)
        case ssa.After():
            return f"%{operand.number}.{operand.slot}"
        case tuple():
            items = [operand_text(item) for item in operand[:MAX_ITEMS]]
            more = [f"and {len(operand) - MAX_ITEMS} more"] if len(operand) > MAX_ITEMS else []
            return f"[{', '.join(items + more)}]"
        case None:
            return "none"
        case bool():
            return str(operand).lower()
        case float():
            return number_text(operand)
        case str():
            return shown(operand)
    return str(operand)


def number_text(number: float) -> str:
    """The shortest decimal that a 32-bit float of this value reads back from, if it is one."""
    short = f"{number:.7g}"
    try:
        same = pack("<f", float(short)) == pack("<f", number) and _is_float32(number)
    except OverflowError:
        same = False
    return short if same else repr(number)


def _is_float32(number: float) -> bool:
    from struct import unpack

    found: float = unpack("<f", pack("<f", number))[0]
    return found == number or number != number
