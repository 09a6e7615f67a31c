"""``pte run``: the artifact's continuation of a prompt, as it is generated; what it cost on standard error.

A prompt is put in a user's turn of the chat template, the model's own unless another is chosen; a model without one
continues the text as it is. Without --prompt, standard input is the prompt if it is no terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pipeline.cli import generation_flags as flags
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.output import reader_left
from pipeline.errors import TextError, UsageError
from pipeline.text.terminal import visible

if TYPE_CHECKING:
    from pipeline.runtime.generate import Request
    from pipeline.session.answers import Answer
    from pipeline.session.opened import Opened
    from pipeline.text.chat import Chat

INTERRUPTED = 130


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``run``."""
    parser = subparsers.add_parser("run", help="continue a prompt with a .pte", description=__doc__)
    flags.add_to(parser, max_new_tokens=256)
    parser.add_argument(
        "-p",
        "--prompt",
        action="append",
        default=[],
        metavar="TEXT",
        help="what to continue; repeated, each prompt is answered for itself",
    )
    parser.add_argument("--warmup", action="store_true", help="answer once before what is measured")
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: an object for each prompt, on a line"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Answers every prompt; 130 if an answer was interrupted."""
    texts = args.prompt or _standard_input()
    with flags.libraries():
        sampling = flags.sampling(args)
        from pipeline.runtime.generate import Request
        from pipeline.session.opened import open_artifact

        prompts: list[list[int]] = []
        opened = open_artifact(
            args.artifact, flags.choices(args), lambda chat: prompts.extend(_read(chat, texts, args))
        )
        request = Request(max_new_tokens=args.max_new_tokens, sampling=sampling, stop_ids=opened.stop_ids)
        return _Run(opened, request, args).answer(texts, prompts)


def _standard_input() -> list[str]:
    """All of it as one prompt, without the newline at its end. Raises UsageError where there is none to wait for."""
    try:
        text = "" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise TextError(f"standard input: byte {error.start} is no UTF-8; expected text.") from error
    if not text:
        raise UsageError("there is no prompt; expected --prompt TEXT, or a text on standard input.")
    return [text]


def _read(chat: Chat, texts: Sequence[str], args: argparse.Namespace) -> list[list[int]]:
    from pipeline.session.talk import refuse_system_without_template
    from pipeline.text.conversation import Conversation
    from pipeline.text.stop import StopStrings

    refuse_system_without_template(chat, args.system)
    StopStrings(args.stop)
    return [Conversation(chat, args.system).ask(text).tokens for text in texts]


class _Run:
    def __init__(self, opened: Opened, request: Request, args: argparse.Namespace) -> None:
        self._opened = opened
        self._request = request
        self._stop_strings = args.stop
        self._warms_up = args.warmup
        self._as_json = args.format == "json"
        self._reports = not (args.quiet or self._as_json)

    def answer(self, texts: Sequence[str], prompts: Sequence[list[int]]) -> int:
        from pipeline.session import report

        for prompt in prompts:
            self._opened.engine.admit(prompt, self._request)
        self._tell(self._opened.notes)
        if self._reports:
            self._tell([*report.cache_summary(self._opened.decoder), report.loaded(self._opened)])
        for text, prompt in zip(texts, prompts, strict=True):
            with Interrupts() as interrupts:
                if self._warms_up:
                    for _ in self._begun(prompt, interrupts):
                        pass
                answer = self._begun(prompt, interrupts)
                self._tell(self._clamped(answer))
                self._object(text, answer) if self._as_json else self._stream(answer)
            if answer.was_cancelled and interrupts():
                return INTERRUPTED
            if reader_left():
                break
        return 0

    def _begun(self, prompt: list[int], interrupts: Interrupts) -> Answer:
        from pipeline.session.answers import Answer

        # Each prompt is a text of its own, and what is measured is measured whole.
        self._opened.engine.clear()
        generation = self._opened.engine.generate(prompt, self._request, lambda: interrupts() or reader_left())
        return Answer(self._opened.tokenizer, generation, self._stop_strings)

    def _stream(self, answer: Answer) -> None:
        from pipeline.session import report

        opened, generation = self._opened, answer.generation
        shown = visible if sys.stdout.isatty() else str
        for index, piece in enumerate(answer):
            if self._reports and index == 0:
                self._tell(report.footprint(opened, "after prefill", len(generation.prompt)))
            print(shown(piece), end="", flush=True)
        print(flush=True)
        if self._reports:
            self._tell(report.footprint(opened, "after decode ", opened.decoder.position))
            self._tell(report.lines(opened, generation))

    def _object(self, text: str, answer: Answer) -> None:
        from pipeline.session import report

        for _ in answer:
            pass
        generation = answer.generation
        content: dict[str, Any] = {
            "prompt": text,
            "text": answer.text,
            "tokens": generation.tokens,
            "finish_reason": answer.finish,
            "stopped_by": answer.stopped_by,
            "max_new_tokens": generation.budget,
            "seed": generation.seed if self._request.sampling.temperature else None,
            "stats": report.stats(self._opened, generation),
            "cache": report.cache_facts(self._opened.decoder),
            "memory": report.memory(self._opened),
            "notes": [*self._opened.notes, *self._clamped(answer)],
        }
        # Escaped, so that it is the same in every encoding.
        print(json.dumps(content), flush=True)

    def _clamped(self, answer: Answer) -> list[str]:
        generation = answer.generation
        if generation.budget == generation.asked:
            return []
        return [
            f"at most {generation.budget} new tokens, not {generation.asked}: the cache holds "
            f"{self._opened.decoder.capacity}, and the prompt has {len(generation.prompt)}"
        ]

    def _tell(self, lines: Any) -> None:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
