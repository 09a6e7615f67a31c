"""Fixtures that several rooms share."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"

from tests.bundles import bundle as bundle
from tests.distributions import base_install as base_install
from tests.distributions import distributions as distributions
from tests.distributions import source_tree as source_tree
from tests.tiny_models import artifact as artifact

# Its assertions tell what they compared, as those of a test do.
pytest.register_assert_rewrite("tests.pte.agreement")


@dataclass(frozen=True)
class TinyPte:
    """A two-layer model with an off-graph cache, lowered for real, and the constants it was given."""

    path: Path
    constants: dict[str, Any]


@pytest.fixture(scope="session")
def tiny_pte(tmp_path_factory: pytest.TempPathFactory) -> TinyPte:
    """Built once per session, in about ten seconds."""
    from tests.pte.agreement import assert_read_as_executorch_reads

    with warnings.catch_warnings():
        # The libraries' own deprecations are not ours to fix.
        warnings.simplefilter("ignore")
        constants, data = _build()
    path = tmp_path_factory.mktemp("tiny") / "tiny.pte"
    path.write_bytes(data)
    assert_read_as_executorch_reads(path)
    return TinyPte(path, constants)


def _build() -> tuple[dict[str, Any], bytes]:
    import torch

    from pipeline.model import serializer

    serializer.provide()
    from executorch.backends.mlx import MLXPartitioner
    from executorch.backends.mlx.passes import get_default_passes
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from executorch.extension.llm.cache import update_and_attend  # noqa: F401 - registers the op

    hidden, vocab, head_dim, heads, kv_heads, layers = 16, 11, 8, 4, 2, 2

    class Tiny(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            split = (heads + 2 * kv_heads) * head_dim
            self.embed = torch.nn.Embedding(vocab, hidden)
            self.qkv = torch.nn.ModuleList(torch.nn.Linear(hidden, split, bias=bool(i)) for i in range(layers))
            self.out = torch.nn.ModuleList(torch.nn.Linear(heads * head_dim, hidden, bias=False) for _ in range(layers))
            self.head = torch.nn.Linear(hidden, vocab, bias=False)

        def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            x = self.embed(tokens)
            for layer in range(layers):
                sizes = [heads * head_dim, kv_heads * head_dim, kv_heads * head_dim]
                q, k, v = (
                    part.unflatten(-1, (-1, head_dim)).transpose(1, 2)
                    for part in self.qkv[layer](x).split(sizes, dim=-1)
                )
                attended = torch.ops.kvcache.update_and_attend(
                    q, k, v, positions.reshape(-1, 1), layer_id=layer, scale=0.25, out_dtype=torch.float32
                )
                x = x + self.out[layer](attended.transpose(1, 2).flatten(2))
            return self.head(x[:, -1:, :])

    def int32(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    constants: dict[str, Any] = {
        "get_max_seq_len": 6,
        "get_max_context_len": 32,
        "get_vocab_size": vocab,
        "get_activation_dtype": 6,
        "get_logits_to_keep_mode": 1,
        "get_n_caches": layers,
        "get_kv_heads": int32(kv_heads, kv_heads),
        "get_head_dims": int32(head_dim, head_dim),
        "get_windows": int32(0, 6),
        "get_eos_ids": [2, 7],
        "get_bos_id": 1,
        "get_max_ctx_len": 32,
        "get_prefill_chunk_size": 6,
        "a_bool": True,
        "a_negative": -(2**40),
        "a_float": 0.1,
        "a_string": "zażółć",
        "one": [5],
        "nothing": [],
        "mixed": [1, "x", 2.5, False],
        "a_scalar_tensor": torch.tensor(3.5),
        "an_empty_tensor": torch.zeros(0, 3),
    }
    floats = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    signed = (torch.int8, torch.int16, torch.int32, torch.int64)
    for dtype in (*floats, *signed, torch.uint8, torch.uint16, torch.uint32, torch.bool):
        constants[f"a_{str(dtype).removeprefix('torch.')}_tensor"] = torch.tensor([[0, 1, 100], [2, 3, 77]]).to(dtype)
    length = torch.export.Dim("length", min=1, max=6)
    program = torch.export.export(
        Tiny().eval(),
        (torch.zeros(1, 3, dtype=torch.long), torch.arange(3)),
        dynamic_shapes={"tokens": {1: length}, "positions": {0: length}},
        strict=False,
    )
    edge = to_edge_transform_and_lower(
        {"forward": program},
        transform_passes=get_default_passes(),
        partitioner=[MLXPartitioner()],
        constant_methods=constants,
        compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
    )
    return constants, bytes(edge.to_executorch().buffer)
