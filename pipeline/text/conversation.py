"""Turn after turn, with what the cache already holds.

A template renders whole conversations. What it renders for the turns so far is nearly always how the longer one
begins, word for word as the model was fed and as it answered; then only the rest is fed. Some templates write the past
anew (they trim an answer, or drop its reasoning): there the cache keeps as many tokens as both have in common, and the
rest of the conversation is fed again. Either way the history is what the template says it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from pipeline.text.chat import Chat
from pipeline.text.stream import TextStream


@dataclass(frozen=True, kw_only=True)
class Feed:
    """What a turn asks of the cache: to keep its first ``keep`` tokens, then to be fed ``tokens``, at least one."""

    keep: int
    tokens: list[int]
    question: str
    rendered: str


@dataclass(frozen=True, kw_only=True)
class _Turn:
    """A question and its answer; ``start``, ``answer_start`` and ``end`` count tokens of the history.

    ``rendered`` is the text of the tokens before the answer; ``before`` that of those before the turn, None where it
    is not known to be exactly theirs.
    """

    question: str
    answer: str
    start: int
    answer_start: int
    end: int
    rendered: str
    before: str | None


class Conversation:
    """The turns of one chat. ``tokens`` are the history, as the cache must hold it.

    ``ask`` changes nothing; a turn counts once it is committed with what was generated. Without a template, each text
    goes on where the last ended.
    """

    def __init__(self, chat: Chat, system: str | None = None) -> None:
        self._chat = chat
        self._system = system
        self.reset()

    def reset(self) -> None:
        """Forgets all turns; what the system says stays."""
        self.tokens: list[int] = []
        self._turns: list[_Turn] = []
        # The text that the tokens are, to the letter, or None.
        self._text: str | None = ""

    @property
    def num_turns(self) -> int:
        return len(self._turns)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript, as templates and chat files have it."""
        said = [] if self._system is None else [{"role": "system", "content": self._system}]
        for turn in self._turns:
            said += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer}]
        return said

    def ask(self, question: str) -> Feed:
        """What is to be fed for a user's next turn, up to where the answer begins.

        Raises TextError when the template refuses it, or the tokenizer cannot read it.
        """
        if self._chat.template is None:
            ids = self._chat.text(question, goes_on=bool(self.tokens))
            return Feed(keep=len(self.tokens), tokens=ids, question=question, rendered="")
        rendered = self._chat.render([*self.messages, {"role": "user", "content": question}])
        if self.tokens and self._text is not None and rendered.startswith(self._text):
            ids = self._chat.encode(rendered[len(self._text) :], goes_on=True)
            if ids:
                return Feed(keep=len(self.tokens), tokens=ids, question=question, rendered=rendered)
        ids = self._chat.encode(rendered)
        # The last token is fed whatever is kept: the answer's first token is chosen from its logits.
        keep = min(_num_common(self.tokens, ids), len(ids) - 1)
        return Feed(keep=keep, tokens=ids[keep:], question=question, rendered=rendered)

    def commit(self, feed: Feed, answer: Sequence[int], text: str | None = None) -> None:
        """The turn is over: ``feed`` was fed, and ``answer`` are the tokens that the history has after it.

        The token that ends a turn is one of them if it was fed. ``text`` is the answer as the user saw it, where that
        is less than its tokens say, as when a stop string ended it.
        """
        before = self._text if feed.keep == len(self.tokens) else None
        # Whatever of earlier turns was written anew counts as this turn's prompt.
        self._turns = [
            replace(turn, answer_start=min(turn.answer_start, feed.keep), end=min(turn.end, feed.keep))
            for turn in self._turns
        ]
        answer_start = feed.keep + len(feed.tokens)
        self.tokens = [*self.tokens[: feed.keep], *feed.tokens, *answer]
        said, self._text = self._said(feed.rendered, answer_start)
        self._turns.append(
            _Turn(
                question=feed.question,
                answer=said if text is None else text,
                start=feed.keep,
                answer_start=answer_start,
                end=len(self.tokens),
                rendered=feed.rendered,
                before=before,
            )
        )

    def undo(self) -> int | None:
        """Takes the last turn back; the length that the cache is to be rewound to, or None if there is no turn."""
        if not self._turns:
            return None
        last = self._turns.pop()
        self.tokens = self.tokens[: last.start]
        self._text = last.before
        return last.start

    def rewind(self, length: int) -> None:
        """The cache has been rewound to its first ``length`` tokens.

        An answer that is cut is as long as its tokens say; a turn whose question is cut is none any more.
        """
        if length >= len(self.tokens):
            return
        self.tokens = self.tokens[:length]
        dropped = None
        while self._turns and length < self._turns[-1].answer_start:
            dropped = self._turns.pop()
        self._text = dropped.before if dropped is not None and dropped.start == length else None
        if self._turns and length < self._turns[-1].end:
            last = self._turns.pop()
            said, self._text = self._said(last.rendered, last.answer_start)
            self._turns.append(replace(last, answer=said, end=length))

    def _said(self, rendered: str, start: int) -> tuple[str, str | None]:
        """The answer that the tokens from ``start`` on are, and all the text with it; None if a character was cut."""
        tokens = self.tokens[start:]
        ended = ""
        if tokens and tokens[-1] == self._chat.turn_end:
            tokens.pop()
            ended = self._chat.turn_end_piece or ""
        stream = TextStream(self._chat.tokenizer, after=self.tokens[start - 1] if start else None)
        answer = "".join(map(stream.add, tokens))
        return answer, None if stream.flush() else rendered + answer + ended


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
