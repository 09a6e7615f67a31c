"""What a file is, as values: the inspection's result before anyone has shown it.

The JSON report has these names and this nesting (``schemas/inspect-report.schema.json``): a field here is a field
there. Sizes are in bytes. Text out of the file is as it stands there; whoever shows it escapes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# A static size, a range (least, greatest or None), or a name for what is only known at run time; None: unknown.
Size = int | tuple[int, int | None] | str | None


@dataclass(frozen=True, slots=True)
class Bounds:
    """A size that a caller chooses; ``max`` is ``None`` where there is no bound."""

    min: int
    max: int | None


Shape = tuple[int | Bounds, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One input or output of a method. ``kind`` is tensor, int, bool, double, string, none or a list of these."""

    name: str | None
    kind: str
    dtype: str | None = None
    shape: Shape | None = None
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileSpec:
    """``text`` is the value where it is text, ``hex`` its first bytes where it is not."""

    key: str
    size_bytes: int
    text: str | None
    hex: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """The MLX graph in a delegate. The histograms count nodes: of all chains but the init chain, and of that one."""

    version: int
    num_constants: int
    num_inputs: int
    num_outputs: int
    num_mutable_buffers: int
    num_temporaries: int
    num_values: int
    num_chains: int
    nodes: Mapping[str, int]
    init_nodes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegatePart:
    """``graph`` is ``None`` for other backends, and with ``unreadable``, the reason, for a graph we cannot read."""

    backend: str
    size_bytes: int
    segment: int | None
    compile_specs: tuple[CompileSpec, ...]
    graph: Graph | None
    unreadable: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodPart:
    """``instructions`` counts them by kind, ``operators`` the kernels that are called by name."""

    name: str
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    num_values: int
    planned_bytes: tuple[int, ...]
    instructions: Mapping[str, int]
    operators: Mapping[str, int]
    delegates: tuple[DelegatePart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A constant method. ``value`` is as ``Program.constants`` gives it; ``left_out`` counts elements not in it."""

    name: str
    value: Any
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class Quantization:
    """How a node reads weights: MLX's mode, bits a weight, and weights that share a scale."""

    mode: str
    bits: int
    group_size: int

    def __str__(self) -> str:
        return f"{self.bits}-bit {self.mode} /{self.group_size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Bytes that are stored once, under one name or several.

    ``name`` is for people: without the exporter's prefix, a packed weight's is that of the weight it was. ``names`` has
    one for each of ``keys``; a kernels' constant has no key, but a ``number`` in the program. ``role`` is
    weight, packed, scales, biases or global_scale (then ``of`` is the packed one's name), scalar (a constant of the
    graph's own, or without dimensions), unused (a kernels' constant that none reads), or data (nothing says what it
    is). ``weight_shape`` is that of the weights which packed bytes hold, else ``shape``. ``num_weights`` is 0 for all
    but weights. ``users`` counts the nodes and kernels that read it.
    """

    name: str
    names: tuple[str, ...]
    keys: tuple[str, ...]
    number: int | None
    file: str
    segment: int
    size_bytes: int
    dtype: str | None
    shape: tuple[int, ...] | None
    weight_shape: tuple[int, ...] | None
    role: str
    num_weights: int
    quantization: Quantization | None
    of: str | None
    users: Mapping[str, int]

    @property
    def label(self) -> str:
        """What its bytes are, in a word or two: what tensors are counted by."""
        if self.quantization is not None:
            return str(self.quantization)
        dtype = self.dtype or "bytes"
        return f"{dtype} {self.role}" if self.role in ("scales", "biases", "global_scale") else dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What takes up part of the file."""

    label: str
    size_bytes: int
    num_tensors: int = 0
    num_weights: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """``holds`` is constants, mutable data, delegate, named data, or nothing that anything refers to: unused."""

    index: int
    offset: int
    size_bytes: int
    holds: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """One file: ``tables_bytes`` is its head and flatbuffer, ``parts`` add up to ``size_bytes``."""

    path: str
    kind: str
    size_bytes: int
    tables_bytes: int
    version: int | None
    segments: tuple[Segment, ...]
    num_keys: int
    parts: tuple[Share, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """``size_bytes`` is what the weights take with their scales and biases; ``bits_per_weight`` follows from it."""

    num_weights: int
    size_bytes: int
    bits_per_weight: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Instructions as text, a line each, escaped. ``title`` says whose."""

    title: str
    method: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All of it. ``others`` are a bundle's other files by name, with their sizes."""

    path: str
    size_bytes: int
    files: tuple[FilePart, ...]
    others: Mapping[str, int]
    methods: tuple[MethodPart, ...]
    constants: tuple[Published, ...]
    tensors: tuple[Tensor, ...]
    weights: Weights
    by_dtype: tuple[Share, ...]
    by_layer: tuple[Share, ...]
    listings: tuple[Listing, ...] = ()
