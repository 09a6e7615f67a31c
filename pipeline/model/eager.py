"""The own eager attention of a model that was loaded for the off-graph cache: a reference without a second copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.checkpoint import EAGER
from pipeline.model.masks import MaskFunction, window_of

KEPT_WINDOW = 16
"""A window up to this wide has no other name."""

_NARROWEST = 8


class WindowNames:
    """Narrow windows that stand for wider ones, distinct ones for distinct ones; 0, which is none, stays 0.

    ``published`` are those of the caches. Any other window is given a name when it is first met, so that a layer which
    masks with it differs from a cache that does not.
    """

    def __init__(self, published: Iterable[int]) -> None:
        self._names: dict[int, int] = {0: 0}
        # From the narrowest on: those that keep their width come before those that take what is free.
        for window in sorted(set(published)):
            self.of(window)

    def of(self, window: int) -> int:
        """The narrow window that stands for ``window``."""
        if window not in self._names:
            taken = set(self._names.values())
            free = next(name for name in range(_NARROWEST, 2 * KEPT_WINDOW + len(taken)) if name not in taken)
            self._names[window] = window if window <= KEPT_WINDOW and window not in taken else free
        return self._names[window]


@contextmanager
def own_attention(model: Any, windows: WindowNames) -> Iterator[None]:
    """The model attends with Transformers' eager attention while the block runs, its windows renamed."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS

    configs = {
        id(module.config): module.config
        for module in model.modules()
        if getattr(getattr(module, "config", None), "_attn_implementation", None) == IMPLEMENTATION
    }
    eager_mask = MASKS[EAGER]

    def mask(*sizes: Any, mask_function: MaskFunction, **named: Any) -> Any:
        try:
            window = window_of(mask_function)
        except ExportError:
            # Models build masks that none of their layers is passed; the others are refused before.
            window = 0
        if windows.of(window) != window:
            mask_function = _sliding(windows.of(window))
        return eager_mask(*sizes, mask_function=mask_function, **named)

    MASKS[EAGER] = mask
    try:
        for config in configs.values():
            # Not the property, which would set configurations of other towers inside this one.
            config._attn_implementation_internal = EAGER
        yield
    finally:
        for config in configs.values():
            config._attn_implementation_internal = IMPLEMENTATION
        del MASKS[EAGER]


def _sliding(window: int) -> MaskFunction:
    def attends(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & (query - key < window)

    return attends
