"""A quantized model is built from what the quantize step chose, decoded, and compared with the same quantized model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model import quantization
from pipeline.model.checkpoint import load_model
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from pipeline.spec import DEFAULT_GROUP_SIZE, Quantization, QuantizeSpec, SmokePrompt, SmokeSpec, WeightFormat
from pipeline.steps import build, quantize, smoke
from pipeline.steps.smoke import distances
from pipeline.verify import Question, examine
from tests.delegate.compared import assert_fused_is_plain
from tests.tiny_models import SPEC, library_warnings_ignored, save_snapshot

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")

SIZES = {"vocab_size": 272, "intermediate_size": 128}
TEXT = torch.randint(4, 260, (1, 24), generator=torch.Generator().manual_seed(3))


def form(scheme: str, group_size: int | None = None) -> WeightFormat:
    return WeightFormat(scheme=scheme, group_size=DEFAULT_GROUP_SIZE[scheme] if group_size is None else group_size)


CASES: dict[str, tuple[str, dict[str, Any], Quantization]] = {
    "tied, one tensor for both": (
        "fp32",
        {"tie_word_embeddings": True},
        Quantization(linear=form("4w", 64), embedding=form("8w")),
    ),
    "untied on request": (
        "bf16",
        {"tie_word_embeddings": True},
        Quantization(linear=form("8w"), embedding=form("4w"), untie_head=True),
    ),
    "nvfp4": ("fp32", {}, Quantization(linear=form("nvfp4"), embedding=form("nvfp4"))),
    "mxfp8": ("fp32", {}, Quantization(linear=form("mxfp8"), embedding=form("mxfp8"), skip=("lm_head",))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_artifact_decodes_as_the_quantized_model_does(name: str, tmp_path: Path) -> None:
    dtype, changes, asked = CASES[name]
    snapshot, chosen = save_snapshot(tmp_path / "snapshot", "llama", **SIZES | changes), tmp_path / "quantized"
    chosen.mkdir()
    quantize.run(QuantizeSpec(dtype=dtype, quantization=asked), snapshot, chosen, lambda stage: None)
    spec = replace(SPEC, dtype=dtype, linear=asked.linear, embedding=asked.embedding)
    with library_warnings_ignored():
        build.run(spec, snapshot, tmp_path, lambda stage: None, quantized=chosen / quantize.WEIGHTS)

    assert examine(tmp_path / "model.pte", Question(asked=spec)).findings == ()
    with PteFile.open(tmp_path / "model.pte") as pte:
        # 272 x 64 weights: a second copy of the embedding, in whatever scheme, would show.
        tables = [name for name, data in pte.named_data.items() if len(data) in (272 * 32, 272 * 64)]
        assert len(tables) == (1 if name.startswith("tied") else 2 - len(asked.skip))
        decoder = Decoder(pte)
    chunks = [1, 4, 3, 4, 1, 1, 2, 4, 4]
    rows, ends = [], np.cumsum(chunks) - 1
    for end, length in zip(ends, chunks, strict=True):
        logits = decoder.feed(TEXT[0, end + 1 - length : end + 1].tolist())
        rows.append(np.array(logits.astype(mx.float32)))

    def eager(dtype: str, *, quantized: bool = True) -> np.ndarray:
        model = load_model(snapshot, dtype)
        if quantized:
            quantization.give(model, chosen / quantize.WEIGHTS, dequantized=True)
        with torch.no_grad():
            return model(input_ids=TEXT, use_cache=False).logits[0, ends].float().numpy()

    exact = eager("fp32")
    bound = 1e-4 if dtype == "fp32" else 2 * distances(eager(dtype), exact).max()
    assert distances(np.stack(rows), eager(dtype)).max() < bound
    assert distances(eager("fp32", quantized=False), exact).max() > 4 * bound, "the comparison could not tell"
    assert_fused_is_plain(tmp_path / "model.pte", bound)


def test_smoke_holds_a_quantized_artifact_against_itself_and_reports_what_it_cost(tmp_path: Path) -> None:
    asked = Quantization(linear=form("4w"))
    snapshot, chosen = save_snapshot(tmp_path / "snapshot", "llama", **SIZES), tmp_path / "quantized"
    chosen.mkdir()
    quantize.run(QuantizeSpec(dtype="fp32", quantization=asked), snapshot, chosen, lambda stage: None)
    report = json.loads((chosen / quantize.REPORT).read_text())
    assert report["layers"][0] == {
        "modules": ["model.embed_tokens"],
        "shape": [272, 64],
        "format": {"scheme": "none", "group_size": 0},
        "why": "quantization.embedding is none",
    }
    assert quantize.summary(report) == [
        "  not quantized: 1 layer",
        "  4w in groups of 32: 15 layers",
    ]
    with library_warnings_ignored():
        build.run(
            replace(SPEC, linear=asked.linear),
            snapshot,
            tmp_path,
            lambda stage: None,
            quantized=chosen / quantize.WEIGHTS,
        )
    artifact = tmp_path / "model.pte"
    prompt = SmokePrompt(name="any", user="Hi", expect="a", max_new_tokens=4)

    def run(**changes: Any) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "artifact": artifact,
            "snapshot": snapshot,
            "out": tmp_path,
            "quantized": chosen / quantize.WEIGHTS,
        }
        # Random weights answer nothing that could be expected: what they do answer is found first.
        with pytest.raises(smoke.SmokeError) as caught:
            smoke.run(SmokeSpec(prompts=(prompt,)), stage=lambda stage: None, **arguments | changes)
        answer = str(caught.value).split("decoded ")[1].split("; ")[0]
        wanted = replace(prompt, expect=eval(answer)[:1])
        smoke.run(SmokeSpec(prompts=(wanted,)), stage=lambda stage: None, **arguments | changes)
        report: dict[str, Any] = json.loads((tmp_path / "smoke.json").read_text())
        return report

    report = run()
    assert report["prompts"][0]["logits_distance"] < report["tolerance"]["bound"] == 1e-4
    cost = report["quantization"]
    assert 0.01 < cost["mean_distance"] <= cost["max_distance"] < 1
    assert f"{cost['tokens_changed']} of {cost['logits_rows']} greedy tokens" in smoke.summary(report)[-1]
    with pytest.raises(smoke.SmokeError, match=r"logits first differ from the model's own at token"):
        smoke.run(SmokeSpec(prompts=(prompt,)), artifact, snapshot, tmp_path, lambda stage: None)


def test_a_layer_that_cannot_be_quantized_leaves_nothing(tmp_path: Path) -> None:
    snapshot, out = save_snapshot(tmp_path / "snapshot", "llama"), tmp_path / "out"
    out.mkdir()
    spec = QuantizeSpec(dtype="bf16", quantization=Quantization(linear=form("4w", 128)))
    with pytest.raises(
        ExportError, match=r"^15 of the model's layers cannot be quantized as the manifest asks: .* and 10"
    ):
        quantize.run(spec, snapshot, out, lambda stage: None)
    assert list(out.iterdir()) == []
