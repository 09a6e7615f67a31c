"""Differences are found wherever they are, told once, and not found where there are none."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.anatomy.changes import Change, Comparison, compare
from pipeline.pte import PteFile
from tests.delegate import exported
from tests.tiny_models import Artifact, library_warnings_ignored

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def plain(path: Path, *, scale: float = 1.0, twice: bool = False, spare: int = 0, name: str = "forward") -> Path:
    """A program of kernels over a weight that is ``scale`` times another's; ``spare`` other constants come before."""
    from executorch.exir import to_edge

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = torch.nn.Parameter(torch.rand(4, 8) * scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * self.weight
            return torch.relu(torch.sigmoid(y) if twice else y)

    with library_warnings_ignored():
        edge = to_edge(
            {name: torch.export.export(Plain(), (torch.zeros(4, 8),), strict=False)},
            constant_methods={f"spare_{number}": torch.zeros(3) for number in range(spare)},
        )
        path.write_bytes(edge.to_executorch().buffer)
    return path


def differing(found: Comparison) -> set[str]:
    names = ("metadata", "signature", "delegates", "counts", "instructions", "tensors", "files")
    return {name for name in names if getattr(found, name)}


def test_kernels_are_compared_by_what_they_compute_from_what(tmp_path: Path) -> None:
    once = plain(tmp_path / "once.pte")
    twice = plain(tmp_path / "twice.pte", twice=True)
    found = compare(once, twice)
    assert differing(found) == {"counts", "instructions"}
    (rewritten,) = found.instructions
    (part,) = rewritten.parts
    kernels = [[line.partition(" = ")[2].partition("(")[0] for line in lines] for lines in (part.removed, part.added)]
    # The second kernel reads another value than before, and is told with the one that computes it.
    assert kernels == [["aten::relu.out"], ["aten::sigmoid.out", "aten::relu.out"]]
    assert {(one.name, one.old, one.new) for one in found.counts} == {
        ("kernel_call", 2, 3),
        ("aten::sigmoid.out", 0, 1),
    }


def test_a_kernels_weight_with_other_bytes_is_told_and_moved_constants_are_none(tmp_path: Path) -> None:
    one = plain(tmp_path / "one.pte")
    found = compare(one, plain(tmp_path / "other.pte", scale=2.0))
    assert differing(found) == {"tensors"}
    assert found.tensors is not None
    assert found.tensors.contents == ("constant float32[4, 8] no. 1",)
    moved = compare(one, plain(tmp_path / "moved.pte", spare=3))
    assert differing(moved) == {"metadata"}


def test_methods_that_come_and_go_are_told(tmp_path: Path) -> None:
    found = compare(plain(tmp_path / "a.pte"), plain(tmp_path / "b.pte", name="encode"))
    assert Change(name="forward", old="1 inputs, 1 outputs", new=None) in found.signature
    assert Change(name="encode input 0", old=None, new="float32 [4, 8]") in found.signature


def test_mutable_buffers_and_side_files_are_compared(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    sides = exported.write(tmp_path / "a" / "model.pte", {"forward": "counter"}, max_data_bytes=1 << 20)
    assert sides
    for file in (tmp_path / "a").iterdir():
        shutil.copy(file, tmp_path / "b" / file.name)
    assert compare(tmp_path / "a", tmp_path / "b").identical
    side = tmp_path / "b" / sides[0].name
    data = bytearray(side.read_bytes())
    data[-1] ^= 1
    side.write_bytes(data)
    found = compare(tmp_path / "a", tmp_path / "b")
    assert differing(found) == {"tensors"}
    assert found.tensors is not None
    assert len(found.tensors.contents) == 1
    with PteFile.open(tmp_path / "a" / "model.pte") as pte:
        assert "forward delegate 0 buffer 0" not in [change.name for change in found.signature]
        assert len(pte.program.methods["forward"].delegates) == 1


def test_a_payload_of_another_backend_is_compared_byte_by_byte(tiny_pte: Any, tmp_path: Path) -> None:
    data = tiny_pte.path.read_bytes().replace(b"MLXBackend", b"XXXBackend")
    with PteFile.open(tiny_pte.path) as pte:
        start, end = pte.segments[1]
    one, other = tmp_path / "one.pte", tmp_path / "other.pte"
    one.write_bytes(data)
    changed = bytearray(data)
    changed[end - 3] ^= 1
    other.write_bytes(changed)
    found = compare(one, other)
    size = end - start
    assert found.delegates == (
        Change(name="forward delegate 0 payload", old=f"{size} bytes", new=f"{size} other bytes"),
    )
    assert differing(found) == {"delegates"}


def test_what_is_published_beyond_what_is_told_is_compared_too(tmp_path: Path) -> None:
    paths = []
    for name, last in (("a", 0), ("b", 1)):
        values = torch.zeros(20_000, dtype=torch.int8)
        values[-1] = last
        paths.append(tmp_path / f"{name}.pte")
        exported.write(paths[-1], {"forward": "counter"}, constants={"table": values})
    found = compare(*paths)
    (change,) = found.metadata
    assert change.old["value"] == change.new["value"]
    assert change.old["left_out"] == change.new["left_out"] == 10_000
    assert change.old["sha256"] != change.new["sha256"]


def test_a_weight_under_another_name_is_known_by_its_bytes(artifact: Callable[[str], Artifact], tmp_path: Path) -> None:
    path = artifact("llama").pte
    other = tmp_path / "other.pte"
    other.write_bytes(path.read_bytes().replace(b"layers.1.mlp.up_proj", b"layers.1.mlp.op_proj"))
    found = compare(path, other)
    assert differing(found) == {"tensors"}
    assert found.tensors is not None
    assert found.tensors.renamed == {
        "model.model.layers.1.mlp.up_proj.weight": "model.model.layers.1.mlp.op_proj.weight"
    }


def test_two_builds_of_one_model_are_the_same_and_another_window_is_not(
    artifact: Callable[[str], Artifact], tmp_path: Path
) -> None:
    from pipeline.steps import build

    built = artifact("mixed")
    with library_warnings_ignored():
        build.run(built.spec, built.snapshot, tmp_path, lambda stage: None)
    assert compare(built.pte, tmp_path / build.ARTIFACT).same
    assert not compare(built.pte, artifact("full").pte).same
