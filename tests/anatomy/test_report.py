"""The report's facts are those that executorch and torch know of the same files."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline import spec
from pipeline.anatomy import inspect
from pipeline.anatomy.facts import Bounds, Quantization
from pipeline.pte import PteFile
from pipeline.spec import DEFAULT_GROUP_SIZE, UNQUANTIZED, QuantizeSpec, WeightFormat
from pipeline.steps import build, quantize
from tests.tiny_models import SPEC, Artifact, library_warnings_ignored, save_snapshot
from tests.tiny_models import model as tiny_model

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def theirs(path: Path) -> Any:
    """The program as executorch's own deserializer reads it."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    return deserialize_pte_binary(path.read_bytes()).program


def graph_of_theirs(path: Path, scratch: Path) -> dict[str, Any]:
    """The first MLX graph as executorch's own flatbuffer compiler reads it, by executorch's own schema."""
    (where,) = importlib.util.find_spec("executorch").submodule_search_locations  # type: ignore[union-attr]
    with PteFile.open(path) as pte:
        payload = bytes(pte.program.methods["forward"].delegates[0].payload)
    (end,) = struct.unpack_from("<Q", payload, 8)
    (scratch / "graph.bin").write_bytes(payload[24:end])
    flatc, rules = Path(where, "data/bin/flatc"), Path(where, "backends/mlx/serialization/schema.fbs")
    command = [flatc, "--json", "--strict-json", "--defaults-json", "--raw-binary", "-o", scratch, rules, "--"]
    subprocess.run([*command, scratch / "graph.bin"], check=True)
    found: dict[str, Any] = json.loads((scratch / "graph.json").read_text())
    return found


def test_a_graph_is_told_as_executorchs_own_tools_read_it(tiny_pte: Any, tmp_path: Path) -> None:
    (method,) = inspect(tiny_pte.path).methods
    found = method.delegates[0].graph
    assert found is not None
    graph = graph_of_theirs(tiny_pte.path, tmp_path)
    chains = [[one["op_type"] for one in chain["instructions"]] for chain in graph["instruction_chains"]]
    assert (dict(found.nodes), dict(found.init_nodes)) == (Counter(chains[0]), {})
    assert list(found.nodes.values()) == sorted(found.nodes.values(), reverse=True)
    for ours, name in (
        (found.num_constants, "num_constant_tensors"),
        (found.num_inputs, "num_input_tensors"),
        (found.num_outputs, "num_output_tensors"),
        (found.num_mutable_buffers, "num_mutable_buffer_tensors"),
        (found.num_temporaries, "num_temp_tensors"),
        (found.num_values, "num_values"),
    ):
        assert ours == graph[name], name
    names = {one["slot"]["idx"]: one["name"].partition("/")[2] for one in graph["named_slots"]}
    for argument in method.inputs:
        (tid,) = [slot["idx"] for slot in graph["input_map"] if names[slot["idx"]] == argument.name]
        assert argument.shape == tuple(
            Bounds(dim["min_value"], dim["max_value"]) if dim["value"] == -1 else dim["value"]
            for dim in graph["tensor_meta"][tid]["shape"]
        )
    tensors = inspect(tiny_pte.path).tensors
    constants = {
        names[tid]: tuple(dim["value"] for dim in graph["tensor_meta"][tid]["shape"])
        for tid in range(graph["num_constant_tensors"])
    }
    assert {name: one.shape for one in tensors for name in one.names} == constants


@pytest.mark.parametrize("name", ["llama", "llama-bf16"])
def test_tensors_are_the_models_own(name: str, artifact: Callable[[str], Artifact]) -> None:
    """Names, shapes and how many weights, from the checkpoint that it was built from."""
    from transformers import AutoModelForCausalLM

    built = artifact(name)
    report = inspect(built.pte)
    model = AutoModelForCausalLM.from_pretrained(built.snapshot)
    own = {f"model.{name}": tuple(parameter.shape) for name, parameter in model.named_parameters()}
    found = {alias: one for one in report.tensors for alias in one.names if alias in own}
    assert {alias: one.shape for alias, one in found.items()} == own
    assert {one.dtype for one in found.values()} == {"bfloat16" if name == "llama-bf16" else "float32"}
    # What is equal, as norms of ones are, is stored once.
    stored = {
        (one.shape, bytes(one.to(torch.bfloat16).view(torch.int16).numpy())) for one in model.state_dict().values()
    }
    num_weights = sum(shape.numel() for shape, _ in stored)
    buffers = sum(buffer.numel() for buffer in model.buffers() if buffer.dim() and buffer.numel() < 1000)
    assert num_weights <= report.weights.num_weights <= num_weights + buffers
    assert report.weights.bits_per_weight == pytest.approx(16 if name == "llama-bf16" else 32, rel=0.01)


def test_parts_add_up_to_the_file(artifact: Callable[[str], Artifact]) -> None:
    path = artifact("llama").pte
    (file,) = inspect(path).files
    assert sum(part.size_bytes for part in file.parts) == file.size_bytes == path.stat().st_size
    from executorch.exir._serialize._program import _get_extended_header

    header = _get_extended_header(path.read_bytes())
    assert header is not None
    sizes = {part.label: part.size_bytes for part in file.parts}
    assert sizes["head and tables"] == file.tables_bytes == header.program_size
    assert file.segments[0].offset == header.segment_base_offset


def test_a_signature_has_the_names_and_bounds_that_it_was_exported_with(tiny_pte: Any) -> None:
    (method,) = inspect(tiny_pte.path).methods
    assert [(one.name, one.dtype, one.shape) for one in method.inputs] == [
        # torch.export takes a size that varies to be at least 2, whatever it was told.
        ("tokens", "int64", (1, Bounds(2, 6))),
        ("positions", "int64", (Bounds(2, 6),)),
    ]
    assert [(one.dtype, one.shape) for one in method.outputs] == [("float32", (1, 1, 11))]


def form(scheme: str) -> WeightFormat:
    return WeightFormat(scheme=scheme, group_size=DEFAULT_GROUP_SIZE[scheme])


FORMATS = {
    # 4 bits in groups of 32. A scale for each row in 8 bits is repeated for every 64 weights, the row's whole width.
    "affine": ("4w", "8w", Quantization("affine", 4, 32), Quantization("affine", 8, 64)),
    "nvfp4": ("nvfp4", "none", Quantization("nvfp4", 4, 16), None),
}


@pytest.mark.parametrize("name", FORMATS)
def test_quantized_weights_are_told_as_they_were_asked_for(name: str, tmp_path: Path) -> None:
    linear, embedding, linear_format, embedding_format = FORMATS[name]
    sizes = {"vocab_size": 272, "intermediate_size": 128, "tie_word_embeddings": name == "affine"}
    snapshot, chosen = save_snapshot(tmp_path / "snapshot", "llama", **sizes), tmp_path / "quantized"
    chosen.mkdir()
    asked = spec.Quantization(linear=form(linear), embedding=form(embedding) if embedding != "none" else UNQUANTIZED)
    quantize.run(QuantizeSpec(dtype="fp32", quantization=asked), snapshot, chosen, lambda stage: None)
    with library_warnings_ignored():
        build.run(
            replace(SPEC, linear=asked.linear, embedding=asked.embedding),
            snapshot,
            tmp_path,
            lambda stage: None,
            quantized=chosen / quantize.WEIGHTS,
        )
    report = inspect(tmp_path / build.ARTIFACT)
    by_name = {alias: one for one in report.tensors for alias in one.names}
    q_proj = by_name["model.model.layers.0.self_attn.q_proj.weight"]
    assert (q_proj.quantization, q_proj.weight_shape, q_proj.num_weights) == (linear_format, (64, 64), 64 * 64)
    assert q_proj.size_bytes == 64 * 64 // 2
    scales = by_name["model.model.layers.0.self_attn.q_proj.weight.scales"]
    assert (scales.role, scales.of) == ("scales", q_proj.name)
    assert scales.shape == (64, 64 // linear_format.group_size)
    table = next(one for one in report.tensors if one.weight_shape == (272, 64) and one.users.keys() & {"TakeNode"})
    assert table.quantization == embedding_format
    if name == "affine":
        assert table.users["QuantizedMatmulNode"] == 1, "the head is tied to it"
    model = tiny_model("llama", **sizes)
    num_weights = sum(parameter.numel() for parameter in model.parameters())
    # Five norms of ones are stored once; what else is counted are a few frequencies.
    assert num_weights - 4 * 64 <= report.weights.num_weights <= num_weights - 4 * 64 + 16
    counted = sum(one.num_weights for one in report.tensors if one.quantization is not None)
    norms = 5 * 64
    assert counted == num_weights - norms - (0 if embedding_format else 272 * 64)


def multi(path: Path) -> Path:
    """Three portable operators over two weights, none delegated."""
    from executorch.exir import to_edge

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.linear(x)
            return torch.relu(y), torch.sigmoid(y) + 1.0

    with library_warnings_ignored():
        edge = to_edge(torch.export.export(Plain().eval(), (torch.zeros(2, 8),), strict=False))
        path.write_bytes(edge.to_executorch().buffer)
    return path


def test_a_program_of_kernels_is_told_by_its_operators(tmp_path: Path) -> None:
    path = multi(tmp_path / "plain.pte")
    report = inspect(path, [])
    (method,) = report.methods
    (plan,) = theirs(path).execution_plan
    names = [f"{one.name}.{one.overload}" if one.overload else one.name for one in plan.operators]
    calls = Counter(
        names[one.instr_args.op_index]
        for chain in plan.chains
        for one in chain.instructions
        if type(one.instr_args).__name__ == "KernelCall"
    )
    assert dict(method.operators) == calls
    assert method.delegates == ()
    assert method.planned_bytes == tuple(plan.non_const_buffer_sizes[1:])
    weights = sorted((one.shape, one.dtype, one.role) for one in report.tensors if one.role == "weight")
    assert ((4,), "float32", "weight") in weights
    assert any(shape in ((4, 8), (8, 4)) for shape, _, _ in weights)
    listing = report.listings[0].lines
    assert any(line.startswith("%") and "aten::relu.out(" in line for line in listing)
    assert listing[-2].startswith("output 0 <- %")


def test_data_beside_the_program_is_found_by_name(tmp_path: Path) -> None:
    from executorch.exir import ExecutorchBackendConfig, to_edge

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 4, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x)

    with library_warnings_ignored():
        edge = to_edge(torch.export.export(Plain().eval(), (torch.zeros(2, 8),), strict=False))
        written = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
        (tmp_path / "model.pte").write_bytes(written.buffer)
        written.write_tensor_data_to_file(str(tmp_path))
    (side,) = tmp_path.glob("*.ptd")
    report = inspect(tmp_path)
    assert [file.kind for file in report.files] == [".pte", ".ptd"]
    (weight,) = [one for one in report.tensors if one.file == side.name]
    assert (weight.name, weight.shape, weight.dtype) == ("linear.weight", (4, 8), "float32")
    assert sum(weight.users.values()) >= 1
    alone = inspect(side)
    assert [(one.name, one.shape) for one in alone.tensors] == [("linear.weight", (4, 8))]
    assert alone.methods == ()


def test_a_graph_that_cannot_be_read_is_told_and_the_rest_is_shown(tiny_pte: Any, tmp_path: Path) -> None:
    path = tmp_path / "newer.pte"
    path.write_bytes(tiny_pte.path.read_bytes().replace(b"MLX0", b"MLX9"))
    (method,) = inspect(path, []).methods
    assert method.delegates[0].graph is None
    assert (method.delegates[0].unreadable or "").startswith("its MLX graph: bytes 4 to 8 of its ")
    assert inspect(path).constants == inspect(tiny_pte.path).constants
