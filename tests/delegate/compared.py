"""An artifact's fused graph held against its plain one, over a text that its own contract makes room for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import mlx.core as mx
import numpy as np

from pipeline.delegate import executor
from pipeline.delegate.program import Program
from pipeline.runtime.decoder import Decoder
from pipeline.steps.smoke import distances

PREFILL, DECODE = 3, 9
"""Steps of as many tokens as the artifact takes, up to MAX_STEP, then of one, and two more of several."""

MAX_STEP = 16


@contextmanager
def gpu_rules() -> Iterator[None]:
    """Graphs are rewritten and run as on a GPU, wherever they are computed.

    On a CPU, MLX compiles with the system's C++ compiler, which nobody needs otherwise: steps are replayed as they are.
    """
    mx.disable_compile()
    try:
        with patch.object(executor, "is_gpu", lambda device: True):
            yield
    finally:
        mx.enable_compile()


def rows(decoder: Decoder, num_prefill: int = PREFILL, num_decode: int = DECODE) -> np.ndarray:
    """Every row of logits that the artifact gives, float32 [rows, vocab]; of those to be selected, backwards."""
    contract, make = decoder.contract, np.random.default_rng(1)
    longest = min(contract.max_seq_len, MAX_STEP)
    steps = [longest] * num_prefill + [1] * num_decode + [min(3, longest), min(2, longest)]
    assert sum(steps) <= contract.max_context_len
    found = []
    for length in steps:
        tokens = make.integers(0, contract.vocab_size, length).tolist()
        selected = list(range(length))[::-1] if contract.logits == "selected" else None
        _, logits = decoder.step(tokens, selected)
        found.append(np.array(logits.astype(mx.float32)))
    return np.concatenate(found)


def assert_fused_is_plain(path: Path, bound: float, **lengths: Any) -> tuple[Decoder, Decoder]:
    """On a CPU the very numbers, by a GPU's rules rows no further apart than ``bound``, relative. Returns the two.

    Float32 is held to ``bound`` on a CPU too: a product's sums may be taken in another order.
    """
    with Program.load(path) as program:
        plain, fused = Decoder(program, fused=False), Decoder(program)
        expected = rows(plain, **lengths)
        if fused.contract.dtype == "fp32":
            assert distances(rows(fused, **lengths), expected).max() < bound
        else:
            np.testing.assert_array_equal(rows(fused, **lengths), expected)
        assert np.median(distances(expected[1:], expected[:-1])) > 5 * bound, "rows are alike: nothing could be told"
    with Program.load(path) as program, gpu_rules():
        on_gpu = Decoder(program)
        assert distances(rows(on_gpu, **lengths), expected).max() < bound
    return fused, on_gpu
