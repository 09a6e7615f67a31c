"""Chooses a token from logits: greedily, or by the usual filters and a seeded draw.

Filters and their order are those of Transformers' ``generate``: repetition penalty, temperature, top-k, top-p, min-p,
in float32. One thing is stricter: tokens of equal logits are kept or removed together by every filter, where
Transformers' top-p lets the order of their ids decide.

Nothing here waits for MLX. A choice is an array that may not be computed yet, so that a decoder can prepare the step
behind it; logits that choose nothing (NaN, or an infinite maximum) give ``NO_TOKEN``, which ``tokens_of`` refuses.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b
from typing import Any, cast

import mlx.core as mx

from pipeline.errors import SamplingError

NO_TOKEN = -1
"""An index that MLX reads from the end of a table: feeding it ahead of time harms nothing."""

SEEDS = 2**64


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are chosen. By default greedily: the likeliest, and of several the one with the lowest id.

    ``temperature`` 0 is greedy, and the filters then change nothing; ``top_k`` 0, ``top_p`` 1, ``min_p`` 0 and
    ``repetition_penalty`` 1 are off. Without a ``seed`` each sampler draws one.

    Raises SamplingError for a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is None and field.name == "seed":
                continue
            whole = field.name in ("top_k", "seed")
            number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            inside, expected = _RANGES[field.name]
            if not number or not math.isfinite(value) or not inside(value):
                raise SamplingError(f"{field.name} is {value!r}; expected {expected}.")


_RANGES: dict[str, tuple[Any, str]] = {
    "temperature": (
        # Beyond these, float32 has no difference left between two logits, or no number for it.
        lambda value: value == 0 or 1e-6 <= value <= 1e6,
        "0 for greedy decoding, or a number from 0.000001 to 1000000",
    ),
    "top_k": (lambda value: value >= 0, "a number of tokens, or 0 for all"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and up to 1, which is off"),
    "min_p": (lambda value: 0 <= value <= 1, "a number from 0, which is off, to 1"),
    "repetition_penalty": (
        lambda value: 0.01 <= value <= 100,
        "a number from 0.01 to 100; 1 is off, and more discourages repetition",
    ),
    "seed": (lambda value: 0 <= value < SEEDS, f"a whole number from 0 to {SEEDS - 1}"),
}


class Sampler:
    """Chooses the tokens of one sequence.

    A draw's chance depends on the seed and on the number of the draw alone: whoever numbers draws by positions in the
    text draws alike after a rewind, and whatever else is decoded at the same time changes nothing. ``seed`` is the one
    in use, given or not.
    """

    def __init__(self, sampling: Sampling = Sampling()) -> None:
        self.sampling = sampling
        self.seed = secrets.randbits(32) if sampling.seed is None else sampling.seed

    def choose(self, logits: mx.array, draw: int, history: Sequence[int] | mx.array = ()) -> mx.array:
        """The token that logits [vocab] choose, int32 and perhaps not computed yet, or ``NO_TOKEN``.

        ``draw`` numbers the choice, 0 or more. ``history`` are the ids of prompt and answer so far, which the
        repetition penalty alone looks at.
        """
        scores = _penalized(logits.astype(mx.float32), self.sampling.repetition_penalty, history)
        largest = mx.max(scores)
        if self.sampling.temperature:
            scores = self._filtered(scores, largest)
            # The largest sum of a logit and Gumbel noise is distributed as the softmax, whatever order tokens are in.
            scores = scores + mx.random.gumbel(scores.shape, key=self._key(draw))
        return _or_no_token(mx.argmax(scores), largest)

    def probabilities(self, logits: mx.array, history: Sequence[int] | mx.array = ()) -> mx.array:
        """What ``choose`` draws from: float32 [vocab], with zeros for what the filters remove.

        Greedy decoding has all of it at one token.
        """
        scores = _penalized(logits.astype(mx.float32), self.sampling.repetition_penalty, history)
        if not self.sampling.temperature:
            return mx.where(mx.arange(scores.size) == mx.argmax(scores), 1.0, 0.0)
        return mx.softmax(self._filtered(scores, mx.max(scores)))

    def _key(self, draw: int) -> mx.array:
        mixed = blake2b(f"{self.seed} {draw}".encode(), digest_size=8).digest()
        return cast(mx.array, mx.random.key(int.from_bytes(mixed, "little")))

    def _filtered(self, scores: mx.array, largest: mx.array) -> mx.array:
        """Scores over the temperature, the largest of them 0, and minus infinity for those that are removed."""
        asked = self.sampling
        scores = (scores - largest) / asked.temperature
        descending = None
        if 0 < asked.top_k < scores.size:
            descending = mx.sort(mx.topk(scores, asked.top_k))[::-1]
            scores = _at_least(scores, descending[-1])
        if asked.top_p < 1:
            if descending is None:
                descending = mx.sort(scores)[::-1]
            likelier = mx.cumsum(mx.exp(descending - mx.logsumexp(scores)), inclusive=False)
            # The first has none before it; in float32, top_p may be 0.
            num_kept = mx.maximum(mx.sum(likelier < asked.top_p), 1)
            scores = _at_least(scores, descending[num_kept - 1])
        if asked.min_p:
            scores = _at_least(scores, mx.array(math.log(asked.min_p), mx.float32))
        return scores


def choose_each(
    logits: mx.array,
    samplers: Sequence[Sampler],
    draws: Sequence[int],
    histories: Sequence[Sequence[int] | mx.array] | None = None,
) -> mx.array:
    """The tokens that the rows of logits [n, vocab] choose, int32 [n]: each what ``choose`` gives for it alone."""
    plain = [not sampler.sampling.temperature and sampler.sampling.repetition_penalty == 1 for sampler in samplers]
    if all(plain):
        return _or_no_token(mx.argmax(logits, axis=-1), mx.max(logits, axis=-1))
    histories = histories or [()] * len(samplers)
    rows = zip(samplers, draws, histories, strict=True)
    return mx.stack([sampler.choose(logits[row], draw, seen) for row, (sampler, draw, seen) in enumerate(rows)])


def tokens_of(chosen: mx.array, where: str) -> list[int]:
    """The ids of chosen tokens [n]; waits for MLX. Raises SamplingError, which names ``where``, if one is none."""
    tokens = cast(list[int], chosen.tolist())
    if NO_TOKEN in tokens:
        raise SamplingError(
            f"{where}: the logits are not finite numbers, so no token can be chosen from them; expected at most minus "
            "infinities beside finite ones. The weights are damaged, or too large for the dtype: try fp32."
        )
    return tokens


def _or_no_token(token: mx.array, largest: mx.array) -> mx.array:
    """A maximum is NaN where any logit is; it is infinite where no probabilities follow from it."""
    return mx.where(mx.isfinite(largest), token.astype(mx.int32), NO_TOKEN)


def _at_least(scores: mx.array, bound: mx.array) -> mx.array:
    return mx.where(scores < bound, -mx.inf, scores)


def _penalized(scores: mx.array, penalty: float, history: Sequence[int] | mx.array) -> mx.array:
    """Positive scores of tokens seen are divided by the penalty and negative ones multiplied, each once."""
    if penalty == 1:
        return scores
    seen = history if isinstance(history, mx.array) else mx.array(list(history), mx.int32)
    if not seen.size:
        return scores
    # MLX neither checks an index nor ignores it: tokens that have no logit are counted on one that is dropped.
    inside = (seen >= 0) & (seen < scores.size)
    marked = mx.zeros(scores.size + 1, mx.bool_)
    marked[mx.where(inside, seen, scores.size)] = True
    return mx.where(marked[:-1], mx.where(scores < 0, scores * penalty, scores / penalty), scores)
