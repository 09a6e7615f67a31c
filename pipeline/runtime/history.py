"""One sequence as its layers hold it, planned in whole numbers; no array is touched here.

Knows how long the sequence is, which step is under way, and how far back it can be taken. The layouts that its layers
have say where tokens lie; a step is planned for all of them at once, so that none is written if one refuses.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.errors import CacheError
from pipeline.runtime.layout import LayerLayout, StepPlan


class History:
    """``length`` tokens of a sequence. A step belongs to it once it is committed.

    ``layouts`` are those of its layers, of one capacity. Layers that have the same need be given once.
    """

    def __init__(self, layouts: Sequence[LayerLayout]) -> None:
        self.length = 0
        self.capacity = layouts[0].capacity
        self._layouts = layouts
        # The end of the furthest position written since the sequence began: what rings have overwritten goes by it.
        self._highest = 0
        self._step: tuple[int, int] | None = None
        self._plans: list[StepPlan] = []

    def can_extend(self, num_tokens: int = 1) -> bool:
        """Whether that many more tokens fit."""
        return self.length + num_tokens <= self.capacity

    def clear(self) -> None:
        """Forgets the sequence."""
        self.length = self._highest = 0
        self.abandon()

    def rewind(self, length: int) -> bool:
        """Forgets all but the first ``length`` tokens. False, and nothing is changed, if they are no longer all there.

        A flat layer keeps every token. A ring has lost cells once it has been written round: what was written last, up
        to ``max_write`` tokens, can be taken back, and so can everything.
        """
        if not 0 <= length <= self.length or not all(layout.keeps(length, self._highest) for layout in self._layouts):
            return False
        if length:
            self.length = length
            self.abandon()
        else:
            self.clear()
        return True

    def enter(self, positions: Sequence[int]) -> list[StepPlan]:
        """The step that writes these positions, planned for each of the layouts. Entering it again changes nothing.

        Raises CacheError for positions that do not continue the sequence, for another step than the one under way, and
        for one that a layout refuses.
        """
        if not positions:
            raise CacheError("the step has no tokens; expected at least 1.")
        step = (positions[0], len(positions))
        if list(positions) != list(range(step[0], step[0] + step[1])):
            raise CacheError(
                f"the step's positions {list(positions)[:8]} are not contiguous; one sequence needs a run."
            )
        if self._step is None:
            if step[0] != self.length:
                raise CacheError(
                    f"the step starts at position {step[0]}, the sequence has {self.length} tokens; expected it to "
                    "continue there."
                )
            self._plans = [layout.plan(*step) for layout in self._layouts]
            self._step = step
            self._highest = max(self._highest, sum(step))
        elif step != self._step:
            raise CacheError(f"layers of one step disagree about it: {step} after {self._step} (start, tokens).")
        return self._plans

    def commit(self) -> None:
        """The step's tokens belong to the sequence from now on."""
        if self._step is not None:
            self.length = sum(self._step)
        self.abandon()

    def abandon(self) -> None:
        """Whatever the step wrote is not part of the sequence; the same positions may be written again."""
        self._step = None
        self._plans = []
