"""What happens to a file that is not trusted: everything that ``pte verify`` and ``pte inspect`` read of it.

A ``model.pte`` is read with what lies beside it, and a file beside one with it.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from pipeline.pte import MlxGraphs, PtdFile, PteFile
from pipeline.pte.flatbuffer import shown
from pipeline.pte.mlx_shapes import Shapes
from pipeline.verify import examine

MAX_MESSAGE = 2_000


def read(path: Path) -> None:
    """Raises ``PteError`` if it is refused; anything else that is raised is a bug."""
    if path.suffix == ".ptd":
        _read_data(path)
    elif path.suffix == ".json":
        _verify(path.parent)
    else:
        _verify(path)
        _inspect(path)


def _read_data(path: Path) -> None:
    with PtdFile.open(path) as ptd:
        for name, data in ptd.named_data.items():
            start, end = ptd.segments[ptd.named_data.segment_of(name)]
            assert len(data) == end - start
        repr(ptd.layouts)


def _verify(path: Path) -> None:
    report = examine(path)
    for finding in report.findings:
        assert finding.message.isprintable()
        assert len(finding.message) < MAX_MESSAGE, finding.message[:MAX_MESSAGE]


def _inspect(path: Path) -> None:
    graphs = MlxGraphs()
    with PteFile.open(path) as pte:
        repr(pte.program.constants())
        for name, data in pte.named_data.items():
            start, end = pte.segments[pte.named_data.segment_of(name)]
            assert len(data) == end - start
        for method in pte.program.methods.values():
            repr((method.inputs, method.outputs, method.planned_bytes))
            Counter((instruction.kind, instruction.operator) for instruction in method.instructions)
            for delegate in method.delegates:
                if delegate.id == "MLXBackend":
                    graph = graphs.of(delegate.payload, f"{path}: {shown(method.name)}")
                    Counter(node.name for chain in graph.chains for node in chain)
                    repr((graph, Shapes(graph).outputs))
