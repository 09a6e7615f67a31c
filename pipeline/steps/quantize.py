"""A snapshot becomes ``quantized.safetensors``: the quantized weights, and ``quantization.json``: which ones they are.

A step of its own because choosing scales takes longer than all else, and both the build and the reference that smoke
compares with are made from what was chosen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.spec import QuantizeSpec, WeightFormat


def run(spec: QuantizeSpec, snapshot: Path, out: Path, stage: Callable[[str], None]) -> None:
    """Writes both files to ``out``.

    Raises ExportError when a layer cannot be quantized as asked and the manifest does not list it.
    """
    stage("importing")
    from pipeline.model import checkpoint, quantization, suitability

    suitability.refuse_unsuitable(checkpoint.load_config(snapshot))
    stage("loading")
    model = checkpoint.load_model(snapshot, spec.dtype)
    layers = quantization.layers_of(model, spec.quantization)
    stage("quantizing")
    quantization.write(model, layers, out)


def summary(report: Mapping[str, Any]) -> list[str]:
    """How many layers have which scheme, a line each."""
    counts = Counter(WeightFormat(**layer["format"]) for layer in report["layers"])
    return [f"  {form}: {count} layer{'s' if count > 1 else ''}" for form, count in counts.items()]
