"""What can be said of a result's shape at load.

A size that depends on the call is None, a result of which nothing can be said has no shape. Only the nodes that rules
ask about are known.
"""

from __future__ import annotations

from itertools import zip_longest

from pipeline.delegate.body import Body, Ref, Shape, Step
from pipeline.delegate.ops.elementwise import BINARY, UNARY
from pipeline.delegate.plan import INT32_MAX

SAME = {*UNARY, "AsTypeNode", "ContiguousNode", "GeluNode", "IdCopyNode", "LayerNormNode", "RMSNormNode"}


class Shapes:
    """Ask it for a reference's shape, after it was shown the steps before."""

    def __init__(self, body: Body) -> None:
        self._known: dict[Ref, Shape | None] = dict(body.shapes)
        self._known.update((ref, getattr(value, "shape", None)) for ref, value in body.constants.items())

    def __getitem__(self, ref: Ref) -> Shape | None:
        return self._known.get(ref)

    def see(self, step: Step) -> None:
        """Takes note of a step's results."""
        try:
            shapes = self._split(step) if step.name == "SplitNode" else [None if step.several else self._of(step)]
        except IndexError:
            # An axis that is not there: the step will be refused when it runs.
            shapes = []
        self._known.update(zip(step.outs, shapes, strict=False))

    def _of(self, step: Step) -> Shape | None:
        fields = step.fields
        if step.name in BINARY:
            return _broadcast(self[fields["a"]], self[fields["b"]])
        if step.name == "ReshapeNode":
            return tuple(size if isinstance(size, int) and size >= 0 else None for size in fields["shape"])
        if step.name == "ConcatenateNode":
            return self._joined([self[ref] for ref in fields["tensors"]], fields["axis"])
        shape = self[fields["x"]] if "x" in fields else None
        if shape is None or step.name in SAME:
            return shape if step.name in SAME else None
        if step.name == "TransposeNode":
            return tuple(shape[axis] for axis in fields["perm"])
        if step.name == "ExpandDimsNode":
            at = fields["axis"] % (len(shape) + 1)
            return (*shape[:at], 1, *shape[at:])
        if step.name == "SliceNode":
            axis = fields["axis"] % len(shape)
            return (*shape[:axis], _sliced(shape[axis], step), *shape[axis + 1 :])
        return None

    def _split(self, step: Step) -> list[Shape | None]:
        shape, sizes, axis = self[step.fields["x"]], step.fields["sizes"], step.fields["axis"]
        if shape is None or not all(isinstance(size, int) and size > 0 for size in sizes):
            return []
        at, whole = axis % len(shape), shape[axis]
        if len(sizes) == 1:
            # The last piece may be short.
            sizes = sizes * len(step.outs) if whole == sizes[0] * len(step.outs) else ()
        return [(*shape[:at], size, *shape[at + 1 :]) for size in sizes]

    def _joined(self, shapes: list[Shape | None], axis: int) -> Shape | None:
        known = [shape for shape in shapes if shape is not None]
        if len(known) < len(shapes) or not known:
            return None
        first = known[0]
        sizes = [shape[axis] for shape in known]
        whole = None if None in sizes else sum(size for size in sizes if size is not None)
        at = axis % len(first)
        return (*first[:at], whole, *first[at + 1 :])


def _broadcast(a: Shape | None, b: Shape | None) -> Shape | None:
    if a is None or b is None:
        return None
    sizes: list[int | None] = []
    for left, right in zip_longest(reversed(a), reversed(b), fillvalue=1):
        if left == 1 or (left is None and right not in (1, None)):
            left = right
        sizes.append(left)
    return tuple(reversed(sizes))


def _sliced(size: int | None, step: Step) -> int | None:
    start, stop, by = (step.fields[name] for name in ("start", "stop", "step"))
    if not all(isinstance(bound, int) for bound in (start, stop, by)) or by < 1 or size is None:
        return None
    return len(range(*slice(start, None if stop == INT32_MAX else stop, by).indices(size)))
