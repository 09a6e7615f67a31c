"""Opens an artifact to continue many texts: at once where it can, one after another where it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.runtime.batching import Batch
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import Engine
from pipeline.runtime.one_by_one import OneByOne
from pipeline.runtime.packed import PackedDecoder, why_not_batched
from pipeline.session.opened import Choices, matched
from pipeline.text.chat import Chat
from pipeline.text.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Served:
    """``name`` is what clients call the model. ``at_once`` texts are continued together; ``notes`` are for the user.

    ``stop_ids`` end a text, which may have ``max_context`` tokens of ``vocab_size``.
    """

    name: str
    engine: Batch | OneByOne
    at_once: int
    tokenizer: Tokenizer
    chat: Chat
    stop_ids: frozenset[int]
    vocab_size: int
    max_context: int
    notes: tuple[str, ...]


def open_served(path: Path, choices: Choices, at_once: int) -> Served:
    """As many texts ``at_once`` as are asked for, if the artifact can have several in a step. Raises as ``matched``."""
    with matched(path, choices) as found:
        notes = list(found.notes)
        reason = why_not_batched(found.published)
        engine: Batch | OneByOne
        if reason is None:
            decoder = PackedDecoder(found.program, num_sequences=at_once, policy=choices.policy)
            engine = Batch(decoder, max_running=at_once, max_kept=decoder.max_context)
        else:
            engine = OneByOne(Engine(Decoder(found.program, policy=choices.policy)))
            if at_once > 1:
                notes.append(f"{found.path.name}: one text at a time, the others wait: {reason}")
    return Served(
        name=path.resolve().name if path.is_dir() else path.stem,
        engine=engine,
        at_once=at_once if reason is None else 1,
        tokenizer=found.tokenizer,
        chat=found.chat,
        stop_ids=found.stop_ids,
        vocab_size=found.published.contract.vocab_size,
        max_context=engine.max_context,
        notes=tuple(notes),
    )
