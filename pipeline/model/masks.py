"""What an attention mask lets through, asked of the function that Transformers would build it from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import ExportError

MaskFunction = Callable[..., Any]
"""(batch, head, query, key) -> whether the query attends the key; all four are tensors without dimensions."""

_FAR = 1 << 40
"""A position beyond any window, from which a mask function is asked how far back it reaches."""


def window_of(mask_function: MaskFunction) -> int:
    """Positions that a query reaches back, itself included; 0 is all of them.

    Raises ExportError for a mask that is neither causal nor causal with one window.
    """
    import torch

    def attends(query: int, key: int) -> bool:
        # Transformers' mask functions call tensor methods on their indices.
        return bool(mask_function(*(torch.tensor(index) for index in (0, 0, query, key))))

    def reach(query: int) -> int:
        """How many positions, itself included, the query attends; 0 stands for all, -1 for no unbroken run."""
        ages = [0, *(1 << power for power in range(_FAR.bit_length())), query]
        attended = [attends(query, query - age) for age in ages]
        if all(attended):
            return 0
        edge = attended.index(False)
        if any(attended[edge:]):
            return -1
        farthest_attended, nearest_refused = ages[edge - 1], ages[edge]
        while nearest_refused - farthest_attended > 1:
            middle = (nearest_refused + farthest_attended) // 2
            if attends(query, query - middle):
                farthest_attended = middle
            else:
                nearest_refused = middle
        return farthest_attended + 1

    # Chunked attention starts at a multiple of the chunk, so its reach changes from one query to the next.
    queries = (_FAR, _FAR + 1, _FAR + 4097)
    try:
        causal = all(attends(q, q) and not attends(q, q + 1) for q in queries)
        windows = {reach(q) for q in queries} if causal else set()
    except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
        raise ExportError(
            "the model's attention mask depends on the tokens, not on positions alone; the off-graph cache op masks "
            f"by position. ({type(error).__name__}: {error})"
        ) from error
    if not causal:
        raise ExportError("the model's attention mask is not causal; the off-graph cache op always masks causally.")
    if len(windows) != 1 or -1 in windows:
        raise ExportError(
            "the model's attention mask reaches back by different lengths from different positions, or with gaps "
            "(chunked attention, attention sinks); the off-graph cache op knows full and sliding-window attention."
        )
    return windows.pop()
