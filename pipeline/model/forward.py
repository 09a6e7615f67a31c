"""One step of a model whose history lives outside it: the signature that a runner drives."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pipeline.contract import LOGITS_MODE
from pipeline.errors import ExportError
from pipeline.model.attention import stepping


class OffGraphForward(torch.nn.Module):
    """One step of a single sequence.

    ``input_ids`` is int64 [1, T] and ``cache_position`` int64 [T], the tokens' absolute positions. Returns logits
    [1, rows, vocab]: of the last token in logits mode ``last``, of every token in ``full``. In ``selected`` they are
    those of the tokens that ``logit_rows`` names, int64 [rows], counted from 0 in the step and in any order; the other
    modes take no such input.
    """

    def __init__(self, model: Any, logits: str = "last") -> None:
        super().__init__()
        assert logits in LOGITS_MODE, logits
        self.model = model
        self.position_offset = _position_offset(model)
        self._position_tables = _position_tables(model)
        self._mode = logits
        # Told by a number how many rows of logits are wanted, models that share K/V drop the other queries before the
        # layers that read them, and attention would be left with more keys than queries. Zero is all of them.
        shares = any(getattr(module, "is_kv_shared_layer", False) for module in model.modules())
        self._rows = 0 if logits == "full" else torch.tensor([-1]) if shares else 1
        self._keeps_all_rows = keeps_all_rows(model)

    def forward(
        self, input_ids: torch.Tensor, cache_position: torch.Tensor, logit_rows: torch.Tensor | None = None
    ) -> torch.Tensor:
        assert (logit_rows is not None) == (self._mode == "selected"), "rows are selected in mode selected alone"
        # Positions are passed explicitly: without a cache the model would count from 0 at every step.
        positions = cache_position.unsqueeze(0)
        with stepping(positions), ExitStack() as hooks:
            for table in self._position_tables:
                hooks.enter_context(_told(table, positions))
            logits: torch.Tensor = self.model(
                input_ids=input_ids,
                position_ids=positions + self.position_offset if self.position_offset else positions,
                use_cache=False,
                logits_to_keep=self._rows if logit_rows is None else logit_rows,
            ).logits
        if not self._keeps_all_rows or self._mode == "full":
            return logits
        return logits[:, -1:] if logit_rows is None else logits[:, logit_rows]


def keeps_all_rows(model: Any) -> bool:
    """Whether the model returns logits of every token, whichever it is asked for."""
    return "logits_to_keep" not in inspect.signature(model.forward).parameters


def _position_offset(model: Any) -> int:
    """What a model adds to positions that it counts itself, and not to those that it is given; 0 for most.

    RoBERTa and its kin keep the first rows of their position table for padding, and count from padding_idx + 1.
    """
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids") and getattr(module, "padding_idx", None) is not None:
            return int(module.padding_idx) + 1
    return 0


def _position_tables(model: Any) -> list[torch.nn.Module]:
    """The position embeddings of models that count positions, from 0 in every forward pass, whatever they are given."""
    return [
        module
        for module in model.modules()
        if isinstance(module, torch.nn.Embedding) and "position_ids" in inspect.signature(module.forward).parameters
    ]


@contextmanager
def _told(table: torch.nn.Module, positions: torch.Tensor) -> Iterator[None]:
    """The table is looked up at ``positions`` while the block runs, not at those that its model counted.

    A table that is told none counts for itself: no place for ours, and a rehearsal finds out whether it matters.
    """

    def tell(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        counted = named.get("position_ids")
        return arguments, named if counted is None else named | {"position_ids": positions.reshape(counted.shape)}

    handle = table.register_forward_pre_hook(tell, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def failures_explained(model: Any) -> Iterator[None]:
    """Whatever the model's own code raises inside the block becomes an ExportError."""
    try:
        yield
    except ExportError:
        raise
    except Exception as error:
        # A model's own code can fail in any way when its attention gets no mask.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(
            f"model type '{model.config.get_text_config().model_type}': its forward fails, given positions and no "
            f"mask: {reason}. It cannot be exported with the off-graph cache."
        ) from error
