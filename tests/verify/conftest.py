"""A bundle as it ships, made of a small model that was built for real."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.snapshot import is_tokenizer_file
from tests.tiny_models import Artifact, library_warnings_ignored


@pytest.fixture(scope="session")
def shipped(artifact: Callable[[str], Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A flat cache and a ring of eight; read it, never change it."""
    made = artifact("mixed")
    directory = tmp_path_factory.mktemp("shipped")
    for file in (made.pte, made.pte.with_name("report.json")):
        shutil.copy(file, directory)
    fetched = {file.name: {"size_bytes": file.stat().st_size} for file in made.snapshot.iterdir()}
    for name in filter(is_tokenizer_file, fetched):
        shutil.copy(made.snapshot / name, directory)
    record = {
        "name": "mixed",
        "files": {file.name: "00" for file in directory.iterdir()},
        "steps": {
            "fetch": {"outputs": fetched},
            "build": {
                "asked": {"spec": asdict(made.spec), "libraries": {"executorch": "1.5.1"}},
                "outputs": {"model.pte": {"size_bytes": made.pte.stat().st_size}},
            },
        },
    }
    (directory / "build.json").write_text(json.dumps(record))
    return directory


@pytest.fixture
def bundle(shipped: Path, tmp_path: Path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(shipped, tmp_path / "bundle"))


@pytest.fixture(scope="session")
def in_graph_pte(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of another backend that keeps its own cache, in what a runner sees of it, lowered for real."""
    import torch
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(11, 8)
            self.head = torch.nn.Linear(8, 11)

        def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            told = self.embed(tokens) + positions[:, None].to(torch.float32)
            logits: torch.Tensor = self.head(told[:, -1, :])
            return logits

    length = torch.export.Dim("length", min=1, max=6)
    with library_warnings_ignored():
        program = torch.export.export(
            Tiny().eval(),
            (torch.zeros(1, 3, dtype=torch.long), torch.arange(3)),
            dynamic_shapes={"tokens": {1: length}, "positions": {0: length}},
        )
        lowered = to_edge_transform_and_lower(
            program,
            partitioner=[XnnpackPartitioner()],
            constant_methods={
                "get_max_seq_len": 6,
                "get_max_context_len": 32,
                "get_vocab_size": 11,
                "use_kv_cache": True,
                "enable_dynamic_shape": True,
                "get_eos_ids": [2],
            },
        ).to_executorch()
    path = tmp_path_factory.mktemp("xnnpack") / "in_graph.pte"
    path.write_bytes(bytes(lowered.buffer))
    return path
