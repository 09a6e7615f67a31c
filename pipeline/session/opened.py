"""Opens a bundle, or a ``.pte`` with a tokenizer, and holds them against each other before weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import mlx.core as mx

from pipeline.delegate.program import Program
from pipeline.errors import DelegateError, PteError, TextError
from pipeline.runtime import published
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import Engine
from pipeline.runtime.policy import CachePolicy
from pipeline.text.chat import Chat
from pipeline.text.loading import load
from pipeline.text.tokenizer import Tokenizer

MODEL = "model.pte"

THE_ARTIFACTS = CachePolicy()


@dataclass(frozen=True, kw_only=True)
class Choices:
    """What a user may choose; None is the bundle's own, and for ``device`` MLX's default."""

    tokenizer: Path | None = None
    chat: str | None = None
    policy: CachePolicy = THE_ARTIFACTS
    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """``stop_ids`` end a text. ``notes`` are sentences that a user should read.

    ``load_start`` and ``load_end`` are on ``time.perf_counter``'s clock; ``memory`` is what MLX had allocated then.
    """

    path: Path
    engine: Engine
    tokenizer: Tokenizer
    chat: Chat
    stop_ids: frozenset[int]
    notes: tuple[str, ...]
    load_start: float
    load_end: float
    memory: int

    @property
    def decoder(self) -> Decoder:
        return self.engine.decoder


@dataclass(frozen=True, kw_only=True)
class Matched:
    """An artifact and what belongs to it, held against each other; its weights are not loaded yet.

    The fields that ``Opened`` has too mean the same.
    """

    path: Path
    program: Program
    published: published.Published
    tokenizer: Tokenizer
    chat: Chat
    stop_ids: frozenset[int]
    notes: tuple[str, ...]


@contextmanager
def matched(path: Path, choices: Choices) -> Iterator[Matched]:
    """The program is open while the block runs.

    Raises PteError, VerifyError, DelegateError, CacheError or TextError for what cannot be run, or not as chosen.
    """
    file = _model(path)
    device = _device(choices.device)
    with Program.load(file, device=device) as program:
        found = published.read(program.pte.program, file.name, choices.policy.capacity)
        tokenizer = _tokenizer(choices.tokenizer, file.parent)
        notes = [f"{file.name}: {note}" for note in found.inferred]
        notes += [f"{tokenizer.where}: {note}" for note in tokenizer.told(found.contract.vocab_size)]
        chat = Chat.choose(tokenizer, Path(tokenizer.where).parent, choices.chat)
        # The set that is published replaces the tokenizer's, as in the C++ runner.
        ends = found.contract.eos_ids or [tokenizer.eos_id]
        stop_ids = frozenset(token for token in (*ends, chat.turn_end) if token is not None)
        if not stop_ids:
            notes.append(f"{file.name}: no token ends a text, neither published nor known to the tokenizer")
        yield Matched(
            path=file,
            program=program,
            published=found,
            tokenizer=tokenizer,
            chat=chat,
            stop_ids=stop_ids,
            notes=tuple(notes),
        )


def open_artifact(path: Path, choices: Choices, check: Callable[[Chat], None] | None = None) -> Opened:
    """``check`` may refuse the tokenizer and template for what is to be said, before the weights are loaded.

    Raises what ``matched`` does.
    """
    start = perf_counter()
    with matched(path, choices) as found:
        if check is not None:
            check(found.chat)
        decoder = Decoder(found.program, policy=choices.policy)
    return Opened(
        path=found.path,
        engine=Engine(decoder),
        tokenizer=found.tokenizer,
        chat=found.chat,
        stop_ids=found.stop_ids,
        notes=found.notes,
        load_start=start,
        load_end=perf_counter(),
        memory=mx.get_active_memory(),
    )


def _model(path: Path) -> Path:
    if not path.is_dir():
        return path
    file = path / MODEL
    if not file.is_file():
        raise PteError(f"{path}: it has no {MODEL}; expected a bundle, or a .pte. Build it, or correct the path.")
    return file


def _tokenizer(chosen: Path | None, beside: Path) -> Tokenizer:
    if chosen is not None:
        return load(chosen)
    try:
        return load(beside)
    except TextError as error:
        raise TextError(f"{error} Or name another with --tokenizer.") from error


def _device(name: str | None) -> mx.Device | None:
    if name is None:
        return None
    device = {"cpu": mx.cpu, "gpu": mx.gpu}[name]
    if not mx.is_available(device):
        raise DelegateError(f"--device {name}: MLX has none here. Use --device cpu, or leave it out.")
    return mx.Device(device)
