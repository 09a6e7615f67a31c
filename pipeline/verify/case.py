"""What a rule looks at: an artifact's published values, what its graph shows, and what they can be held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipeline.evidence import DTYPES, MODES, Evidence, ForwardFacts, GraphFacts
from pipeline.pte import TensorValue
from pipeline.verify import contracts
from pipeline.verify.contracts import Broken, Contract

if TYPE_CHECKING:
    from pipeline.verify.asked import Asked
    from pipeline.verify.bundle import Bundle
    from pipeline.verify.tokenizer_files import Tokenizer, Unreadable

CACHE_METHODS = ("get_n_caches", "get_kv_heads", "get_head_dims", "get_windows")
PER_CACHE = CACHE_METHODS[1:]
OLDER_NAMES = {"get_max_context_len": "get_max_ctx_len", "get_max_seq_len": "get_prefill_chunk_size"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """``published`` are the values that no contract refuses, be the case held to it or not; ``evidence`` has all.

    ``claimed`` says whether ``held_to`` are the contracts that the artifact claims, not ones chosen for it.
    ``asked`` is what the artifact was to be, and ``asker`` who says so, to stand before it in a sentence.
    """

    evidence: Evidence
    published: Mapping[str, Any]
    held_to: Sequence[Contract]
    claimed: bool
    broken: Sequence[Broken]
    asked: Asked | None = None
    asker: str = ""
    tokenizer: Tokenizer | None = None
    tokenizer_problem: Unreadable | None = None
    bundle: Bundle | None = None

    @classmethod
    def of(
        cls,
        evidence: Evidence,
        *,
        held_to: Sequence[Contract] | None = None,
        asked: Asked | None = None,
        tokenizer: Tokenizer | None = None,
        tokenizer_problem: Unreadable | None = None,
        bundle: Bundle | None = None,
    ) -> Case:
        """The case of an artifact that is held to some contracts; ``None``: to all that it claims.

        What the artifact was to be is ``asked``, or else what the bundle has on record.
        """
        chosen = contracts.claimed(evidence.constants) if held_to is None else held_to
        broken = [item for contract in chosen for item in contracts.broken_in(contract, evidence.constants)]
        refused = {item.subject for item in broken} | contracts.unsound(evidence.constants)
        recorded = bundle.asked if bundle is not None else None
        return cls(
            evidence=evidence,
            published={name: value for name, value in evidence.constants.items() if name not in refused},
            held_to=chosen,
            claimed=held_to is None,
            broken=broken,
            asked=asked or recorded,
            asker="the manifest asks for" if asked is not None else "build.json asked for",
            tokenizer=tokenizer,
            tokenizer_problem=tokenizer_problem,
            bundle=bundle,
        )

    def entries(self, name: str) -> Sequence[int] | None:
        """A per-cache value's entries."""
        tensor = self.published.get(name)
        return None if tensor is None else tensor["values"]

    def name_of(self, name: str) -> str:
        """The name, or the older one if the value is published under that alone."""
        older = OLDER_NAMES[name]
        return older if name not in self.published and older in self.published else name

    @property
    def forward(self) -> ForwardFacts | None:
        return self.evidence.forward

    @property
    def graph(self) -> GraphFacts | None:
        return self.evidence.forward.graph if self.evidence.forward else None

    @property
    def mode(self) -> str | None:
        """The published logits mode by name."""
        return MODES.get(self.published.get("get_logits_to_keep_mode", -1))

    @property
    def dtype(self) -> str | None:
        """The published activation dtype by name."""
        return DTYPES.get(self.published.get("get_activation_dtype", -1))

    @property
    def step(self) -> int | None:
        """The largest step, under either of its names."""
        found: int | None = self.published.get(self.name_of("get_max_seq_len"))
        return found

    @property
    def context(self) -> int | None:
        """The largest context, under either of its names."""
        found: int | None = self.published.get(self.name_of("get_max_context_len"))
        return found

    @property
    def stop_ids(self) -> Sequence[int] | None:
        """The published ends of text, of which there may be one alone."""
        ids = self.published.get("get_eos_ids")
        return [ids] if isinstance(ids, int) else ids

    @property
    def caches_outside(self) -> bool:
        """Whether the KV cache is published as lying outside the graph."""
        return any(name in self.evidence.constants for name in CACHE_METHODS)

    @cached_property
    def signature(self) -> tuple[TensorValue, TensorValue, tuple[TensorValue, ...]] | None:
        """Tokens, positions and selectors of ``forward``, where each is an int64 tensor of its rank."""
        inputs = self.forward.inputs if self.forward else ()
        found = [
            value
            for value, rank in zip(inputs, (2, 1, 1), strict=False)
            if isinstance(value, TensorValue) and value.dtype == "int64" and len(value.sizes) == rank
        ]
        if len(found) < 2 or len(found) != min(len(inputs), 3):
            return None
        return found[0], found[1], tuple(found[2:])

    @cached_property
    def logits(self) -> TensorValue | None:
        """``forward``'s one output, where it has the shape of logits. Without a published mode they may be one row."""
        outputs = self.forward.outputs if self.forward else ()
        if len(outputs) != 1:
            return None
        (logits,) = outputs
        ranks = (3,) if self.caches_outside or self.mode is not None else (2, 3)
        if not isinstance(logits, TensorValue) or len(logits.sizes) not in ranks or logits.sizes[0] != 1:
            return None
        return logits

    @property
    def logits_width(self) -> int | None:
        """How many entries a row of logits has."""
        return None if self.logits is None else self.logits.sizes[-1]
