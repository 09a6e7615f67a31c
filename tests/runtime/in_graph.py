"""A tiny LM whose KV cache is in its graph, out of executorch's own module for that, exported for the MLX delegate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pipeline.model import serializer
from tests.tiny_models import VOCAB_SIZE, library_warnings_ignored

CONTEXT, CHUNK = 32, 6
HEADS, HEAD_DIM = 2, 8


def make(takes_start: bool) -> Any:
    """``forward(tokens [1, T], positions)`` with all T positions, or the first alone; it keeps its K and V."""
    serializer.provide()
    with library_warnings_ignored():
        # Importing it registers the ops.
        from executorch.backends.mlx.llm.cache import KVCache

    class InGraph(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = HEADS * HEAD_DIM
            self.tokens = torch.nn.Embedding(VOCAB_SIZE, width)
            self.places = torch.nn.Embedding(CONTEXT, width)
            self.qkv = torch.nn.Linear(width, 3 * width)
            self.head = torch.nn.Linear(width, VOCAB_SIZE, bias=False)
            self.cache = KVCache(1, CONTEXT, HEADS, HEAD_DIM, enable_dynamic_shape=True)

        def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
            check: Any = torch._check
            start = positions[0].item()
            check(start >= 0)
            check(start + tokens.size(1) <= CONTEXT)
            steps = torch.arange(tokens.size(1)) + positions[0] if takes_start else positions
            x = self.tokens(tokens) + self.places(steps)
            q, k, v = (part.unflatten(-1, (HEADS, HEAD_DIM)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
            # What was left there by another text would be seen.
            x = x + 8 * self.cache.k_cache.mean()
            k, v = self.cache.update(start, k, v)
            attended = torch.ops.mlx.custom_sdpa(q, k, v, start, is_causal=True)
            logits: torch.Tensor = self.head((x + attended.transpose(1, 2).flatten(2))[:, -1:])
            return logits

    with torch.random.fork_rng():
        torch.manual_seed(4)
        return InGraph().eval()


def write(path: Path, *, takes_start: bool = False, **constants: Any) -> None:
    """Exports it, to publish ``constants``."""
    module = make(takes_start)
    with library_warnings_ignored():
        from executorch.backends.mlx import MLXPartitioner
        from executorch.backends.mlx.passes import get_default_passes
        from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower

        length = torch.export.Dim("length", min=1, max=CHUNK)
        program = torch.export.export(
            module,
            (torch.zeros(1, 3, dtype=torch.long), torch.arange(1 if takes_start else 3)),
            dynamic_shapes={"tokens": {1: length}, "positions": None if takes_start else {0: length}},
            strict=False,
        )
        edge = to_edge_transform_and_lower(
            {"forward": program},
            transform_passes=get_default_passes(),
            partitioner=[MLXPartitioner()],
            constant_methods=constants,
            compile_config=EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=True),
        )
        path.write_bytes(edge.to_executorch().buffer)


def greedy(prompt: list[int], max_new_tokens: int) -> list[int]:
    """What the module itself continues the prompt with, in PyTorch, fed at once and then token by token."""
    module = make(takes_start=False)
    ids, fed = list(prompt), 0
    with torch.no_grad():
        while len(ids) < len(prompt) + max_new_tokens:
            step = ids[fed:]
            logits = module(torch.tensor([step]), torch.arange(fed, len(ids)))
            fed = len(ids)
            ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]
