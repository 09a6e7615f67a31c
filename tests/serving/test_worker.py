"""The thread that MLX works in never outlives whoever asked for it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from pipeline.errors import PteError
from pipeline.serving.worker import Worker
from pipeline.session.opened import Choices
from pipeline.session.served import Served, open_served
from tests.bundles import Bundle


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Whoever is started in the background ignores Ctrl-C; not here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupted_start_waits_for_the_thread(bundle: Bundle) -> None:
    path = bundle("selected")

    def interrupted() -> Served:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        return open_served(path, Choices(), 2)

    worker = Worker(interrupted, max_waiting=0)
    with pytest.raises(KeyboardInterrupt):
        worker.start()
    assert not worker.is_alive


def test_what_cannot_be_opened_is_told_to_whoever_starts_it() -> None:
    def fails() -> Served:
        raise PteError("none.pte: no such file")

    worker = Worker(fails, max_waiting=0)
    with pytest.raises(PteError, match=r"^none\.pte: no such file$"):
        worker.start()
    assert not worker.is_alive
