"""Listens, and ends in good order: who is being answered has a little time to be, then is told that it is over."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette

from pipeline.errors import UsageError
from pipeline.serving.worker import Worker

GRACE_SECONDS = 5.0
"""What is being answered when a server is told to end may take so long."""

LAST_SECONDS = 2
"""For what is left to be sent."""


def listen(host: str, port: int) -> socket.socket:
    """A socket; port 0 is one that is free. Raises UsageError for an address that cannot be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            # Whoever starts a server anew does not wait for the connections of the last one to be forgotten.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except BaseException:
            listening.close()
            raise
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{host} port {port}: {problem}; expected an address of this machine and a port that is free. Choose with "
            "--host and --port; --port 0 takes any."
        ) from error
    return listening


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches the host's addresses."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Server:
    """Serves ``application`` until SIGINT or SIGTERM comes, or ``stop`` is called; ``run`` then returns.

    A second signal ends what is being answered at once. Signals are for the main thread: elsewhere there is ``stop``.
    """

    def __init__(self, application: Starlette, worker: Worker, *, grace_seconds: float = GRACE_SECONDS) -> None:
        config = uvicorn.Config(
            application,
            http="h11",
            loop="asyncio",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=round(grace_seconds) + LAST_SECONDS,
        )
        self._uvicorn = _Uvicorn(config)
        self._worker = worker
        self._grace_seconds = grace_seconds
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self, listening: socket.socket, started: Callable[[], None] = lambda: None) -> None:
        """``started`` is called before the first request is read."""
        asyncio.run(self._run(listening, started))

    def stop(self) -> None:
        """As a signal does; from any thread."""
        assert self._loop is not None, "it has been started"
        self._loop.call_soon_threadsafe(self._leave)

    async def _run(self, listening: socket.socket, started: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._loop.add_signal_handler(number, self._leave)
        listening.listen()
        started()
        await self._uvicorn.serve([listening])

    def _leave(self) -> None:
        assert self._loop is not None
        if self._uvicorn.should_exit:
            self._worker.dismiss()
        self._uvicorn.should_exit = True
        self._loop.call_later(self._grace_seconds, self._worker.dismiss)


class _Uvicorn(uvicorn.Server):
    """Without its signals, which end the process after it has ended in good order."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
