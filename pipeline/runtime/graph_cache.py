"""Stands in for a cache where history is in the graph's own mutable buffers: counts the tokens that they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import mlx.core as mx

from pipeline.contract import Contract
from pipeline.errors import CacheError
from pipeline.runtime.policy import CachePolicy


class GraphCache:
    """``length`` tokens of at most ``capacity``; a ``BoundCache`` that no graph reads.

    What a graph keeps in which buffer is its own affair, so that tokens cannot be taken back one by one.
    """

    def __init__(self, capacity: int, where: str) -> None:
        self.capacity = capacity
        self.length = 0
        self._where = where
        self._num_expected = 0

    @classmethod
    def of(cls, contract: Contract, policy: CachePolicy, where: str) -> Self:
        """Raises CacheError if anything is chosen: the graph has fixed it all."""
        if policy != CachePolicy():
            raise CacheError(
                f"{where}: its KV cache is in its graph, with the capacity, storage and windows that it was exported "
                "with; expected nothing to be chosen. Leave the --kv- options out, or export it with cache.placement: "
                "off_graph."
            )
        return cls(contract.max_context_len, where)

    @property
    def nbytes(self) -> int:
        """None of its own."""
        return 0

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self.length + num_tokens <= self.capacity

    def expect(self, num_tokens: int) -> None:
        """The next step is of so many tokens. Raises CacheError if they do not fit: a graph would not notice."""
        if not self.can_extend(num_tokens):
            raise CacheError(
                f"{self._where}: a step of {num_tokens} tokens at position {self.length} exceeds the context of "
                f"{self.capacity}. Start a new text, or export it with a larger context."
            )
        self._num_expected = num_tokens

    def clear(self) -> None:
        """Nothing is held any more; the buffers are the method's to reset."""
        self.length = self._num_expected = 0

    def rewind(self, length: int) -> bool:
        """Whether all but the first ``length`` tokens are forgotten: only if there are no others."""
        return length == self.length

    def commit_step(self) -> None:
        """The step's tokens are held from now on."""
        self.length += self._num_expected
        self._num_expected = 0

    def abandon_step(self) -> None:
        """The step changed nothing."""
        self._num_expected = 0

    def update_and_fetch(
        self, layer_id: int, keys: mx.array, values: mx.array, positions: Sequence[int]
    ) -> tuple[mx.array, mx.array, mx.array | str | None]:
        """Raises CacheError: a graph that asks for this uses an off-graph cache."""
        raise CacheError(
            f"{self._where}: its graph uses an off-graph KV cache (cache {layer_id}), and it publishes no get_n_caches "
            "to build one by. Export it anew, with the off-graph cache's geometry."
        )
