"""Generation: ids in, ids out, with what was asked, what came of it, and how long it took. Knows no text.

An ``Engine`` remembers which ids its decoder's cache holds. A prompt is always the whole text; what of it the cache
holds already is not fed again, and where the cache cannot be taken back to it (a ring has lost the cells) the text is
fed anew. So whoever edits a conversation cannot get out of step with the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from time import perf_counter

import mlx.core as mx

from pipeline.errors import CacheError
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.sampling import Sampler, Sampling

GREEDY = Sampling()

LENGTH, STOP, CANCELLED = "length", "stop", "cancelled"


@dataclass(frozen=True, kw_only=True)
class Request:
    """At most ``max_new_tokens``, chosen as ``sampling`` says, up to any of ``stop_ids``, which is left out."""

    max_new_tokens: int
    sampling: Sampling = GREEDY
    stop_ids: Collection[int] = ()

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise CacheError(f"{self.max_new_tokens} new tokens are asked for; expected 0 or more.")


@dataclass
class Timings:
    """Seconds on ``time.perf_counter``'s clock, but for ``sampling``, which are those spent on recording choices.

    ``prompt_end`` is when the prompt had been fed and, if any token is asked for, the first one was known.
    """

    start: float
    prompt_end: float
    end: float
    sampling: float = 0.0


def _never() -> bool:
    return False


class Generation:
    """Iterate over it for the new tokens, as they are known. Close it to end it early.

    ``prompt`` has ``num_reused`` tokens that the cache held already. ``budget`` is how many tokens may come, less than
    ``asked`` where the cache's capacity is in the way. ``tokens`` are those that came. ``finish`` is ``stop``, at
    ``stop_id``; ``length``, at the budget; or ``cancelled``, which it is until the others are.
    """

    def __init__(
        self, engine: Engine, prompt: Sequence[int], request: Request, is_cancelled: Callable[[], bool]
    ) -> None:
        self.prompt = list(prompt)
        self.asked = request.max_new_tokens
        self.budget = min(self.asked, engine.decoder.capacity - len(self.prompt))
        self.num_reused = 0
        self.tokens: list[int] = []
        self.stop_id: int | None = None
        self.finish = CANCELLED
        now = perf_counter()
        self.timings = Timings(now, now, now)
        self._engine = engine
        self._request = request
        self._is_cancelled = is_cancelled
        self._sampler = Sampler(request.sampling)
        self._steps = self._run()

    @property
    def seed(self) -> int:
        """The seed in use, given or not."""
        return self._sampler.seed

    @property
    def text(self) -> list[int]:
        """Prompt and new tokens."""
        return self.prompt + self.tokens

    def __iter__(self) -> Iterator[int]:
        return self._steps

    def close(self) -> None:
        """No more tokens are wanted. The cache holds the prompt, if that was fed, and all tokens but the last."""
        self._steps.close()

    def _run(self) -> Generator[int]:
        decoder, timings = self._engine.decoder, self.timings
        timings.start = timings.prompt_end = timings.end = perf_counter()
        try:
            self.num_reused = self._engine.begin(self)
            *_, logits = self._prefilled()
            timings.prompt_end = perf_counter()
            if self._is_cancelled():
                return
            with closing(decoder.decode(logits, self.budget, self._choose, stop_ids=self._request.stop_ids)) as steps:
                for token, _ in steps:
                    if not self.tokens:
                        timings.prompt_end = perf_counter()
                    if token in self._request.stop_ids:
                        self.finish, self.stop_id = STOP, token
                        return
                    self.tokens.append(token)
                    yield token
                    if self._is_cancelled():
                        return
            self.finish = LENGTH
        finally:
            timings.end = perf_counter()

    def _prefilled(self) -> Iterator[mx.array]:
        for logits in self._engine.decoder.prefill(self.prompt[self.num_reused :]):
            yield logits
            if self._is_cancelled():
                return

    def _choose(self, logits: mx.array, position: int, before: mx.array | None) -> mx.array:
        start = perf_counter()
        history: mx.array | tuple[()] = ()
        if self._request.sampling.repetition_penalty != 1:
            history = mx.array(self.text, mx.int32)
            if before is not None:
                history = mx.concatenate([history, before.reshape(1).astype(mx.int32)])
        token = self._sampler.choose(logits, position, history)
        self.timings.sampling += perf_counter() - start
        return token


class Engine:
    """A decoder, and the ids that its cache holds."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._latest: Generation | None = None

    @property
    def held(self) -> list[int]:
        """The ids that the cache holds."""
        return [] if self._latest is None else self._latest.text[: self.decoder.position]

    def admit(self, prompt: Sequence[int], request: Request) -> None:
        """Raises CacheError for a prompt without tokens, and for one that leaves no room for an answer of one token."""
        where = self.decoder.where
        if not prompt:
            raise CacheError(f"{where}: the prompt has no tokens; expected at least 1 to continue.")
        needed = len(prompt) + bool(request.max_new_tokens)
        if needed > self.decoder.capacity:
            raise CacheError(
                f"{where}: the text has {len(prompt)} tokens, and the cache holds {self.decoder.capacity}; expected "
                "room for at least one more. Shorten the text, or raise the capacity (--kv-max-capacity), which the "
                "artifact's context bounds."
            )

    def generate(
        self, prompt: Sequence[int], request: Request, is_cancelled: Callable[[], bool] = _never
    ) -> Generation:
        """Continues ``prompt``, the whole text. It begins when it is iterated over, and ends an earlier one.

        ``is_cancelled`` is asked after each step. Raises CacheError for what is not admitted.
        """
        self.admit(prompt, request)
        return Generation(self, prompt, request, is_cancelled)

    def begin(self, generation: Generation) -> int:
        """Takes the cache back to what it holds of the generation's prompt; returns how many tokens those are.

        The last one is never among them: the first new token is chosen from its logits.
        """
        if self._latest is not None:
            self._latest.close()
        common = min(_num_common(self.held, generation.prompt), len(generation.prompt) - 1)
        if not self.decoder.rewind(common):
            self.decoder.clear()
        self._latest = generation
        return self.decoder.position

    def clear(self) -> None:
        """Forgets all."""
        if self._latest is not None:
            self._latest.close()
        self._latest = None
        self.decoder.clear()


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
