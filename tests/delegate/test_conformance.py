"""Every node of the installed schema is executed as the MLX backend means it; executorch's own op suite judges."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
import pytest
import torch

from pipeline.delegate.executor import MlxMethod
from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError
from pipeline.pte import PteFile
from pipeline.pte.mlx_ops import OPS
from tests.delegate import conformance
from tests.tiny_models import library_warnings_ignored

ORDINARY = (Path(__file__).parent / "ordinary_cases.txt").read_text().split()
"""Cases whose graphs together have every node that the suite's graphs have, and some of each quantized mode."""

ELSEWHERE = {
    "MedianNode": "ops/test_reduction.py",
    "MetalKernelNode": "ops/test_metal.py",
    "NoopNode": "test_plan.py",
    "TriNode": "ops/test_creation.py",
}
"""Nodes that no graph of the suite has that runs here, and the test module that has a case of each."""

KERNELS = "runs Metal kernels of its own"

CANNOT_RUN = dict.fromkeys(("turboquant_kv_cache.*", "metal_kernel_.*", "gated_delta_rule_.*_kernel"), KERNELS)
"""Cases that cannot run but on an Apple GPU, by pattern, and what is said of them."""

NUM_CASES, NUM_REFUSED = 930, 24

UNCOMPARED = {"sample_seeded", "sample_unseeded", "sample_top_p", "sample_top_k"}
"""Cases whose numbers the suite itself does not compare, as torch and MLX draw others: theirs are held to shape and
dtype here, and the words that MLX draws to its own in ops/test_creation.py."""


@pytest.mark.parametrize("name", ORDINARY)
def test_a_case_of_executorchs_op_suite_agrees_with_eager(name: str) -> None:
    assert conformance.outcome(name).problem is None


@pytest.mark.slow
def test_the_whole_suite_agrees_but_for_what_only_an_apple_gpu_runs() -> None:
    """More than nine hundred cases, in five to ten minutes."""
    wrong, num_refused = {}, 0
    for name in conformance.cases():
        problem = conformance.outcome(name).problem
        reason = next(
            (said for pattern, said in CANNOT_RUN.items() if re.fullmatch(pattern, name.partition("#")[0])), None
        )
        num_refused += reason is not None
        agrees = problem is None if reason is None else reason in (problem or "")
        if not agrees:
            wrong[name] = problem
    assert not wrong
    assert (len(conformance.cases()), num_refused) == (NUM_CASES, NUM_REFUSED)


def test_the_suite_compares_all_numbers_but_those_that_are_drawn() -> None:
    assert {name for name, case in conformance.cases().items() if case.skip_comparison} == UNCOMPARED


def test_every_node_of_the_schema_has_an_operator() -> None:
    """UpdateAndAttend is bound to a cache, and If and Scan run other chains: the executor and the plan have them."""
    bound_elsewhere = {"NoopNode", "UpdateAndAttendNode", "IfNode", "ScanNode"}
    assert {name for _, name, _ in OPS} == OPERATORS.keys() | bound_elsewhere


def test_every_node_of_the_schema_has_a_case() -> None:
    """A node that joins the schema fails this until it has one; tests/pte holds the table to the installed schema."""
    executed = frozenset().union(*(conformance.outcome(name).nodes for name in ORDINARY))
    assert {name for _, name, _ in OPS} == executed | ELSEWHERE.keys()
    assert not executed & ELSEWHERE.keys()
    for name, module in ELSEWHERE.items():
        assert name in (Path(__file__).parent / module).read_text(), f"{module} has no case of {name}"


Built = Callable[..., PteFile]


@pytest.fixture
def built(tmp_path: Path) -> Built:
    """Lowers modules to a program's methods, each with what its forward is given."""
    from pipeline.model import serializer

    serializer.provide()
    with library_warnings_ignored():
        from executorch.backends.mlx import MLXPartitioner
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

    def build(**methods: tuple[torch.nn.Module, tuple[torch.Tensor, ...]]) -> PteFile:
        with library_warnings_ignored():
            edge = to_edge_transform_and_lower(
                {name: torch.export.export(*method, strict=False) for name, method in methods.items()},
                partitioner=[MLXPartitioner()],
                compile_config=EdgeCompileConfig(_check_ir_validity=False),
            )
            path = tmp_path / "built.pte"
            path.write_bytes(edge.to_executorch().buffer)
        return PteFile.open(path)

    return build


class Flip(torch.nn.Module):
    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(tensor.flip(0) for tensor in tensors)


class Distance(torch.nn.Module):
    """Between two things that the MLX backend has, one that it has not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cdist(x.exp(), x).sin()


DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32)


def test_inputs_and_outputs_have_every_dtype_that_the_exporter_delegates(built: Built) -> None:
    given = tuple(torch.tensor([0, 1, 3]).to(dtype) for dtype in DTYPES)
    with built(forward=(Flip(), given)) as pte:
        found = [conformance.to_torch(array) for array in MlxMethod(pte)(*map(conformance.to_mlx, given))]
    assert [tensor.dtype for tensor in found] == list(DTYPES)
    assert [tensor.tolist() for tensor in found] == [tensor.flip(0).tolist() for tensor in given]


def test_each_method_of_a_program_is_executed_by_its_name(built: Built) -> None:
    ones, twos = torch.ones(2, 3), torch.full((4,), 2.0)
    with built(forward=(torch.nn.Softmax(-1), (ones,)), clipped=(torch.nn.Hardtanh(0, 1.5), (twos,))) as pte:
        assert MlxMethod(pte)(mx.ones((2, 3)))[0].tolist() == torch.softmax(ones, -1).tolist()
        assert MlxMethod(pte, "clipped")(mx.full((4,), 2.0))[0].tolist() == [1.5] * 4


def test_operators_left_to_the_cpu_between_delegates_are_refused_by_name(built: Built) -> None:
    expected = (
        "built.pte: forward has 2 delegates and operators outside them (aten::_cdist_forward.out); expected one MLX "
        "delegate and nothing else."
    )
    with (
        built(forward=(Distance(), (torch.zeros(4, 3),))) as pte,
        pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"),
    ):
        MlxMethod(pte)
