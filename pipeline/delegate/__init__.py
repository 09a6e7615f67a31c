"""Executes the MLX delegate of a ``.pte`` on ``mlx.core``. ``docs/delegate.md`` shows how to use it.

=============  =========================================================="""

from pipeline.delegate.executor import MlxMethod
from pipeline.delegate.program import Program
from pipeline.delegate.signature import Signature, TensorSpec

__all__ = ["MlxMethod", "Program", "Signature", "TensorSpec"]
