"""Kernels that a graph brings along as Metal source, for Apple GPUs alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError
from pipeline.pte import MlxGraph


def refuse_elsewhere(graph: MlxGraph, where: str) -> None:
    """Raises DelegateError if the graph has such kernels and the default device cannot run them."""
    kernels = sorted(
        {node.fields["name"] for chain in graph.chains for node in chain if node.name == "MetalKernelNode"}
    )
    if kernels and not (mx.metal.is_available() and mx.default_device() == mx.gpu):
        raise DelegateError(
            f"{where} runs Metal kernels of its own ({', '.join(kernels)}), which only an Apple GPU can; the default "
            f"device is {mx.default_device()}. Execute it on a Mac."
        )


def metal_kernel(
    name: str,
    source: str,
    inputs: tuple[mx.array, ...],
    grid: tuple[int, ...],
    threadgroup: tuple[int, ...],
    header: str | None,
    input_names: tuple[str, ...] | None,
    output_names: tuple[str, ...] | None,
    ensure_row_contiguous: bool,
    atomic_outputs: bool,
    output_shapes_flat: tuple[int, ...] | None,
    output_shape_lengths: tuple[int, ...] | None,
    output_dtypes: tuple[int, ...] | None,
    template_arg_names: tuple[str, ...] | None,
    template_arg_kinds: tuple[int, ...] | None,
    template_arg_values: tuple[int, ...] | None,
    init_value: float | None,
) -> list[mx.array]:
    """Compiles the source and runs it once. The outputs' shapes are one list, cut by the lengths."""
    inputs_called, outputs_called = input_names or (), output_names or ()
    lengths, codes, flat = output_shape_lengths or (), output_dtypes or (), output_shapes_flat or ()
    consistent = len(inputs_called) == len(inputs) and len(outputs_called) == len(lengths) == len(codes)
    if not (consistent and inputs and codes and len(grid) == len(threadgroup) == 3 and _cuts(lengths, flat)):
        raise DelegateError(
            f"the Metal kernel '{name}' has {len(inputs)} inputs called {list(inputs_called)}, outputs called "
            f"{list(outputs_called)} of {list(codes)}, shapes {list(flat)} of lengths {list(lengths)}, a grid "
            f"{list(grid)} and threads {list(threadgroup)}, which do not belong together. The file is damaged."
        )
    kernel: Any = mx.fast.metal_kernel(
        name=name,
        input_names=list(inputs_called),
        output_names=list(outputs_called),
        source=source,
        header=header or "",
        ensure_row_contiguous=ensure_row_contiguous,
        atomic_outputs=atomic_outputs,
    )
    ends = [sum(lengths[: place + 1]) for place in range(len(lengths))]
    result: list[mx.array] = kernel(
        inputs=list(inputs),
        template=_template(name, template_arg_names or (), template_arg_kinds or (), template_arg_values or ()),
        grid=grid,
        threadgroup=threadgroup,
        output_shapes=[flat[end - length : end] for end, length in zip(ends, lengths, strict=True)],
        output_dtypes=[dtypes.of_code(code) for code in codes],
        init_value=init_value,
    )
    return result


def _cuts(lengths: tuple[int, ...], flat: tuple[int, ...]) -> bool:
    return all(length >= 0 for length in lengths) and sum(lengths) == len(flat)


def _template(
    kernel: str, names: tuple[str, ...], kinds: tuple[int, ...], values: tuple[int, ...]
) -> list[tuple[str, int | bool | mx.Dtype]]:
    """Kind 0 is an int, 1 a bool, 2 a scalar type."""
    makes: tuple[Callable[[int], Any], ...] = (int, bool, dtypes.of_code)
    if not len(names) == len(kinds) == len(values) or not all(0 <= kind < len(makes) for kind in kinds):
        raise DelegateError(
            f"the Metal kernel '{kernel}' has template arguments {list(names)} of kinds {list(kinds)} and values "
            f"{list(values)}, which do not belong together. The file is damaged."
        )
    return [(name, makes[kind](value)) for name, kind, value in zip(names, kinds, values, strict=True)]


OPERATORS: dict[str, Callable[..., Any]] = {"MetalKernelNode": metal_kernel}
