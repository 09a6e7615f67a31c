"""What constant methods publish, bounded: a tensor of a million elements is told by its first."""

from __future__ import annotations

from math import prod
from typing import Any

from pipeline.anatomy.facts import Published
from pipeline.pte import dtypes
from pipeline.pte.program import ListValue, Method, Program, TensorValue, Value

MAX_ELEMENTS = 10_000
MAX_TOTAL = 1_000_000


def of_method(method: Method, budget: int | None = None) -> Published:
    """The value of a constant method; of tensors and lists no more than ``budget`` or ``MAX_ELEMENTS``."""
    budget = MAX_ELEMENTS if budget is None else min(budget, MAX_ELEMENTS)
    sizes = [_num_elements(value, method) for value in method.outputs[: budget + 1]]
    if sum(sizes) <= budget:
        return Published(name=method.name, value=Program(0, {method.name: method}).constants()[method.name])
    values: list[Any] = []
    outputs = method.outputs[: max(budget, 1)]
    left_out = len(method.outputs) - len(outputs)
    for value, size in zip(outputs, sizes, strict=False):
        plain = _beginning(value, max(budget, 0))
        values.append(plain)
        taken = len(plain["values"] if isinstance(plain, dict) else plain if isinstance(plain, list) else [plain])
        budget -= taken
        left_out += max(size - taken, 0)
    return Published(name=method.name, value=values[0] if len(method.outputs) == 1 else values, left_out=left_out)


def _num_elements(value: Value, method: Method) -> int:
    if isinstance(value, ListValue):
        items = method.listed(value) if value.kind not in ("double", "bool") else ()
        return len(value.items) + sum(prod(item.sizes) for item in items if isinstance(item, TensorValue))
    return prod(value.sizes) if isinstance(value, TensorValue) else 1


def _beginning(value: Value, budget: int) -> Any:
    """Of a tensor in the order of its sizes its first elements; of lists, and of other orders, none."""
    if isinstance(value, ListValue):
        return []
    if not isinstance(value, TensorValue):
        return getattr(value, "value", None)
    assert value.data is not None, "a tensor without data is not a constant"
    dtype = dtypes.BY_NAME[value.dtype]
    whole = dtype.size_bytes and value.row_major
    numbers = dtypes.numbers(dtype, value.data[: budget * dtype.size_bytes]) if whole else []
    return {"dtype": value.dtype, "sizes": list(value.sizes), "values": numbers}


def of_program(program: Program) -> tuple[Published, ...]:
    """Every constant method, in the file's order; many may share one tensor, so that all of them are bounded too."""
    found = []
    budget = MAX_TOTAL
    for method in program.methods.values():
        if method.is_constant:
            one = of_method(method, budget)
            found.append(one)
            budget = max(budget - _length(one.value), 0)
    return tuple(found)


def _length(value: Any) -> int:
    if isinstance(value, dict):
        return len(value["values"])
    return sum(map(_length, value)) if isinstance(value, list) else 1
