"""Servers of tiny bundles in threads of the test's process, on free ports."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from openai import OpenAI

from pipeline.runtime.generate import STOP, Generation, Request
from pipeline.runtime.sampling import Sampling
from pipeline.serving.app import application
from pipeline.serving.server import Server, listen
from pipeline.serving.worker import Worker
from pipeline.session.opened import Choices, Opened, open_artifact
from pipeline.session.served import Served, open_served
from pipeline.text.reply import Reply

HOSTS = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Running:
    """A server that answers, and OpenAI's client of it."""

    port: int
    worker: Worker
    served: Served
    client: OpenAI

    @property
    def model(self) -> str:
        return self.served.name


@contextmanager
def serving(
    bundle: Path,
    *,
    at_once: int = 8,
    max_waiting: int = 64,
    chat: str | None = None,
    origins: tuple[str, ...] = (),
    grace_seconds: float = 5.0,
) -> Iterator[Running]:
    worker = Worker(lambda: open_served(bundle, Choices(chat=chat), at_once), max_waiting=max_waiting)
    served = worker.start()
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app = application(worker, served, Sampling(), hosts=HOSTS, origins=origins)
    server = Server(app, worker, grace_seconds=grace_seconds)
    started = threading.Event()
    thread = threading.Thread(target=server.run, args=(listening, started.set))
    thread.start()
    assert started.wait(10)
    try:
        with OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=60) as client:
            yield Running(port, worker, served, client)
    finally:
        server.stop()
        thread.join(30)
        worker.stop()
        listening.close()
        assert not thread.is_alive()


@cache
def opened(bundle: Path) -> Opened:
    """Opened once: each text that it continues begins anew."""
    return open_artifact(bundle, Choices())


def alone(bundle: Path, asked: list[dict[str, Any]] | str, new: int, **sampling: Any) -> str:
    """What the artifact answers messages, or continues a text with, outside of any server; without control pieces."""
    generation = _generation(bundle, asked, new, **sampling)
    reply = Reply(opened(bundle).tokenizer, stop_ids=(), after=generation.prompt[-1], hides_controls=True)
    return "".join([reply.add(token) for token in generation]) + reply.flush()


def ends_by_itself(bundle: Path, asked: list[dict[str, Any]] | str, new: int) -> bool:
    """Whether the answer ends with a stop token before it has so many tokens."""
    generation = _generation(bundle, asked, new)
    return len(list(generation)) < new and generation.finish == STOP


def _generation(bundle: Path, asked: list[dict[str, Any]] | str, new: int, **sampling: Any) -> Generation:
    found = opened(bundle)
    found.engine.clear()
    prompt = found.chat.text(asked) if isinstance(asked, str) else found.chat.prompt(asked)
    request = Request(max_new_tokens=new, sampling=Sampling(**sampling), stop_ids=found.stop_ids)
    return found.engine.generate(prompt, request)
