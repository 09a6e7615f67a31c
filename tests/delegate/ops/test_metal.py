"""A graph's own Metal kernels: handed on whole to MLX on an Apple GPU, refused by name elsewhere."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.ops.metal import refuse_elsewhere
from pipeline.errors import DelegateError
from pipeline.pte import MlxGraph, Node

FIELDS: dict[str, Any] = {
    "name": "double",
    "source": "out[0] = 2 * x[0];",
    "inputs": (mx.zeros((2, 3)),),
    "grid": (6, 1, 1),
    "threadgroup": (2, 1, 1),
    "header": None,
    "input_names": ("x",),
    "output_names": ("out", "count"),
    "ensure_row_contiguous": True,
    "atomic_outputs": False,
    "output_shapes_flat": (2, 3, 7),
    "output_shape_lengths": (2, 1),
    "output_dtypes": (15, 3),
    "template_arg_names": ("n", "even", "T"),
    "template_arg_kinds": (0, 1, 2),
    "template_arg_values": (4, 1, 5),
    "init_value": 0.0,
}


def graph(*nodes: Node) -> MlxGraph:
    return MlxGraph(1, 0, 0, 0, 0, 1, 0, (nodes,), 0, None, (), (), (), {}, ())


def test_kernels_are_refused_by_name_where_there_is_no_metal() -> None:
    refuse_elsewhere(graph(Node("NoopNode", {})), "model.pte: forward")
    if mx.metal.is_available():
        return
    expected = (
        "model.pte: forward runs Metal kernels of its own (double, halve), which only an Apple GPU can; the default "
        f"device is {mx.default_device()}. Execute it on a Mac."
    )
    kernels = (Node("MetalKernelNode", {"name": name}) for name in ("halve", "double", "halve"))
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        refuse_elsewhere(graph(*kernels), "model.pte: forward")


def test_a_kernel_is_handed_to_mlx_with_its_shapes_and_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX compiles a kernel only on Metal; what it is given can be seen anywhere."""
    seen: list[dict[str, Any]] = []

    def metal_kernel(**made: Any) -> Any:
        def run(**called: Any) -> str:
            seen.extend((made, called))
            return "results"

        return run

    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    assert OPERATORS["MetalKernelNode"](**FIELDS) == "results"
    made, called = seen
    assert made == {
        "name": "double",
        "input_names": ["x"],
        "output_names": ["out", "count"],
        "source": FIELDS["source"],
        "header": "",
        "ensure_row_contiguous": True,
        "atomic_outputs": False,
    }
    (given,) = called.pop("inputs")
    assert given is FIELDS["inputs"][0]
    assert called == {
        "template": [("n", 4), ("even", True), ("T", mx.float16)],
        "grid": (6, 1, 1),
        "threadgroup": (2, 1, 1),
        "output_shapes": [(2, 3), (7,)],
        "output_dtypes": [mx.bfloat16, mx.int32],
        "init_value": 0.0,
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"input_names": ()},
        {"inputs": (), "input_names": None},
        {"output_names": ("out",)},
        {"output_dtypes": None},
        {"output_shapes_flat": (2, 3)},
        {"output_shape_lengths": (4, -1)},
        {"grid": (6, 1)},
        {"threadgroup": (6, 1, 1, 1)},
    ],
    ids=str,
)
def test_a_kernel_whose_parts_do_not_belong_together_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(
        DelegateError, match=r"^the Metal kernel 'double' has .* which do not belong together\. The file"
    ):
        OPERATORS["MetalKernelNode"](**FIELDS | changes)


@pytest.mark.parametrize("changes", [{"template_arg_kinds": (0, 1, 3)}, {"template_arg_values": (4, 1)}], ids=str)
def test_a_template_that_does_not_belong_together_is_refused(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **made: lambda **called: [])
    with pytest.raises(
        DelegateError, match=r"^the Metal kernel 'double' has template arguments .* The file is damaged"
    ):
        OPERATORS["MetalKernelNode"](**FIELDS | changes)
