"""Prefill and greedy decode of one sequence, from a verified ``.pte``.

Knows the runner's contract and the forward signature; does not know text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

import mlx.core as mx

from pipeline.contract import SCALAR_TYPE, Contract
from pipeline.delegate.dtypes import BY_CODE
from pipeline.delegate.executor import MlxMethod
from pipeline.errors import CacheError, DelegateError
from pipeline.pte import PteFile
from pipeline.runtime.kv_cache import KVCache

Seen = Callable[[list[int], mx.array], None]
"""Is told of a step's logits, all that the artifact gave: positions of tokens, and [rows, vocab]."""


def _unseen(positions: list[int], logits: mx.array) -> None:
    pass


class Decoder:
    """The artifact's ``forward`` with a cache bound to it, and the position where the next token goes.

    The cache is built from what the file publishes alone: geometry, largest step, context length and activation dtype.
    """

    def __init__(self, pte: PteFile) -> None:
        self.contract = Contract.read(pte.program.constants(), pte.path.name)
        self._where = pte.path.name
        self._cache = KVCache(
            self.contract.caches,
            capacity=self.contract.max_context_len,
            max_write=self.contract.max_seq_len,
            dtype=BY_CODE[SCALAR_TYPE[self.contract.dtype]],
        )
        self._forward = MlxMethod(pte, cache=self._cache)

    @property
    def position(self) -> int:
        """The number of tokens in the history."""
        return self._cache.length

    def clear(self) -> None:
        """Forgets the history."""
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
        inputs = [mx.array([ids], mx.int64), mx.arange(start, start + len(ids), dtype=mx.int64)]
        if self.contract.logits == "selected":
            inputs.append(mx.array(rows, mx.int64))
        (logits,) = self._forward(*inputs)
        if logits.shape != (1, len(rows), self.contract.vocab_size):
            raise DelegateError(
                f"{self._where}: a step of {len(ids)} tokens gave logits {list(logits.shape)}; expected "
                f"{[1, len(rows), self.contract.vocab_size]} for {self.contract.logits} logits. Run pte verify on it."
            )
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
        step = chunk or self.contract.max_seq_len
        for start in range(0, len(ids), step):
            yield self.feed(ids[start : start + step], seen)

    def greedy(
        self, prompt: Sequence[int], max_new_tokens: int, seen: Seen = _unseen
    ) -> Iterator[tuple[int, mx.array]]:
        """Continues ``prompt``; yields each chosen token with the logits it was chosen from, a stop token included.

        Ends after a stop token, after ``max_new_tokens``, or when the context is full.
        """
        if not prompt:
            raise CacheError(f"{self._where}: the prompt has no tokens; expected at least 1 to continue.")
        *_, logits = self.prefill(prompt, seen=seen)
        for generated in range(max_new_tokens):
            token = cast(int, mx.argmax(logits).item())
            yield token, logits
            if token in self.contract.eos_ids or generated + 1 == max_new_tokens or not self._cache.can_extend():
                return
            logits = self.feed([token], seen)
