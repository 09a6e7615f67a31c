"""The tensors that files store, each once: what it is called, what it is, how large, and who reads it.

Knows where names meet bytes: named data, constants of MLX graphs, constants of kernels. Reads no weight.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from pipeline.anatomy import names, uses
from pipeline.anatomy.facts import Quantization, Tensor
from pipeline.pte import dtypes
from pipeline.pte.flat_tensor import PtdFile
from pipeline.pte.mlx_graph import MlxGraph
from pipeline.pte.program import ListValue, Method, Program, TensorValue
from pipeline.pte.segments import SegmentedFile

MAX_LISTED = 1_000_000


@dataclass(slots=True)
class _Seen:
    """What is known of the data of one key so far."""

    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    quantization: Quantization | None = None
    role: str | None = None
    of: str | None = None
    name: str | None = None
    users: Counter[str] = field(default_factory=Counter)


def stored(
    files: Mapping[str, SegmentedFile], program: Program | None, graphs: Sequence[MlxGraph]
) -> tuple[Tensor, ...]:
    """The tensors of ``files`` (by the name to show), in their order there."""
    seen: defaultdict[str, _Seen] = defaultdict(_Seen)
    for file in files.values():
        if isinstance(file, PtdFile):
            for key, layout in file.layouts.items():
                seen[key].dtype, seen[key].shape = layout.dtype, layout.sizes
    for graph in graphs:
        _note_graph(graph, seen)
    kernels = [] if program is None else [method for method in program.methods.values() if not method.is_constant]
    for method in kernels:
        _note_external(method, seen)
    found = [tensor for name, file in files.items() for tensor in _named(name, file, seen)]
    if program is not None:
        name = next(name for name, file in files.items() if not isinstance(file, PtdFile))
        found += _constants(name, program, kernels)
    return tuple(found)


def _note_graph(graph: MlxGraph, seen: dict[str, _Seen]) -> None:
    keys = {slot.idx: name for slot, name in graph.names.items() if slot.kind == "tensor"}
    found = uses.of_constants(graph)
    for tid, use in found.items():
        key, meta = keys.get(tid), graph.meta(tid)
        if key is None or meta is None:
            continue
        known = seen[key]
        known.dtype, known.shape = meta.dtype, tuple(dim.value or 0 for dim in meta.shape)
        known.users += use.nodes
        known.quantization = known.quantization or use.quantization
        known.role = known.role or use.role
        known.of = known.of or (None if use.of is None else found[use.of].name)
        known.name = known.name or use.name


def _note_external(method: Method, seen: dict[str, _Seen]) -> None:
    readers = _readers(method)
    for index, value in enumerate(method.values):
        if isinstance(value, TensorValue) and value.key is not None:
            known = seen[value.key]
            known.dtype, known.shape = value.dtype, value.sizes
            known.users += readers.get(index, Counter())


def _readers(method: Method) -> dict[int, Counter[str]]:
    """By a value's index, the kernels and delegates that are given it.

    Instructions may share a list, and a file made to be hard much of it: beyond a bound lists are not looked into.
    """
    readers: defaultdict[int, Counter[str]] = defaultdict(Counter)
    budget = MAX_LISTED
    for instruction in method.instructions:
        if instruction.kind not in ("kernel_call", "delegate_call"):
            continue
        user = instruction.operator or method.delegates[instruction.delegate or 0].id
        for index in set(instruction.args):
            value = method.values[index]
            tensors: tuple[float, ...] = (index,)
            if isinstance(value, ListValue) and "tensor" in value.kind:
                tensors = value.items[:budget]
                budget -= len(tensors)
            for tensor in tensors:
                readers[int(tensor)][user] += 1
    return readers


def _named(name: str, file: SegmentedFile, seen: Mapping[str, _Seen]) -> list[Tensor]:
    by_segment: defaultdict[int, list[str]] = defaultdict(list)
    for key in file.named_data:
        by_segment[file.named_data.segment_of(key)].append(key)
    nothing = _Seen()
    return [
        _tensor(name, segment, keys, [seen.get(key, nothing) for key in keys], file)
        for segment, keys in by_segment.items()
    ]


def _tensor(name: str, segment: int, keys: list[str], known: list[_Seen], file: SegmentedFile) -> Tensor:
    # Several keys share bytes: an exporter found them equal. The first that a graph describes speaks for them.
    best = next((one for one in known if one.role is not None), None)
    best = best or next((one for one in known if one.dtype is not None), known[0])
    users: Counter[str] = Counter()
    for one in known:
        users.update(one.users)
    start, end = file.segments[segment]
    shown = best.name or names.without_prefix(keys[known.index(best)])
    role = _role(shown, best)
    return Tensor(
        name=shown,
        names=tuple(one.name or names.without_prefix(key) for key, one in zip(keys, known, strict=True)),
        number=None,
        keys=tuple(keys),
        file=name,
        segment=segment,
        size_bytes=end - start,
        dtype=best.dtype,
        shape=best.shape,
        weight_shape=_weight_shape(best),
        role=role,
        num_weights=prod(_weight_shape(best) or ()) if role in ("packed", "weight") else 0,
        quantization=best.quantization,
        of=best.of,
        users=dict(users.most_common()),
    )


def _role(name: str, known: _Seen) -> str:
    if known.role is not None:
        return known.role
    if known.dtype is None:
        return "data"
    return "scalar" if known.shape == () or names.is_the_graphs_own(name) else "weight"


def _weight_shape(known: _Seen) -> tuple[int, ...] | None:
    """Packed bytes hold several weights to an element, along the last axis."""
    if known.quantization is None or not known.shape or known.dtype is None:
        return known.shape
    bits = dtypes.BY_NAME[known.dtype].size_bytes * 8
    return (*known.shape[:-1], known.shape[-1] * bits // known.quantization.bits)


def _kernel_role(value: TensorValue, users: Counter[str]) -> str:
    if not users:
        return "unused"
    return "weight" if value.sizes else "scalar"


def _constants(name: str, program: Program, kernels: Sequence[Method]) -> list[Tensor]:
    """The constants that kernels read: they have numbers and no names."""
    values: dict[int, TensorValue] = {}
    users: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for method in kernels:
        readers = _readers(method)
        for index, value in enumerate(method.values):
            if isinstance(value, TensorValue) and value.constant is not None and value.data is not None:
                known = values.setdefault(value.constant, value)
                users[value.constant] += readers.get(index, Counter())
                values[value.constant] = max(known, value, key=lambda one: len(one.data or b""))
    return [
        Tensor(
            name=value.name or f"constant {number}",
            names=() if value.name is None else (value.name,),
            keys=(),
            number=number,
            file=name,
            segment=-1 if program.constant_segment is None else program.constant_segment,
            size_bytes=len(value.data or b""),
            dtype=value.dtype,
            shape=value.sizes,
            weight_shape=value.sizes,
            role=_kernel_role(value, users[number]),
            num_weights=prod(value.sizes) if _kernel_role(value, users[number]) == "weight" else 0,
            quantization=None,
            of=None,
            users=dict(users[number].most_common()),
        )
        for number, value in values.items()
    ]
