"""Rewrites a body into one that computes the same in fewer steps.

A rule looks at one step, the last of the sub-graph that it replaces, and says what stands there instead: another
reference, or steps, of which the last has the results of the one replaced. What nobody reads afterwards is dropped. A
rule proves that it may be applied from what the graph says, and where it cannot, leaves the step alone.

Two rules round differently from the graph as exported, both only on a GPU: rotary positions, computed there in float32
and rounded once, and the product of an activation, of which one compiled kernel may keep intermediates in float32. On a
CPU, float32 products may be summed in another order.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx

from pipeline.delegate.body import IMPURE, Body, Ref, Step, resolved
from pipeline.delegate.fold import folded
from pipeline.delegate.ops.fused import OPERATORS as FUSED
from pipeline.delegate.ops.quantized import check_packing
from pipeline.delegate.plan import INT32_MAX, Operator, references
from pipeline.delegate.shapes import Shapes
from pipeline.errors import DelegateError
from pipeline.pte import Tid, Vid

FLOAT32_CODE = 6

UNUSED_BYTES = 64 << 20
"""As much freed memory stays with MLX while matrices are joined."""


class Made:
    """Which step makes a reference, among those that a rule's own step may read."""

    def __init__(self, body: Body) -> None:
        self.constants = body.constants
        self.inputs = frozenset(body.inputs)
        self.shapes = Shapes(body)
        self.attended = {step.fields["position"] for step in body.steps if step.name == "UpdateAndAttendNode"}
        self._by: dict[Ref, Step] = {}
        self._fresh = body.fresh()

    def see(self, step: Step) -> None:
        self.shapes.see(step)
        self._by.update(dict.fromkeys(step.outs, step))

    def by(self, ref: Ref, *names: str) -> Step | None:
        """The step that makes it, if it is one of these nodes."""
        step = self._by.get(ref)
        return step if step is not None and step.name in names else None

    def before(self, ref: Ref, *names: str) -> Ref:
        """Where it comes from, seen through nodes of one operand ``x``."""
        while (step := self.by(ref, *names)) is not None:
            ref = step.fields["x"]
        return ref

    def tensor(self) -> Tid:
        """A reference nobody has."""
        return Tid(next(self._fresh))


Rule = Callable[[Step, Made], "Ref | list[Step] | None"]


def identity(step: Step, made: Made) -> Ref | None:
    """Nodes that change nothing: a copy, and the one row of an axis that was just added."""
    copied = step if step.name == "IdCopyNode" else None
    if step.name == "TakeNode" and step.fields["index"] == 0:
        added = made.by(step.fields["x"], "ExpandDimsNode")
        copied = added if added is not None and added.fields["axis"] == step.fields["axis"] >= 0 else None
    return None if copied is None else cast(Ref, copied.fields["x"])


def positions(step: Step, made: Made) -> list[Step] | None:
    """Attention reads its positions in order, whatever their shape: it is handed the input that they come from.

    That array is known to the host before anything is computed; a reshaped one would have to be waited for.
    """
    if step.name != "UpdateAndAttendNode":
        return None
    source = made.before(step.fields["position"], "ReshapeNode", "ExpandDimsNode", "SqueezeNode")
    if source not in made.inputs or source == step.fields["position"]:
        return None
    return [replace(step, fields={**step.fields, "position": source})]


def rotation(step: Step, made: Made) -> list[Step] | None:
    """``x * cos + concat(-x[half:], x[:half]) * sin``, by tables of whole width: seven nodes become RotateNode.

    The sign goes into the table, which every layer shares, and the halves are swapped at once. Exactly the same result.
    """
    found = _rotation(step, made)
    if found is None:
        return None
    x, cos, sin, _ = found
    signed = made.tensor()
    return [
        Step("SignedNode", {"sin": sin}, (signed,), step.place),
        Step("RotateNode", {"x": x, "cos": cos, "sin": signed}, step.outs, step.place),
    ]


def rope(step: Step, made: Made) -> list[Step] | None:
    """The same sub-graph where its tables are cos and sin of position times frequency: ``mx.fast.rope``.

    The positions must be those that off-graph attention is handed, which the host knows; the tables [1, 1, T, dims];
    and both must have one constant factor. Angles are float32 as in the graph, cos and sin are not rounded to the dtype
    of x, and the frequencies are inverted twice: float32 results differ by a relative 1e-7 of the angle, narrower ones
    by their rounding.
    """
    found = _rotation(step, made)
    if found is None:
        return None
    x, cos, sin, half = found
    tables = [_table(cos, "CosNode", made), _table(sin, "SinNode", made)]
    if None in tables or tables[0] != tables[1] or tables[0] is None:
        return None
    angles, factor, code = tables[0]
    doubled = made.by(angles, "ConcatenateNode")
    if doubled is None or len(doubled.fields["tensors"]) != 2 or len(set(doubled.fields["tensors"])) != 1:
        return None
    product = made.by(doubled.fields["tensors"][0], "MultiplyNode")
    if product is None:
        return None
    for position, frequency in (("a", "b"), ("b", "a")):
        frequencies = made.constants.get(product.fields[frequency])
        source = made.before(product.fields[position], "ReshapeNode", "ExpandDimsNode", "SqueezeNode", "AsTypeNode")
        if frequencies is not None and source in made.inputs & made.attended:
            break
    else:
        return None
    if frequencies.dtype != mx.float32 or frequencies.size != half or frequencies.shape[-1] != half:
        return None
    start, flat, divisors = made.tensor(), made.tensor(), made.tensor()
    return [
        Step("StartNode", {"positions": source}, (start,), step.place),
        Step("ReshapeNode", {"x": product.fields[frequency], "shape": (half,)}, (flat,), step.place),
        Step("ReciprocalNode", {"x": flat}, (divisors,), step.place),
        Step(
            "RopeByTablesNode",
            {"x": x, "start": start, "divisors": divisors, "factor": factor, "table_type": code},
            step.outs,
            step.place,
        ),
    ]


def _rotation(step: Step, made: Made) -> tuple[Ref, Ref, Ref, int] | None:
    """x, cos, sin and half the width, if the step ends a rotation of halves of a [.., .., T, width] array."""
    if step.name != "AddNode":
        return None
    products = [made.by(step.fields[name], "MultiplyNode") for name in ("a", "b")]
    for kept, turned in (products, reversed(products)):
        if kept is None or turned is None:
            return None
        for swapped, sin in _either(turned):
            halves = _swapped_halves(swapped, made)
            if halves is None:
                continue
            x, half = halves
            for same, cos in _either(kept):
                shapes = [made.shapes[ref] for ref in (x, cos, sin)]
                if same == x and all(shape and len(shape) == 4 and shape[3] == 2 * half for shape in shapes):
                    return x, cos, sin, half
    return None


def _either(step: Step) -> Iterator[tuple[Ref, Ref]]:
    a, b = step.fields["a"], step.fields["b"]
    yield a, b
    yield b, a


def _swapped_halves(ref: Ref, made: Made) -> tuple[Ref, int] | None:
    """x and half its width, if this is ``concat(-x[..., half:], x[..., :half])``."""
    joined = made.by(ref, "ConcatenateNode")
    if joined is None or len(joined.fields["tensors"]) != 2 or joined.fields["axis"] not in (-1, 3):
        return None
    negated = made.by(joined.fields["tensors"][0], "NegNode")
    first = made.by(joined.fields["tensors"][1], "SliceNode")
    second = None if negated is None else made.by(negated.fields["x"], "SliceNode")
    if first is None or second is None or first.fields["x"] != second.fields["x"]:
        return None
    half = first.fields["stop"]
    expected = {"axis": (-1, 3), "step": (1,)}
    cuts = ((first, 0, (half,)), (second, half, (2 * half, INT32_MAX) if isinstance(half, int) else ()))
    for cut, start, stops in cuts:
        if cut.fields["start"] != start or cut.fields["stop"] not in stops:
            return None
        if any(cut.fields[name] not in choices for name, choices in expected.items()):
            return None
    return (first.fields["x"], half) if isinstance(half, int) and half > 0 else None


def _table(ref: Ref, function: str, made: Made) -> tuple[Ref, float, int | None] | None:
    """The angles, a constant factor, and the last cast, of a table [1, 1, T, width] that is cos or sin of them."""
    shape = made.shapes[ref]
    if shape is None or shape[:2] != (1, 1):
        return None
    factor, code = 1.0, None
    while True:
        if (step := made.by(ref, "AsTypeNode")) is not None:
            code = step.fields["scalar_type"] if code is None else code
            ref = step.fields["x"]
        elif (step := made.by(ref, "ExpandDimsNode")) is not None:
            ref = step.fields["x"]
        elif (step := made.by(ref, "MultiplyNode")) is not None:
            scalars = [(x, made.constants[scalar]) for x, scalar in _either(step) if scalar in made.constants]
            if len(scalars) != 1 or scalars[0][1].size != 1 or scalars[0][1].dtype != mx.float32:
                return None
            ref, factor = scalars[0][0], factor * scalars[0][1].item()
        elif (step := made.by(ref, function)) is not None:
            return step.fields["x"], factor, code
        else:
            return None


def activated_product(step: Step, made: Made) -> list[Step] | None:
    """``silu(gate) * up`` and its kin by GELU: one compiled kernel instead of three to nine."""
    if step.name != "MultiplyNode":
        return None
    for gate, up in _either(step):
        silu, gelu = made.by(gate, "SiluNode"), made.by(gate, "GeluNode")
        if silu is not None and made.shapes[up] == made.shapes[gate]:
            fields = {"gate": silu.fields["x"], "up": up, "activation": "silu"}
        elif gelu is not None:
            fields = {"gate": gelu.fields["x"], "up": up, "activation": f"gelu-{gelu.fields['approximate']}"}
        else:
            continue
        return [Step("ActivatedProductNode", fields, step.outs, step.place)]
    return None


def quantized_product(step: Step, made: Made) -> list[Step] | None:
    """A product with a constant packed weight on a CPU, which is taken in float32.

    The packing is checked, and scales narrower than float32 are widened, once, at load.
    """
    if step.name != "QuantizedMatmulNode" or step.fields["biases"] is None:
        return None
    if any(step.fields[name] not in made.constants for name in ("w", "scales", "biases")):
        return None
    w, scales, biases = (made.constants[step.fields[name]] for name in ("w", "scales", "biases"))
    if not w.size or scales.dtype != biases.dtype or scales.dtype not in (mx.bfloat16, mx.float16, mx.float32):
        return None
    try:
        check_packing(w, scales, biases, step.fields["group_size"], step.fields["bits"])
    except DelegateError:
        # It fails where a caller sees it.
        return None
    wide = {"scales": made.tensor(), "biases": made.tensor()}
    widen = [
        Step("AsTypeNode", {"x": step.fields[name], "scalar_type": FLOAT32_CODE}, (ref,), step.place)
        for name, ref in wide.items()
    ]
    return [*widen, replace(step, name="WidenedMatmulNode", fields={**step.fields, **wide, "narrow": scales.dtype})]


def side_by_side(body: Body) -> Body:
    """Products of one array with several constant matrices are one product with all their columns, cut up again.

    Query, key and value, and gate and up: at one token a GPU spends its time on starting kernels. Each column is the
    same sum. A matrix is taken out of the given body when its columns have been copied, so that no more than one group
    of them is in memory twice, if nobody else holds it.
    """
    reads = Counter([ref for step in body.steps for ref in step.reads()] + list(body.results))
    groups: dict[tuple[Ref, Any, int], list[Step]] = {}
    for step in body.steps:
        if step.name == "AddmmNode" and step.fields["bias"] is None:
            weight = body.constants.get(step.fields["mat2"])
            if weight is not None and weight.ndim == 2:
                groups.setdefault((step.fields["mat1"], weight.dtype, weight.shape[0]), []).append(step)
    fresh = body.fresh()
    constants = body.constants
    instead: dict[Ref, list[Step]] = {}
    num_let_go = 0
    for (x, _, _), group in groups.items():
        if len(group) < 2:
            continue
        columns, product = Tid(next(fresh)), Tid(next(fresh))
        matrices = [step.fields["mat2"] for step in group]
        cuts = {"x": product, "sizes": tuple(constants[ref].shape[1] for ref in matrices), "axis": -1}
        # The rows of a file's weight are these columns: kept together, as they were.
        joined = mx.concatenate([constants[ref].T for ref in matrices], axis=0).T
        mx.eval(joined)
        constants[columns] = joined
        for ref in {ref for ref in matrices if reads[ref] == matrices.count(ref)}:
            num_let_go += constants.pop(ref).nbytes
        if num_let_go > UNUSED_BYTES:
            # A GPU's freed memory would stay with MLX, of sizes that nobody asks for again.
            mx.clear_cache()
            num_let_go = 0
        first = group[0]
        outs = tuple(step.out for step in group)
        instead |= {step.out: [] for step in group}
        instead[first.out] = [
            replace(first, fields={**first.fields, "mat1": x, "mat2": columns}, outs=(product,)),
            Step("SplitNode", cuts, outs, first.place, several=True),
        ]
    if num_let_go:
        mx.clear_cache()
    steps = [each for step in body.steps for each in instead.get(step.outs[0], [step])]
    return body.with_steps(steps, {})


def rotated_together(body: Body) -> Body:
    """Keys rotated as the queries beside them, cut from one product: one rotation of all heads, cut up again."""
    by = {out: step for step in body.steps for out in step.outs}
    reads = Counter([ref for step in body.steps for ref in step.reads()] + list(body.results))
    groups: dict[Any, list[tuple[int, Step]]] = {}
    for step in body.steps:
        path = _head_path(step, by, reads)
        if path is not None:
            cut, shape, part = path
            alike = tuple(step.fields[name] for name in ("start", "divisors", "factor", "table_type"))
            groups.setdefault((cut.outs, shape, alike), []).append((cut.outs.index(part), step))
    fresh = body.fresh()
    instead: dict[Ref, list[Step]] = {}
    for (outs, shape, _), group in groups.items():
        if len(group) != 2 or group[1][0] != group[0][0] + 1:
            continue
        (first, queries), (second, keys) = group
        cut = by[outs[0]]
        sizes = cut.fields["sizes"]
        both, heads, turned, rotated = (Tid(next(fresh)) for _ in range(4))
        merged = (*sizes[:first], sizes[first] + sizes[second], *sizes[second + 1 :])
        instead[outs[0]] = [
            replace(cut, fields={**cut.fields, "sizes": merged}, outs=(*outs[:first], both, *outs[second + 1 :]))
        ]
        counts = tuple(size // shape[-1] for size in sizes[first : second + 1])
        instead[keys.out] = []
        instead[queries.out] = [
            Step("ReshapeNode", {"x": both, "shape": shape}, (heads,), queries.place),
            Step("TransposeNode", {"x": heads, "perm": (0, 2, 1, 3)}, (turned,), queries.place),
            replace(queries, fields={**queries.fields, "x": turned}, outs=(rotated,)),
            Step("SplitNode", {"x": rotated, "sizes": counts, "axis": 1}, (queries.out, keys.out), queries.place, True),
        ]
    return body.with_steps([each for step in body.steps for each in instead.get(step.outs[0], [step])], {})


def _head_path(step: Step, by: dict[Ref, Step], reads: Counter[Ref]) -> tuple[Step, Any, Ref] | None:
    """Where a rotation's heads come from: a cut of a product, and how it becomes [1, heads, T, head_dim]."""
    if step.name != "RopeByTablesNode":
        return None
    turned = by.get(step.fields["x"])
    if turned is None or turned.name != "TransposeNode" or turned.fields["perm"] != (0, 2, 1, 3):
        return None
    heads = by.get(turned.fields["x"])
    if heads is None or heads.name != "ReshapeNode":
        return None
    shape, part = heads.fields["shape"], heads.fields["x"]
    cut = by.get(part)
    if cut is None or cut.name != "SplitNode" or cut.fields["axis"] != -1 or len(cut.fields["sizes"]) != len(cut.outs):
        return None
    once = all(reads[ref] == 1 for ref in (part, heads.out, turned.out))
    known = len(shape) == 4 and shape[2] == -1 and isinstance(shape[3], int) and shape[3] > 0
    if not once or not known or any(not isinstance(size, int) or size % shape[3] for size in cut.fields["sizes"]):
        return None
    return cut, shape, part


EXACT: tuple[Rule, ...] = (identity, positions)
ON_CPU: tuple[Rule, ...] = (rotation, quantized_product)
ON_GPU: tuple[Rule, ...] = (rope, rotation, activated_product)


def fused(body: Body, operators: Mapping[str, Operator], *, on_gpu: bool) -> Body:
    """The body by the rules that gain on the device; same results, within rounding on a GPU."""
    body = folded(body, operators)
    for rule in (*EXACT, *(ON_GPU if on_gpu else ON_CPU)):
        body = _applied(rule, body)
    return _shared(folded(_shared(body), {**operators, **FUSED}))


def row_by_row(body: Body) -> Body:
    """Float32 matrices that only products read, laid out in memory as they are multiplied. Uses the given body up.

    A file keeps a layer's weight as the columns of that matrix. A plain BLAS, which is what MLX's CPU build has on
    Linux, takes half as long again for columns; for Apple's it is all one. A head that is tied to an embedding, whose
    rows are looked up, stays as it is: it would be in memory twice.
    """
    if sys.platform == "darwin":
        return body
    by_product = {ref for step in body.steps if step.name == "AddmmNode" for ref in references(step.fields["mat2"])}
    others = {
        ref for step in body.steps for name, field in step.fields.items() if name != "mat2" for ref in references(field)
    }
    others.update(body.results)
    looked_up = {tuple(body.constants[ref].shape) for ref in others if isinstance(body.constants.get(ref), mx.array)}
    for ref in by_product - others:
        matrix = body.constants.get(ref)
        if matrix is None or matrix.ndim != 2 or matrix.dtype != mx.float32:
            continue
        if matrix.shape[::-1] not in looked_up:
            body.constants[ref] = matrix = mx.contiguous(matrix)
            mx.eval(matrix)
    return body


def joined(body: Body) -> Body:
    """What a GPU gains from on top: fewer and larger products and rotations. Uses the given body up."""
    return rotated_together(side_by_side(body))


def _applied(rule: Rule, body: Body) -> Body:
    made = Made(body)
    aliases: dict[Ref, Ref] = {}
    steps: list[Step] = []
    for step in body.steps:
        step = _through(step, aliases)
        instead = rule(step, made)
        if isinstance(instead, Tid | Vid):
            aliases[step.out] = resolved(instead, aliases)
            continue
        for each in [step] if instead is None else instead:
            made.see(each)
            steps.append(each)
    return body.with_steps(steps, aliases)


def _through(step: Step, aliases: dict[Ref, Ref]) -> Step:
    def renamed(field: object) -> object:
        if isinstance(field, tuple):
            return tuple(map(renamed, field))
        return resolved(field, aliases) if isinstance(field, Tid | Vid) else field

    return replace(step, fields={name: renamed(field) for name, field in step.fields.items()}) if aliases else step


def _shared(body: Body) -> Body:
    """Of steps that compute the same from the same, the first."""
    first: dict[tuple[object, ...], Step] = {}
    aliases: dict[Ref, Ref] = {}
    steps = []
    for step in body.steps:
        step = _through(step, aliases)
        # 1, 1.0 and True are equal, and not the same to an operator.
        key = (step.name, *((name, type(field), repr(field)) for name, field in step.fields.items()))
        same = first.setdefault(key, step) if step.name not in IMPURE else step
        if same is step:
            steps.append(step)
        else:
            aliases.update(zip(step.outs, same.outs, strict=True))
    return body.with_steps(steps, aliases)
