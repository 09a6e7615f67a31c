"""The one thread that MLX works in: it opens the artifact, and continues texts for as long as there are any."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

from pipeline.errors import DelegateError, PipelineError, RequestError
from pipeline.runtime.batching import FAILED, Batch, Job
from pipeline.runtime.one_by_one import OneByOne
from pipeline.session.served import Served

Engine = Batch | OneByOne


def stopped() -> RequestError:
    """What those are told who are not answered to the end."""
    return RequestError("the server has stopped. Start it again.", status=503, code="stopped")


class Worker:
    """``open_`` is called in the thread. Beside the texts that are continued, as many as ``max_waiting`` may wait.

    Whatever is not said to be otherwise may be called from any thread.
    """

    def __init__(self, open_: Callable[[], Served], *, max_waiting: int) -> None:
        self._open = open_
        self._max_waiting = max_waiting
        self._opened: Future[Served] = Future()
        self._inbox: queue.SimpleQueue[Callable[[Engine], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()
        self._has_ended = False
        # It holds nothing that the end of the process would lose.
        self._thread = threading.Thread(target=self._work, name="mlx", daemon=True)

    def start(self) -> Served:
        """What was opened, once it has been. Raises whatever opening it raised."""
        try:
            self._thread.start()
            return self._opened.result()
        except BaseException:
            # The interpreter must not end while MLX is at work.
            self.stop()
            raise

    @property
    def is_alive(self) -> bool:
        """Whether texts are continued."""
        return self._thread.is_alive() and not self._has_ended

    @property
    def num_jobs(self) -> int:
        """Texts that are continued or wait."""
        with self._lock:
            return len(self._jobs)

    def submit(self, jobs: Sequence[Job]) -> None:
        """All of them wait for their turns, or none. Raises RequestError if too many do, or nobody works any more."""
        served = self._opened.result()
        with self._lock:
            if self._has_ended:
                raise stopped()
            most = served.at_once + self._max_waiting
            if len(self._jobs) + len(jobs) > most:
                raise RequestError(
                    f"{len(self._jobs)} texts are being continued or wait, and {len(jobs)} more are asked for; at most "
                    f"{most} together are expected. Try again later, or start the server with a longer --queue.",
                    status=503,
                    code="queue_full",
                )
            self._jobs.update(jobs)
        for job in jobs:
            self._inbox.put(partial(_submitted, job))

    def cancel(self, jobs: Sequence[Job]) -> None:
        """None of them is wanted any more."""
        for job in jobs:
            job.is_unwanted = True
            self._inbox.put(partial(_cancelled, job))

    def dismiss(self) -> None:
        """What is left is given up as soon as the step under way is done; nobody is let in any more."""
        with self._lock:
            for job in self._jobs:
                job.is_unwanted = True
        self._inbox.put(None)

    def stop(self) -> None:
        """Gives up what is left, and waits for the thread to end."""
        self.dismiss()
        self._thread.join()

    def _work(self) -> None:
        try:
            served = self._open()
        except BaseException as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(served)
        failure: PipelineError = stopped()
        try:
            while self._obeys(served.engine):
                served.engine.step()
                self._forget_ended()
        except BaseException as error:
            # A mistake of ours: nobody must wait for what will never come.
            failure = DelegateError(f"the server has failed: {type(error).__name__}: {error}")
            raise
        finally:
            with self._lock:
                self._has_ended = True
                left, self._jobs = self._jobs, set()
            for job in left:
                if job.finish is None:
                    job.end(FAILED, failure)

    def _obeys(self, engine: Engine) -> bool:
        """Does what was asked for meanwhile, or waits for something to do. False if that is to stop."""
        while True:
            try:
                act = self._inbox.get(block=engine.is_idle)
            except queue.Empty:
                return True
            if act is None:
                return False
            act(engine)
            self._forget_ended()

    def _forget_ended(self) -> None:
        with self._lock:
            self._jobs = {job for job in self._jobs if job.finish is None}


def _submitted(job: Job, engine: Engine) -> None:
    try:
        engine.submit(job)
    except PipelineError as error:
        job.end(FAILED, error)


def _cancelled(job: Job, engine: Engine) -> None:
    engine.cancel(job)
