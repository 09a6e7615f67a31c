"""What constant methods publish, bounded: a tensor of a million elements is told by its first."""

from __future__ import annotations

from typing import Any

from pipeline.anatomy.facts import Published
from pipeline.pte import dtypes
from pipeline.pte.program import Method, Program, TensorValue

MAX_ELEMENTS = 10_000
MAX_TOTAL = 1_000_000


def of_method(method: Method, budget: int | None = None) -> Published:
    """The value of a constant method; of tensors and lists no more than ``budget`` or ``MAX_ELEMENTS``."""
    budget = MAX_ELEMENTS if budget is None else min(budget, MAX_ELEMENTS)
    outputs = method.outputs[: max(budget, 1)]
    left_out = len(method.outputs) - len(outputs)
    values = []
    for output in outputs:
        value, more = _plain(output, budget)
        values.append(value)
        left_out += more
        budget -= len(value["values"]) if isinstance(value, dict) else 0
    return Published(name=method.name, value=values[0] if len(method.outputs) == 1 else values, left_out=left_out)


def _plain(value: Any, budget: int) -> tuple[Any, int]:
    if not isinstance(value, TensorValue):
        return getattr(value, "value", None), 0
    assert value.data is not None, "a tensor without data is not a constant"
    dtype = dtypes.BY_NAME[value.dtype]
    size = dtype.size_bytes or 1
    numbers = dtypes.numbers(dtype, value.data[: budget * size]) if value.row_major else None
    if numbers is None:
        # Complex or packed elements, or an order of its own: told without values.
        return {"dtype": value.dtype, "sizes": list(value.sizes), "values": []}, len(value.data) // size
    return {"dtype": value.dtype, "sizes": list(value.sizes), "values": numbers}, len(value.data) // size - len(numbers)


def of_program(program: Program) -> tuple[Published, ...]:
    """Every constant method, in the file's order; many may share one tensor, so that all of them are bounded too."""
    found = []
    budget = MAX_TOTAL
    for method in program.methods.values():
        if method.is_constant:
            one = of_method(method, budget)
            found.append(one)
            for value in one.value if isinstance(one.value, list) else [one.value]:
                budget -= len(value["values"]) if isinstance(value, dict) else 1
            budget = max(budget, 0)
    return tuple(found)
