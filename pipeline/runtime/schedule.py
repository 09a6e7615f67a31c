"""Which tokens of which texts the next step has, planned in whole numbers; no array is touched here.

Texts wait in a line. One is let in when cells are free for all that it may still become, so that nobody who is in ever
waits for cells, and none is put out. It begins with what it has in common with a text that is in, or was: those cells
are shared, not computed again. Every step has a token of each text that is in, turn about if it has room for fewer, and
more of those whose prompts are not fed yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.runtime.cells import MAX_SEQUENCES, CellTable

PREFILL_BESIDE = 128
"""Tokens of prompts in a step that others wait for with one token each: more of them would be a pause in every text."""

FEW_CELLS = 512
"""So many cost little to look at."""


@dataclass(eq=False, kw_only=True)
class Text:
    """``ids`` begin with the prompt; at most ``budget`` tokens may follow it. Two texts are never the same one.

    ``sequence`` is the one in the cells, None while the text waits. ``num_shared`` tokens of the prompt were in the
    cells when it was let in.
    """

    ids: list[int]
    budget: int
    num_prompt: int = 0
    sequence: int | None = None
    num_shared: int = 0

    def __post_init__(self) -> None:
        self.num_prompt = len(self.ids)

    @property
    def num_cells(self) -> int:
        """Those that all of it takes. The last new token needs none: nothing is computed from it."""
        return self.num_prompt + max(self.budget, 1) - 1


@dataclass(frozen=True, kw_only=True)
class Span:
    """Some of a text's tokens in a step. ``is_last`` if none are left after them: a new token follows."""

    text: Text
    sequence: int
    start: int
    ids: list[int]
    is_last: bool


@dataclass(frozen=True)
class _Kept:
    """A sequence that nobody continues, kept for those who begin like it."""

    sequence: int
    ids: list[int]


@dataclass(kw_only=True)
class Schedule:
    """Texts over the cells of ``table``.

    A step has at most ``max_step`` tokens, ``max_rows`` of which can be followed by a new one. At most ``max_running``
    texts are in at a time. Of those that have ended, the last ones are kept for their beginnings, ``max_kept`` tokens
    in all: not more, since every query looks at all cells in use.
    """

    table: CellTable
    max_step: int
    max_rows: int
    max_running: int
    max_kept: int
    _waiting: deque[Text] = field(default_factory=deque)
    _running: list[Text] = field(default_factory=list)
    _kept: list[_Kept] = field(default_factory=list)
    _suspects: list[Text] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert min(self.max_step, self.max_rows, self.max_running) > 0 <= self.max_kept
        assert self.max_running < MAX_SEQUENCES

    @property
    def running(self) -> tuple[Text, ...]:
        """The texts that are in, those first whose turn it is."""
        return tuple(self._running)

    @property
    def num_waiting(self) -> int:
        """Texts that are not in yet."""
        return len(self._waiting)

    @property
    def num_kept(self) -> int:
        """Sequences of texts that have ended, kept for their beginnings."""
        return len(self._kept)

    @property
    def tries_alone(self) -> bool:
        """Whether the next step is of one text, to see whether it is the one that steps fail with."""
        return bool(self._suspects)

    def add(self, text: Text) -> None:
        """The text waits. Its cells are no more than there are."""
        assert text.ids
        assert text.num_cells <= self.table.capacity
        self._waiting.append(text)

    def next_step(self) -> list[Span]:
        """Lets in who can be let in, and says what the next step is; it has no spans if there is nobody."""
        if self._suspects:
            suspect = self._suspects[0]
            return [self._span(suspect, min(self._num_unfed(suspect), self.max_step))]
        while self._waiting and len(self._running) < self.max_running and self._let_in(self._waiting[0]):
            self._waiting.popleft()
        return [self._span(text, number) for text, number in self._shares()]

    def fed(self, spans: Iterable[Span]) -> None:
        """The step with these spans has been taken."""
        for span in spans:
            # Whoever was part of it comes last in the next one.
            self._running.remove(span.text)
            self._running.append(span.text)
            if span.is_last and span.text in self._suspects:
                self._suspects.remove(span.text)

    def end(self, text: Text, *, keep: bool = True) -> None:
        """The text is no longer in, nor waits. Its cells are kept for a while, if they are sound."""
        if text in self._suspects:
            self._suspects.remove(text)
        if text.sequence is None:
            if text in self._waiting:
                self._waiting.remove(text)
            return
        self._running.remove(text)
        sequence, text.sequence = text.sequence, None
        ids = text.ids[: self.table.pos(sequence)]
        if keep and ids:
            for kept in [kept for kept in self._kept if ids[: len(kept.ids)] == kept.ids]:
                self._drop(kept)
            self._kept.append(_Kept(sequence, ids))
        else:
            self.table.seq_rm(sequence)
        self._tidy()

    def try_alone(self, texts: Iterable[Text]) -> None:
        """A step of several failed: each of them is to be taken alone before there is a common one again."""
        self._suspects = [text for text in texts if text in self._running]

    def begin_anew(self) -> None:
        """Nothing in the cells is to be trusted: everyone who is in is fed again, each alone at first."""
        for kept in list(self._kept):
            self._drop(kept)
        for text in self._running:
            assert text.sequence is not None
            self.table.rewind(text.sequence, 0)
        self.try_alone(self._running)

    def _shares(self) -> list[tuple[Text, int]]:
        """Who is part of the next step, and with how many tokens."""
        room, rows = self.max_step, self.max_rows
        shares: dict[Text, int] = {}
        for text in self._running:
            needs_row = self._num_unfed(text) == 1
            if room and (rows or not needs_row):
                shares[text] = 1
                room -= 1
                rows -= needs_row
        if any(self._num_unfed(text) == 1 for text in self._running):
            room = min(room, PREFILL_BESIDE)
        for text in shares:
            rest = self._num_unfed(text) - 1
            more = min(rest, room)
            if more and more == rest:
                # The last token of a prompt is followed by a new one: without a row for that, it comes later.
                more -= not rows
                rows -= bool(rows)
            shares[text] += more
            room -= more
        return list(shares.items())

    def _span(self, text: Text, number: int) -> Span:
        assert text.sequence is not None
        start = self.table.pos(text.sequence)
        ids = text.ids[start : start + number]
        return Span(text=text, sequence=text.sequence, start=start, ids=ids, is_last=start + len(ids) == len(text.ids))

    def _num_unfed(self, text: Text) -> int:
        assert text.sequence is not None
        return len(text.ids) - self.table.pos(text.sequence)

    def _let_in(self, text: Text) -> bool:
        """Whether the text is in now."""
        useful = len(text.ids) - 1
        shared, donor = 0, None
        for sequence, ids in self._beginnings():
            common = min(_num_common(ids, text.ids), useful)
            there = min(common, self.table.pos(sequence))
            if there < common:
                # It is being fed just what this one needs.
                return False
            if there > shared:
                shared, donor = there, sequence
        needed = text.num_cells - shared
        # What is in the cells may be dropped for others, all but what is shared: nothing is copied.
        if not self._make_room(needed, donor):
            shared, donor = 0, None
            if not self._make_room(text.num_cells, None):
                return False
        text.sequence = self.table.seq_new() if donor is None else self.table.seq_clone(donor, shared)
        text.num_shared = shared
        self._running.append(text)
        self._used(donor)
        return True

    def _beginnings(self) -> Iterable[tuple[int, list[int]]]:
        """The sequences there are, and the ids that they have, or will have as soon as their prompts are fed."""
        for text in self._running:
            assert text.sequence is not None
            yield text.sequence, text.ids[: max(text.num_prompt, self.table.pos(text.sequence))]
        for kept in self._kept:
            yield kept.sequence, kept.ids

    def _make_room(self, needed: int, donor: int | None) -> bool:
        """Whether so many cells are free beside those that the others may still need; drops what is kept for it."""
        others = [(text.num_cells, text.sequence) for text in self._running if text.sequence is not None]
        promised = sum(num_cells - self.table.pos(sequence) for num_cells, sequence in others)
        for kept in [kept for kept in self._kept if kept.sequence != donor]:
            if self.table.can_extend(promised + needed):
                break
            self._drop(kept)
        return self.table.can_extend(promised + needed)

    def _tidy(self) -> None:
        """Drops what is too much to be kept, or keeps queries looking at cells that are mostly free."""
        while self._kept and (
            len(self._kept) > MAX_SEQUENCES - self.max_running
            or sum(len(kept.ids) for kept in self._kept) > self.max_kept
            or self.table.used_end > max(2 * (self.table.capacity - self.table.num_free), FEW_CELLS)
        ):
            self._drop(self._kept[0])

    def _used(self, sequence: int | None) -> None:
        """What is kept and was of use is dropped last."""
        for kept in [kept for kept in self._kept if kept.sequence == sequence]:
            self._kept.remove(kept)
            self._kept.append(kept)

    def _drop(self, kept: _Kept) -> None:
        self._kept.remove(kept)
        self.table.seq_rm(kept.sequence)


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(len(first), len(second)))
