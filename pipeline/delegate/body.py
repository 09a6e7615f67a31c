"""The main chain with a slot of its own for every result, so that it can be rewritten.

A graph's temporaries are used again and again, and an instruction may write the slot that it reads. Here every result
is written once (static single assignment): what a reference means does not depend on where it is read, and a step whose
results nobody reads can be dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import mlx.core as mx

from pipeline.delegate.plan import RESULTS, references, saturated
from pipeline.pte import MlxGraph, Slot, Tid, Vid

Ref = Tid | Vid
Shape = tuple[int | None, ...]

IMPURE = frozenset({"UpdateAndAttendNode", "RandomBitsNode", "MetalKernelNode"})
"""Nodes whose result is not settled by what they read, and those of unknown code."""

KEPT = IMPURE | {"FloorDivideIntNode", "IndexCopyNode", "ItemIntNode", "ModIntNode", "ScatterAddNode"}
"""Executed though nobody may read the result: they act, or refuse numbers that only a call shows."""


@dataclass(frozen=True, slots=True)
class Step:
    """One operator over references and literals. ``place`` names the instruction in errors.

    ``several`` says that the operator returns a sequence, one for each of ``outs``.
    """

    name: str
    fields: dict[str, Any]
    outs: tuple[Ref, ...]
    place: str
    several: bool = False

    @property
    def out(self) -> Ref:
        """The one result."""
        (out,) = self.outs
        return out

    def reads(self) -> Iterator[Ref]:
        for field in self.fields.values():
            if isinstance(field, tuple):
                yield from references(field)
            elif isinstance(field, Tid | Vid):
                yield field


@dataclass(frozen=True, kw_only=True)
class Body:
    """Steps in order. ``inputs`` are handed in at each call, ``results`` handed out; ``constants`` are known at load.

    ``shapes`` are those of inputs, as far as they are known.
    """

    steps: tuple[Step, ...]
    inputs: tuple[Ref, ...]
    results: tuple[Ref, ...]
    constants: dict[Ref, Any]
    shapes: dict[Ref, Shape]

    def fresh(self) -> Iterator[int]:
        """Numbers that no reference has."""
        known = [ref.idx for step in self.steps for ref in step.outs]
        return count(max([*known, *(ref.idx for ref in (*self.inputs, *self.constants))], default=0) + 1)

    def with_steps(self, steps: list[Step], aliases: dict[Ref, Ref]) -> Body:
        """The steps that the results need, with every reference to an alias replaced, and the constants they read."""
        results = tuple(resolved(ref, aliases) for ref in self.results)
        wanted = set(results)
        kept = []
        for step in reversed(steps):
            if step.name in KEPT or wanted.intersection(step.outs):
                if aliases:
                    step = replace(step, fields={name: _renamed(field, aliases) for name, field in step.fields.items()})
                wanted.update(step.reads())
                kept.append(step)
        constants = {ref: value for ref, value in self.constants.items() if ref in wanted}
        return replace(self, steps=tuple(reversed(kept)), results=results, constants=constants)


def resolved(ref: Ref, aliases: dict[Ref, Ref]) -> Ref:
    """What a chain of aliases stands for."""
    while ref in aliases:
        ref = aliases[ref]
    return ref


def body_of(graph: MlxGraph, constants: list[mx.array], outputs: tuple[Slot, ...]) -> Body | None:
    """The main chain of a checked graph; ``results`` are ``outputs``, then the mutable buffers.

    None where it runs other chains, or where an output is never written.
    """
    inputs = tuple(Tid(tid) for tid in (*graph.input_tids, *graph.mutable_tids))
    known: dict[Ref, Any] = {Tid(tid): array for tid, array in zip(graph.constant_tids, constants, strict=True)}
    now: dict[Ref, Ref] = {ref: ref for ref in (*known, *inputs)}
    fresh = count(max(graph.num_tensors, graph.num_values))
    steps = []
    for number, node in enumerate(graph.chains[graph.main_chain]):
        if node.name in ("IfNode", "ScanNode"):
            return None
        if node.name == "NoopNode":
            continue
        fields = {
            name: _renamed(saturated(field), now, strict=True)
            for name, field in node.fields.items()
            if name not in RESULTS
        }
        written = [ref for name in RESULTS for ref in references(node.fields.get(name))]
        outs = tuple(type(ref)(next(fresh)) for ref in written)
        now.update(zip(written, outs, strict=True))
        several = "outs" in node.fields or "outputs" in node.fields
        place = f"chain {graph.main_chain}, instruction {number} ({node.name})"
        steps.append(Step(node.name, fields, outs, place, several))
    left = [now.get(Tid(slot.idx)) for slot in outputs] + [now[Tid(tid)] for tid in graph.mutable_tids]
    if None in left:
        return None
    metas = {ref: graph.meta(ref.idx) for ref in inputs}
    return Body(
        steps=tuple(steps),
        inputs=inputs,
        results=tuple(ref for ref in left if ref is not None),
        constants=known,
        shapes={ref: tuple(dim.value for dim in meta.shape) for ref, meta in metas.items() if meta},
    )


def _renamed(field: Any, names: dict[Ref, Ref], strict: bool = False) -> Any:
    if isinstance(field, Tid | Vid):
        return names[field] if strict else resolved(field, names)
    if isinstance(field, tuple):
        return tuple(_renamed(item, names, strict) for item in field)
    return field
