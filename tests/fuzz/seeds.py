"""``python -m tests.fuzz.seeds DIRECTORY``: small whole files of every kind, written by executorch's own serializers.

None is kept in the repository: they are made when they are needed, within seconds.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from pipeline.pte.mlx_ops import OPS
from tests.tiny_models import library_warnings_ignored


def write(directory: Path, lowered: bytes) -> Path:
    """``directory`` has a file of each kind; ``lowered`` is a language model's, exported and lowered for real."""
    with library_warnings_ignored():
        from tests.pte import written

        files = {
            "lowered.pte": lowered,
            "kinds.pte": written.in_segments(written.of_every_kind()),
            "kinds-inline.pte": written.inline(written.of_every_kind()),
            "dtypes.pte": written.in_segments(written.of_every_dtype()),
            "else.pte": written.of_everything_else(),
            "nodes.pte": written.delegated(_every_node()),
            "side.ptd": written.flat_tensor(),
        }
    directory.mkdir(exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def _every_node() -> bytes:
    from tests.pte.graphs import graph_of, node_like, schema, written

    rng = random.Random(20_26)
    nodes = [node_like(schema(), name, text, rng, full=True)[0] for _, name, text in OPS]
    return bytes(written(graph_of(schema(), [nodes, []], init_chain_idx=1)))


def main() -> None:
    from tests.conftest import _build

    with library_warnings_ignored():
        _, lowered = _build()
    write(Path(sys.argv[1]), lowered)


if __name__ == "__main__":
    main()
