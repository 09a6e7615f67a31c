"""Which tensor of one artifact is which of another: by name, and where names differ by what they hold.

A name is what people call a tensor (``facts.Tensor``). Kernels' constants seldom have one; they go by their order among
those of their dtype and shape, and those that no kernel reads are left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.anatomy.contents import Reader
from pipeline.anatomy.facts import Tensor
from pipeline.anatomy.opening import Opened
from pipeline.pte.program import TensorValue


@dataclass(frozen=True, slots=True)
class Held:
    """A tensor and its bytes."""

    tensor: Tensor
    data: memoryview


@dataclass(frozen=True, slots=True)
class Matching:
    """``both`` are those of one name, ``renamed`` those of equal bytes under another; the rest is on one side only."""

    both: dict[str, tuple[Held, Held]]
    renamed: dict[str, str]
    removed: dict[str, Held]
    added: dict[str, Held]


def matched(old: Opened, new: Opened, old_tensors: Sequence[Tensor], new_tensors: Sequence[Tensor]) -> Matching:
    """Reads bytes only of what has no namesake, and only where something of its kind has none on the other side."""
    before, after = dict(_named(old, old_tensors)), dict(_named(new, new_tensors))
    both = {name: (before[name], after[name]) for name in before if name in after}
    removed = {name: held for name, held in before.items() if name not in after}
    added = {name: held for name, held in after.items() if name not in before}
    renamed = _renamed(removed, added, Reader(*old.files.values(), *new.files.values()))
    for name, other in renamed.items():
        del removed[name], added[other]
    return Matching(both, renamed, removed, added)


def constant_names(tensors: Sequence[Tensor]) -> dict[int, str]:
    """By a kernels' constant's number, what it goes by."""
    ranks: Counter[str] = Counter()
    found = {}
    for tensor in sorted((one for one in tensors if one.number is not None), key=lambda one: one.number or 0):
        if tensor.role != "unused" and tensor.number is not None:
            kind = f"{tensor.dtype}{list(tensor.shape or ())}"
            ranks[kind] += 1
            found[tensor.number] = tensor.name if tensor.names else f"constant {kind} no. {ranks[kind]}"
    return found


def _named(opened: Opened, tensors: Sequence[Tensor]) -> Iterator[tuple[str, Held]]:
    numbered = constant_names(tensors)
    constants = _constants(opened)
    for tensor in tensors:
        if tensor.number is not None:
            if tensor.number in numbered:
                yield numbered[tensor.number], Held(tensor, constants[tensor.number])
        elif tensor.role != "scalar" or tensor.shape != ():
            # Numbers that an exporter named are told by their values, in the instructions that read them.
            held = Held(tensor, opened.files[tensor.file].segment(tensor.segment))
            yield from ((name, held) for name in tensor.names)


def _constants(opened: Opened) -> dict[int, memoryview]:
    found: dict[int, memoryview] = {}
    for method in opened.program.methods.values() if opened.program is not None else ():
        for value in method.values:
            if isinstance(value, TensorValue) and value.constant is not None and value.data is not None:
                known = found.get(value.constant)
                if known is None or len(known) < len(value.data):
                    found[value.constant] = value.data
    return found


def _renamed(removed: dict[str, Held], added: dict[str, Held], reader: Reader) -> dict[str, str]:
    digests: dict[int, bytes] = {}

    def digest(held: Held) -> bytes:
        # Several names may share bytes.
        if id(held.tensor) not in digests:
            digests[id(held.tensor)] = reader.digest(held.data)
        return digests[id(held.tensor)]

    def kind(held: Held) -> tuple[object, ...]:
        return held.tensor.label, held.tensor.shape, len(held.data)

    wanted = {kind(held) for held in removed.values()} & {kind(held) for held in added.values()}
    by_bytes: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    for name, held in added.items():
        if kind(held) in wanted:
            by_bytes[(*kind(held), digest(held))].append(name)
    renamed = {}
    for name, held in removed.items():
        if kind(held) in wanted:
            found = by_bytes.get((*kind(held), digest(held)))
            if found:
                renamed[name] = found.pop(0)
    return renamed
