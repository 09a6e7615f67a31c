"""From an ExportedProgram to a ``.pte`` that is one MLX delegate and nothing else."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import LowerError
from pipeline.model import serializer

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def lower_to_mlx(program: ExportedProgram, constant_methods: dict[str, Any]) -> Any:
    """The executorch program manager, ready to be written.

    Raises LowerError when executorch fails, and, listing the operators left out, unless ``forward`` became exactly one
    delegate.
    """
    serializer.provide()
    from executorch.backends.mlx import MLXPartitioner
    from executorch.backends.mlx.passes import get_default_passes
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from executorch.exir.capture._config import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass

    try:
        edge = to_edge_transform_and_lower(
            {"forward": program},
            transform_passes=get_default_passes(),
            partitioner=[MLXPartitioner()],
            constant_methods=constant_methods,
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )
    except Exception as error:
        # executorch documents no common base for what its passes can raise.
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise LowerError(f"executorch cannot lower forward: {reason}. The log has the whole trace.") from error
    _require_one_delegate(edge.exported_program())
    return edge.to_executorch(
        config=ExecutorchBackendConfig(
            extract_delegate_segments=True,
            memory_planning_pass=MemoryPlanningPass(alloc_graph_input=True),
        )
    )


def write(executorch_program: Any, path: Path) -> None:
    """Streams the ``.pte`` to ``path``; the whole file is never held in memory."""
    with path.open("wb") as file:
        executorch_program.write_to_file(file)


def _require_one_delegate(edge_program: ExportedProgram) -> None:
    from executorch.exir.delegate import executorch_call_delegate

    calls = [node for node in edge_program.graph.nodes if node.op == "call_function"]
    delegates = sum(node.target is executorch_call_delegate for node in calls)
    left_out = Counter(
        # An edge operator wraps the one that has a readable name.
        str(getattr(node.target, "_op", node.target))
        for node in calls
        if node.target is not executorch_call_delegate and getattr(node.target, "__name__", "") != "getitem"
    )
    if delegates == 1 and not left_out:
        return
    listed = ", ".join(f"{name} ({count})" for name, count in left_out.most_common())
    raise LowerError(
        f"forward became {delegates} MLX delegates with {sum(left_out.values())} operators left out"
        f"{f': {listed}' if listed else ''}; expected one delegate and nothing else. The log has the "
        "partitioner's reasons."
    )
