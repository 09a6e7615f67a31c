"""What each operator node computes, by family.

An operator is a function: its parameters are the node's fields, references resolved; its result is stored in the
node's ``out``. Semantics are those of ``backends/mlx/runtime/MLXInterpreter.h``; where mlx.core already has them, the
function is one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.delegate.ops import (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    integers,
    linear,
    metal,
    quantized,
    reduction,
    shape,
)

_FAMILIES = (
    attention,
    convolution,
    creation,
    elementwise,
    indexing,
    integers,
    linear,
    metal,
    quantized,
    reduction,
    shape,
)

OPERATORS: dict[str, Callable[..., Any]] = {
    name: operator for family in _FAMILIES for name, operator in family.OPERATORS.items()
}
"""Node name to function. Attention over the cache is bound per program, see ``ops.attention``; what runs other chains
is the plan's business."""
