"""From a Transformers model to an ExportedProgram ``forward(input_ids, cache_position) -> logits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import ExportError
from pipeline.model.forward import OffGraphForward
from pipeline.model.rope import in_first_regime

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export_forward(model: Any, max_seq_len: int) -> ExportedProgram:
    """The model traced for steps of 1 to ``max_seq_len`` tokens.

    Raises ExportError when tracing fails, or narrows that range.
    """
    # Three tokens: the trace must specialize neither on a single token nor on the bound.
    example_len = min(3, max_seq_len)
    arguments = {
        "input_ids": torch.zeros((1, example_len), dtype=torch.long),
        "cache_position": torch.arange(example_len, dtype=torch.long),
    }
    # A step of one token only is static; torch.export admits no dynamic dimension with a single value.
    length = torch.export.Dim("seq_len", min=1, max=max_seq_len) if max_seq_len > 1 else None
    shapes = {"input_ids": {1: length}, "cache_position": {0: length}} if length is not None else None
    try:
        with torch.no_grad(), in_first_regime(model):
            # Non-strict tracing gives the same graph as strict at a fifth of the time (one symbolic size is read
            # from the other input).
            program = torch.export.export(OffGraphForward(model), (), arguments, dynamic_shapes=shapes, strict=False)
    except ExportError:
        raise
    except Exception as error:
        # torch.export documents no common base for what tracing can raise.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(
            f"model type '{model.config.model_type}': torch.export cannot trace it: {reason}. "
            "The log has the whole trace."
        ) from error
    _check_range(program, max_seq_len)
    return program


def _check_range(program: ExportedProgram, max_seq_len: int) -> None:
    if max_seq_len == 1:
        return
    for node in program.graph.nodes:
        if node.op != "placeholder" or node.name not in {"input_ids", "cache_position"}:
            continue
        size = node.meta["val"].shape[-1]
        constraint = program.range_constraints.get(getattr(size.node, "expr", None)) if hasattr(size, "node") else None
        admitted = (int(constraint.lower), int(constraint.upper)) if constraint is not None else (int(size), int(size))
        if admitted != (1, max_seq_len):
            raise ExportError(
                f"the traced program admits steps of {admitted[0]} to {admitted[1]} tokens; expected 1 to "
                f"{max_seq_len}. The model's code specializes on the length of the input."
            )
