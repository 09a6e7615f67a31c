"""Small programs exported for the MLX delegate as executorch does it, and their side files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from pipeline.model import serializer
from tests.pte.agreement import assert_read_as_executorch_reads
from tests.tiny_models import library_warnings_ignored


class Counter(torch.nn.Module):
    """Keeps the sum of a projection of all rows it was ever given."""

    total: torch.Tensor

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.project = torch.nn.Linear(width, 3)
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(self.project(x).sum(0))
        return self.total * 1.0


class Lookup(torch.nn.Module):
    """A bfloat16 table scaled by a bfloat16 vector; the third input is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(11, 4, dtype=torch.bfloat16)

    def forward(self, ids: torch.Tensor, scale: torch.Tensor, unused: torch.Tensor) -> torch.Tensor:
        return self.table(ids) * scale


class Wide(torch.nn.Module):
    """128 MB of weights, half of them in one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(1 << 13, 1 << 11)
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(1 << 11, 1 << 11, bias=False) for _ in range(4)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layers(self.table(ids))


class Branches(torch.nn.Module):
    """Twelve layers of three products of one array, of half a megabyte each."""

    def __init__(self) -> None:
        super().__init__()
        width = 384
        self.layers = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(3)) for _ in range(12)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for first, second, third in self.layers:
            x = x + torch.tanh(first(x) * second(x) + third(x))
        return x


class Outside(torch.nn.Module):
    """Two delegates with operators between them that MLX's backend does not take."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, _ = torch.topk(x * 2, 2)
        return torch.nn.functional.pdist(first + 1) * 2


ROWS = torch.export.Dim("rows", min=1, max=8)
IDS = torch.export.Dim("ids", min=1, max=6)

METHODS: dict[str, tuple[Callable[[], torch.nn.Module], tuple[torch.Tensor, ...], Any]] = {
    "branches": (Branches, (torch.rand(2, 384),), None),
    "counter": (Counter, (torch.zeros(3, 4),), ({0: ROWS},)),
    "lookup": (
        Lookup,
        (torch.zeros(3, dtype=torch.long), torch.ones(4, dtype=torch.bfloat16), torch.zeros(2)),
        ({0: IDS}, None, None),
    ),
    "outside": (Outside, (torch.rand(3, 4),), None),
    "wide": (Wide, (torch.zeros(3, dtype=torch.long),), None),
}


@cache
def module(name: str) -> torch.nn.Module:
    """The module behind a method, with the weights that every program of it has."""
    make, _, _ = METHODS[name]
    torch.manual_seed(0)
    return make()


def write(
    path: Path, methods: Mapping[str, str], *, max_data_bytes: int | None = None, constants: Any = None
) -> list[Path]:
    """Writes a program of ``methods``, each one of METHODS under a name; returns the side files, if any.

    The MLX backend has no option for external data. With ``max_data_bytes``, executorch's own store of named data is
    told to move everything to side files of at most that size, and executorch writes them.
    """
    serializer.provide()
    with library_warnings_ignored():
        from executorch.backends.mlx import MLXPartitioner
        from executorch.exir import to_edge_transform_and_lower

        programs = {}
        for name, wanted in methods.items():
            _, inputs, dynamic = METHODS[wanted]
            programs[name] = torch.export.export(module(wanted), inputs, dynamic_shapes=dynamic, strict=False)
        edge = to_edge_transform_and_lower(programs, partitioner=[MLXPartitioner()], constant_methods=constants)
        if max_data_bytes is not None:
            edge._named_data_store.externalize_pte_data(max_data_bytes, "side")
        written = edge.to_executorch()
        path.write_bytes(written.buffer)
        if max_data_bytes is not None:
            written.write_tensor_data_to_file(path.parent)
    assert_read_as_executorch_reads(path)
    return sorted(path.parent.glob("*.ptd"))
