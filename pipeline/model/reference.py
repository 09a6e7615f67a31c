"""What the model itself answers: Transformers' own eager attention, the whole text in one forward pass.

Knows nothing of the artifact. The full forward is the reference, not Transformers' cache, which disagrees with it for
some architectures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from pipeline.model import quantization
from pipeline.model.checkpoint import load_model
from pipeline.model.forward import keeps_all_rows


class ReferenceModel:
    """The snapshot's model in one dtype; call it with token ids and the rows that are wanted.

    Where ``quantized`` is a directory that the quantize step filled, quantized weights stand for the numbers they were
    rounded to, in that dtype.
    """

    def __init__(self, snapshot: Path, dtype: str, quantized: Path | None = None) -> None:
        self._model = load_model(snapshot, dtype)
        if quantized is not None:
            quantization.give(self._model, quantized, dequantized=True)

    def logits(self, ids: Sequence[int], rows: Sequence[int]) -> np.ndarray:
        """Logits after each of the given positions, float32 [len(rows), vocab]."""
        with torch.no_grad():
            wanted = torch.tensor(rows)
            output = self._model(input_ids=torch.tensor([list(ids)]), use_cache=False, logits_to_keep=wanted)
        kept = output.logits[0, wanted] if keeps_all_rows(self._model) else output.logits[0]
        logits: np.ndarray = kept.float().numpy()
        return logits
