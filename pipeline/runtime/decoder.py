"""Prefill and greedy decode of one sequence, from a verified ``.pte``.

Knows the runner's contract and the forward signature; does not know text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from pipeline.contract import Contract
from pipeline.delegate.executor import Execution
from pipeline.delegate.plan import FAILURES
from pipeline.delegate.program import Program
from pipeline.errors import CacheError, DelegateError
from pipeline.pte import PteFile
from pipeline.runtime.kv_cache import KVCache
from pipeline.runtime.policy import CachePolicy

Seen = Callable[[list[int], mx.array], None]
"""Is told of a step's logits, all that the artifact gave: positions of tokens, and [rows, vocab]."""


def _unseen(positions: list[int], logits: mx.array) -> None:
    pass


class Decoder:
    """The artifact's ``forward`` with a cache bound to it, and the position where the next token goes.

    The cache is what the file publishes, geometry, largest step, context length and activation dtype, but for what
    ``policy`` chooses otherwise. ``fused`` and ``device`` are those of ``MlxMethod``. Decoders of one ``Program`` share
    its constants.
    """

    def __init__(
        self,
        source: Program | PteFile,
        *,
        policy: CachePolicy | None = None,
        fused: bool = True,
        device: mx.Device | None = None,
    ) -> None:
        program = source if isinstance(source, Program) else Program(source)
        pte = program.pte
        self.contract = Contract.read(pte.program.constants(), pte.path.name)
        self._where = pte.path.name
        self.plan = (policy or CachePolicy()).plan(self.contract)
        self._cache = KVCache.of(self.plan)
        self._forward = program.method(cache=self._cache, fused=fused, device=device)

    @property
    def position(self) -> int:
        """The number of tokens in the history."""
        return self._cache.length

    def clear(self) -> None:
        """Forgets the history, and a step under way."""
        if self._forward.under_way is not None:
            self._forward.under_way.abandon()
        self._cache.clear()

    def feed(self, ids: Sequence[int], seen: Seen = _unseen) -> mx.array:
        """Appends 1 to ``max_seq_len`` tokens in one step; returns the last one's logits, [vocab].

        ``seen`` is called with what ``step`` returns.
        """
        positions, logits = self.step(ids)
        seen(positions, logits)
        return logits[-1]

    def step(self, ids: Sequence[int], selected: Sequence[int] | None = None) -> tuple[list[int], mx.array]:
        """Appends 1 to ``max_seq_len`` tokens in one step; returns all the logits that the artifact gives for it.

        They are [rows, vocab], and before them come the positions of the tokens that they belong to. Which tokens
        those are is the artifact's mode: the last, all, or those that are ``selected``, counted from 0 in the step, and
        the last alone by default.
        """
        if not ids:
            raise CacheError(f"{self._where}: the step has no tokens; expected at least 1.")
        for token in ids:
            # MLX reads an embedding's rows unchecked: an id beyond them is garbage, or the end of the process.
            if not 0 <= token < self.contract.vocab_size:
                raise DelegateError(
                    f"{self._where}: token id {token} is outside the vocabulary of {self.contract.vocab_size}. "
                    "Use the tokenizer that belongs to the model."
                )
        rows = self._rows(len(ids), selected)
        start = self.position
        (logits,) = self._begun(mx.array([ids], mx.int64), rows).finish()
        return [start + row for row in rows], logits[0]

    def _rows(self, num_tokens: int, selected: Sequence[int] | None) -> list[int]:
        """The tokens of a step that get logits, in the order of the rows."""
        mode = self.contract.logits
        if selected is None or mode != "selected":
            if selected is not None:
                raise DelegateError(
                    f"{self._where}: rows of logits are selected, and it gives {mode} logits. Export it with logits: "
                    "selected."
                )
            return list(range(num_tokens)) if mode == "full" else [num_tokens - 1]
        # MLX counts negative rows from the end and reads others unchecked.
        if not selected or not all(0 <= row < num_tokens for row in selected):
            raise DelegateError(
                f"{self._where}: rows {list(selected)} of logits are selected in a step of {num_tokens} tokens; "
                f"expected one or more of 0 to {num_tokens - 1}."
            )
        return list(selected)

    def prefill(self, ids: Sequence[int], chunk: int | None = None, seen: Seen = _unseen) -> Iterator[mx.array]:
        """Appends any number of tokens in steps of ``chunk``; yields each step's last logits, [vocab]."""
        if not self._cache.can_extend(len(ids)):
            raise CacheError(
                f"{self._where}: {len(ids)} tokens at position {self.position} exceed the context of "
                f"{self._cache.capacity}. Shorten the text, or export with a larger max_context_len."
            )
        step = chunk or self.plan.max_write
        for start in range(0, len(ids), step):
            yield self.feed(ids[start : start + step], seen)

    def greedy(
        self, prompt: Sequence[int], max_new_tokens: int, seen: Seen = _unseen
    ) -> Iterator[tuple[int, mx.array]]:
        """Continues ``prompt``; yields each chosen token with the logits it was chosen from, a stop token included.

        Ends after a stop token, after ``max_new_tokens``, or when the context is full. While MLX computes a token, the
        step after it is prepared; it counts only once the caller asks for the next token.
        """
        if not prompt:
            raise CacheError(f"{self._where}: the prompt has no tokens; expected at least 1 to continue.")
        *_, logits = self.prefill(prompt, seen=seen)
        token, sound = self._likeliest(logits), self.position
        for remaining in reversed(range(max_new_tokens)):
            following = self._following(token) if remaining and self._cache.can_extend() else None
            try:
                chosen = self._waited_for(token, sound)
                sound = self.position
                yield chosen, logits
                if chosen in self.contract.eos_ids or not remaining:
                    return
                if following is not None and following.step.is_open:
                    fed = self.position
                    following.step.commit()
                    seen([fed], following.logits[None])
                    logits, token = following.logits, following.token
                elif self._cache.can_extend():
                    # Nothing runs ahead, or the caller has used the decoder in between.
                    logits = self.feed([chosen], seen)
                    token, sound = self._likeliest(logits), self.position
                else:
                    return
            finally:
                if following is not None:
                    following.step.abandon()

    def _begun(self, tokens: mx.array, rows: list[int]) -> Execution:
        """The step that appends tokens [1, T] and gives logits of ``rows`` of them.

        Positions and rows are numbers that the host knows: nobody waits for them.
        """
        length = tokens.shape[1]
        inputs = [tokens, mx.array(list(range(self.position, self.position + length)), mx.int64)]
        if self.contract.logits == "selected":
            inputs.append(mx.array(rows, mx.int64))
        step = self._forward.begin(*inputs)
        shape = step.outputs[0].shape
        if shape != (1, len(rows), self.contract.vocab_size):
            step.abandon()
            raise DelegateError(
                f"{self._where}: a step of {length} tokens gave logits {list(shape)}; expected "
                f"{[1, len(rows), self.contract.vocab_size]} for {self.contract.logits} logits. Run pte verify on it."
            )
        return step

    def _following(self, token: mx.array) -> _Following | None:
        """The step after the one that chooses ``token``, begun before MLX knows what that is.

        None if it could not be taken back: where steps are of one token, a ring has lost what the step before needs.
        The index of the largest of as many logits as there are tokens is inside the vocabulary.
        """
        if self.plan.max_write < 2 or self._forward.has_buffers:
            return None
        with mx.stream(self._forward.device):
            step = self._begun(token.reshape(1, 1).astype(mx.int64), [0])
            logits = step.outputs[0][0, -1]
            following = _Following(step, logits, mx.argmax(logits))
        step.start(logits, following.token)
        return following

    def _likeliest(self, logits: mx.array) -> mx.array:
        with mx.stream(self._forward.device):
            return mx.argmax(logits)

    def _waited_for(self, token: mx.array, sound: int) -> int:
        """The token's number. If the step that chooses it failed, the history is again its first ``sound`` tokens."""
        try:
            return number_of(token)
        except FAILURES as error:
            self._cache.abandon_step()
            self._cache.rewind(sound)
            raise DelegateError(f"{self._where} failed on {self._forward.device}: {error}") from error


def number_of(token: mx.array) -> int:
    """The one element; waits for MLX to have computed it."""
    return cast(int, token.item())


class _Following(NamedTuple):
    """A step under way, its last logits and the token that they choose, none of which may be computed yet."""

    step: Execution
    logits: mx.array
    token: mx.array
