"""Where tokens lie in a cache's pool, planned in whole numbers; no array is touched here.

A *flat* layer keeps every position in its own slot. A *ring* layer with window w, written at most m tokens at a time,
keeps w + m - 1 slots and wraps: the first query of a step of m tokens still needs w - 1 older cells while m new ones
are being written. The plan of a step is the same for every layer of equal policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pipeline.errors import CacheError

Run = tuple[int, int]
"""A contiguous run of slots: first slot, number of slots."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One layer's part of a step: slots to write, slots to read (oldest position first), and the mask over them.

    ``end`` is the position after the step's last token. ``mask`` is ``none`` (every key is attended), ``causal``
    (aligned to the lower right) or ``window`` (explicit).
    """

    writes: tuple[Run, ...]
    reads: tuple[Run, ...]
    num_keys: int
    end: int
    mask: Literal["none", "causal", "window"]


@dataclass(frozen=True, kw_only=True)
class LayerLayout:
    """How one layer's pool is used. ``window`` 0 is flat; ``capacity`` bounds positions, ``max_write`` one step."""

    window: int
    capacity: int
    max_write: int

    @property
    def max_slots(self) -> int:
        """Slots that the pool will ever hold. A ring that the capacity cannot fill never wraps, and needs no more."""
        return min(self.window + self.max_write - 1, self.capacity) if self.window else self.capacity

    def keeps(self, length: int, highest: int) -> bool:
        """Whether a sequence of ``length`` tokens can be continued here after positions below ``highest`` were written.

        A query at position ``length`` attends up to window - 1 older ones; a ring still has the latest ``max_slots``.
        """
        oldest = max(0, length - self.window + 1) if self.window else 0
        return oldest >= min(length, highest - self.max_slots)

    def plan(self, start: int, length: int) -> StepPlan:
        """Writing ``length`` tokens at positions ``start`` onward, then reading what their queries may attend.

        Raises CacheError when the step does not fit; nothing has been written then.
        """
        end = start + length
        if length < 1:
            raise CacheError(f"the step has {length} tokens; expected at least 1.")
        if end > self.capacity:
            raise CacheError(
                f"the step ends at position {end}, the cache's capacity is {self.capacity}. "
                "Shorten the text, or bind a cache of larger capacity."
            )
        if self.window and length > self.max_write:
            raise CacheError(
                f"the step has {length} tokens, a ring layer takes at most {self.max_write} at a time. "
                "Feed the text in smaller chunks."
            )
        base = max(0, start - self.window + 1) if self.window else 0
        num_keys = end - base
        if length == 1:
            mask: Literal["none", "causal", "window"] = "none"
        elif self.window and self.window < num_keys:
            mask = "window"
        else:
            mask = "causal"
        return StepPlan(
            writes=self._runs(start, length), reads=self._runs(base, num_keys), num_keys=num_keys, end=end, mask=mask
        )

    def _runs(self, position: int, length: int) -> tuple[Run, ...]:
        if not self.window:
            return ((position, length),)
        slot = position % self.max_slots
        first = min(length, self.max_slots - slot)
        return ((slot, first),) if first == length else ((slot, first), (0, length - first))


def grown(num_slots: int, needed: int, max_slots: int) -> int:
    """The pool's next size: doubled until ``needed`` slots fit, never beyond ``max_slots``."""
    size = max(num_slots, 1)
    while size < needed:
        size *= 2
    return min(size, max_slots)
