"""Several texts at once over one cache, each decoded as it would be alone.

A ``Batch`` takes steps: one call of the artifact each, with tokens of every text that is in. Texts come and go between
steps. Whose tokens those are is planned in ``schedule``. Whatever is chosen for a text depends on its own logits, seed
and positions; what it shares a step with moves its logits by rounding at most.

A step that fails is taken again text by text, so that it costs only the one it fails with. Logits that are not finite
may be another text's doing, since cells are read by all: then everything is fed again, alone at first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import mlx.core as mx

from pipeline.delegate.plan import FAILURES
from pipeline.errors import CacheError, DelegateError, PipelineError
from pipeline.runtime.generate import CANCELLED, LENGTH, STOP, Request
from pipeline.runtime.packed import PackedDecoder
from pipeline.runtime.sampling import NO_TOKEN, Sampler, choose_each, tokens_of
from pipeline.runtime.schedule import Schedule, Span, Text

FAILED = "failed"


class Listener(Protocol):
    """Who is told what comes of a text."""

    def token(self, token: int) -> bool:
        """A new token of it, no stop id. Returns whether more are wanted."""
        ...

    def end(self, job: Job) -> None:
        """No more will come."""
        ...


@dataclass(eq=False)
class Job:
    """A prompt to be continued. ``finish`` is why it ended: ``stop``, ``length``, ``cancelled``, or ``failed``.

    ``num_reused`` tokens of the prompt were in the cache, ``num_new`` have come. ``error`` is what it failed with. Any
    thread may set ``is_unwanted``, which ends a long prefill early; it is cancelled all the same.
    """

    prompt: Sequence[int]
    request: Request
    listener: Listener
    finish: str | None = None
    error: PipelineError | None = None
    num_reused: int = 0
    num_new: int = 0
    is_unwanted: bool = False
    sampler: Sampler = field(init=False)

    def __post_init__(self) -> None:
        self.sampler = Sampler(self.request.sampling)

    def end(self, finish: str, error: PipelineError | None = None) -> None:
        """It has ended, and whoever listens is told."""
        self.finish, self.error = finish, error
        self.listener.end(self)


def check_prompt(prompt: Sequence[int], request: Request, capacity: int, where: str) -> None:
    """Raises CacheError for a prompt that has no tokens, or leaves no room in the cache for what is asked."""
    if not prompt:
        raise CacheError(f"{where}: the prompt has no tokens; expected at least 1 to continue.")
    if len(prompt) + bool(request.max_new_tokens) > capacity:
        raise CacheError(
            f"{where}: the text has {len(prompt)} tokens, and the cache holds {capacity} of it; expected room for at "
            "least one more. Shorten the text, or raise the capacity (--kv-max-capacity), which the artifact's context "
            "bounds."
        )


class Batch:
    """Continues at most ``max_running`` texts at once; others wait. Not for several threads.

    Of texts that have ended, ``max_kept`` tokens are kept for those that begin like them.
    """

    def __init__(self, decoder: PackedDecoder, *, max_running: int, max_kept: int = 0) -> None:
        self.decoder = decoder
        self._schedule = Schedule(
            table=decoder.table,
            max_step=decoder.max_step,
            max_rows=decoder.max_rows,
            max_running=max_running,
            max_kept=max_kept,
        )
        self._jobs: dict[Text, Job] = {}
        # Whether texts are tried alone since logits were not finite.
        self._is_clean = False

    @property
    def max_context(self) -> int:
        """The most tokens that one text may have."""
        return self.decoder.max_context

    @property
    def where(self) -> str:
        """The file's name, for errors."""
        return self.decoder.where

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._jobs

    @property
    def num_running(self) -> int:
        """Texts that are being continued."""
        return len(self._schedule.running)

    def submit(self, job: Job) -> None:
        """The text waits for its turn. Raises CacheError if it could never be let in."""
        check_prompt(job.prompt, job.request, self.max_context, self.where)
        budget = min(job.request.max_new_tokens, self.max_context - len(job.prompt))
        text = Text(ids=list(job.prompt), budget=budget)
        self._jobs[text] = job
        self._schedule.add(text)

    def cancel(self, job: Job) -> None:
        """The text is no longer wanted, if it has not ended yet: its cells are free."""
        for text in [text for text, known in self._jobs.items() if known is job]:
            self._end(text, CANCELLED)

    def step(self) -> None:
        """Takes one step, if there is anything to do, and tells those whose texts it was about."""
        spans = self._schedule.next_step()
        if not spans:
            return
        lasts = [span.text for span in spans if span.is_last]
        try:
            tokens = self._taken(spans, lasts)
        except PipelineError as error:
            self._failed(spans, error)
            return
        if lasts and max(tokens) == NO_TOKEN and not (self._schedule.tries_alone and self._is_clean):
            # Nobody has logits: one is at fault, or one that has none in this step.
            self._is_clean = True
            self._schedule.begin_anew()
            return
        self._schedule.fed(spans)
        for text, token in zip(lasts, tokens, strict=True):
            self._chosen(text, token)
        if not self._schedule.tries_alone:
            self._is_clean = False

    def _taken(self, spans: Sequence[Span], lasts: Sequence[Text]) -> list[int]:
        """The tokens that follow ``lasts``, once the step has been computed and counts."""
        sequences = [span.sequence for span in spans for _ in span.ids]
        ids = [token for span in spans for token in span.ids]
        rows, end = [], 0
        for span in spans:
            end += len(span.ids)
            if span.is_last:
                rows.append(end - 1)
        step, logits = self.decoder.begin(sequences, ids, rows)
        if not lasts:
            step.finish()
            return []
        try:
            with mx.stream(self.decoder.device):
                chosen = self._choice(logits, lasts)
            step.start(chosen)
            tokens = cast(list[int], chosen.tolist())
        except FAILURES as error:
            step.abandon()
            raise DelegateError(f"{self.decoder.where} failed on {self.decoder.device}: {error}") from error
        except BaseException:
            step.abandon()
            raise
        step.commit()
        return tokens

    def _choice(self, logits: mx.array, texts: Sequence[Text]) -> mx.array:
        samplers = [self._jobs[text].sampler for text in texts]
        return choose_each(logits, samplers, [len(text.ids) for text in texts], [text.ids for text in texts])

    def _chosen(self, text: Text, token: int) -> None:
        job = self._jobs[text]
        if token == NO_TOKEN:
            self._blamed(text)
        elif not text.budget:
            self._end(text, LENGTH)
        elif token in job.request.stop_ids:
            self._end(text, STOP)
        else:
            text.ids.append(token)
            job.num_new += 1
            try:
                is_more_wanted = job.listener.token(token)
            except PipelineError as error:
                self._end(text, FAILED, error)
                return
            if not is_more_wanted:
                self._end(text, STOP)
            elif job.num_new == text.budget:
                self._end(text, LENGTH)

    def _blamed(self, text: Text) -> None:
        """The text's own logits are no numbers: in clean cells, or beside others whose logits are."""
        try:
            tokens_of(mx.array([NO_TOKEN]), self.decoder.where)
        except PipelineError as error:
            self._end(text, FAILED, error, keep=False)
        # Who comes next is not to be blamed for what this one leaves.
        self.decoder.cache.wipe()

    def _failed(self, spans: Sequence[Span], error: PipelineError) -> None:
        if len(spans) == 1:
            self._end(spans[0].text, FAILED, error, keep=False)
        else:
            self._schedule.try_alone(span.text for span in spans)

    def _end(self, text: Text, finish: str, error: PipelineError | None = None, *, keep: bool = True) -> None:
        job = self._jobs.pop(text)
        job.num_reused = text.num_shared
        self._schedule.end(text, keep=keep)
        job.end(finish, error)
