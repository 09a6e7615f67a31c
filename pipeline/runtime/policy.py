"""What a user may choose about the cache when a model is run, and the cache that comes of it, in whole numbers.

A ``CachePolicy`` is a wish. Against what an artifact publishes it becomes a ``CachePlan``: the geometry, sizes and
storage of a cache, its bytes known before an array is made. What cannot be had is refused here, by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.contract import CacheGeometry, Contract
from pipeline.errors import CacheError
from pipeline.runtime.layout import LayerLayout

DEFAULT_INITIAL_CAPACITY = 512

ITEM_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}

QUANTIZED = {"q8": 8, "q4": 4}
"""Storage in fewer bits, by name: K and V in groups along head_dim, each with a scale and a bias."""

GROUP_SIZES = (64, 32)


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How K and V are kept: in ``dtype``, or in ``bits`` with scales and biases of that dtype."""

    dtype: str
    bits: int | None = None

    @classmethod
    def named(cls, name: str | None, activation: str) -> Storage:
        """``name`` is a dtype, or one of QUANTIZED; None is the dtype of the activations, which scales have too."""
        if name is None or name in ITEM_BYTES:
            return cls(dtype=name or activation)
        if name not in QUANTIZED:
            raise CacheError(
                f"K and V are to be stored as '{name}'; expected one of {', '.join((*ITEM_BYTES, *QUANTIZED))}."
            )
        return cls(dtype=activation, bits=QUANTIZED[name])

    @property
    def name(self) -> str:
        return self.dtype if self.bits is None else f"q{self.bits}"

    def slot_bytes(self, geometry: CacheGeometry) -> int:
        """K and V of one token in one cache."""
        numbers = 2 * geometry.num_kv_heads * geometry.head_dim
        if self.bits is None:
            return numbers * ITEM_BYTES[self.dtype]
        groups = numbers // group_size(geometry.head_dim, self.bits)
        return numbers * self.bits // 8 + 2 * groups * ITEM_BYTES[self.dtype]


def group_size(head_dim: int, bits: int) -> int:
    """How many numbers of a head share a scale. Raises CacheError where none of GROUP_SIZES divides them."""
    for size in GROUP_SIZES:
        if head_dim % size == 0:
            return size
    raise CacheError(
        f"K and V have head_dim {head_dim}, which is no multiple of {min(GROUP_SIZES)}, so they cannot be stored in "
        f"{bits} bits. Store them as {', '.join(ITEM_BYTES)}."
    )


@dataclass(frozen=True, kw_only=True)
class CachePlan:
    """A cache to be made. ``capacity`` counts tokens, of all its sequences together if it is ``batched``.

    ``max_context`` bounds the positions of each sequence, ``max_write`` the tokens of one step.
    """

    caches: tuple[CacheGeometry, ...]
    capacity: int
    initial_capacity: int
    max_write: int
    max_context: int
    storage: Storage
    batched: bool = False

    @property
    def num_flat(self) -> int:
        """Caches that keep all history."""
        return sum(not cache.window for cache in self.caches)

    @property
    def rings(self) -> dict[int, int]:
        """How many caches have each window, narrow ones first."""
        return dict(sorted(Counter(cache.window for cache in self.caches if cache.window).items()))

    @property
    def initial_bytes(self) -> int:
        """What the pools take before the first token."""
        return sum(self.storage.slot_bytes(cache) * self._slots(cache)[0] for cache in self.caches)

    @property
    def bytes_at_capacity(self) -> int:
        """What the pools take once they have grown as far as they may."""
        return sum(self.storage.slot_bytes(cache) * self._slots(cache)[1] for cache in self.caches)

    def _slots(self, cache: CacheGeometry) -> tuple[int, int]:
        # Cells of a batch serve every sequence, at whatever position: a window saves none.
        window = 0 if self.batched else cache.window
        most = LayerLayout(window=window, capacity=self.capacity, max_write=self.max_write).max_slots
        return most if window else min(self.initial_capacity, most), most


@dataclass(frozen=True, kw_only=True)
class CachePolicy:
    """Every choice left out is the artifact's: its context length, activation dtype and windows.

    ``windows`` is a pattern that repeats over the caches, 0 for all history; see ``parse_windows``.
    """

    capacity: int | None = None
    initial_capacity: int = DEFAULT_INITIAL_CAPACITY
    storage: str | None = None
    windows: tuple[int, ...] = ()

    def plan(self, contract: Contract, *, num_sequences: int | None = None) -> CachePlan:
        """The cache of one sequence, or where their number is given, the cells that so many of them share.

        Raises CacheError for a choice that the artifact's model cannot be run with.
        """
        most = contract.max_context_len * (num_sequences or 1)
        capacity = most if self.capacity is None else self.capacity
        if capacity < 1 or self.initial_capacity < 0:
            raise CacheError(
                f"the cache is to hold {capacity} tokens, {self.initial_capacity} to begin with; expected at least 1, "
                "and 0 or more to begin with."
            )
        if capacity > most:
            several = f", {most} for {num_sequences} sequences" if num_sequences else ""
            raise CacheError(
                f"the cache is to hold {capacity} tokens, and the artifact's context is {contract.max_context_len}"
                f"{several}. Choose no more, or export it with a larger max_context_len."
            )
        storage = Storage.named(self.storage, contract.dtype)
        for cache in contract.caches:
            storage.slot_bytes(cache)
        plan = CachePlan(
            caches=contract.caches,
            capacity=capacity,
            initial_capacity=self.initial_capacity,
            max_write=contract.max_seq_len,
            max_context=contract.max_context_len,
            storage=storage,
            batched=num_sequences is not None,
        )
        if not self.windows:
            return plan
        plan = replace(plan, caches=with_windows(contract.caches, self.windows))
        # Cells hold a step of any length; a ring is as long as a step and its window together.
        narrowest = plan.max_write if plan.batched else min(plan.rings, default=plan.max_write)
        return replace(plan, max_write=min(plan.max_write, narrowest))


def with_windows(caches: Sequence[CacheGeometry], pattern: Sequence[int]) -> tuple[CacheGeometry, ...]:
    """The caches with the windows of ``pattern``, repeated; heads and head_dim stay."""
    if not pattern or min(pattern) < 0 or len(pattern) > len(caches):
        raise CacheError(
            f"the windows {', '.join(map(str, pattern)) or '(none)'} are to be those of {len(caches)} caches; expected "
            f"1 to {len(caches)} numbers, each 0 for all history or the positions that a query reaches."
        )
    return tuple(replace(cache, window=pattern[index % len(pattern)]) for index, cache in enumerate(caches))


def parse_windows(text: str) -> tuple[int, ...]:
    """A pattern of windows as it is written on a command line: "512,512,0"."""
    fields = [field.strip() for field in text.split(",")]
    for number, field in enumerate(fields, start=1):
        if not (field.isascii() and field.isdecimal() and len(field) < 10):
            raise CacheError(
                f"the windows are '{text}', whose field {number} is '{field}'; expected numbers with commas between "
                "them, each 0 for all history or the positions that a query reaches, as in 512,512,0."
            )
    return tuple(map(int, fields))
