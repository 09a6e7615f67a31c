"""Widening to float32 for the duration of a comparison: rounding must not hide what is looked for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from pipeline.errors import ExportError

if TYPE_CHECKING:
    from torch.export import ExportedProgram

HALF = (torch.bfloat16, torch.float16)


@contextmanager
def in_float32(*modules: torch.nn.Module) -> Iterator[None]:
    """Weights and buffers of half precision are float32 while the block runs; the way back is exact.

    Quantized weights stay quantized and are dequantized to float32. Raises ExportError for a kind of weights that
    cannot be.
    """
    narrow: dict[torch.Tensor, torch.dtype] = {}
    quantized: list[tuple[dict[str, Any], str, torch.Tensor]] = []
    held: dict[str, Any]
    for holder in itertools.chain.from_iterable(module.modules() for module in modules):
        for held in (holder._parameters, holder._buffers):
            for name, tensor in held.items():
                if tensor is None or tensor.dtype not in HALF:
                    continue
                if type(tensor) in (torch.Tensor, torch.nn.Parameter):
                    narrow[tensor] = tensor.dtype
                else:
                    quantized.append((held, name, tensor))
    try:
        for tensor in narrow:
            tensor.data = tensor.data.float()
        # The data of a tensor subclass cannot be exchanged; it is replaced where it is held.
        for held, name, tensor in quantized:
            held[name] = _dequantizing_to_float32(tensor)
        yield
    finally:
        for held, name, tensor in quantized:
            held[name] = tensor
        for tensor, dtype in narrow.items():
            tensor.data = tensor.data.to(dtype)


def _dequantizing_to_float32(tensor: torch.Tensor) -> torch.nn.Parameter:
    widened = tensor.to(torch.float32)
    if widened.dtype != torch.float32:
        raise ExportError(
            f"weights of type {type(tensor).__name__} cannot be dequantized to float32, in which a build compares the "
            "program with the model. Choose another quantization."
        )
    return torch.nn.Parameter(widened, requires_grad=False)


def casting_to_float32(program: ExportedProgram) -> torch.nn.Module:
    """The program's module, whose graph casts to float32 wherever the program's casts to half precision.

    It holds the program's own weights, which are for ``in_float32`` to widen. What it computes of weights alone, such
    as what quantized ones stand for, it computes when it is first run, and keeps.
    """
    module: Any = program.module()

    num_casts = 0

    def widened(argument: Any) -> Any:
        nonlocal num_casts
        if not isinstance(argument, torch.dtype) or argument not in HALF:
            return argument
        num_casts += 1
        return torch.float32

    for node in module.graph.nodes:
        node.args = torch.fx.node.map_aggregate(node.args, widened)
        node.kwargs = torch.fx.node.map_aggregate(node.kwargs, widened)
    of_weights: set[Any] = set()
    for node in module.graph.nodes:
        inputs = node.all_input_nodes
        if node.op == "get_attr":
            of_weights.add(node)
        elif node.op == "call_function" and inputs and of_weights.issuperset(inputs) and not node.is_impure():
            of_weights.add(node)
            node.target = _computed_once(node.target)
    if num_casts or of_weights:
        module.recompile()
    held: torch.nn.Module = module
    return held


def _computed_once(compute: Callable[..., Any]) -> Callable[..., Any]:
    kept: list[Any] = []

    def once(*arguments: Any, **named: Any) -> Any:
        if not kept:
            kept.append(compute(*arguments, **named))
        return kept[0]

    return once
