"""Texts one after another, for artifacts that decode one at a time; to whoever asks for texts, it is as a ``Batch``.

What a text has in common with the one before it is not fed again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pipeline.errors import PipelineError
from pipeline.runtime.batching import FAILED, Job, check_prompt
from pipeline.runtime.generate import CANCELLED, STOP, Engine, Generation


class OneByOne:
    """Continues one text at a time; others wait. Not for several threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: deque[Job] = deque()
        self._current: tuple[Job, Generation, Iterator[int]] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._current is None and not self._waiting

    @property
    def num_running(self) -> int:
        """Texts that are being continued."""
        return int(self._current is not None)

    @property
    def max_context(self) -> int:
        """The most tokens that one text may have."""
        return self._engine.decoder.capacity

    @property
    def where(self) -> str:
        """The file's name, for errors."""
        return self._engine.decoder.where

    def submit(self, job: Job) -> None:
        """The text waits for its turn. Raises CacheError if there is no room for it."""
        check_prompt(job.prompt, job.request, self.max_context, self.where)
        self._waiting.append(job)

    def cancel(self, job: Job) -> None:
        """The text is no longer wanted, if it has not ended yet."""
        if job in self._waiting:
            self._waiting.remove(job)
            job.end(CANCELLED)
        elif self._current is not None and self._current[0] is job:
            self._end(CANCELLED)

    def step(self) -> None:
        """One more token, if there is anything to do; whoever listens is told."""
        if self._current is None:
            if not self._waiting:
                return
            job = self._waiting.popleft()
            generation = self._engine.generate(job.prompt, job.request, lambda: job.is_unwanted)
            self._current = job, generation, iter(generation)
        job, generation, tokens = self._current
        try:
            token = next(tokens, None)
            if token is None:
                self._end(generation.finish)
                return
            job.num_new += 1
            if not job.listener.token(token):
                self._end(STOP)
        except PipelineError as error:
            self._end(FAILED, error)

    def _end(self, finish: str, error: PipelineError | None = None) -> None:
        assert self._current is not None
        job, generation, _ = self._current
        self._current = None
        generation.close()
        job.num_reused = generation.num_reused
        job.end(finish, error)
