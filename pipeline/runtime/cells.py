"""Which cell holds which token of which sequences, planned in whole numbers; no array is touched here.

Many sequences share one table of cells. A token takes the lowest free cell, wherever that is, and a sequence is the
list of its tokens' cells. A prefix that sequences have in common lies in the same cells. A cell is free when no
sequence has it any more; the capacity counts cells in use, not positions.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pipeline.errors import CacheError
from pipeline.runtime.layout import Run

MAX_SEQUENCES = 64


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A step's tokens in order: the sequence, position and cell of each. All cells in use are below ``used_end``."""

    sequences: tuple[int, ...]
    positions: tuple[int, ...]
    cells: tuple[int, ...]
    used_end: int

    def runs(self) -> list[Run]:
        """The cells as runs of neighbours, in the order of the tokens."""
        runs: list[Run] = []
        for cell in self.cells:
            if runs and cell == sum(runs[-1]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((cell, 1))
        return runs


class CellTable:
    """``capacity`` cells, and the sequences in them. Positions of each sequence are below ``max_context``, if given.

    A step is declared, then placed when its positions come, then committed or abandoned; until it is committed no
    sequence has its tokens. Whatever changes a sequence otherwise abandons a step that is declared or placed. An
    operation that is refused, with a CacheError, changes nothing else.
    """

    def __init__(self, capacity: int, max_context: int | None = None) -> None:
        self.capacity = capacity
        self.used_end = 0
        self._max_context = max_context
        self._sequences: dict[int, array[int]] = {}
        # How many sequences have each cell that was ever used, and those of them that none has.
        self._owners = array("B")
        self._free: list[int] = []
        self._declared: tuple[int, ...] = ()
        self._placed: tuple[Sequence[int], Placement] | None = None

    @property
    def sequences(self) -> tuple[int, ...]:
        """The sequences that there are, by their numbers."""
        return tuple(sorted(self._sequences))

    @property
    def num_free(self) -> int:
        """Cells that no token has; those of a step under way count as taken."""
        return self.capacity - len(self._owners) + len(self._free)

    @property
    def vacated(self) -> tuple[int, ...]:
        """The cells that tokens once had, and none has now."""
        return tuple(self._free)

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit, of whichever sequences."""
        return num_tokens <= self.num_free

    def pos(self, sequence: int) -> int:
        """The number of tokens in the sequence, which is the position of its next one."""
        cells = self._cells(sequence)
        return len(cells) - (self._placed[1].sequences.count(sequence) if self._placed else 0)

    def seq_new(self) -> int:
        """An empty sequence, by the lowest number that none has."""
        free = next((number for number in range(MAX_SEQUENCES) if number not in self._sequences), None)
        if free is None:
            raise CacheError(f"the cache has {MAX_SEQUENCES} sequences, and cannot have more. Remove one.")
        self._sequences[free] = array("i")
        return free

    def seq_rm(self, sequence: int) -> None:
        """The sequence is no more; cells that it alone had are free."""
        self._cells(sequence)
        self.abandon_step()
        self._release(self._sequences.pop(sequence))

    def seq_clone(self, sequence: int, upto: int | None = None) -> int:
        """A new sequence that begins with the first ``upto`` tokens of another, all by default, in the same cells."""
        length = self.pos(sequence)
        upto = length if upto is None else upto
        if not 0 <= upto <= length:
            raise CacheError(
                f"sequence {sequence} is to be cloned up to token {upto} and has {length}; expected 0 to {length}."
            )
        clone = self.seq_new()
        self.abandon_step()
        self._sequences[clone] = self._sequences[sequence][:upto]
        for cell in self._sequences[clone]:
            self._owners[cell] += 1
        return clone

    def rewind(self, sequence: int, length: int) -> bool:
        """Forgets all but the first ``length`` tokens of a sequence. False, and nothing is changed, if it has fewer."""
        if not 0 <= length <= self.pos(sequence):
            return False
        self.abandon_step()
        cells = self._sequences[sequence]
        self._release(cells[length:])
        del cells[length:]
        return True

    def clear(self) -> None:
        """There are no sequences any more."""
        self.abandon_step()
        self._sequences.clear()
        self._owners = array("B")
        self._free.clear()
        self.used_end = 0

    def declare_step(self, sequences: Sequence[int]) -> None:
        """Says which sequence each token of the next step belongs to. An earlier declaration is forgotten."""
        self.abandon_step()
        if not sequences:
            raise CacheError("the step has no tokens; expected at least 1.")
        for sequence, num_tokens in Counter(sequences).items():
            end = self.pos(sequence) + num_tokens
            if self._max_context is not None and end > self._max_context:
                raise CacheError(
                    f"the step ends at position {end} of sequence {sequence}, the context is {self._max_context}. "
                    "Shorten the text, or export with a larger max_context_len."
                )
        if not self.can_extend(len(sequences)):
            raise CacheError(
                f"the step has {len(sequences)} tokens, and {self.num_free} of {self.capacity} cells are free. Wait "
                "until a sequence is done, remove one, or bind a cache of larger capacity."
            )
        self._declared = tuple(sequences)

    def place_step(self, positions: Sequence[int]) -> Placement:
        """Takes a cell for each token of the declared step, the lowest first.

        ``positions`` are what the graph is given, each that of its token in the token's sequence. Layers of one step
        get one placement. Raises CacheError if no step is declared, or one of another number of tokens, if a token does
        not continue its sequence, and if layers disagree.
        """
        if self._placed is not None:
            known, placement = self._placed
            if positions is not known and tuple(positions) != placement.positions:
                raise CacheError(
                    f"layers of one step disagree about its positions: {list(positions)[:8]} after {list(known)[:8]}."
                )
            return placement
        self._check(positions)
        cells = []
        for sequence in self._declared:
            cell = self._take()
            cells.append(cell)
            self._sequences[sequence].append(cell)
        placement = Placement(
            sequences=self._declared, positions=tuple(positions), cells=tuple(cells), used_end=self.used_end
        )
        self._placed = positions, placement
        return placement

    def attended(self, sequence: int, position: int, window: int) -> array[int]:
        """The cells that a query at this position of the sequence attends, its own among them, in order of position."""
        cells = self._cells(sequence)
        return cells[max(0, position - window + 1) if window else 0 : position + 1]

    def commit_step(self) -> None:
        """The step's tokens belong to their sequences from now on. Without a step, nothing changes.

        Raises CacheError for a step that was declared and not placed: whatever was executed did not use the cells.
        """
        unused = self._declared if self._placed is None else ()
        self._placed = None
        self._declared = ()
        if unused:
            raise CacheError(
                f"a step of {len(unused)} tokens was declared, and none was written: the method keeps its history "
                "itself, that of one sequence. Run it without this cache."
            )

    def abandon_step(self) -> None:
        """Every sequence is as it was before the step, which is no longer declared."""
        if self._placed is not None:
            placement = self._placed[1]
            for sequence in placement.sequences:
                self._sequences[sequence].pop()
            self._release(placement.cells)
        self._placed = None
        self._declared = ()

    def _cells(self, sequence: int) -> array[int]:
        if sequence not in self._sequences:
            there_are = ", ".join(map(str, self.sequences)) or "none"
            raise CacheError(f"there is no sequence {sequence} in the cache; there are: {there_are}.")
        return self._sequences[sequence]

    def _check(self, positions: Sequence[int]) -> None:
        if len(positions) != len(self._declared):
            raise CacheError(
                f"the step has {len(positions)} tokens, and {len(self._declared)} were declared. Declare with "
                "declare_step which sequence each token belongs to, before each step."
            )
        following = {sequence: self.pos(sequence) for sequence in self._declared}
        for token, (sequence, position) in enumerate(zip(self._declared, positions, strict=True)):
            if position != following[sequence]:
                raise CacheError(
                    f"token {token} of the step has position {position} of sequence {sequence}; expected "
                    f"{following[sequence]}, where the sequence continues."
                )
            following[sequence] += 1

    def _take(self) -> int:
        if self._free:
            cell = heappop(self._free)
            self._owners[cell] = 1
        else:
            cell = len(self._owners)
            self._owners.append(1)
        self.used_end = max(self.used_end, cell + 1)
        return cell

    def _release(self, cells: Sequence[int]) -> None:
        for cell in cells:
            self._owners[cell] -= 1
            if not self._owners[cell]:
                heappush(self._free, cell)
        while self.used_end and not self._owners[self.used_end - 1]:
            self.used_end -= 1
