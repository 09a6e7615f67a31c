"""A ``.pte`` loaded to be executed: what it can do, and as many independent instances of it as one likes."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from pipeline.delegate.constants import Constants
from pipeline.delegate.executor import BACKEND_ID, MlxMethod, find_method
from pipeline.delegate.ops.attention import BoundCache
from pipeline.delegate.signature import Signature, signature_of
from pipeline.errors import DelegateError
from pipeline.pte import Method, PtdFile, PteFile, parse_mlx_payload


class Program:
    """Use ``Program.load(path)`` in a ``with``; methods made of it work on after it is closed.

    Constants are read when a method needs them, once for all methods and instances, and stay as long as the program
    does. ``device`` is where methods run unless told otherwise, MLX's default device unless given. One thread at a time
    may use a program and its methods, and threads may take turns.
    """

    def __init__(self, pte: PteFile, data: Iterable[PtdFile] = (), *, device: mx.Device | None = None) -> None:
        self.pte = pte
        self._data = tuple(data)
        self._device = device
        self._constants = Constants(pte, *self._data)
        self._is_open = True

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        data: Iterable[str | os.PathLike[str]] = (),
        *,
        device: mx.Device | None = None,
    ) -> Self:
        """Opens a ``.pte``, and the ``.ptd`` files with its constants if it was exported with external data.

        Raises PteError for files that are not what they should be, DelegateError for data that is in two of them.
        """
        with ExitStack() as opened:
            pte = opened.enter_context(PteFile.open(path))
            program = cls(pte, [opened.enter_context(PtdFile.open(side)) for side in data], device=device)
            opened.pop_all()
        return program

    @property
    def methods(self) -> tuple[str, ...]:
        """The names of methods that can be asked for; whether they run here shows when they are."""
        return self.pte.program.executable

    @cached_property
    def constants(self) -> dict[str, Any]:
        """What constant methods publish, by their names: an LLM's geometry, its stop ids."""
        return self.pte.program.constants()

    def signature(self, name: str = "forward") -> Signature:
        """What a method takes and returns. Raises DelegateError when there is none of this name."""
        method = self._found(name)
        graphs = (
            parse_mlx_payload(delegate.payload) if delegate.id == BACKEND_ID else None for delegate in method.delegates
        )
        return signature_of(method, tuple(graphs))

    def method(
        self,
        name: str = "forward",
        cache: BoundCache | None = None,
        *,
        fused: bool = True,
        device: mx.Device | None = None,
    ) -> MlxMethod:
        """An instance of a method, with mutable buffers of its own, all zeros, and ``cache`` bound to it.

        Two instances share their constants and nothing else; two that are to share history are given one cache.
        Raises DelegateError for a method that this executor cannot run, and says why.
        """
        self._found(name)
        device = self._device if device is None else device
        return MlxMethod(self.pte, name, cache, fused=fused, device=device, constants=self._constants)

    def close(self) -> None:
        """Releases the files."""
        self._is_open = False
        for file in (self.pte, *self._data):
            file.close()

    def _found(self, name: str) -> Method:
        if not self._is_open:
            raise DelegateError(f"{self.pte.path.name} is closed. Ask for methods while it is open.")
        return find_method(self.pte, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
