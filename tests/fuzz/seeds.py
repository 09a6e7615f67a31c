"""``python -m tests.fuzz.seeds DIRECTORY``: small whole files of every kind, written by executorch's own serializers.

None is kept in the repository: they are made when they are needed, within seconds.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from pipeline.pte.mlx_ops import OPS
from tests.tiny_models import library_warnings_ignored

TOKENS = ["<s>", "</s>", "<pad>", *"abcdefgh"]
ASKED = {
    "dtype": "fp32",
    "linear": {"scheme": "4w", "group_size": 32},
    "embedding": "none",
    "max_seq_len": 6,
    "max_context_len": 32,
    "placement": "off_graph",
    "backend": "mlx",
    "logits": "last",
}
BUNDLE: dict[str, Any] = {
    "tokenizer.json": {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": token, "special": True} for index, token in enumerate(TOKENS[:3])],
        "model": {"type": "BPE", "vocab": {token: index for index, token in enumerate(TOKENS)}, "merges": []},
    },
    "tokenizer_config.json": {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": "<s>{{ x }}</s>"},
    "special_tokens_map.json": {"pad_token": "<pad>"},
    "generation_config.json": {"eos_token_id": [2, 7]},
    "report.json": {
        "attention": [
            {"layer": layer, "cache": layer, "num_kv_heads": 2, "head_dim": 8, "window": 6 * layer} for layer in (0, 1)
        ],
        "end_of_text": {"the generation config": [2, 7]},
    },
    "build.json": {
        "files": {"model.pte": "00" * 32},
        "steps": {
            "build": {
                "outputs": {"model.pte": {"sha256": "00" * 32, "size_bytes": 29_504}},
                "asked": {"libraries": {"executorch": "1.5.1"}, "spec": ASKED},
            }
        },
    },
}
"""What lies beside a ``model.pte``, as far as it is read."""


def write(directory: Path, lowered: bytes) -> Path:
    """``directory`` has a file of each kind, and a bundle.

    ``lowered`` is a language model's artifact, exported and lowered for real.
    """
    with library_warnings_ignored():
        from tests.pte import written

        files = {
            "bundle/model.pte": lowered,
            "kinds.pte": written.in_segments(written.of_every_kind()),
            "kinds-inline.pte": written.inline(written.of_every_kind()),
            "dtypes.pte": written.in_segments(written.of_every_dtype()),
            "else.pte": written.of_everything_else(),
            "nodes.pte": written.delegated(_every_node()),
            "side.ptd": written.flat_tensor(),
        }
    directory.joinpath("bundle").mkdir(parents=True, exist_ok=True)
    files |= {f"bundle/{name}": json.dumps(content, indent=1).encode() for name, content in BUNDLE.items()}
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
