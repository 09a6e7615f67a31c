"""Executes the MLX delegate of a ``.pte`` on ``mlx.core``. ``docs/delegate.md`` shows how to use it.

=============  =================================================================
``program``    a ``.pte`` loaded: its methods, their instances
``executor``   a method bound to its constants and cache, called with arrays
``signature``  what a method takes and returns
``constants``  the constants as arrays, each made once
``arrays``     callers' arrays in MLX
``plan``       turns a chain of instructions into calls, once, at load
``body``       the main chain so that it can be rewritten: ``fold``, ``fuse``, ``shapes``
``straight``   a body as one Python function
``ops``        what each operator node computes, by family
``dtypes``     ExecuTorch's scalar types in MLX
=============  =================================================================
"""

from pipeline.delegate.executor import MlxMethod
from pipeline.delegate.program import Program
from pipeline.delegate.signature import Signature, TensorSpec

__all__ = ["MlxMethod", "Program", "Signature", "TensorSpec"]
