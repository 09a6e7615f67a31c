"""The artifact's ``forward`` over cells that many sequences share: one step has tokens of any of them.

Knows the runner's contract and the forward signature; what a step consists of, and what its logits choose, is decided
elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import mlx.core as mx

from pipeline.delegate.executor import Execution
from pipeline.delegate.program import Program
from pipeline.errors import DelegateError
from pipeline.runtime import published
from pipeline.runtime.cell_cache import CellCache
from pipeline.runtime.policy import CachePolicy

BATCHED_MODES = ("selected", "full")
"""Modes of logits that several sequences of one step can each have a row of."""


def why_not_batched(found: published.Published) -> str | None:
    """Why an artifact cannot decode several texts in one step, or None if it can."""
    if found.in_graph:
        return "its KV cache is in its graph, which holds one text; export it with cache.placement: off_graph"
    if found.takes_start:
        return "its forward is told where a step starts, and not where each of its tokens is"
    if found.contract.logits not in BATCHED_MODES:
        return f"a step of it gives the logits of one token ({found.contract.logits}); export it with logits: selected"
    return None


class PackedDecoder:
    """``max_step`` tokens fit into a step, ``max_rows`` of which may be given logits for.

    Raises DelegateError, before anything is computed, for an artifact that cannot decode several texts in one step.
    """

    def __init__(
        self,
        program: Program,
        *,
        num_sequences: int,
        policy: CachePolicy | None = None,
        fused: bool = True,
        device: mx.Device | None = None,
    ) -> None:
        policy = policy or CachePolicy()
        self.where = program.pte.path.name
        self.published = published.read(program.pte.program, self.where, policy.capacity)
        self.contract = self.published.contract
        reason = why_not_batched(self.published)
        if reason is not None:
            raise DelegateError(f"{self.where} decodes one text at a time: {reason}.")
        self.plan = policy.plan(self.contract, num_sequences=num_sequences)
        self.cache = CellCache.of(self.plan)
        self.table = self.cache.table
        self._forward = program.method(published.FORWARD, self.cache, fused=fused, device=device)
        self.max_step = self.plan.max_write
        self._selects = self.contract.logits == "selected"
        self.max_rows = min(self.max_step, self._forward.inputs[2].sizes[0]) if self._selects else self.max_step

    @property
    def device(self) -> mx.Device:
        """Where MLX computes."""
        return self._forward.device

    @property
    def max_context(self) -> int:
        """The most tokens that one text may have."""
        return min(self.plan.max_context, self.plan.capacity)

    def begin(self, sequences: Sequence[int], ids: Sequence[int], rows: Sequence[int]) -> tuple[Execution, mx.array]:
        """A step that appends each of ``ids`` to its sequence; and the logits of ``rows`` of it, [rows, vocab].

        It is recorded, and neither computed nor committed. Raises CacheError or DelegateError for one that cannot be
        taken; every sequence is then as it was.
        """
        for token in ids:
            # MLX reads an embedding's rows unchecked: an id beyond them is garbage, or the end of the process.
            if not 0 <= token < self.contract.vocab_size:
                raise DelegateError(
                    f"{self.where}: token id {token} is outside the vocabulary of {self.contract.vocab_size}. "
                    "Use the tokenizer that belongs to the model."
                )
        self._check_rows(rows, len(ids))
        inputs = [mx.array([list(ids)], mx.int64), mx.array(self._positions(sequences), mx.int64)]
        self.table.declare_step(sequences)
        # A graph gives at least one row, wanted or not.
        given = list(rows) or [len(ids) - 1]
        if self._selects:
            inputs.append(mx.array(given, mx.int64))
        step = self._forward.begin(*inputs)
        logits = step.outputs[0]
        expected = (1, len(given) if self._selects else len(ids), self.contract.vocab_size)
        if logits.shape != expected:
            step.abandon()
            raise DelegateError(
                f"{self.where}: a step of {len(ids)} tokens gave logits {list(logits.shape)}; expected "
                f"{list(expected)} for {self.contract.logits} logits. Run pte verify on it."
            )
        with mx.stream(self.device):
            chosen = logits[0] if self._selects else logits[0][mx.array(given, mx.int32)]
        return step, chosen

    def _check_rows(self, rows: Sequence[int], num_tokens: int) -> None:
        # MLX counts negative rows from the end and reads others unchecked.
        if len(rows) > self.max_rows or not all(0 <= row < num_tokens for row in rows):
            raise DelegateError(
                f"{self.where}: rows {list(rows)[:8]} of logits are selected in a step of {num_tokens} tokens; "
                f"expected at most {self.max_rows} of 0 to {num_tokens - 1}."
            )

    def _positions(self, sequences: Sequence[int]) -> list[int]:
        known = Counter({sequence: self.table.pos(sequence) for sequence in set(sequences)})
        positions = []
        for sequence in sequences:
            positions.append(known[sequence])
            known[sequence] += 1
        return positions
