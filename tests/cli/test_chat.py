"""``pte chat`` answers line after line, obeys its commands, and can be interrupted without losing its thread."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.cli.main import main
from tests.bundles import Bundle
from tests.cli.test_run import Typed

Chat = Callable[..., tuple[int, list[str], list[str]]]


@pytest.fixture
def chat(bundle: Bundle, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Chat:
    """Talks to the bundle: the exit code, the answers, and what was told on standard error after it was loaded."""

    def chat(lines: list[str], *flags: object) -> tuple[int, list[str], list[str]]:
        directory = bundle("talk")
        capsys.readouterr()
        monkeypatch.setattr("sys.stdin", Typed("".join(f"{line}\n" for line in lines).encode()))
        code = main(["chat", str(directory), "--max-new-tokens", "6", *map(str, flags)])
        out, err = capsys.readouterr()
        # Answers may have newlines of their own; those of this model do not, and its odd characters go to no terminal.
        return code, out.split("\n")[:-1], [line for line in err.splitlines() if not line.startswith("PyTorchOb")][3:]

    return chat


def alone(chat: Chat, *lines: str) -> str:
    """The answer to the last of some lines."""
    _, answers, _ = chat(list(lines))
    return answers[-1]


def test_every_line_is_a_turn_that_goes_on_from_the_ones_before(chat: Chat) -> None:
    code, answers, told = chat(["hello", "", "why", "hello"])
    assert code == 0
    assert len(answers) == 3
    assert answers[0] == alone(chat, "hello")
    assert answers[1] == alone(chat, "hello", "why") != alone(chat, "why")
    assert answers[2] != answers[0]
    sizes = [int(found[1]) for line in told if (found := re.match(r"\[(\d+)/256 tokens", line))]
    assert len(sizes) == 3
    assert sizes == sorted(sizes)


def test_undo_takes_turns_back_and_reset_all_of_them(chat: Chat) -> None:
    first, second = alone(chat, "hello"), alone(chat, "hello", "why")
    _, answers, told = chat(
        ["hello", "so", "/undo", "why", "hm", "/undo 2", "why", "/reset", "hello", "/undo 99", "/undo"]
    )
    assert answers == [first, answers[1], second, answers[3], second, first]
    back = [line for line in told if "taken back: " in line or "cleared" in line]
    assert re.fullmatch(r"\[1 turn taken back: \d+/256 tokens in 1 turn\]", back[0])
    assert re.fullmatch(r"\[2 turns taken back: \d+/256 tokens in 1 turn\]", back[1])
    assert back[2:] == [
        "[cleared]",
        "[1 turn taken back: 0/256 tokens in no turns]",
        "[no turns taken back: 0/256 tokens in no turns]",
    ]


def test_undo_takes_tokens_back_too(chat: Chat) -> None:
    _, _, told = chat(["hello", "/undo 2 tokens", "/undo 1 token", "/undo 999 tokens"])
    size = int(told[0][1:].partition("/")[0])
    assert told[1:] == [
        f"[2 tokens taken back: {size - 2}/256 tokens in 1 turn]",
        f"[1 token taken back: {size - 3}/256 tokens in 1 turn]",
        f"[{size - 3} tokens taken back: 0/256 tokens in no turns]",
    ]


def test_what_a_window_has_lost_is_fed_anew_and_that_is_told(chat: Chat) -> None:
    _, answers, told = chat(["hello", "why", "/undo", "so"])
    assert answers[2] == alone(chat, "hello", "so")
    assert told[-1].endswith("fed anew from the start: the cache could not be taken back]")


def test_the_conversation_is_saved_as_messages(chat: Chat, tmp_path: Path, bundle: Bundle) -> None:
    file = tmp_path / "a chat.json"
    _, answers, told = chat(["hello", f"/save {file}"], "--system", "Be brief.")
    assert told[-1] == f"[1 turn saved as {file}]"
    assert json.loads(file.read_text()) == {
        "artifact": str(bundle("talk") / "model.pte"),
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": answers[0]},
        ],
    }


def test_stats_say_how_long_it_is_and_what_the_last_answer_cost(chat: Chat) -> None:
    _, _, told = chat(["/stats", "hello", "why", "/stats"])
    assert told[0].startswith("[0/256 tokens in no turns, ")
    assert re.fullmatch(r"\[\d+/256 tokens in 2 turns, \d+\.\d MiB of cache\]", told[3])
    assert [line.split()[0] for line in told[4:]] == ["[load]", "[prefill]", "[decode]"]
    assert " more were in the cache) in " in told[5]


def test_help_lists_the_commands_and_quit_leaves(chat: Chat) -> None:
    code, answers, told = chat(["/help", "/quit", "hello"])
    assert (code, answers) == (0, [])
    assert [line.split()[0] for line in told] == ["/reset", "/undo", "/stats", "/save", "/help", "/quit"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/undo all", "[usage: /undo, /undo N for N turns, or /undo N tokens]"),
        ("/undo 0", "[usage: /undo, /undo N for N turns, or /undo N tokens]"),
        ("/undo -1", "[usage: /undo, /undo N for N turns, or /undo N tokens]"),
        ("/save", "[usage: /save FILE]"),
        ("/save /no/such/place", "[/no/such/place: No such file or directory; the conversation is not saved]"),
        ("/reset now", "[usage: /reset]"),
        (
            "/bye",
            "[there is no command /bye; /help lists them. A space before it makes it part of a question]",
        ),
    ],
)
def test_a_command_that_makes_no_sense_changes_nothing_and_gives_one(chat: Chat, line: str, message: str) -> None:
    code, answers, told = chat(["hello", line, "why"])
    assert code == 1
    assert answers == [alone(chat, "hello"), alone(chat, "hello", "why")]
    assert message in told


@pytest.mark.parametrize("line", ["/etc/passwd", " /undo", "/ what"])
def test_a_line_that_is_no_command_is_a_question(chat: Chat, line: str) -> None:
    code, answers, _ = chat([line])
    assert (code, len(answers)) == (0, 1)


def test_the_capacity_caps_an_answer_and_a_full_cache_refuses_a_turn(chat: Chat) -> None:
    code, answers, told = chat(["hello", "why", "/undo", "hello"], "--kv-max-capacity", 28)
    assert code == 1
    assert len(answers) == 2
    assert answers[0] == answers[1]
    assert told[0] == "[28/28 tokens, generation capped by capacity, ended after 4 new tokens]"
    assert told[1] == (
        "cache full: 28/28 tokens, and the turn has 22; expected room for them and one more. /undo takes turns back, "
        "/reset all of them."
    )


def test_quiet_tells_only_what_was_asked_for(chat: Chat, capsys: pytest.CaptureFixture[str]) -> None:
    code, answers, told = chat(["hello"], "--quiet")
    assert (code, len(answers), told) == (0, 1, [])


def test_a_sampled_chat_with_a_seed_repeats_itself(chat: Chat) -> None:
    flags = ("--temperature", 1.2, "--seed", 11)
    _, answers, _ = chat(["hello", "/undo", "hello"], *flags)
    assert answers[0] == answers[1] == chat(["hello"], *flags)[1][0]


def test_wrong_settings_and_files_are_refused_before_anything_is_said(chat: Chat, tmp_path: Path) -> None:
    assert main(["chat", str(tmp_path), "--seed", "-1"]) == 2
    assert main(["chat", str(tmp_path)]) == 3
    code, answers, _ = chat(["hello"], "--chat", "none", "--system", "x")
    assert (code, answers) == (1, [])


def test_input_that_is_no_text_ends_the_chat(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = bundle("talk")
    monkeypatch.setattr("sys.stdin", Typed(b"\xff\n"))
    assert main(["chat", str(directory), "-q"]) == 1
    assert capsys.readouterr().err.endswith("standard input: byte 0 is no UTF-8; expected text.\n")


# What it is given on its standard input becomes the terminal that Ctrl-C is typed on.
# Whoever is started in the background ignores Ctrl-C, and so would its children.
ON_ITS_TERMINAL = """
import fcntl, os, signal, sys, termios
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "pipeline", *sys.argv[1:]])
"""


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._end, other = pty.openpty()
        command = [sys.executable, "-c", ON_ITS_TERMINAL, *map(str, arguments)]
        environment = {**os.environ, "TERM": "dumb"}
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment)
        os.close(other)
        self.seen = ""

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._end)

    def wait_for(self, pattern: str) -> str:
        """What was shown up to the pattern, which is taken out of what is to be seen."""
        ends = time.monotonic() + 120
        while (found := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self._end], [], [], max(ends - time.monotonic(), 0))
            assert ready, f"no {pattern!r} in {self.seen!r}"
            # Linux gives an error, and not the end of a file, once the process has ended.
            self.seen += os.read(self._end, 4096).decode(errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def type(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def interrupt_until_it_ends(self) -> int:
        # Python's input() may miss one that comes while it shows its prompt; whoever types sees that, and types again.
        for _ in range(20):
            self.type(INTERRUPT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=6)
        raise AssertionError(f"it goes on: {self.seen!r}")


INTERRUPT = "\x03"


def test_on_a_terminal_ctrl_c_ends_an_answer_and_the_chat_goes_on(bundle: Bundle, chat: Chat) -> None:
    endless = next(
        question
        for question in ("hello", "why", "so", "hm", "what now", "abc")
        if "ended after 80" in chat([question], "--max-new-tokens", 80)[2][0]
    )
    with Terminal("chat", bundle("talk"), "--max-new-tokens", 100000) as terminal:
        terminal.wait_for("> ")
        terminal.type(f"{endless}\n")
        terminal.wait_for(f"{endless}\r\n.")
        terminal.type(INTERRUPT)
        terminal.wait_for(r"\[\d+/256 tokens, generation capped by capacity, stopped\]")
        terminal.wait_for("> ")
        terminal.type("/undo\n")
        terminal.wait_for(r"\[1 turn taken back: 0/256 tokens in no turns\]")
        # The line before the last is had again with the arrow that points up.
        terminal.type("\x1b[A\x1b[A\n")
        terminal.wait_for(rf"{endless}[ \x08]*\r\n.")
        terminal.type(INTERRUPT)
        terminal.wait_for("stopped")
        terminal.wait_for("> ")
        assert terminal.interrupt_until_it_ends() == 130
        terminal.wait_for(r"\[Ctrl-C once more, or /quit, leaves\]")


def test_on_a_terminal_the_end_of_input_leaves(bundle: Bundle) -> None:
    with Terminal("chat", bundle("talk"), "-q") as terminal:
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.process.wait(timeout=120) == 0


@pytest.fixture
def piped(bundle: Bundle) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pipeline", "chat", str(bundle("talk")), "--max-new-tokens", "200"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout, process.stderr):
        assert stream is not None
        stream.close()


def test_an_interrupt_ends_a_chat_that_reads_from_a_pipe(piped: subprocess.Popen[str]) -> None:
    assert piped.stdin is not None
    assert piped.stdout is not None
    piped.stdin.write("hello\nwhy\n")
    piped.stdin.flush()
    assert piped.stdout.read(1)
    piped.send_signal(signal.SIGINT)
    piped.stdin.close()
    assert piped.wait(timeout=120) == 130
