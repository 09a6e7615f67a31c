"""A body of which calls for one token are recorded once and replayed.

At one token a GPU waits for the host, which records a node for each step and then starts its kernels. What lies between
two nodes that act is the same in every such call: ``mx.compile`` keeps its record, and copies it from then on. Sizes
that a call decides are all 1 there, so that shapes are known. Other calls are recorded step by step, since MLX would
keep a record for every length of a text.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import groupby
from typing import Any

import mlx.core as mx

from pipeline.delegate.body import Body, Ref, Shape, Step
from pipeline.delegate.plan import Operator
from pipeline.delegate.shapes import Shapes
from pipeline.delegate.straight import DIRECT, StraightLine
from pipeline.pte import Vid

PURE = {
    *DIRECT,
    "ActivatedProductNode",
    "AddmmNode",
    "AsTypeNode",
    "ConcatenateNode",
    "ContiguousNode",
    "GeluNode",
    "QuantizedMatmulNode",
    "RopeByTablesNode",
    "RotateNode",
    "SliceNode",
    "SplitNode",
}
"""Nodes that make arrays of arrays and never look at an element: nothing else can be recorded before it is known."""

SHORTEST = 4
"""A run of fewer steps costs less to record than to copy."""


class Replayed:
    """Used as ``StraightLine`` is; results are the same, or differ as those of compiled kernels do."""

    def __init__(self, body: Body, operators: Mapping[str, Operator]) -> None:
        self.body = body
        self._stepwise = self._replayed = StraightLine(body, operators)
        self._open = [
            (index, axis)
            for index, ref in enumerate(body.inputs)
            for axis, size in enumerate(body.shapes.get(ref, ()))
            if size is None
        ]
        if all(ref in body.shapes for ref in body.inputs):
            self._replayed = StraightLine(*_in_runs(_of_ones(body), operators))

    def __call__(self, *arrays: mx.array) -> list[mx.array]:
        ones = all(arrays[index].shape[axis] == 1 for index, axis in self._open)
        return (self._replayed if ones else self._stepwise)(*arrays)


def _of_ones(body: Body) -> Body:
    """The body where every size that a call decides is 1: what asks for a size reads a number."""
    shapes: dict[Ref, Shape] = {
        ref: tuple(1 if size is None else size for size in shape) for ref, shape in body.shapes.items()
    }
    known = Shapes(replace(body, shapes=shapes))
    sizes: dict[Ref, int] = {}
    steps = []
    for step in body.steps:
        step = replace(step, fields={name: _with(field, sizes) for name, field in step.fields.items()})
        size = _asked(step, known)
        if size is None:
            known.see(step)
            steps.append(step)
        else:
            sizes[step.out] = size
    return replace(body, steps=tuple(steps), shapes=shapes)


def _asked(step: Step, shapes: Shapes) -> int | None:
    """The size that a step asks for, where it does and that is known."""
    shape = shapes[step.fields["a"]] if step.name == "SymSizeNode" else None
    axis: int = step.fields.get("dim", 0)
    return None if shape is None or not -len(shape) <= axis < len(shape) else shape[axis]


def _with(field: Any, sizes: dict[Ref, int]) -> Any:
    if isinstance(field, tuple):
        return tuple(_with(item, sizes) for item in field)
    return sizes.get(field, field) if isinstance(field, Vid) else field


def _in_runs(body: Body, operators: Mapping[str, Operator]) -> tuple[Body, dict[str, Operator]]:
    """The body with runs of pure steps as one step each, and the operators with those that replay them."""
    reads = Counter([*(ref for step in body.steps for ref in step.reads()), *body.results])
    replays: dict[str, Operator] = dict(operators)
    steps: list[Step] = []
    for pure, group in groupby(body.steps, _is_pure):
        run = list(group)
        if not pure or len(run) < SHORTEST:
            steps += run
            continue
        inside = Counter(ref for step in run for ref in step.reads())
        made = [out for step in run for out in step.outs]
        outs = tuple(out for out in made if reads[out] > inside[out])
        given = tuple(ref for ref in inside if ref not in body.constants and ref not in made)
        constants = {ref: body.constants[ref] for ref in inside if ref in body.constants}
        part = Body(steps=tuple(run), inputs=given, results=outs, constants=constants, shapes={})
        name = f"Replay{len(replays) - len(operators)}"
        replays[name] = _Replay(StraightLine(part, operators))
        steps.append(Step(name, {"arrays": given}, outs, run[0].place, several=True))
    return replace(body, steps=tuple(steps)), replays


def _is_pure(step: Step) -> bool:
    return step.name in PURE and not any(isinstance(ref, Vid) for ref in (*step.reads(), *step.outs))


class _Replay:
    """A body's steps as one operator that is recorded once in every thread."""

    def __init__(self, line: StraightLine) -> None:
        self._line = line
        self._of_thread = threading.local()

    def __call__(self, arrays: tuple[mx.array, ...]) -> list[mx.array]:
        compiled = getattr(self._of_thread, "compiled", None)
        if compiled is None:
            # MLX finds a record by the function's address, and when that goes, drops it in the thread that called it
            # last: in another, it would be replayed for whatever function comes to have the address. Captured constants
            # are no inputs: MLX keeps them with the record.
            line = self._line
            compiled = self._of_thread.compiled = mx.compile(lambda *arrays: line(*arrays))
        return list(compiled(*arrays))
