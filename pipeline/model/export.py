"""From a Transformers model to an ExportedProgram ``forward(input_ids, cache_position[, logit_rows]) -> logits``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import ExportError
from pipeline.model.forward import OffGraphForward
from pipeline.model.rope import in_first_regime

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def export_forward(model: Any, max_seq_len: int, logits: str = "last") -> ExportedProgram:
    """The model traced for steps of 1 to ``max_seq_len`` tokens, with logits in one of the contract's modes.

    In mode ``selected``, 1 to ``max_seq_len`` rows can be selected: a runner of one sequence asks for the last one, a
    batched one for as many as there are sequences in its step.

    Raises ExportError when tracing fails, or narrows those ranges, or gives other rows of logits than the mode's.
    """
    # Three tokens: the trace must specialize neither on a single token nor on the bound.
    example_len = min(3, max_seq_len)
    arguments = {
        "input_ids": torch.zeros((1, example_len), dtype=torch.long),
        "cache_position": torch.arange(example_len, dtype=torch.long),
    }
    shapes = None
    if max_seq_len > 1:
        # A step of one token only is static; torch.export admits no dynamic dimension with a single value.
        length = torch.export.Dim("seq_len", min=1, max=max_seq_len)
        shapes = {"input_ids": {1: length}, "cache_position": {0: length}}
    if logits == "selected":
        # Another number than that of the tokens, where there is one: they are not to be taken for one size.
        arguments["logit_rows"] = torch.arange(min(2, max_seq_len), dtype=torch.long)
        if shapes is not None:
            shapes["logit_rows"] = {0: torch.export.Dim("num_rows", min=1, max=max_seq_len)}
    try:
        with torch.no_grad(), in_first_regime(model):
            # Non-strict tracing gives the same graph as strict at a fifth of the time (one symbolic size is read
            # from the other input).
            program = torch.export.export(
                OffGraphForward(model, logits), (), arguments, dynamic_shapes=shapes, strict=False
            )
    except ExportError:
        raise
    except Exception as error:
        # torch.export documents no common base for what tracing can raise.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise ExportError(
            f"model type '{model.config.model_type}': torch.export cannot trace it: {reason}. "
            "The log has the whole trace."
        ) from error
    sizes = {
        node.name: node.meta["val"].shape[-1]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in arguments
    }
    for name, what in (("input_ids", "tokens"), ("cache_position", "tokens"), ("logit_rows", "selected rows")):
        if name in sizes:
            _check_range(program, sizes[name], max_seq_len, what)
    _check_rows(program, {"last": 1, "full": sizes["input_ids"], "selected": sizes.get("logit_rows")}[logits], logits)
    return program


def _check_range(program: ExportedProgram, size: Any, max_seq_len: int, what: str) -> None:
    constraint = program.range_constraints.get(getattr(size.node, "expr", None)) if hasattr(size, "node") else None
    admitted = (int(constraint.lower), int(constraint.upper)) if constraint is not None else (int(size), int(size))
    if admitted != (1, max_seq_len):
        raise ExportError(
            f"the traced program admits steps of {admitted[0]} to {admitted[1]} {what}; expected 1 to "
            f"{max_seq_len}. The model's code specializes on the length of the input."
        )


def _check_rows(program: ExportedProgram, expected: Any, mode: str) -> None:
    """Sizes are compared as they are written: equal only if they are one and the same for every step."""
    (output,) = program.graph.output_node().args[0]
    shape = output.meta["val"].shape
    if len(shape) != 3 or str(shape[1]) != str(expected):
        raise ExportError(
            f"the traced program returns logits {[str(size) for size in shape]}; expected [1, {expected}, vocab] for "
            f"{mode} logits. The model's code does not keep the rows that it is asked for."
        )
