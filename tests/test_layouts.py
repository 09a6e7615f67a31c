"""The layouts everyone uses: the models of ``manifests/hub``, as deep as published, narrow, with random weights.

Structure is that of each model's published configuration: layers and their types, heads, windows, sharing, rotary
embeddings, norms, tied heads. Only widths and the vocabulary are small. What a build publishes is then the real model's
geometry, and what its artifact decodes is held against Transformers' eager model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline import manifest, plan
from pipeline.cli.main import main
from pipeline.model import attention
from pipeline.model.checkpoint import load_model
from pipeline.model.geometry import geometry_of, within_context
from pipeline.model.suitability import refuse_unsuitable
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from pipeline.spec import UNQUANTIZED, BuildSpec, HubSource
from pipeline.steps import build
from pipeline.steps.fetch import COMMIT
from pipeline.steps.smoke import distances
from pipeline.verify import Question, examine
from tests.delegate.compared import assert_fused_is_plain
from tests.tiny_models import SIZES, VOCAB_SIZE, library_warnings_ignored, save_tokenizer

HUB = Path(__file__).resolve().parents[1] / "manifests" / "hub"

NARROW = {"hidden_size": 32, "intermediate_size": 48, "pad_token_id": 2}

# Float32 rounding of 36 layers is about 3e-6 of the logits' spread; a lost token of history costs 1e-2 and more.
CLOSE = 1e-4

Geometry = tuple[int, int, int]
"""KV heads, head_dim and window of one cache."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A published configuration's structure, and the caches that it needs.

    ``around`` is the rest of a composite configuration, whose language model is ``published`` then. ``scores`` is what
    the weights of the queries' norm are set to where attention scales by nothing else: at their first value, 1, scores
    reach 256 and attention picks single keys, which float32 and float64 then do not agree about.
    """

    model_type: str
    published: Mapping[str, Any]
    caches: list[Geometry]
    chunks: list[int] = field(default_factory=lambda: [24, 1, 1, 13, 1])
    around: Mapping[str, Any] | None = None
    scores: float | None = None


LONGEST_STEP = 64
"""Of the artifacts built here; as the manifests say, proving each would take longer than building it."""

BEYOND_512 = [*[64] * 9, 1, 1, 1]
"""Rings of 512 wrap."""

LAYOUTS = {
    "llama-3.2-1b-instruct": Layout(
        model_type="llama",
        published={
            "num_hidden_layers": 16,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 500000.0,
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        },
        caches=[(8, 64, 0)] * 16,
    ),
    "qwen3-0.6b": Layout(
        model_type="qwen3",
        published={
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "max_position_embeddings": 40960,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
        },
        caches=[(8, 128, 0)] * 28,
    ),
    "gemma-3-1b-it": Layout(
        model_type="gemma3_text",
        published={
            "num_hidden_layers": 26,
            "num_attention_heads": 4,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "max_position_embeddings": 32768,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        caches=[(1, 256, 0 if layer in (5, 11, 17, 23) else 512) for layer in range(26)],
        chunks=BEYOND_512,
    ),
    "gemma-4-e2b-it": Layout(
        model_type="gemma4",
        published={
            "num_hidden_layers": 35,
            "num_kv_shared_layers": 20,
            "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
            "max_position_embeddings": 131072,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 30.0,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": VOCAB_SIZE,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "full_attention": {
                    "rope_type": "proportional",
                    "rope_theta": 1000000.0,
                    "partial_rotary_factor": 0.25,
                },
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
        around={
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "head_dim": 8,
                "position_embedding_size": 16,
            },
            "audio_config": {
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "output_proj_dims": 16,
                "subsampling_conv_channels": [4, 4],
            },
            "image_token_id": 256,
            "video_token_id": 257,
            "audio_token_id": 258,
        },
        caches=[*[(1, 256, 512)] * 4, (1, 512, 0)] * 3,
        chunks=BEYOND_512,
        scores=1 / 16,
    ),
    "smollm3-3b": Layout(
        model_type="smollm3",
        published={
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 65536,
            "no_rope_layers": [1, 1, 1, 0] * 9,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 5000000.0},
        },
        caches=[(4, 128, 0)] * 36,
    ),
    "phi-4-mini-instruct": Layout(
        model_type="phi3",
        published={
            "num_hidden_layers": 32,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            # 128 as published; the configuration wants hidden_size to be all heads together.
            "hidden_size": 24 * 8,
            "head_dim": 8,
            "max_position_embeddings": 131072,
            "original_max_position_embeddings": 4096,
            "sliding_window": 262144,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 10000.0,
                "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.25, 1.5],
                "long_factor": [1.0, 8.0, 32.0],
            },
        },
        caches=[(8, 8, 0)] * 32,
    ),
}


def test_the_hub_manifests_are_good_and_each_has_its_layout_here(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(HUB)]) == 0
    assert capsys.readouterr().err == ""
    assert {item.name for item in manifest.load_all(HUB)} == set(LAYOUTS)


def test_the_hub_manifests_are_pinned_to_a_commit() -> None:
    for item in manifest.load_all(HUB):
        source = item.model.source
        assert isinstance(source, HubSource)
        assert source.repo == item.model.id
        assert source.repo.split("/")[1].lower() == item.name
        assert COMMIT.fullmatch(source.revision)


def test_plain_doit_builds_none_of_them_and_no_name_is_taken_twice() -> None:
    names = {item.name for item in manifest.load_all(HUB.parent)}
    assert names
    assert not names & set(LAYOUTS)


def model(layout: Layout, implementation: str = "eager") -> Any:
    """The layout with random weights, the same at every call."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    text = {**SIZES, **NARROW, **layout.published}
    values = text if layout.around is None else {**layout.around, "text_config": text}
    with torch.random.fork_rng():
        torch.manual_seed(20_26)
        made = AutoModelForCausalLM.from_config(
            CONFIG_MAPPING[layout.model_type](**values), attn_implementation=implementation
        ).eval()
    if layout.scores is not None:
        for name, parameter in made.named_parameters():
            if name.endswith("q_norm.weight"):
                torch.nn.init.constant_(parameter, layout.scores)
    return made


def spec_of(name: str) -> BuildSpec:
    """What the hub's manifest asks for, but in float32 and not quantized, so that the comparison is tight."""
    asked = plan.build_spec(manifest.load(HUB / f"{name}.yaml"))
    return replace(asked, dtype="fp32", linear=UNQUANTIZED, embedding=UNQUANTIZED)


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_caches_are_those_of_the_published_layout_and_the_manifest_keeps_to_its_limits(name: str) -> None:
    with library_warnings_ignored():
        attention.register()
    made, spec = model(LAYOUTS[name], attention.IMPLEMENTATION), spec_of(name)
    caches = within_context(geometry_of(made), spec.max_context_len)
    assert [(cache.num_kv_heads, cache.head_dim, cache.window) for cache in caches] == LAYOUTS[name].caches
    assert spec.max_seq_len <= min((cache.window for cache in caches if cache.window), default=spec.max_seq_len)
    assert spec.max_context_len <= LAYOUTS[name].published["max_position_embeddings"]
    refuse_unsuitable(made.config.get_text_config(), max_context_len=spec.max_context_len)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_an_artifact_of_full_depth_publishes_the_layout_and_decodes_as_its_model(name: str, tmp_path: Path) -> None:
    """About a minute each, gemma-4 two: lowering takes two seconds a layer and more."""
    layout, spec = LAYOUTS[name], replace(spec_of(name), max_seq_len=LONGEST_STEP)
    snapshot, out = tmp_path / "snapshot", tmp_path / "out"
    model(layout).save_pretrained(snapshot)
    save_tokenizer(snapshot)
    out.mkdir()
    with library_warnings_ignored():
        build.run(spec, snapshot, out, lambda stage: None)
    assert examine(out / build.ARTIFACT, Question(asked=spec)).findings == ()
    with PteFile.open(out / build.ARTIFACT) as pte:
        assert not [name for name in pte.named_data if "tower" in name or "embed_vision" in name]
        decoder = Decoder(pte)
    published = [(cache.num_kv_heads, cache.head_dim, cache.window) for cache in decoder.contract.caches]
    assert published == layout.caches

    text = torch.randint(4, 250, (1, sum(layout.chunks)), generator=torch.Generator().manual_seed(1))
    ends = (np.cumsum(layout.chunks) - 1).tolist()
    rows, start = [], 0
    for length in layout.chunks:
        rows.append(np.array(decoder.feed(text[0, start : start + length].tolist()).astype(mx.float32)))
        start += length
    assert_fused_is_plain(out / build.ARTIFACT, CLOSE)
    eager = load_model(snapshot, "fp32")
    expected = logits(eager, text)[ends]
    assert distances(np.stack(rows), expected).max() < CLOSE
    assert distances(logits(eager, text[:, -8:])[-1:], expected[-1:]).max() > 100 * CLOSE, "history does not tell"
    window = min((window for *_, window in layout.caches if window), default=0)
    if window:
        eager.config.get_text_config().sliding_window = 2 * window
        assert distances(logits(eager, text)[-1:], expected[-1:]).max() > 10 * CLOSE, "the window does not tell"


def logits(eager: Any, text: torch.Tensor) -> np.ndarray:
    with torch.no_grad():
        rows: np.ndarray = eager(input_ids=text, use_cache=False).logits[0].float().numpy()
    return rows
