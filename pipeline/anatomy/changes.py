"""What sets two artifacts apart, in what they mean: not where bytes lie, nor which slots and hashes an exporter chose.

Compared are: what is published, methods and their signatures, delegates, instructions by what they compute from what,
tensors by name, dtype, shape and bytes, and a bundle's other files. Sizes are told beside that and are no difference of
their own. What another backend wrote is compared byte by byte.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.anatomy import contents, matching, report, rewiring, ssa
from pipeline.anatomy.facts import MethodPart, Report, Tensor
from pipeline.anatomy.listing import constant_names, text_of
from pipeline.anatomy.matching import Matching
from pipeline.anatomy.opening import Opened, opened
from pipeline.anatomy.signature import argument_names, taken
from pipeline.anatomy.text import argument_text, shape_text
from pipeline.errors import PteError
from pipeline.pte import PteFile
from pipeline.pte.program import Method, TensorValue, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What ``name`` was and is; ``None`` where it is not there. Texts, but for published values."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How often one kind of node or kernel is there. ``where`` is the method, and the delegate if in one."""

    where: str
    name: str
    old: int
    new: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One place where instructions differ: lines that went, and lines that came."""

    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """One chain of instructions that differs. ``results`` are given back from elsewhere than before."""

    title: str
    num_old: int
    num_new: int
    parts: tuple[Part, ...]
    results: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChanges:
    """By name. ``changed`` are of another dtype, shape or quantization; ``contents`` of the same, with other bytes."""

    num_same: int
    added: Mapping[str, str]
    removed: Mapping[str, str]
    renamed: Mapping[str, str]
    changed: tuple[Change, ...]
    contents: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.changed or self.contents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """``identical``: the bytes are the same, and nothing more was looked at. ``same``: nothing compared differs."""

    old: str
    new: str
    identical: bool
    same: bool
    metadata: tuple[Change, ...] = ()
    signature: tuple[Change, ...] = ()
    delegates: tuple[Change, ...] = ()
    counts: tuple[Counts, ...] = ()
    instructions: tuple[Rewritten, ...] = ()
    quantization: tuple[Change, ...] = ()
    tensors: TensorChanges | None = None
    files: tuple[Change, ...] = ()
    sizes: tuple[Change, ...] = ()


def compare(old: Path, new: Path) -> Comparison:
    """Raises ``PteError`` for what cannot be read."""
    with opened(old) as before, opened(new) as after:
        if _identical(before, after):
            return Comparison(old=str(old), new=str(new), identical=True, same=True)
        return _compared(before, after)


def _identical(old: Opened, new: Opened) -> bool:
    if list(old.files) != list(new.files) and (len(old.files), len(new.files)) != (1, 1):
        return False
    for a, b in zip(old.files.values(), new.files.values(), strict=True):
        try:
            if not contents.same_files(a.path, b.path):
                return False
        except OSError as error:
            raise PteError(f"{a.path} or {b.path}: cannot be read ({error.strerror}). Check the paths.") from None
    return not any(_other_files(old, new))


def _compared(old: Opened, new: Opened) -> Comparison:
    before, after = report.report_of(old), report.report_of(new)
    match = matching.matched(old, new, before.tensors, after.tensors)
    found = Comparison(
        old=before.path,
        new=after.path,
        identical=False,
        same=False,
        metadata=tuple(_differing(_published(old, before), _published(new, after))),
        signature=tuple(_signature(old, new, before, after)),
        delegates=tuple(_delegates(old, new, before, after)),
        counts=tuple(_counts(before, after)),
        instructions=tuple(_instructions(old, new, before, after, match.renamed)),
        quantization=tuple(_formats(before, after)),
        tensors=_tensors(match, contents.Reader(*old.files.values(), *new.files.values())),
        files=tuple(_other_files(old, new)),
        sizes=tuple(_sizes(before, after)),
    )
    differs = (found.metadata, found.signature, found.delegates, found.counts, found.instructions, found.tensors)
    return replace(found, same=not any(differs) and not found.files)


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    for name in dict.fromkeys([*old, *new]):
        before, after = old.get(name), new.get(name)
        # By type too: True and 1 are equal. By text: what is no number equals nothing.
        if type(before) is not type(after) or repr(before) != repr(after) or (name in old) != (name in new):
            yield Change(name=name, old=before, new=after)


def _published(found: Opened, shown: Report) -> dict[str, Any]:
    """What constant methods publish; of what is too long to be told, a digest as well."""
    told: dict[str, Any] = {}
    reader = contents.Reader(*found.files.values())
    for one in shown.constants:
        told[one.name] = {"value": one.value}
        if one.left_out:
            told[one.name] |= {"left_out": one.left_out, "sha256": _digest(found.method(one.name).outputs, reader)}
    return told


def _digest(values: Sequence[Value], reader: contents.Reader) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, TensorValue):
            found.update(repr((value.dtype, value.sizes, value.dim_order)).encode())
            found.update(reader.digest(value.data or memoryview(b"")))
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


def _methods(old: Report, new: Report) -> list[tuple[MethodPart, MethodPart]]:
    after = {method.name: method for method in new.methods}
    return [(method, after[method.name]) for method in old.methods if method.name in after]


def _signature(old: Opened, new: Opened, before: Report, after: Report) -> Iterator[Change]:
    yield from _differing(
        {f"program {file.kind} version": file.version for file in before.files},
        {f"program {file.kind} version": file.version for file in after.files},
    )
    yield from _differing(_declared(old, before), _declared(new, after))


def _declared(found: Opened, shown: Report) -> dict[str, str]:
    declared = {}
    for method in shown.methods:
        declared[method.name] = f"{len(method.inputs)} inputs, {len(method.outputs)} outputs"
        for way, arguments in (("input", method.inputs), ("output", method.outputs)):
            for number, argument in enumerate(arguments):
                name = f"{argument.name}: " if argument.name is not None and way == "input" else ""
                declared[f"{method.name} {way} {number}"] = f"{name}{argument_text(argument)}"
    for (name, number), graph in found.graphs.items():
        for place, slot in enumerate(graph.mutable_buffer_map):
            meta = graph.meta(slot.idx) if slot.kind == "tensor" else None
            if meta is not None:
                shape = shape_text([dim.value or 0 for dim in meta.shape])
                declared[f"{name} delegate {number} buffer {place}"] = f"{meta.dtype} {shape}"
    return declared


def _delegates(old: Opened, new: Opened, before: Report, after: Report) -> Iterator[Change]:
    yield from _differing(_described(before), _described(after))
    reader = contents.Reader(*old.files.values(), *new.files.values())
    same: dict[tuple[int, int], bool] = {}
    for a, b in _methods(before, after):
        pairs = zip(old.method(a.name).delegates, new.method(b.name).delegates, strict=False)
        for number, (one, other) in enumerate(pairs):
            is_read = (a.name, number) in old.graphs and (b.name, number) in new.graphs
            if one.id != other.id or is_read:
                continue
            # Methods may share a payload, which is then compared once.
            pair = (id(one.payload), id(other.payload))
            if pair not in same:
                same[pair] = reader.same(one.payload, other.payload)
            if not same[pair]:
                what = f"{a.name} delegate {number} payload"
                yield Change(name=what, old=f"{len(one.payload)} bytes", new=f"{len(other.payload)} other bytes")
    segments = [_mutable(one) for one in (old, new)]
    if len(segments[0]) != len(segments[1]) or not all(map(reader.same, *segments)):
        sizes = [f"{sum(map(len, views))} bytes" for views in segments]
        yield Change(name="first contents of mutable buffers", old=sizes[0], new=sizes[1])


def _mutable(found: Opened) -> list[memoryview]:
    programs = [file for file in found.files.values() if isinstance(file, PteFile)]
    return [file.segment(index) for file in programs for index in file.program.mutable_segments]


def _described(shown: Report) -> dict[str, str]:
    return {
        f"{method.name} delegate {number}": ", ".join(
            [one.backend, *(f"{spec.key}={spec.text if spec.hex is None else spec.hex}" for spec in one.compile_specs)]
        )
        for method in shown.methods
        for number, one in enumerate(method.delegates)
    }


def _counts(old: Report, new: Report) -> Iterator[Counts]:
    before, after = _counted(old), _counted(new)
    for key in dict.fromkeys([*before, *after]):
        if before.get(key, 0) != after.get(key, 0):
            where, name = key
            yield Counts(where=where, name=name, old=before.get(key, 0), new=after.get(key, 0))


def _counted(shown: Report) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for method in shown.methods:
        counts |= {(method.name, kind): count for kind, count in method.instructions.items()}
        counts |= {(method.name, name): count for name, count in method.operators.items()}
        for number, delegate in enumerate(method.delegates):
            if delegate.graph is not None:
                where = f"{method.name} delegate {number}"
                counts |= {(where, name): count for name, count in delegate.graph.nodes.items()}
                counts |= {(f"{where}, at load", name): count for name, count in delegate.graph.init_nodes.items()}
    return counts


def _instructions(
    old: Opened, new: Opened, before: Report, after: Report, renamed: Mapping[str, str]
) -> Iterator[Rewritten]:
    for a, _ in _methods(before, after):
        old_blocks = dict(_blocks(old, old.method(a.name), before.tensors))
        new_blocks = dict(_blocks(new, new.method(a.name), after.tensors))
        renamed = {**renamed, **_renamed_inputs(old, new, a.name)}
        for title in dict.fromkeys([*old_blocks, *new_blocks]):
            nothing = ssa.Block(title, ())
            pair = old_blocks.get(title, nothing), new_blocks.get(title, nothing)
            yield from _rewritten(f"{a.name}: {title}", *pair, renamed)


def _renamed_inputs(old: Opened, new: Opened, name: str) -> dict[str, str]:
    """By the inputs' places, where their names are not the same ones."""
    before, after = (
        [argument_names(found, found.method(name)).get(index, f"input {place}")
         for place, index in enumerate(found.method(name).input_ids)]
        for found in (old, new)
    )  # fmt: skip
    return {} if set(before) == set(after) else dict(zip(before, after, strict=False))


def _blocks(found: Opened, method: Method, tensors: Sequence[Tensor]) -> Iterator[tuple[str, ssa.Block]]:
    numbered = matching.constant_names(tensors)
    yield (
        "instructions",
        ssa.of_method(
            method,
            argument_names(found, method),
            lambda value: value.key or numbered.get(value.constant or 0, "constant"),
            taken(found, method),
        ),
    )
    for number in range(len(method.delegates)):
        graph = found.graphs.get((method.name, number))
        if graph is not None:
            for block in ssa.of_graph(graph, constant_names(found, graph)):
                yield f"delegate {number}, {block.title}", block


def _rewritten(title: str, old: ssa.Block, new: ssa.Block, renamed: Mapping[str, str]) -> Iterator[Rewritten]:
    # What is given back goes by its place, what is given by its name.
    places = {before: after for (before, _), (after, _) in zip(old.results, new.results, strict=False)}
    wiring = rewiring.compared(old, new, lambda name: renamed.get(name, places.get(name, name)))
    if wiring.hunks or wiring.results:
        yield Rewritten(
            title=title,
            num_old=len(old.lines),
            num_new=len(new.lines),
            parts=tuple(
                Part(
                    removed=tuple(text_of(line) for line in old.lines[slice(*hunk.old)]),
                    added=tuple(text_of(line) for line in new.lines[slice(*hunk.new)]),
                )
                for hunk in wiring.hunks
            ),
            results=wiring.results,
        )


def _tensors(match: Matching, reader: contents.Reader) -> TensorChanges:
    changed = []
    other_bytes = []
    known: dict[tuple[int, int], bool] = {}
    for name, (a, b) in match.both.items():
        if told(a.tensor) != told(b.tensor):
            changed.append(Change(name=name, old=told(a.tensor), new=told(b.tensor)))
            continue
        # Several names may share bytes, which are then compared once.
        pair = (id(a.tensor), id(b.tensor))
        if pair not in known:
            known[pair] = reader.same(a.data, b.data)
        if not known[pair]:
            other_bytes.append(name)
    return TensorChanges(
        num_same=len(match.both) - len(changed) - len(other_bytes),
        added={name: told(held.tensor) for name, held in match.added.items()},
        removed={name: told(held.tensor) for name, held in match.removed.items()},
        renamed=match.renamed,
        changed=tuple(changed),
        contents=tuple(other_bytes),
    )


def told(tensor: Tensor) -> str:
    """What a tensor is: ``4-bit affine /32 [576, 576]``."""
    return f"{tensor.label} {shape_text(tensor.weight_shape)}".rstrip()


def _formats(old: Report, new: Report) -> Iterator[Change]:
    """How many weights are held how."""
    before = {share.label: share.num_weights for share in old.by_dtype if share.num_weights}
    after = {share.label: share.num_weights for share in new.by_dtype if share.num_weights}
    for label in dict.fromkeys([*before, *after]):
        if before.get(label, 0) != after.get(label, 0):
            yield Change(name=label, old=before.get(label, 0), new=after.get(label, 0))


def _other_files(old: Opened, new: Opened) -> Iterator[Change]:
    """Of two bundles; a file by itself has none beside it."""
    if not (old.path.is_dir() and new.path.is_dir()):
        return
    for name in dict.fromkeys([*old.others, *new.others]):
        sizes = [f"{one.others[name]} bytes" if name in one.others else None for one in (old, new)]
        if None not in sizes:
            try:
                if contents.same_files(old.path / name, new.path / name):
                    continue
            except OSError as error:
                raise PteError(f"{name}: cannot be read ({error.strerror}). Check the bundles' files.") from None
        other = f"{new.others[name]} other bytes" if None not in sizes else sizes[1]
        yield Change(name=name, old=sizes[0], new=other)


def _sizes(old: Report, new: Report) -> Iterator[Change]:
    if old.size_bytes != new.size_bytes:
        yield Change(name="whole", old=old.size_bytes, new=new.size_bytes)
    parts: list[dict[str, int]] = []
    for shown in (old, new):
        sizes: dict[str, int] = {}
        for file in shown.files:
            for part in file.parts:
                sizes[part.label] = sizes.get(part.label, 0) + part.size_bytes
        for method in shown.methods:
            sizes[f"planned memory of {method.name}"] = sum(method.planned_bytes)
        parts.append(sizes)
    yield from (Change(name=one.name, old=one.old or 0, new=one.new or 0) for one in _differing(*parts))
    if old.weights.bits_per_weight != new.weights.bits_per_weight:
        yield Change(name="bits per weight", old=old.weights.bits_per_weight, new=new.weights.bits_per_weight)
