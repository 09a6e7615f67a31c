"""Dtypes inside an MLX graph, where they follow without knowing how MLX promotes: else unknown, never guessed."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.pte import dtypes
from pipeline.pte.mlx_graph import MlxGraph, Node, Tid

# Moves, chooses or orders elements: the dtype is that of ``x``, whatever it is.
_MOVED = (
    "IdCopy Contiguous Reshape Transpose ExpandDims Squeeze Slice Take TakeAlongAxis BroadcastTo Tile Repeat Split "
    "Flip Roll Tril Triu Sort Partition Gather Pad Max Min Clip AsStrided"
)
# Of floats to floats of the same dtype.
_FLOATS = (
    "Rope Softmax Gelu Silu Sigmoid Tanh Rsqrt Sqrt Log Log2 Log10 Log1p Exp Expm1 Erf Sin Cos Tan Arcsin Arccos "
    "Arctan Sinh Cosh Arcsinh Arccosh Arctanh Reciprocal Floor Ceil Trunc Round Square Abs Neg Sign Mean Var Std Sum "
    "Prod Cumsum LogSumExp"
)
_TWO = "Add Subtract Multiply Divide Maximum Minimum Power Remainder Atan2 LogAddExp"
# Of several of one float dtype to that.
_JOINED = {
    **dict.fromkeys(_TWO.split(), ("a", "b")),
    "Addmm": ("mat1", "mat2", "bias"),
    "Concatenate": ("tensors",),
    "Stack": ("tensors",),
    "Sdpa": ("q", "k", "v"),
    "RMSNorm": ("x", "weight"),
    "LayerNorm": ("x", "weight", "bias"),
    "Where": ("x", "y"),
    "QuantizedMatmul": ("x", "scales"),
}
_TRUTH = "Less LessEqual Greater GreaterEqual Equal NotEqual LogicalNot LogicalAnd LogicalOr Any All"
_GIVEN = {"AsType": "scalar_type", "Full": "scalar_type", "Tri": "scalar_type", "UpdateAndAttend": "out_dtype"}
_GIVEN |= {"Dequantize": "dtype", "ARange": "scalar_type", "FullLike": "scalar_type"}


class Known:
    """The dtypes known at one point of a chain."""

    def __init__(self, graph: MlxGraph) -> None:
        self._graph = graph
        self._found: dict[int, str | None] = {}

    def note(self, slot: Tid, dtype: str | None) -> None:
        self._found[slot.idx] = dtype

    def of(self, node: Node) -> str | None:
        """What the node's tensors are, all of them; notes nothing."""
        name = node.name.removesuffix("Node")
        if name in _TRUTH.split():
            return "bool"
        code = node.fields.get(_GIVEN[name]) if name in _GIVEN else None
        if code is not None:
            return dtypes.BY_CODE[code].name if code in dtypes.BY_CODE else None
        if name in _MOVED.split():
            return self._slot(node.fields.get("x"))
        if name in ("SliceUpdate", "IndexCopy"):
            return self._slot(node.fields.get("dst"))
        fields = ("x",) if name in _FLOATS.split() else _JOINED.get(name, ())
        found = {self._slot(slot) for slot in self._slots(node, fields)}
        only = found.pop() if len(found) == 1 else None
        return only if only is not None and "float" in only else None

    def _slots(self, node: Node, fields: Sequence[str]) -> list[Tid]:
        slots = []
        for field in fields:
            value = node.fields.get(field)
            slots += [item for item in (value if type(value) is tuple else (value,)) if isinstance(item, Tid)]
        return slots

    def _slot(self, slot: object) -> str | None:
        if not isinstance(slot, Tid):
            return None
        if slot.idx in self._found:
            return self._found[slot.idx]
        meta = self._graph.meta(slot.idx)
        return None if meta is None else meta.dtype
