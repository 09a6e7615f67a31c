"""Turns a chain of instructions into a list of calls, once, so that a step only runs them.

An operator is a plain function of arrays and numbers whose parameters carry the node's field names (``ops``). Here the
node's fields are sorted into what is known at load and what must be read from slots, every slot that an instruction
reads is shown to have been written before, and no constant is written. The two nodes that run other chains, IfNode and
ScanNode, are planned here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from pipeline.errors import CacheError, DelegateError
from pipeline.pte import MlxGraph, Node, Tid, Vid

Operator = Callable[..., Any]
Call = Callable[["Slots"], None]

RESULTS = ("out", "outs", "outputs")
"""The fields that name where an operator's results go: one slot, or several."""

WRITES_IN_PLACE = {"SliceUpdateNode": "dst", "IndexCopyNode": "dst"}
"""What the runtime wants to be no constant, though a result may go elsewhere."""

MAX_NESTING = 32

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1

FAILURES = (ValueError, TypeError, IndexError, RuntimeError, OverflowError)
"""What mlx.core raises for arrays that do not fit an operator."""


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
    known = {*operators, "NoopNode", "IfNode", "ScanNode"}
    unknown = sorted({node.name for nodes in graph.chains for node in nodes} - known)
    if unknown:
        raise DelegateError(
            f"the graph uses {', '.join(unknown)}, which this executor does not implement, so the artifact cannot be "
            "shown to be right. Choose a model of another architecture, or ask for the operator."
        )
    written: set[Tid | Vid] = {Tid(tid) for tid in (*graph.constant_tids, *graph.input_tids, *graph.mutable_tids)}
    written |= {Vid(slot.idx) for slot in graph.input_map if slot.kind != "tensor"}
    planned = _Planner(graph, operators, init).chain(chain, 0)
    for ref, place in planned.needs.items():
        if ref not in written:
            raise DelegateError(f"{place} reads {_shown(ref)}, which nothing has written.")
    return planned.calls


@dataclass(frozen=True, slots=True)
class _Planned:
    """``needs`` is what the calls read and have not written themselves, with the place that does, ``makes`` what they
    have written once they ran. ``height`` counts the levels of chains they run."""

    calls: list[Call]
    needs: dict[Tid | Vid, str]
    makes: set[Tid | Vid]
    height: int = 0


class _Planner:
    """Plans each chain once, however often it is run."""

    def __init__(self, graph: MlxGraph, operators: Mapping[str, Operator], init: bool) -> None:
        self._graph = graph
        self._operators = operators
        self._init = init
        self._planned: dict[int, _Planned] = {}

    def chain(self, index: int, depth: int) -> _Planned:
        if index not in self._planned and depth <= MAX_NESTING:
            self._planned[index] = self._whole(index, depth)
        if depth > MAX_NESTING or depth + self._planned[index].height > MAX_NESTING:
            raise DelegateError(f"chain {index} is run by more than {MAX_NESTING} others inside one another.")
        return self._planned[index]

    def _whole(self, index: int, depth: int) -> _Planned:
        plans = {"IfNode": self._if, "ScanNode": self._scan}
        whole = _Planned([], {}, set())
        height = 0
        for number, node in enumerate(self._graph.chains[index]):
            if node.name == "NoopNode":
                continue
            place = f"chain {index}, instruction {number} ({node.name})"
            part = plans[node.name](node, place, depth) if node.name in plans else self._instruction(node, place)
            for ref, where in part.needs.items():
                if ref not in whole.makes:
                    whole.needs.setdefault(ref, where)
            whole.makes.update(part.makes)
            whole.calls.extend(part.calls)
            height = max(height, part.height)
        return _Planned(whole.calls, whole.needs, whole.makes, height)

    def _instruction(self, node: Node, place: str) -> _Planned:
        reads = [ref for name, field in node.fields.items() if name not in RESULTS for ref in references(field)]
        outs = [ref for name in RESULTS for ref in references(node.fields.get(name))]
        in_place = references(node.fields.get(WRITES_IN_PLACE.get(node.name, "")))
        self._refuse_constants((*outs, *in_place), place)
        call = _call(self._operators[node.name], node, outs, place)
        return _Planned([call], dict.fromkeys(reads, place), set(outs))

    def _if(self, node: Node, place: str, depth: int) -> _Planned:
        """One of two chains, by whether a number is 0; both see and leave the same slots."""
        condition = node.fields["cond"]
        read = _reader(condition)
        chosen, otherwise = (self.chain(node.fields[name], depth + 1) for name in ("then_chain_idx", "else_chain_idx"))

        def run(slots: Slots) -> None:
            for call in chosen.calls if read(slots) else otherwise.calls:
                call(slots)

        needs = {**dict.fromkeys(references(condition), place), **otherwise.needs, **chosen.needs}
        return _Planned([run], needs, chosen.makes & otherwise.makes, 1 + max(chosen.height, otherwise.height))

    def _scan(self, node: Node, place: str, depth: int) -> _Planned:
        """A chain for every index of an axis.

        Before each, ``sliced`` holds the originals at that index, without the axis; after all, ``outputs`` holds what
        the chain left there every time, stacked along it. What is carried over stays in its slots.
        """
        originals, sliced, outputs, axis = (
            node.fields[name] for name in ("originals", "sliced", "outputs", "scan_axis")
        )
        if not originals or len(originals) != len(sliced):
            raise DelegateError(f"{place} slices {len(originals)} tensors into {len(sliced)}; expected one into each.")
        body = self.chain(node.fields["body_chain_idx"], depth + 1)
        self._refuse_constants((*sliced, *outputs), place)

        def run(slots: Slots) -> None:
            try:
                wholes = [slots.tensors[tid.idx] for tid in originals]
                rows: list[list[mx.array]] = [[] for _ in outputs]
                for step in range(wholes[0].shape[axis]):
                    for tid, whole in zip(sliced, wholes, strict=True):
                        slots.tensors[tid.idx] = mx.take(whole, step, axis=axis)
                    for call in body.calls:
                        call(slots)
                    for row, tid in zip(rows, outputs, strict=True):
                        row.append(slots.tensors[tid.idx])
                for row, tid in zip(rows, outputs, strict=True):
                    slots.tensors[tid.idx] = mx.stack(row, axis=axis)
            except FAILURES as error:
                raise DelegateError(f"{place} failed: {error}") from error

        made = body.makes | set(sliced)
        inside = {ref: where for ref, where in body.needs.items() if ref not in sliced}
        left = dict.fromkeys((tid for tid in outputs if tid not in made), place)
        needs = {**inside, **left, **dict.fromkeys((*originals, *node.fields["carry"]), place)}
        return _Planned([run], needs, made | set(outputs), 1 + body.height)

    def _refuse_constants(self, refs: Iterable[Tid | Vid], place: str) -> None:
        for ref in refs:
            if isinstance(ref, Tid) and ref.idx in self._graph.constant_tids and not self._init:
                raise DelegateError(f"{place} writes {_shown(ref)}, a constant.")


def _call(operator: Operator, node: Node, outs: list[Tid | Vid], place: str) -> Call:
    several = "outs" in node.fields or "outputs" in node.fields
    known: dict[str, Any] = {}
    tensors: list[tuple[str, int]] = []
    others: list[tuple[str, Callable[[Slots], Any]]] = []
    for name, field in node.fields.items():
        if name in RESULTS:
            continue
        if isinstance(field, Tid):
            tensors.append((name, field.idx))
        elif any(references(field)):
            others.append((name, _reader(field)))
        else:
            known[name] = saturated(field)

    def run(slots: Slots) -> None:
        arguments = {name: slots.tensors[tid] for name, tid in tensors}
        for name, read in others:
            arguments[name] = read(slots)
        try:
            result = operator(**arguments, **known)
        except (CacheError, DelegateError):
            raise
        except FAILURES as error:
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


def saturated(field: Any) -> Any:
    """Literals are int64 in the file and int32 to the runtime, which clamps: "to the end" is written as INT64_MAX."""
    if isinstance(field, tuple):
        return tuple(saturated(item) for item in field)
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
    literal = saturated(field)
    return lambda slots: literal


def references(field: Any) -> Iterable[Tid | Vid]:
    if isinstance(field, Tid | Vid):
        yield field
    elif isinstance(field, tuple):
        for item in field:
            yield from references(item)


def _shown(ref: Tid | Vid) -> str:
    return f"{'tensor' if isinstance(ref, Tid) else 'value'} {ref.idx}"
