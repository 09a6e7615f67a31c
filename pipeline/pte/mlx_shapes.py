"""Tensor shapes inside an MLX graph, as far as they follow from the file.

Temporaries carry no metadata, so their shapes are carried forward, instruction by instruction,
from constants and inputs. A dimension is an ``int``; a ``str`` naming a size only known at run
time (equal names are equal sizes); or ``None`` when it does not follow. A whole shape may be
``None`` too. An operator without a rule here makes its outputs unknown, never wrong: shapes
serve checks, and a check on a guess would be worse than none.

Rules assume what the runtime enforces (operands that fit), and stand for what it computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import prod
from typing import Any

from pipeline.pte.mlx_graph import MAX_RANK, NESTED_CHAINS, MlxGraph, Node, Tid, Vid

Size = int | str | None
Shape = tuple[Size, ...] | None


@dataclass(frozen=True, slots=True)
class Attend:
    """One ``UpdateAndAttendNode``: its fields, and the shapes of what it is given."""

    layer_id: int | None
    scale: float | None
    out_dtype: int | None
    query: Shape
    key: Shape
    value: Shape


class Shapes:
    """The shapes during one run of the init chain and then the main chain.

    ``equal`` are (tensor id, axis) of inputs which the caller knows to be of one size.
    ``attends`` lists the cache calls, the main chain's first and in order; ``outputs`` the shapes
    the main chain leaves in each slot of the graph's output map (``None`` for values). ``seen`` is told of every
    instruction when what it leaves is known, with its chain and its place there; the same place may come twice.
    """

    def __init__(
        self,
        graph: MlxGraph,
        equal: Sequence[tuple[int, int]] = (),
        seen: Callable[[Shapes, Sequence[Node], int], None] | None = None,
    ) -> None:
        self.attends: list[Attend] = []
        self._seen = seen
        self._graph = graph
        self._equal = equal
        self._values: dict[int, Size] = {}
        self._pending: list[int] = []
        self._constants: dict[int, Shape] = {}
        self._shapes = self._described(graph.constant_tids)
        if graph.init_chain is not None:
            self._run(graph.chains[graph.init_chain])
        self._constants = self._shapes
        self._shapes = self._described(graph.input_tids) | self._described(graph.mutable_tids)
        self._run(graph.chains[graph.main_chain])
        self.outputs = [self.tensor(Tid(slot.idx)) if slot.kind == "tensor" else None for slot in graph.output_map]
        self._run_nested()

    def _described(self, tids: Iterable[int]) -> dict[int, Shape]:
        """Of ascending ids; a graph may have far more tensors than it describes."""
        shapes: dict[int, Shape] = {}
        described = len(self._graph.tensor_meta)
        for tid in takewhile(lambda tid: tid < described, tids):
            meta = self._graph.meta(tid)
            if meta is not None:
                shapes[tid] = tuple(
                    self.name(tid, axis) if dim.value is None else dim.value for axis, dim in enumerate(meta.shape)
                )
        return shapes

    def name(self, tid: int, axis: int) -> str:
        """What the size of an input's axis is called where it is only known at run time."""
        first = self._equal[0] if (tid, axis) in self._equal else (tid, axis)
        return f"{first[0]}.{first[1]}"

    def _run(self, chain: Sequence[Node]) -> None:
        for place, node in enumerate(chain):
            rule = _RULES.get(node.name)
            self._store(node, None if rule is None else rule(self, node.fields))
            if self._seen is not None:
                self._seen(self, chain, place)
            for name in NESTED_CHAINS.get(node.name, ()):
                # What a nested chain leaves behind depends on the run.
                self._pending.append(node.fields[name])
                self._forget()

    def _run_nested(self) -> None:
        """Each nested chain once, knowing only constants; a chain may be reached from many places."""
        done: set[int] = set()
        while self._pending:
            chain = self._pending.pop()
            if chain not in done:
                done.add(chain)
                self._forget()
                self._run(self._graph.chains[chain])

    def _forget(self) -> None:
        self._shapes = {}
        self._values = {}

    def _store(self, node: Node, results: Any) -> None:
        out = node.fields.get("out")
        if isinstance(out, Vid):
            self._values[out.idx] = _plausible(results)
        elif isinstance(out, Tid):
            self._keep(out, results)
        else:
            outs = node.fields.get("outs") or node.fields.get("outputs") or ()
            for position, tid in enumerate(outs):
                self._keep(tid, results[position] if results is not None else None)

    def _keep(self, tid: Tid, shape: Shape) -> None:
        unknown = shape is None or len(shape) > MAX_RANK
        self._shapes[tid.idx] = None if unknown or shape is None else tuple(map(_plausible, shape))

    def tensor(self, tid: Tid | None) -> Shape:
        if tid is None:
            return None
        return self._shapes[tid.idx] if tid.idx in self._shapes else self._constants.get(tid.idx)

    def value(self, number: int | Vid) -> Size:
        return self._values.get(number.idx) if isinstance(number, Vid) else number


def _plausible(size: Size) -> Size:
    """No size or int value exceeds 32 bits at run time; damaged files ask for more."""
    return None if isinstance(size, int) and not -(2**31) <= size < 2**31 else size


def _same(shapes: Shapes, f: dict[str, Any]) -> Shape:
    return shapes.tensor(f["x"])


def _binary(shapes: Shapes, f: dict[str, Any]) -> Shape:
    return _broadcast(shapes.tensor(f["a"]), shapes.tensor(f["b"]))


def _where(shapes: Shapes, f: dict[str, Any]) -> Shape:
    return _broadcast(shapes.tensor(f["condition"]), _broadcast(shapes.tensor(f["x"]), shapes.tensor(f["y"])))


def _broadcast(a: Shape, b: Shape) -> Shape:
    if a is None or b is None:
        return None
    rank = max(len(a), len(b))
    pairs = zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True)
    return tuple(_broadcast_size(x, y) for x, y in pairs)


def _broadcast_size(x: Size, y: Size) -> Size:
    if x == y or y == 1:
        return x
    if x == 1:
        return y
    # Two different sizes fit only if one is 1 at run time; a number other than 1 settles it.
    return x if isinstance(x, int) else y if isinstance(y, int) else None


def _matmul(shapes: Shapes, f: dict[str, Any]) -> Shape:
    a, b = shapes.tensor(f["mat1"]), shapes.tensor(f["mat2"])
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = _broadcast(a[:-2], b[:-2])
    return None if batch is None else (*batch, a[-2], b[-1])


def _quantized_matmul(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x, w, scales = (shapes.tensor(f[name]) for name in ("x", "w", "scales"))
    if x is None or w is None or scales is None or len(w) != 2 or len(scales) != 2 or not x:
        return None
    return (*x[:-1], w[0] if f["transpose"] else _times(scales[1], f["group_size"]))


def _dequantize(shapes: Shapes, f: dict[str, Any]) -> Shape:
    w, scales = shapes.tensor(f["w"]), shapes.tensor(f["scales"])
    return (*w[:-1], _times(scales[-1], f["group_size"])) if w and scales else None


def _times(x: Size, y: Size) -> Size:
    return x * y if isinstance(x, int) and isinstance(y, int) else None


def _take(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x, index = shapes.tensor(f["x"]), f["index"]
    axis = _axis(f["axis"], x)
    if x is None or axis is None:
        return None
    chosen: Shape = shapes.tensor(index) if isinstance(index, Tid) else ()
    return None if chosen is None else x[:axis] + chosen + x[axis + 1 :]


def _axis(axis: Size, shape: Shape, extra: int = 0) -> int | None:
    """A non-negative axis, or ``None``; ``extra`` counts axes the output has beyond ``shape``."""
    if shape is None or not isinstance(axis, int):
        return None
    rank = len(shape) + extra
    axis = axis + rank if axis < 0 else axis
    return axis if 0 <= axis < rank else None


def _expand_dims(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    axis = _axis(f["axis"], x, extra=1)
    return None if x is None or axis is None else (*x[:axis], 1, *x[axis:])


def _squeeze(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    if x is None:
        return None
    dims = f["dims"] or range(len(x))
    candidates = {axis for axis in (_axis(dim, x) for dim in dims) if axis is not None}
    if any(not isinstance(x[axis], int) for axis in candidates):
        return None
    return tuple(size for axis, size in enumerate(x) if axis not in candidates or size != 1)


def _reshape(shapes: Shapes, f: dict[str, Any]) -> Shape:
    if len(f["shape"]) > MAX_RANK:
        return None
    wanted = [_plausible(shapes.value(size)) for size in f["shape"]]
    if wanted.count(-1) != 1:
        return tuple(None if size == -1 else size for size in wanted)
    place = wanted.index(-1)
    rest = wanted[:place] + wanted[place + 1 :]
    return (*wanted[:place], _quotient(shapes.tensor(f["x"]), rest), *wanted[place + 1 :])


def _quotient(whole: Shape, part: Sequence[Size]) -> Size:
    """Elements of ``whole`` per element of ``part``: a number when run-time sizes cancel."""
    if whole is None or None in whole or None in part:
        return None
    names = sorted(size for size in whole if isinstance(size, str))
    part_names = sorted(size for size in part if isinstance(size, str))
    above = prod(size for size in whole if isinstance(size, int))
    below = prod(size for size in part if isinstance(size, int))
    if below == 0 or above % below:
        return None
    if names == part_names:
        return above // below
    return names[0] if len(names) == 1 and not part_names and above == below else None


def _transpose(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    if x is None:
        return None
    axes = [_axis(axis, x) for axis in f["perm"]]
    if len(axes) != len(x) or None in axes:
        return None
    return tuple(x[axis] for axis in axes if axis is not None)


def _slice(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    axis = _axis(shapes.value(f["axis"]), x)
    if x is None or axis is None:
        return None
    size, start, stop = x[axis], shapes.value(f["start"]), shapes.value(f["stop"])
    left: Size = None
    if isinstance(size, int) and isinstance(start, int) and isinstance(stop, int) and f["step"]:
        left = len(range(size)[start : stop : f["step"]])
    return (*x[:axis], left, *x[axis + 1 :])


def _concatenate(shapes: Shapes, f: dict[str, Any]) -> Shape:
    parts = [shapes.tensor(tid) for tid in f["tensors"]]
    first = next((part for part in parts if part is not None), None)
    axis = _axis(f["axis"], first)
    if first is None or axis is None or any(part is not None and len(part) != len(first) for part in parts):
        return None
    sizes = [None if part is None else part[axis] for part in parts]
    numbers = [size for size in sizes if isinstance(size, int)]
    total = sum(numbers) if len(numbers) == len(sizes) else None
    return (*first[:axis], total, *first[axis + 1 :])


def _stack(shapes: Shapes, f: dict[str, Any]) -> Shape:
    first = next((shape for shape in map(shapes.tensor, f["tensors"]) if shape is not None), None)
    axis = _axis(f["axis"], first, extra=1)
    return None if first is None or axis is None else (*first[:axis], len(f["tensors"]), *first[axis:])


def _split(shapes: Shapes, f: dict[str, Any]) -> list[Shape] | None:
    x = shapes.tensor(f["x"])
    axis = _axis(f["axis"], x)
    if x is None or axis is None:
        return None
    sizes = [shapes.value(size) for size in f["sizes"]]
    num_outs = len(f["outs"])
    whole = x[axis]
    if len(sizes) == 1:
        sizes = sizes * num_outs
    if len(sizes) != num_outs:
        return None
    # The last piece is what the others leave, whatever its size says.
    numbers = [size for size in sizes[:-1] if isinstance(size, int)]
    exact = isinstance(whole, int) and len(numbers) == num_outs - 1
    sizes[-1] = whole - sum(numbers) if isinstance(whole, int) and exact else None
    return [(*x[:axis], size, *x[axis + 1 :]) for size in sizes]


def _broadcast_to(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    wanted = [shapes.value(size) for size in f["shape"]]
    aligned: tuple[Size, ...] = (None,) * len(wanted)
    if x is not None and len(x) <= len(wanted):
        aligned = (None,) * (len(wanted) - len(x)) + x
    return tuple(kept if size == -1 else size for size, kept in zip(wanted, aligned, strict=True))


def _repeat(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    axis = _axis(f["axis"], x)
    if x is None or axis is None:
        return None
    return (*x[:axis], _times(x[axis], shapes.value(f["repeats"])), *x[axis + 1 :])


def _reduce(shapes: Shapes, f: dict[str, Any]) -> Shape:
    x = shapes.tensor(f["x"])
    if x is None:
        return None
    axes = {_axis(axis, x) for axis in f["axes"] or range(len(x))}
    if f["keepdims"]:
        return tuple(1 if axis in axes else size for axis, size in enumerate(x))
    return tuple(size for axis, size in enumerate(x) if axis not in axes)


def _written(shapes: Shapes, f: dict[str, Any]) -> Shape:
    return shapes.tensor(f["dst"])


def _full(shapes: Shapes, f: dict[str, Any]) -> Shape:
    return tuple(shapes.value(size) for size in f["shape"])


def _sdpa(shapes: Shapes, f: dict[str, Any]) -> Shape:
    q, v = shapes.tensor(f["q"]), shapes.tensor(f["v"])
    return None if q is None else (*q[:-1], v[-1] if v else None)


def _attend(shapes: Shapes, f: dict[str, Any]) -> Shape:
    query, key, value = (shapes.tensor(f[name]) for name in ("q", "k", "v"))
    shapes.attends.append(Attend(f["layer_id"], f["scale"], f["out_dtype"], query, key, value))
    return _sdpa(shapes, f)


def _sym_size(shapes: Shapes, f: dict[str, Any]) -> Size:
    shape = shapes.tensor(f["a"])
    axis = _axis(f["dim"], shape)
    return None if shape is None or axis is None else shape[axis]


def _arithmetic(compute: Callable[[int, int], int]) -> Callable[[Shapes, dict[str, Any]], Size]:
    def rule(shapes: Shapes, f: dict[str, Any]) -> Size:
        a, b = shapes.value(f["a"]), shapes.value(f["b"])
        return compute(a, b) if isinstance(a, int) and isinstance(b, int) else None

    return rule


_SAME = (
    "IdCopy AsType Contiguous RMSNorm LayerNorm Rope Softmax Cumsum Sort Argsort Tril Triu Round Roll Flip FullLike "
    "Floor Ceil Trunc Square Abs Neg Sign Reciprocal Sqrt Rsqrt Exp Expm1 Log Log2 Log10 Log1p Erf Sin Cos Tan Arcsin "
    "Arccos Arctan Sinh Cosh Tanh Arcsinh Arccosh Arctanh Sigmoid Silu Gelu LogicalNot BitwiseInvert"
)
_BINARY = (
    "Add Subtract Multiply Divide FloorDivide Remainder Power Maximum Minimum Atan2 LogAddExp Less LessEqual Greater "
    "GreaterEqual Equal NotEqual LogicalAnd LogicalOr BitwiseAnd BitwiseOr BitwiseXor"
)
_REDUCE = "Sum Prod Mean Var Std Max Min Median Any All"

_RULES: dict[str, Callable[[Shapes, dict[str, Any]], Any]] = {
    **{f"{name}Node": _same for name in _SAME.split()},
    **{f"{name}Node": _binary for name in _BINARY.split()},
    **{f"{name}Node": _reduce for name in _REDUCE.split()},
    "AddIntNode": _arithmetic(lambda a, b: a + b),
    "SubtractIntNode": _arithmetic(lambda a, b: a - b),
    "MultiplyIntNode": _arithmetic(lambda a, b: a * b),
    "SymSizeNode": _sym_size,
    "AddmmNode": _matmul,
    "BroadcastToNode": _broadcast_to,
    "ConcatenateNode": _concatenate,
    "DequantizeNode": _dequantize,
    "ExpandDimsNode": _expand_dims,
    "FullNode": _full,
    "IndexCopyNode": _written,
    "QuantizedMatmulNode": _quantized_matmul,
    "RepeatNode": _repeat,
    "ReshapeNode": _reshape,
    "SdpaNode": _sdpa,
    "SliceNode": _slice,
    "SliceUpdateNode": _written,
    "SplitNode": _split,
    "SqueezeNode": _squeeze,
    "StackNode": _stack,
    "TakeNode": _take,
    "TransposeNode": _transpose,
    "UpdateAndAttendNode": _attend,
    "WhereNode": _where,
}
