"""``pte chat``: a conversation with the artifact, its history kept in the cache.

On a terminal, lines are edited and remembered, Ctrl-C ends an answer, and /help lists what else there is. From a file
or a pipe every line is a question; answers go to standard output, all else to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli import generation_flags as flags
from pipeline.cli.interrupts import Interrupts
from pipeline.cli.output import reader_left
from pipeline.errors import CacheError, TextError
from pipeline.text.terminal import visible

if TYPE_CHECKING:
    from pipeline.runtime.generate import Generation
    from pipeline.session.opened import Opened
    from pipeline.session.talk import Talk

INTERRUPTED = 130

COMMANDS = {
    "/reset": "forget the conversation",
    "/undo": "take back the last turn; /undo N takes back N turns, /undo N tokens so many tokens",
    "/stats": "how long the conversation is, and what the last answer cost",
    "/save": "/save FILE writes the conversation as JSON",
    "/help": "this",
    "/quit": "leave, as the end of input does",
}


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the verb ``chat``."""
    epilog = "commands: " + "; ".join(f"{name}: {text}" for name, text in COMMANDS.items())
    parser = subparsers.add_parser("chat", help="talk to a .pte", description=__doc__, epilog=epilog)
    flags.add_to(parser, max_new_tokens=1024)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 at the end of the conversation, 1 if a line from a file or pipe was refused, 130 if that was interrupted."""
    with flags.libraries():
        sampling = flags.sampling(args)
        from pipeline.runtime.generate import Request
        from pipeline.session import report
        from pipeline.session.opened import open_artifact
        from pipeline.session.talk import Talk, refuse_system_without_template
        from pipeline.text.stop import StopStrings

        StopStrings(args.stop)
        opened = open_artifact(
            args.artifact, flags.choices(args), lambda chat: refuse_system_without_template(chat, args.system)
        )
        request = Request(max_new_tokens=args.max_new_tokens, sampling=sampling, stop_ids=opened.stop_ids)
        talk = Talk(opened, request, stop_strings=args.stop, system=args.system)
        told = list(opened.notes)
        if not args.quiet:
            told += [*report.cache_summary(opened.decoder), report.loaded(opened)]
        for line in told:
            _tell(line)
        return _Chat(opened, talk, args.quiet).run()


class _Chat:
    def __init__(self, opened: Opened, talk: Talk, is_quiet: bool) -> None:
        self._opened = opened
        self._talk = talk
        self._is_quiet = is_quiet
        self._latest: Generation | None = None
        self._on_terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
        self._shown: Callable[[str], str] = visible if sys.stdout.isatty() else str
        self._interrupts = Interrupts()
        self._was_refused = False

    def run(self) -> int:
        if self._on_terminal:
            _tell("[/help lists the commands; Ctrl-C ends an answer, /quit or Ctrl-D the chat]")
        for line in self._lines():
            word, _, rest = line.rstrip().partition(" ")
            if word == "/quit":
                break
            if not line.strip():
                continue
            try:
                self._obey(word, rest.strip()) if re.fullmatch(r"/[a-z]+", word) else self._answer(line)
            except (TextError, CacheError) as error:
                self._refuse(str(error))
            if reader_left():
                break
            if self._interrupts.came and not self._on_terminal:
                return INTERRUPTED
        return int(self._was_refused and not self._on_terminal)

    def _lines(self) -> Iterator[str]:
        return _typed() if self._on_terminal else _piped()

    def _answer(self, question: str) -> None:
        talk, interrupts = self._talk, self._interrupts
        with interrupts:
            turn = talk.ask(question, lambda: interrupts() or reader_left())
            generation = turn.answer.generation
            for piece in turn:
                print(self._shown(piece), end="", flush=True)
        print(flush=True)
        self._latest = generation
        told = [f"{talk.num_tokens}/{talk.capacity} tokens"]
        if generation.budget < generation.asked:
            told.append("generation capped by capacity")
        if turn.answer.finish == "length":
            told.append(f"ended after {generation.budget} new tokens")
        if turn.answer.was_cancelled:
            told.append("stopped" if generation.tokens else "stopped before an answer: the question is taken back")
        if turn.was_fed_anew:
            told.append("fed anew from the start: the cache could not be taken back")
        if not self._is_quiet:
            _tell(f"[{', '.join(told)}]")

    def _obey(self, command: str, rest: str) -> None:
        if command == "/undo":
            self._undo(rest)
        elif command == "/save":
            self._save(rest)
        elif command in COMMANDS and rest:
            self._refuse(f"[usage: {command}]")
        elif command == "/reset":
            self._talk.reset()
            _tell("[cleared]")
        elif command == "/stats":
            self._show_stats()
        elif command == "/help":
            for name, text in COMMANDS.items():
                _tell(f"{name:8}{text}")
        else:
            self._refuse(
                f"[there is no command {command}; /help lists them. A space before it makes it part of a question]"
            )

    def _undo(self, rest: str) -> None:
        found = re.fullmatch(r"(?:0*([1-9][0-9]{0,8})( tokens?)?)?", rest)
        if found is None:
            self._refuse("[usage: /undo, /undo N for N turns, or /undo N tokens]")
            return
        number, of_tokens = int(found[1] or 1), found[2]
        number = self._talk.undo_tokens(number) if of_tokens else self._talk.undo(number)
        _tell(f"[{_counted(number, 'token' if of_tokens else 'turn')} taken back: {self._length()}]")

    def _save(self, rest: str) -> None:
        if not rest:
            self._refuse("[usage: /save FILE]")
            return
        content = {"artifact": str(self._opened.path), "messages": self._talk.messages}
        try:
            Path(rest).expanduser().write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", errors="backslashreplace"
            )
        except OSError as error:
            self._refuse(f"[{rest}: {error.strerror}; the conversation is not saved]")
        else:
            _tell(f"[{_counted(self._talk.num_turns, 'turn')} saved as {rest}]")

    def _show_stats(self) -> None:
        from pipeline.session import report

        _tell(f"[{self._length()}, {self._opened.decoder.cache_bytes / report.MIB:.1f} MiB of cache]")
        if self._latest is not None:
            for line in report.lines(self._opened, self._latest):
                _tell(line)

    def _length(self) -> str:
        talk = self._talk
        return f"{talk.num_tokens}/{talk.capacity} tokens in {_counted(talk.num_turns, 'turn')}"

    def _refuse(self, message: str) -> None:
        self._was_refused = True
        _tell(message)


def _typed() -> Iterator[str]:
    """Lines as they are typed, up to the end of input, or a second Ctrl-C in a row."""
    with contextlib.suppress(ImportError):
        # It edits lines and remembers them, for input().
        import readline  # noqa: F401
    interrupted = False
    while True:
        try:
            # Only with the interpreter's own streams does input() edit lines.
            with contextlib.redirect_stdout(sys.__stdout__):
                line = input("> ")
        except EOFError:
            print(flush=True)
            return
        except KeyboardInterrupt:
            print(flush=True)
            if interrupted:
                raise
            _tell("[Ctrl-C once more, or /quit, leaves]")
            interrupted = True
            continue
        interrupted = False
        yield line


def _piped() -> Iterator[str]:
    try:
        for line in sys.stdin or ():
            yield line.removesuffix("\n")
    except UnicodeDecodeError as error:
        raise TextError(f"standard input: byte {error.start} is no UTF-8; expected text.") from error


def _counted(number: int, thing: str) -> str:
    return f"{number or 'no'} {thing}{'' if number == 1 else 's'}"


def _tell(line: str) -> None:
    print(visible(line) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
