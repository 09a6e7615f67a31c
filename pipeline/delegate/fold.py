"""What a body computes from constants alone is computed once, at load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from pipeline.delegate.body import IMPURE, Body, Ref, Step
from pipeline.delegate.plan import FAILURES, Operator
from pipeline.errors import DelegateError
from pipeline.pte import Tid, Vid

VIEWS = frozenset({"ExpandDimsNode", "IdCopyNode", "ReshapeNode", "SqueezeNode", "TransposeNode"})
"""Their results take no memory beside that of what they look at, which is row-major here."""

MAX_BYTES = 16 << 20
"""A result beyond this that is no view is computed at every call: a whole table unpacked would double its memory."""


def folded(body: Body, operators: Mapping[str, Operator]) -> Body:
    """The body without steps that read constants alone. One that fails is left, to fail where a caller sees it."""
    constants = dict(body.constants)
    left = []
    for step in body.steps:
        values = None
        if step.name not in IMPURE and all(ref in constants for ref in step.reads()):
            values = _computed(step, constants, operators[step.name])
        if values is None:
            left.append(step)
        else:
            constants.update(zip(step.outs, values, strict=True))
    return Body(
        steps=tuple(left), inputs=body.inputs, results=body.results, constants=constants, shapes=body.shapes
    ).with_steps(left, {})


def _computed(step: Step, constants: dict[Ref, Any], operator: Operator) -> list[Any] | None:
    fields = {name: _value(field, constants) for name, field in step.fields.items()}
    try:
        result = operator(**fields)
        values = list(result) if step.several else [result]
        arrays = [value for value in values if isinstance(value, mx.array)]
        if step.name not in VIEWS and sum(array.nbytes for array in arrays) > MAX_BYTES:
            return None
        mx.eval(arrays)
    except (DelegateError, *FAILURES):
        return None
    return values if len(values) == len(step.outs) else None


def _value(field: Any, constants: dict[Ref, Any]) -> Any:
    if isinstance(field, Tid | Vid):
        return constants[field]
    return tuple(_value(item, constants) for item in field) if isinstance(field, tuple) else field
