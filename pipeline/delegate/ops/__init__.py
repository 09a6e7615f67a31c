"""What each operator node computes, by family.

An operator is a function: its parameters are the node's fields, references resolved; its result is stored in the
node's ``out``. Semantics are those of ``backends/mlx/runtime/MLXInterpreter.h``; where mlx.core already has them, the
function is one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.delegate.ops import elementwise, linear, quantized, shape

OPERATORS: dict[str, Callable[..., Any]] = {
    **elementwise.OPERATORS,
    **linear.OPERATORS,
    **quantized.OPERATORS,
    **shape.OPERATORS,
}
"""Node name to function. Attention over the cache is bound per program, see ``ops.attention``."""
