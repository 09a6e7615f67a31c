"""Where a file's bytes go: parts that add up to its size, and tensors counted by what they are and by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from pipeline.anatomy import names
from pipeline.anatomy.facts import FilePart, Segment, Share, Tensor, Weights
from pipeline.pte.container import PteFile
from pipeline.pte.segments import SegmentedFile

HOLDS = ("constants", "mutable data", "delegate", "named data", "unused")


def of_file(name: str, file: SegmentedFile) -> FilePart:
    """The file's parts: tables, segments by what they hold, and what lies between."""
    holds = _holders(file)
    segments = tuple(
        Segment(index=index, offset=start, size_bytes=end - start, holds=holds.get(index, "unused"))
        for index, (start, end) in enumerate(file.segments)
    )
    return FilePart(
        path=name,
        kind=file.kind,
        size_bytes=file.size_bytes,
        tables_bytes=file.tables_bytes,
        version=file.program.version if isinstance(file, PteFile) else None,
        segments=segments,
        num_keys=len(file.named_data),
        parts=tuple(_parts(file, segments)),
    )


def _holders(file: SegmentedFile) -> dict[int, str]:
    holds = {file.named_data.segment_of(key): "named data" for key in file.named_data}
    if isinstance(file, PteFile):
        program = file.program
        for method in program.methods.values():
            holds |= {part.segment: "delegate" for part in method.delegates if part.segment is not None}
        holds |= dict.fromkeys(program.mutable_segments, "mutable data")
        if program.constant_segment is not None:
            holds[program.constant_segment] = "constants"
    return holds


def _parts(file: SegmentedFile, segments: Sequence[Segment]) -> Iterable[Share]:
    """Each byte once, even where segments overlap: it belongs to whatever starts first."""
    sizes: dict[str, int] = dict.fromkeys(("head and tables", *HOLDS), 0)
    spans = [(0, file.tables_bytes, "head and tables")]
    spans += [(one.offset, one.offset + one.size_bytes, one.holds) for one in segments]
    reached = 0
    for start, end, what in sorted(spans):
        sizes[what] += max(end - max(start, reached), 0)
        reached = max(reached, end)
    counts = {what: sum(one.holds == what for one in segments) for what in sizes}
    yield from (Share(label=what, size_bytes=size, num_tensors=counts[what]) for what, size in sizes.items() if size)
    yield Share(label="between them (alignment)", size_bytes=file.size_bytes - sum(sizes.values()))


def shares(tensors: Iterable[Tensor], label_of: Callable[[Tensor], str]) -> tuple[Share, ...]:
    """The tensors' sizes by label, the largest first."""
    grouped: defaultdict[str, list[Tensor]] = defaultdict(list)
    for tensor in tensors:
        grouped[label_of(tensor)].append(tensor)
    found = [
        Share(
            label=label,
            size_bytes=sum(one.size_bytes for one in group),
            num_tensors=len(group),
            num_weights=sum(one.num_weights for one in group),
        )
        for label, group in grouped.items()
    ]
    return tuple(sorted(found, key=lambda share: (-share.size_bytes, share.label)))


def by_dtype(tensors: Iterable[Tensor]) -> tuple[Share, ...]:
    return shares(tensors, lambda tensor: tensor.label)


def by_layer(tensors: Iterable[Tensor]) -> tuple[Share, ...]:
    return shares(tensors, layer_of)


def layer_of(tensor: Tensor) -> str:
    """The layer or module that a tensor belongs to."""
    if not tensor.keys:
        return "kernels' constants"
    return "graph's own constants" if tensor.role == "scalar" else names.layer_of(tensor.of or tensor.name)


def weights(tensors: Sequence[Tensor]) -> Weights:
    """What the weights take, with the scales and biases of quantized ones."""
    num_weights = sum(tensor.num_weights for tensor in tensors)
    size = sum(tensor.size_bytes for tensor in tensors if tensor.num_weights or tensor.of is not None)
    return Weights(
        num_weights=num_weights,
        size_bytes=size,
        bits_per_weight=round(size * 8 / num_weights, 3) if num_weights else None,
    )
