"""The ``.pte`` file, and the ``.ptd`` beside it, read without torch, executorch, numpy or mlx.

==================  ===============================================================
``flatbuffer``      decodes tables by a schema, trusting no byte
``dtypes``          ExecuTorch's scalar types, and elements as Python numbers
``program``         methods, values, instructions, published constants
``program_tables``  the tables of a program, made into one
``segments``        a mapped file of segments, and names for some
``container``       the ``.pte``: head, program
``flat_tensor``     the ``.ptd``: constants in a file beside a program
``mlx_ops``         the operator nodes and their fields, a flat table
``mlx_graph``       the graph in an MLX delegate's payload
``mlx_shapes``      tensor shapes inside such a graph, as far as they follow
==================  ===============================================================
"""

from pipeline.pte.container import PteFile
from pipeline.pte.flat_tensor import PtdFile
from pipeline.pte.mlx_graph import Dim, MlxGraph, MlxGraphs, Node, Slot, TensorMeta, Tid, Vid, parse_mlx_payload
from pipeline.pte.program import Delegate, Instruction, Method, Program, TensorValue, Value
from pipeline.pte.segments import SegmentedFile

__all__ = [
    "Delegate",
    "Dim",
    "Instruction",
    "Method",
    "MlxGraph",
    "MlxGraphs",
    "Node",
    "Program",
    "PtdFile",
    "PteFile",
    "SegmentedFile",
    "Slot",
    "TensorMeta",
    "TensorValue",
    "Tid",
    "Value",
    "Vid",
    "parse_mlx_payload",
]
