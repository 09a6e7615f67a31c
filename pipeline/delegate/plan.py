"""Turns a chain of instructions into a list of calls, once, so that a step only runs them.

An operator is a plain function of arrays and numbers whose parameters carry the node's field names (``ops``). Here the
node's fields are sorted into what is known at load and what must be read from slots, every slot that an instruction
reads is shown to have been written before, and no constant is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pipeline.errors import CacheError, DelegateError
from pipeline.pte import MlxGraph, Node, Tid, Vid

Operator = Callable[..., Any]
Call = Callable[["Slots"], None]

RESULTS = ("out", "outs")
"""The fields that name where an operator's results go: one slot, or several."""

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1


class Slots:
    """The state of one execution: tensors by tensor id, values by value id."""

    __slots__ = ("tensors", "values")

    def __init__(self, num_tensors: int, num_values: int) -> None:
        self.tensors: list[Any] = [None] * num_tensors
        self.values: list[Any] = [None] * num_values


def plan_chain(graph: MlxGraph, chain: int, operators: Mapping[str, Operator], *, init: bool = False) -> list[Call]:
    """The calls that execute a chain in order.

    ``init`` chains may write constants, no other may. Raises DelegateError for a node without an operator, for a
    slot read before it was written, and for a write to a constant.
    """
    nodes = graph.chains[chain]
    unknown = sorted({node.name for node in nodes if node.name != "NoopNode"} - operators.keys())
    if unknown:
        raise DelegateError(
            f"the graph uses {', '.join(unknown)}, which this executor does not implement, so the artifact cannot be "
            f"shown to be right; it knows {', '.join(sorted(operators))}. Choose a model of another architecture, or "
            "ask for the operator."
        )
    written: set[Tid | Vid] = {Tid(tid) for tid in (*graph.constant_tids, *graph.input_tids, *graph.mutable_tids)}
    written |= {Vid(slot.idx) for slot in graph.input_map if slot.kind != "tensor"}
    calls = []
    for index, node in enumerate(nodes):
        if node.name == "NoopNode":
            continue
        reads = [ref for name, field in node.fields.items() if name not in RESULTS for ref in _references(field)]
        for ref in reads:
            if ref not in written:
                raise DelegateError(f"{_place(chain, index, node)} reads {_shown(ref)}, which nothing has written.")
        outs = [ref for name in RESULTS for ref in _references(node.fields.get(name))]
        for out in outs:
            if isinstance(out, Tid) and out.idx in graph.constant_tids and not init:
                raise DelegateError(f"{_place(chain, index, node)} writes {_shown(out)}, a constant.")
        written.update(outs)
        calls.append(_call(operators[node.name], node, outs, _place(chain, index, node)))
    return calls


def _call(operator: Operator, node: Node, outs: list[Tid | Vid], place: str) -> Call:
    several = "outs" in node.fields
    known: dict[str, Any] = {}
    tensors: list[tuple[str, int]] = []
    others: list[tuple[str, Callable[[Slots], Any]]] = []
    for name, field in node.fields.items():
        if name in RESULTS:
            continue
        if isinstance(field, Tid):
            tensors.append((name, field.idx))
        elif any(_references(field)):
            others.append((name, _reader(field)))
        else:
            known[name] = _saturated(field)

    def run(slots: Slots) -> None:
        arguments = {name: slots.tensors[tid] for name, tid in tensors}
        for name, read in others:
            arguments[name] = read(slots)
        try:
            result = operator(**arguments, **known)
        except (CacheError, DelegateError):
            raise
        except (ValueError, TypeError, IndexError, RuntimeError, OverflowError) as error:
            raise DelegateError(f"{place} failed: {error}") from error
        results = result if several else (result,)
        if len(results) != len(outs):
            raise DelegateError(f"{place} made {len(results)} results; expected {len(outs)}.")
        for out, value in zip(outs, results, strict=True):
            if isinstance(out, Tid):
                slots.tensors[out.idx] = value
            else:
                if not INT32_MIN <= value <= INT32_MAX:
                    raise DelegateError(f"{place} computed {value}, which is no int32.")
                slots.values[out.idx] = value

    return run


def _saturated(field: Any) -> Any:
    """Literals are int64 in the file and int32 to the runtime, which clamps: "to the end" is written as INT64_MAX."""
    if isinstance(field, tuple):
        return tuple(_saturated(item) for item in field)
    if isinstance(field, int) and not isinstance(field, bool):
        return min(max(field, INT32_MIN), INT32_MAX)
    return field


def _reader(field: Any) -> Callable[[Slots], Any]:
    if isinstance(field, Tid):
        tid = field.idx
        return lambda slots: slots.tensors[tid]
    if isinstance(field, Vid):
        vid = field.idx
        return lambda slots: slots.values[vid]
    if isinstance(field, tuple):
        readers = [_reader(item) for item in field]
        return lambda slots: tuple(read(slots) for read in readers)
    literal = _saturated(field)
    return lambda slots: literal


def _references(field: Any) -> Iterable[Tid | Vid]:
    if isinstance(field, Tid | Vid):
        yield field
    elif isinstance(field, tuple):
        for item in field:
            yield from _references(item)


def _place(chain: int, index: int, node: Node) -> str:
    return f"chain {chain}, instruction {index} ({node.name})"


def _shown(ref: Tid | Vid) -> str:
    return f"{'tensor' if isinstance(ref, Tid) else 'value'} {ref.idx}"
