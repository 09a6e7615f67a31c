"""Turn after turn: what was said is a conversation, and what of it the cache holds is the engine's business.

So taking turns back costs nothing at the time. The next question feeds what is new; where the cache cannot be taken
back, because a ring has lost the cells or history is in the graph, the conversation is fed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pipeline.errors import CacheError, TextError
from pipeline.runtime.generate import Request
from pipeline.session.answers import STOP_STRING, Answer
from pipeline.session.opened import Opened
from pipeline.text.chat import Chat
from pipeline.text.conversation import Conversation, Feed


def refuse_system_without_template(chat: Chat, system: str | None) -> None:
    """Raises TextError if there is something to be said by the system, and no template to say it."""
    if system is not None and chat.template is None:
        raise TextError(
            "--system: there is no chat template, so nobody to speak as the system; expected a template. Choose one "
            "with --chat, or put the text in the prompt."
        )


class Turn:
    """A question that is being answered: iterate over it for pieces of the answer, to the end or not.

    It is part of the conversation once the iteration has ended, unless it was cancelled before the answer began.
    """

    def __init__(self, answer: Answer, feed: Feed, end: Callable[[Turn], None]) -> None:
        self.answer = answer
        self.feed = feed
        self._end = end

    @property
    def was_fed_anew(self) -> bool:
        """Whether the cache could not be taken back to what it had in common with the conversation."""
        return self.feed.keep > 0 and self.answer.generation.num_reused == 0

    def __iter__(self) -> Iterator[str]:
        try:
            yield from self.answer
        except GeneratorExit:
            self._end(self)
            raise
        self._end(self)


class Talk:
    """The conversation of one opened artifact."""

    def __init__(
        self, opened: Opened, request: Request, *, stop_strings: Sequence[str] = (), system: str | None = None
    ) -> None:
        refuse_system_without_template(opened.chat, system)
        self._opened = opened
        self._request = request
        self._stop_strings = stop_strings
        self._conversation = Conversation(opened.chat, system)

    @property
    def num_tokens(self) -> int:
        """The length of the conversation, as the cache has it when the next question comes."""
        return len(self._conversation.tokens)

    @property
    def num_turns(self) -> int:
        return self._conversation.num_turns

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The transcript."""
        return self._conversation.messages

    @property
    def capacity(self) -> int:
        return self._opened.decoder.capacity

    def ask(self, question: str, is_cancelled: Callable[[], bool]) -> Turn:
        """Raises TextError for a question that cannot be read, CacheError for one that leaves no room for an answer.

        Nothing has changed then.
        """
        feed = self._conversation.ask(question)
        prompt = [*self._conversation.tokens[: feed.keep], *feed.tokens]
        if len(prompt) >= self.capacity:
            raise CacheError(
                f"cache full: {feed.keep}/{self.capacity} tokens, and the turn has {len(feed.tokens)}; expected room "
                "for them and one more. /undo takes turns back, /reset all of them."
            )
        generation = self._opened.engine.generate(prompt, self._request, is_cancelled)
        return Turn(Answer(self._opened.tokenizer, generation, self._stop_strings), feed, self._commit)

    def reset(self) -> None:
        """Forgets all turns."""
        self._conversation.reset()

    def undo(self, num_turns: int) -> int:
        """Takes back the last turns, or all if there are fewer; returns how many those were."""
        before = self.num_turns
        for _ in range(min(num_turns, before)):
            self._conversation.undo()
        return before - self.num_turns

    def undo_tokens(self, num_tokens: int) -> int:
        """Takes back the last tokens, or all if there are fewer; returns how many those were."""
        before = self.num_tokens
        self._conversation.rewind(max(before - num_tokens, 0))
        return before - self.num_tokens

    def _commit(self, turn: Turn) -> None:
        answer, generation = turn.answer, turn.answer.generation
        if answer.was_cancelled and not generation.tokens:
            return
        tokens = list(generation.tokens)
        turn_end = self._opened.chat.turn_end
        # A turn is closed by the token that ends it; one that was cut short by its budget is closed by the next one.
        ended = turn_end is not None and (answer.was_cancelled or generation.stop_id == turn_end)
        if ended and len(generation.text) < self.capacity:
            assert turn_end is not None
            tokens.append(turn_end)
        shown = answer.text if answer.finish == STOP_STRING else None
        self._conversation.commit(turn.feed, tokens, shown)
