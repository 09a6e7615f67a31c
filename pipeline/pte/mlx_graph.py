"""The graph an MLX delegate's payload holds: slots, instruction chains and tensor metadata.

Knows the payload's header and the graph's schema, and checks everything the runtime would trip
over later: ids inside their ranges, shapes and dtypes that exist, chains that exist and never
reach themselves. Does not know what an operator computes, nor where constants' bytes are: their
names are keys into the file's named data.

Tensor ids are dense and fall into ranges, in this order: constants, inputs, outputs, mutable
buffers, temporaries.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from struct import unpack_from
from typing import Any, NamedTuple

from pipeline.errors import PteError
from pipeline.pte import dtypes
from pipeline.pte.flatbuffer import Budget, Malformed, Schema, quoted
from pipeline.pte.mlx_ops import OPS

HEADER_BYTES = 24
MAGIC = b"MLX0"
MAX_COUNT = 1_000_000
MAX_RANK = 16
MAX_VERSION = 1

# The fields by which a node runs another chain.
NESTED_CHAINS = {"IfNode": ("then_chain_idx", "else_chain_idx"), "ScanNode": ("body_chain_idx",)}


@dataclass(frozen=True, slots=True)
class Tid:
    """A tensor slot."""

    idx: int


@dataclass(frozen=True, slots=True)
class Vid:
    """A value slot: an int, float or bool the graph computes with."""

    idx: int


@dataclass(frozen=True, slots=True)
class Slot:
    """``kind`` is tensor, int, float or bool; ``idx`` a tensor id for tensor, else a value id."""

    kind: str
    idx: int


class Dim(NamedTuple):
    """A static size, or ``None`` with bounds; ``max`` is ``None`` when unbounded."""

    value: int | None
    min: int = 0
    max: int | None = None


@dataclass(frozen=True, slots=True)
class TensorMeta:
    shape: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Node:
    """One instruction. ``fields`` are in schema order, defaults filled in.

    An int-or-value reads as ``int | Vid``, a value-or-tensor as ``Vid | Tid`` and so on; a vector
    as a tuple; an absent optional as ``None``.
    """

    name: str
    fields: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MlxGraph:
    """A checked graph. ``tensor_meta`` is indexed by tensor id and may be shorter than their number.

    ``main_chain`` runs at every call, ``init_chain`` once before the first. ``names`` are the
    constants' data keys, and names of inputs, outputs and buffers.
    """

    version: int
    num_constant_tensors: int
    num_input_tensors: int
    num_output_tensors: int
    num_mutable_buffer_tensors: int
    num_temp_tensors: int
    num_values: int
    chains: tuple[tuple[Node, ...], ...]
    main_chain: int
    init_chain: int | None
    input_map: tuple[Slot, ...]
    output_map: tuple[Slot, ...]
    mutable_buffer_map: tuple[Slot, ...]
    names: dict[Slot, str] = field(repr=False)
    tensor_meta: tuple[TensorMeta | None, ...] = field(repr=False)

    @property
    def num_tensors(self) -> int:
        return self.mutable_tids.stop + self.num_temp_tensors

    @property
    def constant_tids(self) -> range:
        return range(self.num_constant_tensors)

    @property
    def input_tids(self) -> range:
        return range(self.constant_tids.stop, self.constant_tids.stop + self.num_input_tensors)

    @property
    def output_tids(self) -> range:
        return range(self.input_tids.stop, self.input_tids.stop + self.num_output_tensors)

    @property
    def mutable_tids(self) -> range:
        return range(self.output_tids.stop, self.output_tids.stop + self.num_mutable_buffer_tensors)

    def meta(self, tid: int) -> TensorMeta | None:
        """A tensor's metadata, or ``None`` where the file carries none (temporaries)."""
        return self.tensor_meta[tid] if tid < len(self.tensor_meta) else None


_NOOP = Node("NoopNode", {})
_SLOT_KINDS = ("tensor", "int", "float", "bool")


def _either(kinds: tuple[str, ...], tag: str, values: dict[str, Any]) -> Any:
    """The alternative a tagged table selects; the others are ignored."""
    choice = values[tag]
    if choice >= len(kinds):
        raise Malformed(f"has {tag} {choice}; expected at most {len(kinds) - 1}")
    value = values[kinds[choice]]
    if value is None:
        raise Malformed(f"selects its {kinds[choice]} and holds none")
    return value


def _slot(values: dict[str, Any]) -> Slot:
    if not 0 <= values["slot_type"] < len(_SLOT_KINDS):
        raise Malformed(f"has slot_type {values['slot_type']}; expected 0 to {len(_SLOT_KINDS) - 1}")
    return Slot(_SLOT_KINDS[values["slot_type"]], values["idx"])


def _dim(values: dict[str, Any]) -> Dim:
    value, low, high = values["value"], values["min_value"], values["max_value"]
    if value < -1 or low < 0 or high < -1 or (high != -1 and high < low):
        raise Malformed(f"has value {value}, bounds {low} to {high}; expected a size, or -1 and bounds in order")
    return Dim(value) if value >= 0 else Dim(None, low, None if high == -1 else high)


def _meta(values: dict[str, Any]) -> TensorMeta:
    shape, order = values["shape"], values["dim_order"]
    dtype = dtypes.BY_CODE.get(values["scalar_type"])
    if dtype is None:
        raise Malformed(f"has scalar_type {values['scalar_type']}, which is not one")
    if len(shape) > MAX_RANK:
        raise Malformed(f"has rank {len(shape)}; at most {MAX_RANK} is supported")
    if order and order != tuple(range(len(shape))):
        raise Malformed(f"has dim_order {list(order[: MAX_RANK + 1])}; expected row-major")
    return TensorMeta(shape, dtype.name)


_SHORT = {"T": "Tid", "V": "Vid", "I": "IntOrVid", "F": "FloatOrVid", "VT": "VidOrTid", "IVT": "IntOrVidOrTid"}


def _expand(fields: str) -> str:
    """``mlx_ops`` notation with its short type names written out."""
    words = []
    for word in fields.split():
        name, _, kind = word.partition(":")
        bare = kind.strip("[]?")
        words.append(f"{name}:{kind.replace(bare, _SHORT[bare])}" if bare in _SHORT else word)
    return " ".join(words)


_MAKE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "IntOrVid": partial(_either, ("literal", "vid"), "is_vid"),
    "FloatOrVid": partial(_either, ("literal", "vid"), "is_vid"),
    "VidOrTid": partial(_either, ("tid", "vid"), "is_vid"),
    "IntOrVidOrTid": partial(_either, ("literal", "vid", "tid"), "kind"),
    "Instruction": lambda values: values["op"][1] if values["op"] else _NOOP,
    "InstructionChain": lambda values: values["instructions"],
    "ShapeDim": _dim,
    "TensorMeta": _meta,
    "SlotVariant": _slot,
}
_MAKE |= {name: partial(Node, name) for _, name, _ in OPS}

SCHEMA = Schema(
    {
        "IntOrVid": "literal:i64 vid:Vid? is_vid:bool",
        "FloatOrVid": "literal:f64 vid:Vid? is_vid:bool",
        "VidOrTid": "vid:Vid? tid:Tid? is_vid:bool",
        "IntOrVidOrTid": "literal:i64 vid:Vid? tid:Tid? kind:u8",
        "Instruction": "op:OpNode",
        "InstructionChain": "instructions:[Instruction]",
        "ShapeDim": "value:i32=-1 min_value:i32 max_value:i32=-1",
        "TensorMeta": "shape:[ShapeDim] scalar_type:i8 dim_order:[u8]?",
        "SlotVariant": "idx:u32 slot_type:i8",
        "NamedSlot": "name:str slot:SlotVariant",
        "MLXGraph": "version:str? num_constant_tensors:u32 num_input_tensors:u32 num_output_tensors:u32 "
        "num_mutable_buffer_tensors:u32 num_temp_tensors:u32 num_values:u32 instruction_chains:[InstructionChain] "
        "main_chain_idx:u32 init_chain_idx:i32=-1 input_map:[SlotVariant]? output_map:[SlotVariant]? "
        "mutable_buffer_map:[SlotVariant]? named_slots:[NamedSlot]? tensor_meta:[TensorMeta?]?",
    }
    | {name: _expand(fields) for _, name, fields in OPS},
    unions={"OpNode": [name for _, name, _ in OPS]},
    ids={"Tid": lru_cache(4096)(Tid), "Vid": lru_cache(4096)(Vid)},
    make=_MAKE,
)


class MlxGraphs:
    """The graphs of one file's MLX delegates, each read when it is first asked for and paid for out of one budget."""

    def __init__(self) -> None:
        self._budget = Budget()
        # The payload is kept with its graph: what is gone could lend its id to another.
        self._read: dict[int, tuple[memoryview, MlxGraph]] = {}

    def of(self, payload: memoryview, name: str = "MLX payload") -> MlxGraph:
        """As ``parse_mlx_payload``; delegates that share a payload share its graph."""
        if id(payload) not in self._read:
            self._read[id(payload)] = payload, parse_mlx_payload(payload, name, self._budget)
        return self._read[id(payload)][1]


def parse_mlx_payload(payload: memoryview, name: str = "MLX payload", budget: Budget | None = None) -> MlxGraph:
    """The graph in a delegate's payload. Raises ``PteError``, opening with ``name``, on anything unsound."""
    if len(payload) < HEADER_BYTES or bytes(payload[4:8]) != MAGIC:
        raise PteError(
            f"{name}: bytes 4 to 8 of its {len(payload)} are {bytes(payload[4:8])!r}; expected {MAGIC!r}, "
            "the mark of an MLX graph. Build it for the mlx backend."
        )
    (end,) = unpack_from("<Q", payload, 8)
    if not HEADER_BYTES < end <= len(payload):
        raise PteError(
            f"{name}: its graph ends at byte {end} of {len(payload)}; expected more than {HEADER_BYTES} and no "
            "more than there are. The file is damaged; build or copy it again."
        )
    tables = SCHEMA.decode("MLXGraph", payload[HEADER_BYTES:end], name, budget)
    return _Checked(name, tables).graph()


class _Checked:
    """Turns decoded tables into a graph, refusing what refers to nothing."""

    def __init__(self, name: str, tables: dict[str, Any]) -> None:
        self._name = name
        self._tables = tables

    def graph(self) -> MlxGraph:
        tables = self._tables
        init_chain = tables["init_chain_idx"]
        graph = MlxGraph(
            version=self._version(),
            **self._counts(),
            chains=tables["instruction_chains"],
            main_chain=tables["main_chain_idx"],
            init_chain=None if init_chain == -1 else init_chain,
            input_map=tables["input_map"] or (),
            output_map=tables["output_map"] or (),
            mutable_buffer_map=tables["mutable_buffer_map"] or (),
            names={named["slot"]: named["name"] for named in reversed(tables["named_slots"] or ())},
            tensor_meta=tables["tensor_meta"] or (),
        )
        self._check_slots(graph)
        self._check_meta(graph)
        self._check_nodes(graph)
        self._check_chains(graph)
        return graph

    def _wrong(self, what: str, advice: str = "Export it again.") -> PteError:
        return PteError(f"{self._name}: {what}. {advice}")

    def _version(self) -> int:
        text = self._tables["version"] or "1"
        digits = text[: len(text) - len(text.lstrip("0123456789"))]
        if not (digits.isascii() and 0 < len(digits) < 10) or int(digits) > MAX_VERSION:
            what = f"its graph is of version {quoted(text)}; expected at most {MAX_VERSION}"
            raise self._wrong(what, "Update this tool.")
        return int(digits)

    def _counts(self) -> dict[str, int]:
        names = [name for name in self._tables if name.startswith("num_")]
        counts = {name: self._tables[name] for name in names}
        for name, count in counts.items():
            if count > MAX_COUNT:
                raise self._wrong(f"{name} is {count}; expected at most {MAX_COUNT}")
        total = sum(count for name, count in counts.items() if name != "num_values")
        if total > MAX_COUNT:
            raise self._wrong(f"it has {total} tensors; expected at most {MAX_COUNT}")
        return counts

    def _check_slots(self, graph: MlxGraph) -> None:
        for name in ("input_map", "output_map", "mutable_buffer_map"):
            for slot in getattr(graph, name):
                self._check_slot(graph, slot, name)
        seen: dict[Slot, str] = {}
        for named in self._tables["named_slots"] or ():
            slot = named["slot"]
            self._check_slot(graph, slot, quoted(named["name"]))
            known = seen.setdefault(slot, named["name"])
            if known != named["name"] and slot.kind == "tensor" and slot.idx in graph.constant_tids:
                raise self._wrong(f"constant {slot.idx} is named both {quoted(known)} and {quoted(named['name'])}")

    def _check_slot(self, graph: MlxGraph, slot: Slot, where: str) -> None:
        limit = graph.num_tensors if slot.kind == "tensor" else graph.num_values
        if slot.idx >= limit:
            raise self._wrong(f"{where} refers to {slot.kind} {slot.idx}; there are {limit}")

    def _check_meta(self, graph: MlxGraph) -> None:
        if len(graph.tensor_meta) > graph.num_tensors:
            raise self._wrong(f"it describes {len(graph.tensor_meta)} tensors and has {graph.num_tensors}")
        for kind, tids in (("constant", graph.constant_tids), ("mutable buffer", graph.mutable_tids)):
            for tid in tids:
                meta = graph.meta(tid)
                if meta is None:
                    raise self._wrong(f"{kind} {tid} has no shape and dtype; expected both")
                if any(dim.value is None for dim in meta.shape):
                    raise self._wrong(f"{kind} {tid} has a dynamic shape; expected a static one")

    def _check_nodes(self, graph: MlxGraph) -> None:
        limits: dict[type, tuple[int, str]] = {
            Tid: (graph.num_tensors, "tensor"),
            Vid: (graph.num_values, "value"),
        }
        for index, chain in enumerate(graph.chains):
            for place, node in enumerate(chain):
                for name, value in node.fields.items():
                    for item in value if type(value) is tuple else (value,):
                        limit = limits.get(type(item))
                        if limit and item.idx >= limit[0]:
                            raise self._wrong(
                                f"chain {index} instruction {place}, {node.name}.{name}, refers to {limit[1]} "
                                f"{item.idx}; there are {limit[0]}"
                            )

    def _check_chains(self, graph: MlxGraph) -> None:
        num_chains = len(graph.chains)
        callees: list[list[int]] = [[] for _ in range(num_chains)]
        for index, chain in enumerate(graph.chains):
            for node in chain:
                callees[index] += [node.fields[name] for name in NESTED_CHAINS.get(node.name, ())]
        roots = [graph.main_chain] + ([] if graph.init_chain is None else [graph.init_chain])
        for target in roots + [target for targets in callees for target in targets]:
            if not 0 <= target < num_chains:
                raise self._wrong(f"it runs chain {target}; there are {num_chains}")
        self._refuse_cycles(callees)

    def _refuse_cycles(self, callees: list[list[int]]) -> None:
        """Peels chains nobody left calls; what cannot be peeled calls itself in the end."""
        callers = [0] * len(callees)
        for targets in callees:
            for target in targets:
                callers[target] += 1
        free = [chain for chain, count in enumerate(callers) if not count]
        num_peeled = 0
        while free:
            num_peeled += 1
            for target in callees[free.pop()]:
                callers[target] -= 1
                if not callers[target]:
                    free.append(target)
        if num_peeled < len(callees):
            cyclic = min(chain for chain, count in enumerate(callers) if count)
            raise self._wrong(f"chain {cyclic} runs itself, directly or through others")
