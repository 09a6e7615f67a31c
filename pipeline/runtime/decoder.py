"""Prefill and decode of one sequence, from a ``.pte`` of either generation of the runner's contract.

Knows the forward signature and where history is kept; does not know text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import NamedTuple, cast

import mlx.core as mx

from pipeline.delegate.executor import Execution
from pipeline.delegate.plan import FAILURES
from pipeline.delegate.program import Program
from pipeline.errors import CacheError, DelegateError
from pipeline.pte import PteFile
from pipeline.runtime import published
from pipeline.runtime.graph_cache import GraphCache
from pipeline.runtime.kv_cache import KVCache
from pipeline.runtime.policy import CachePlan, CachePolicy
from pipeline.runtime.sampling import NO_TOKEN, tokens_of

Seen = Callable[[list[int], mx.array], None]
"""Is told of a step's logits, all that the artifact gave: positions of tokens, and [rows, vocab]."""

Choose = Callable[[mx.array, int, mx.array | None], mx.array]
"""The token that logits [vocab] choose, perhaps not computed yet; ``NO_TOKEN`` where they choose none.

The number is the position that the token will have. Where the token before it is not known yet, its array comes third.
"""


def likeliest(logits: mx.array, position: int, before: mx.array | None) -> mx.array:
    """The greedy choice: of several largest logits, the one with the lowest id."""
    return mx.argmax(logits)


def _unseen(positions: list[int], logits: mx.array) -> None:
    pass


class Decoder:
    """The artifact's ``forward`` with a cache bound to it, and the position where the next token goes.

    The cache is what the file publishes, geometry, largest step, context length and activation dtype, but for what
    ``policy`` chooses otherwise. Where history is in the graph's own buffers there is nothing to choose, and ``plan``
    is None. ``fused`` and ``device`` are those of ``MlxMethod``. Decoders of one ``Program`` share its constants.

    Raises DelegateError, VerifyError or CacheError, before anything is computed, for a file that cannot be decoded, or
    not as chosen.
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
        policy = policy or CachePolicy()
        self.where = program.pte.path.name
        self.published = published.read(program.pte.program, self.where, policy.capacity)
        self.contract = self.published.contract
        self.plan: CachePlan | None = None
        if self.published.in_graph:
            self._cache: KVCache | GraphCache = GraphCache.of(self.contract, policy, self.where)
        else:
            self.plan = policy.plan(self.contract)
            self._cache = KVCache.of(self.plan)
        self.max_write = self.contract.max_seq_len if self.plan is None else self.plan.max_write
        self._forward = program.method(published.FORWARD, self._cache, fused=fused, device=device)
        if not (self._forward.has_buffers if self.published.in_graph else self._forward.uses_cache):
            kept = "buffers of its own" if self.published.in_graph else "the cache that it publishes"
            raise DelegateError(
                f"{self.where}: its graph does not use {kept}, so that every step would forget the ones before; "
                "expected one that keeps history. Run pte verify on it."
            )

    @property
    def position(self) -> int:
        """The number of tokens in the history."""
        return self._cache.length

    @property
    def capacity(self) -> int:
        """The most tokens that the history may have."""
        return self._cache.capacity

    @property
    def cache_bytes(self) -> int:
        """What the history takes now."""
        return self._forward.buffer_bytes if self.published.in_graph else self._cache.nbytes

    @property
    def device(self) -> mx.Device:
        """Where MLX computes."""
        return self._forward.device

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self._cache.can_extend(num_tokens)

    def clear(self) -> None:
        """Forgets the history, and a step under way."""
        self._abandon()
        self._cache.clear()
        self._forward.reset()

    def rewind(self, length: int) -> bool:
        """Forgets all but the first ``length`` tokens. False, and nothing is changed, if they are no longer all there.

        That is so of rings that have been written round, and of a graph's own buffers, which can be emptied only.
        """
        self._abandon()
        if not length:
            self.clear()
            return True
        return self._cache.rewind(length)

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
            raise CacheError(f"{self.where}: the step has no tokens; expected at least 1.")
        for token in ids:
            # MLX reads an embedding's rows unchecked: an id beyond them is garbage, or the end of the process.
            if not 0 <= token < self.contract.vocab_size:
                raise DelegateError(
                    f"{self.where}: token id {token} is outside the vocabulary of {self.contract.vocab_size}. "
                    "Use the tokenizer that belongs to the model."
                )
        rows = self._rows(len(ids), selected)
        start = self.position
        logits = self._begun(mx.array([ids], mx.int64), rows).finish()[0]
        return [start + row for row in rows], logits[0]

    def _rows(self, num_tokens: int, selected: Sequence[int] | None) -> list[int]:
        """The tokens of a step that get logits, in the order of the rows."""
        mode = self.contract.logits
        if selected is None or mode != "selected":
            if selected is not None:
                raise DelegateError(
                    f"{self.where}: rows of logits are selected, and it gives {mode} logits. Export it with logits: "
                    "selected."
                )
            return list(range(num_tokens)) if mode == "full" else [num_tokens - 1]
        # MLX counts negative rows from the end and reads others unchecked.
        if not selected or not all(0 <= row < num_tokens for row in selected):
            raise DelegateError(
                f"{self.where}: rows {list(selected)} of logits are selected in a step of {num_tokens} tokens; "
                f"expected one or more of 0 to {num_tokens - 1}."
            )
        return list(selected)

    def prefill(self, ids: Sequence[int], chunk: int | None = None, seen: Seen = _unseen) -> Iterator[mx.array]:
        """Appends any number of tokens in steps of ``chunk``; yields each step's last logits, [vocab]."""
        if not self._cache.can_extend(len(ids)):
            raise CacheError(
                f"{self.where}: {len(ids)} tokens at position {self.position} exceed the context of "
                f"{self.capacity}. Shorten the text, or export with a larger max_context_len."
            )
        step = chunk or self.max_write
        for start in range(0, len(ids), step):
            yield self.feed(ids[start : start + step], seen)

    def greedy(
        self, prompt: Sequence[int], max_new_tokens: int, seen: Seen = _unseen
    ) -> Generator[tuple[int, mx.array]]:
        """Continues ``prompt`` with the likeliest tokens up to a stop token that is published; see ``decode``."""
        if not prompt:
            raise CacheError(f"{self.where}: the prompt has no tokens; expected at least 1 to continue.")
        *_, logits = self.prefill(prompt, seen=seen)
        yield from self.decode(logits, max_new_tokens, stop_ids=self.contract.eos_ids, seen=seen)

    def decode(
        self,
        logits: mx.array,
        max_new_tokens: int,
        choose: Choose = likeliest,
        *,
        stop_ids: Collection[int] = (),
        seen: Seen = _unseen,
    ) -> Generator[tuple[int, mx.array]]:
        """Continues the history, whose last token gave ``logits``; yields each token with the logits that chose it.

        Ends after a stop token, which is yielded, after ``max_new_tokens``, or when the context is full. While MLX
        computes a token, the step after it is prepared; it counts only once the caller asks for the next token. So the
        token that was yielded last is not in the history, at the end or when this is closed before it.
        """
        token, sound = self._chosen(choose, logits, self.position), self.position
        for remaining in reversed(range(max_new_tokens)):
            following = self._following(token, choose) if remaining and self.can_extend() else None
            try:
                chosen = self._waited_for(token, sound)
                sound = self.position
                yield chosen, logits
                if chosen in stop_ids or not remaining:
                    return
                if following is not None and following.step.is_open:
                    fed = self.position
                    following.step.commit()
                    seen([fed], following.logits[None])
                    logits, token = following.logits, following.token
                elif self.can_extend():
                    # Nothing runs ahead, or the caller has used the decoder in between.
                    logits = self.feed([chosen], seen)
                    token, sound = self._chosen(choose, logits, self.position), self.position
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
        start = self.position
        if isinstance(self._cache, GraphCache):
            self._cache.expect(length)
        end = start + (1 if self.published.takes_start else length)
        inputs = [tokens, mx.array(list(range(start, end)), mx.int64)]
        if self.contract.logits == "selected":
            inputs.append(mx.array(rows, mx.int64))
        step = self._forward.begin(*inputs)
        shape = step.outputs[0].shape
        if shape != (1, len(rows), self.contract.vocab_size):
            step.abandon()
            raise DelegateError(
                f"{self.where}: a step of {length} tokens gave logits {list(shape)}; expected "
                f"{[1, len(rows), self.contract.vocab_size]} for {self.contract.logits} logits. Run pte verify on it."
            )
        return step

    def _following(self, token: mx.array, choose: Choose) -> _Following | None:
        """The step after the one that chooses ``token``, begun before MLX knows what that is.

        None if it could not be taken back: where steps are of one token, a ring has lost what the step before needs.
        A choice is inside the vocabulary, or the last token if there is none: the step is then abandoned.
        """
        if self.max_write < 2 or self._forward.has_buffers:
            return None
        with mx.stream(self.device):
            step = self._begun(token.reshape(1, 1).astype(mx.int64), [0])
            try:
                logits = step.outputs[0][0, -1]
                following = _Following(step, logits, choose(logits, self.position + 1, token))
            except BaseException:
                step.abandon()
                raise
        step.start(logits, following.token)
        return following

    def _chosen(self, choose: Choose, logits: mx.array, position: int) -> mx.array:
        with mx.stream(self.device):
            return choose(logits, position, None)

    def _waited_for(self, token: mx.array, sound: int) -> int:
        """The token's number. If the step that chooses it failed, the history is again its first ``sound`` tokens."""
        try:
            number = number_of(token)
        except FAILURES as error:
            self._cache.abandon_step()
            self._cache.rewind(sound)
            raise DelegateError(f"{self.where} failed on {self.device}: {error}") from error
        if number == NO_TOKEN:
            tokens_of(token.reshape(1), self.where)
        return number

    def _abandon(self) -> None:
        if self._forward.under_way is not None:
            self._forward.under_way.abandon()


def number_of(token: mx.array) -> int:
    """The one element; waits for MLX to have computed it."""
    return cast(int, token.item())


class _Following(NamedTuple):
    """A step under way, its last logits and the token that they choose, none of which may be computed yet."""

    step: Execution
    logits: mx.array
    token: mx.array
