"""A report for people: what the file is, top to bottom. Everything out of the file is escaped before it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pipeline.anatomy import names
from pipeline.anatomy.drawing import Canvas, bytes_text, count_text, path_text, percent_text
from pipeline.anatomy.facts import Argument, Bounds, DelegatePart, MethodPart, Report, Share, Tensor
from pipeline.pte.flatbuffer import shown

MAX_CONSTANT = 60
MAX_RUNS = 8
MAX_ARGUMENTS = 8


def of_report(report: Report, canvas: Canvas) -> Iterator[str]:
    """The lines of the report."""
    yield from _head(report, canvas)
    for method in report.methods[: canvas.limit]:
        yield ""
        yield from _method(method, canvas)
    if canvas.limit is not None and len(report.methods) > canvas.limit:
        yield f"{canvas.ellipsis} and {len(report.methods) - canvas.limit} more methods (--all shows them)"
    if report.constants:
        yield ""
        yield "constant methods"
        rows = [(shown(one.name), constant_text(one.value, canvas, one.left_out)) for one in report.constants]
        yield from canvas.shown(rows, "constant methods", "<<")
    if report.tensors:
        yield ""
        yield from _sizes(report, canvas)
    for listing in report.listings:
        yield ""
        yield listing.title
        yield from (f"  {line}" for line in listing.lines)


def _head(report: Report, canvas: Canvas) -> Iterator[str]:
    for file in report.files:
        version = "" if file.version is None else f", program version {file.version}"
        yield f"{path_text(file.path)}: {file.kind}, {bytes_text(file.size_bytes)} ({file.size_bytes:,} bytes){version}"
        keys = "" if not file.num_keys else f", {file.num_keys} names of data"
        yield f"  {len(file.segments)} segments{keys}"
        rows = [
            (part.label, f"{part.size_bytes:,}", _counted(part, canvas), percent_text(part.size_bytes, file.size_bytes))
            for part in file.parts
        ]
        yield from canvas.table(rows, "<>>>")
    if report.others:
        yield f"other files of {path_text(report.path)}"
        beside = [(shown(name), f"{size:,}") for name, size in report.others.items()]
        yield from canvas.shown(beside, "files", "<>")


def _counted(part: Share, canvas: Canvas) -> str:
    return f"{canvas.times}{part.num_tensors}" if part.num_tensors > 1 else ""


def _method(method: MethodPart, canvas: Canvas) -> Iterator[str]:
    yield f"method {shown(method.name)}"
    yield from _arguments("in ", method.inputs, canvas)
    yield from _arguments("out", method.outputs, canvas)
    if method.instructions:
        yield f"  instructions: {_histogram_text(method.instructions, canvas)}"
    if sum(method.planned_bytes):
        yield f"  planned memory: {bytes_text(sum(method.planned_bytes))}"
    if method.operators:
        yield f"  operators: {len(method.operators)}, called {sum(method.operators.values())} times"
        yield from canvas.shown([(shown(n), str(c)) for n, c in method.operators.items()], "operators", "<>")
    for number, delegate in enumerate(method.delegates[: canvas.limit]):
        yield from _delegate(number, delegate, canvas)
    if canvas.limit is not None and len(method.delegates) > canvas.limit:
        yield f"  {canvas.ellipsis} and {len(method.delegates) - canvas.limit} more delegates (--all shows them)"


def _arguments(way: str, arguments: Sequence[Argument], canvas: Canvas) -> Iterator[str]:
    limit = len(arguments) if canvas.limit is None else MAX_ARGUMENTS
    for argument in arguments[:limit]:
        name = "" if argument.name is None else f"{shown(argument.name)}: "
        yield f"  {way} {name}{argument_text(argument)}"
    if len(arguments) > limit:
        yield f"  {way} {canvas.ellipsis} and {len(arguments) - limit} more"


def argument_text(argument: Argument) -> str:
    """``int64 [1, 1..512]``."""
    if argument.kind == "tensor":
        return f"{argument.dtype} {shape_text(argument.shape)}"
    return argument.kind if argument.value is None else f"{argument.kind} {shown(str(argument.value))}"


def shape_text(shape: Sequence[int | Bounds] | None) -> str:
    """``[1, 1..512]``; ``any`` where there is no bound."""
    if shape is None:
        return ""
    sizes = [
        f"{size.min}..{'any' if size.max is None else size.max}" if isinstance(size, Bounds) else str(size)
        for size in shape
    ]
    return f"[{', '.join(sizes)}]"


def _histogram_text(counts: Mapping[str, int], canvas: Canvas) -> str:
    return ", ".join(f"{shown(name)} {canvas.times}{count}" for name, count in counts.items())


def _delegate(number: int, delegate: DelegatePart, canvas: Canvas) -> Iterator[str]:
    yield f"  delegate {number}: {shown(delegate.backend)}, {delegate.size_bytes:,} bytes"
    for spec in delegate.compile_specs[: canvas.limit]:
        what = shown(spec.text) if spec.text else f"{spec.size_bytes} bytes {canvas.cut(spec.hex or '', 40)}".rstrip()
        yield f"    compile spec {shown(spec.key)}: {what}"
    if delegate.unreadable is not None:
        yield f"    {delegate.unreadable}"
    graph = delegate.graph
    if graph is not None:
        yield (
            f"    MLX graph: {graph.num_constants} constants, {graph.num_inputs} inputs, {graph.num_outputs} outputs, "
            f"{graph.num_mutable_buffers} buffers, {graph.num_temporaries} temporaries"
        )
        yield from _nodes("instructions", graph.nodes, canvas)
        if graph.init_nodes:
            yield from _nodes("run once, when loaded", graph.init_nodes, canvas)


def _nodes(title: str, nodes: Mapping[str, int], canvas: Canvas) -> Iterator[str]:
    total = sum(nodes.values())
    yield f"    {title}: {total}"
    most = max(nodes.values(), default=0)
    room = max(canvas.width - 45, 8)
    rows = [(f"  {shown(name)}", str(count), canvas.bar(count, most, room)) for name, count in nodes.items()]
    yield from canvas.shown(rows, "kinds of nodes", "<><")


def _sizes(report: Report, canvas: Canvas) -> Iterator[str]:
    weights = report.weights
    total = sum(tensor.size_bytes for tensor in report.tensors)
    yield f"tensors: {len(report.tensors)}, {bytes_text(total)}"
    if weights.bits_per_weight is not None:
        yield (
            f"  {count_text(weights.num_weights)} weights ({weights.num_weights:,}) "
            f"in {bytes_text(weights.size_bytes)}: {weights.bits_per_weight:.2f} bits per weight"
        )
    yield from _chart("by dtype", report.by_dtype, total, canvas)
    yield from _chart("by layer", _in_order(report.by_layer), total, canvas)
    if canvas.limit is None:
        yield "  every tensor"
        yield from canvas.table([_row(tensor, canvas) for tensor in report.tensors], "<<<><")
    else:
        yield "  by name, layers together (--all: every tensor)"
        yield from canvas.shown(list(_patterns(report.tensors, canvas)), "kinds of tensors", "<<<>>")
    shared = [one for one in report.tensors if len(one.keys) > 1 or (one.num_weights and sum(one.users.values()) > 1)]
    if shared:
        yield "  stored once, used more than once"
        rows = [
            (
                f"  {shown(one.name)}",
                bytes_text(one.size_bytes),
                f"{len(one.keys)} names" if len(one.keys) > 1 else "",
                _histogram_text(one.users, canvas),
            )
            for one in sorted(shared, key=lambda one: -one.size_bytes)
        ]
        yield from canvas.shown(rows, "tensors", "<><<")


def _chart(title: str, shares: Sequence[Share], total: int, canvas: Canvas) -> Iterator[str]:
    yield f"  {title}"
    most = max((share.size_bytes for share in shares), default=0)
    width = max((len(shown(share.label)) for share in shares), default=0)
    room = max(canvas.width - min(width, 34) - 32, 8)
    rows = [
        (
            f"  {shown(share.label)}",
            bytes_text(share.size_bytes),
            percent_text(share.size_bytes, total),
            canvas.bar(share.size_bytes, most, room),
        )
        for share in shares
    ]
    yield from canvas.shown(rows, "rows", "<>><")


def _in_order(layers: Sequence[Share]) -> list[Share]:
    """Layers that differ only in their number, and in nothing that is shown, become one row."""
    found = []
    grouped: dict[tuple[str, int, int], list[Share]] = {}
    for share in sorted(layers, key=lambda share: -share.size_bytes):
        grouped.setdefault((names.pattern_of(share.label), share.size_bytes, share.num_tensors), []).append(share)
    for (pattern, size, num_tensors), same in grouped.items():
        label = same[0].label if len(same) == 1 else f"{pattern} (each of {len(same)})"
        found.append(Share(label=label, size_bytes=size, num_tensors=num_tensors))
    return found


def _patterns(tensors: Sequence[Tensor], canvas: Canvas) -> Iterator[tuple[str, ...]]:
    def pattern(tensor: Tensor) -> tuple[str, str, str]:
        return names.pattern_of(tensor.name), tensor.label, shape_text(tensor.weight_shape)

    grouped: dict[tuple[str, str, str], list[Tensor]] = {}
    for tensor in tensors:
        grouped.setdefault(pattern(tensor), []).append(tensor)
    sizes = {key: sum(one.size_bytes for one in group) for key, group in grouped.items()}
    for key in sorted(grouped, key=lambda key: (-sizes[key], key)):
        name, label, shape = key
        number = len(grouped[key])
        yield (
            f"  {shown(name)}",
            shown(label),
            shape,
            f"{canvas.times}{number}" if number > 1 else "",
            bytes_text(sizes[key]),
        )


def _row(tensor: Tensor, canvas: Canvas) -> tuple[str, ...]:
    users = _histogram_text(tensor.users, canvas)
    size = bytes_text(tensor.size_bytes)
    return f"  {shown(tensor.name)}", shown(tensor.label), shape_text(tensor.weight_shape), size, users


def constant_text(value: Any, canvas: Canvas, left_out: int = 0) -> str:
    """A published value in a line: ``int32 [30]: 0 x5, 512, 0 x24``."""
    if isinstance(value, dict):
        told = f"{value['dtype']} {shape_text(value['sizes'])}"
        elements = _runs(value["values"], canvas)
        more = f", {canvas.ellipsis} and {left_out} more" if left_out else ""
        return f"{told}: {elements}{more}" if value["values"] else f"{told}{more}"
    if isinstance(value, list):
        return f"[{_runs(value, canvas)}]" + (f" {canvas.ellipsis} and {left_out} more" if left_out else "")
    if isinstance(value, str):
        return shown(value) if len(value) <= MAX_CONSTANT else shown(value[:MAX_CONSTANT]) + canvas.ellipsis
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _runs(values: Sequence[Any], canvas: Canvas) -> str:
    """Equal neighbours together, and no more runs than fit a line."""
    runs = [(constant_text(value, canvas), count) for value, count in _grouped(values)]
    limit = len(runs) if canvas.limit is None else MAX_RUNS
    told = [f"{text} {canvas.times}{count}" if count > 1 else text for text, count in runs[:limit]]
    left = sum(count for _, count in runs[limit:])
    return ", ".join(told) + (f", {canvas.ellipsis} and {left} more" if left else "")


def _grouped(values: Sequence[Any]) -> Iterator[tuple[Any, int]]:
    # By type too: True and 1 are equal. By text: what is no number equals nothing.
    for _, group in groupby(values, key=lambda value: (type(value), str(value))):
        same = list(group)
        yield same[0], len(same)
