"""Tokens from MLX's thread, as text for those who wait for it in the event loop's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass

from pipeline.runtime.batching import FAILED, Job
from pipeline.runtime.generate import CANCELLED, LENGTH, Request
from pipeline.serving.worker import Worker, stopped
from pipeline.session.served import Served
from pipeline.text.reply import Reply


@dataclass(frozen=True)
class Piece:
    """Some text of the choice with this number."""

    index: int
    text: str


@dataclass(frozen=True)
class End:
    """The choice has ended, for OpenAI's reason."""

    index: int
    reason: str


Event = Piece | End


class _Choice:
    """Listens to one text; called in MLX's thread."""

    def __init__(self, index: int, reply: Reply, events: Answers) -> None:
        self._index = index
        self._reply = reply
        self._events = events

    def token(self, token: int) -> bool:
        self._show(self._reply.add(token))
        return self._reply.stopped_by is None

    def end(self, job: Job) -> None:
        if job.finish == FAILED:
            assert job.error is not None
            self._events.post(job.error)
            return
        if job.finish == CANCELLED:
            # Whoever has not left must not take it for a whole answer.
            self._events.post(stopped())
            return
        if self._reply.stopped_by is None:
            self._show(self._reply.flush())
        is_cut = job.finish == LENGTH and self._reply.stopped_by is None
        self._events.post(End(self._index, "length" if is_cut else "stop"))

    def _show(self, text: str) -> None:
        if text:
            self._events.post(Piece(self._index, text))


class Answers:
    """What comes of each of ``continuations``, in one line of ``events``."""

    def __init__(
        self,
        worker: Worker,
        served: Served,
        continuations: Sequence[tuple[Sequence[int], Request]],
        stop_strings: Sequence[str],
    ) -> None:
        """A prompt and what is asked of it each; all are submitted. Raises what ``Worker.submit`` raises."""
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self.jobs = []
        for index, (prompt, request) in enumerate(continuations):
            reply = Reply(
                served.tokenizer, stop_ids=(), stop_strings=stop_strings, after=prompt[-1], hides_controls=True
            )
            self.jobs.append(Job(prompt, request, _Choice(index, reply, self)))
        worker.submit(self.jobs)

    def post(self, event: Event | Exception) -> None:
        """From MLX's thread to the event loop's, unless that has ended."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._queue.put_nowait, event)

    async def events(self) -> AsyncGenerator[Event, None]:
        """Raises the error of the first text that fails."""
        left = len(self.jobs)
        try:
            while left:
                event = await self._queue.get()
                if isinstance(event, Exception):
                    raise event
                left -= isinstance(event, End)
                yield event
        finally:
            if left:
                self.cancel()

    def cancel(self) -> None:
        """Nobody waits for them any more."""
        self._worker.cancel(self.jobs)

    def usage(self, num_each: int) -> dict[str, object]:
        """Tokens that were read and written so far; of ``num_each`` jobs in a row with one prompt, it counts once."""
        prompts = sum(len(job.prompt) for job in self.jobs[::num_each])
        completion = sum(job.num_new for job in self.jobs)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": completion,
            "total_tokens": prompts + completion,
            "prompt_tokens_details": {"cached_tokens": sum(job.num_reused for job in self.jobs[::num_each])},
        }
