"""Many files, one after another or several at once, each with its outcome in the order they were named."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from pipeline.cli.formats import Outcome, Unreadable
from pipeline.cli.plain import name
from pipeline.cli.targets import Closed
from pipeline.errors import PteError, UsageError
from pipeline.verify import Question, contracts, examine

WORTH_A_PROCESS = 32
"""As many small files as are examined while another process starts. Threads would only take turns: it is all Python."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a command line asks about every file. Words alone, so that they reach another process."""

    contracts: tuple[str, ...] = ()
    manifest: Path | None = None
    tokenizer: Path | None = None

    def question(self) -> Question:
        """Raises ManifestError, ContractError or UsageError: the manifest, a contract or the tokenizer is not good."""
        if self.tokenizer is not None and not os.path.lexists(self.tokenizer):
            raise UsageError(
                f"--tokenizer: there is no {name(str(self.tokenizer))}; expected a tokenizer's directory or file."
            )
        asked = None
        if self.manifest is not None:
            # Imported here: without a manifest there is no YAML to read.
            from pipeline import manifest, plan

            asked = plan.build_spec(manifest.load(self.manifest))
        named = tuple(map(contracts.find, self.contracts)) or None
        return Question(contracts=named, asked=asked, tokenizer=self.tokenizer)


def examine_each(
    found: Sequence[Path | Closed], question: Question, asked: Asked, jobs: int | None
) -> Iterator[Outcome]:
    """The outcomes in the order of what was found; ``asked`` is where the question came from.

    ``jobs`` is the largest number of processes, ``None`` as many as there are processors and files to be worth one.
    """
    processes = min(jobs or _processors(), len(found) if jobs else len(found) // WORTH_A_PROCESS)
    if processes > 1:
        yield from _at_once(found, asked, processes)
    else:
        for path in found:
            yield _examine(path, question)


def _examine(path: Path | Closed, question: Question) -> Outcome:
    if isinstance(path, Closed):
        return _unreadable(path)
    try:
        return examine(path, question)
    except PteError as error:
        return _unreadable(path, str(error).removeprefix(f"{path}: "))


def _unreadable(path: Path | Closed, problem: str = "") -> Unreadable:
    if isinstance(path, Closed):
        return Unreadable(file=str(path.path), problem=path.reason)
    return Unreadable(file=str(path), problem=problem)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _at_once(found: Sequence[Path | Closed], asked: Asked, processes: int) -> Iterator[Outcome]:
    # Imported here: they take longer than a file does.
    from concurrent.futures import Future, ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    def told(part: Sequence[Path | Closed], future: Future[list[Outcome]] | None) -> list[Outcome]:
        with suppress(BrokenProcessPool):
            if future is not None:
                return future.result()
        return [_unreadable(path, _DIED) for path in part]

    size = max(1, min(16, len(found) // (4 * processes)))
    parts = [found[start : start + size] for start in range(0, len(found), size)]
    futures: list[Future[list[Outcome]]] = []
    pool = ProcessPoolExecutor(processes, initializer=_begin, initargs=(asked,))
    try:
        # A process may be gone before all is handed out.
        with suppress(BrokenProcessPool):
            futures.extend(pool.submit(_examine_part, part) for part in parts)
        for part, future in zip_longest(parts, futures):
            yield from told(part, future)
    finally:
        pool.shutdown(cancel_futures=True)


_DIED = "a process that examined it, or others beside it, was ended from outside. Use --jobs 1."
_question: Question | None = None


def _begin(asked: Asked) -> None:
    """In a process of the pool. An interrupt reaches all processes of a terminal, and only the first is to answer."""
    import signal

    global _question
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _question = asked.question()


def _examine_part(part: Sequence[Path | Closed]) -> list[Outcome]:
    assert _question is not None, "a process of the pool begins with the question"
    return [_examine(path, _question) for path in part]
