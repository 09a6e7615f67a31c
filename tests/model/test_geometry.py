"""The caches a model needs, read off the attention it really does; a model that needs something else is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.geometry import geometry_of
from tests.model.conftest import history
from tests.tiny_models import MIXED, SLIDING, VOCAB_SIZE, model

ROPE = {"rope_theta": 10000.0}
FACTORS = {"long_factor": [1.0] * 8, "short_factor": [2.0] * 8, "original_max_position_embeddings": 64}
GEMMA3 = {"layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0, **SLIDING}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "first_k_dense_replace": 2,
}
SHARED_KV = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": 128,
    "intermediate_size": 64,
    "activation_sparsity_pattern": [0.0] * 4,
    **SLIDING,
}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}

# (KV heads, head_dim, window) of each layer.
RIGHT: dict[str, tuple[str, dict[str, Any], list[tuple[int, int, int]]]] = {
    "grouped queries": ("llama", {}, [(2, 16, 0)] * 2),
    "one KV head": ("llama", {"num_key_value_heads": 1}, [(1, 16, 0)] * 2),
    "as many KV heads as heads": ("llama", {"num_key_value_heads": 4}, [(4, 16, 0)] * 2),
    "a head_dim of its own": ("llama", {"head_dim": 32}, [(2, 32, 0)] * 2),
    "scaled rope": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, **ROPE}}, [(2, 16, 0)] * 2),
    "a window in every layer": ("mistral", SLIDING, [(2, 16, 8)] * 2),
    "no window": ("mistral", {"sliding_window": None}, [(2, 16, 0)] * 2),
    "a declared window that is switched off": ("qwen2", {"sliding_window": 8}, [(2, 16, 0)] * 2),
    "a window by layer types": ("qwen2", MIXED, [(2, 16, 0), (2, 16, 8)]),
    "normed queries and keys": ("qwen3", {}, [(2, 16, 0)] * 2),
    "a window in every other layer": ("gemma3_text", GEMMA3, [(2, 16, 8), (2, 16, 0)]),
    "one projection for all three": ("phi3", {"pad_token_id": 0, **SLIDING}, [(2, 16, 8)] * 2),
    "experts": ("mixtral", {"num_local_experts": 4, **SLIDING}, [(2, 16, 8)] * 2),
    "learned positions": ("gpt2", {"n_embd": 64, "n_head": 4, "n_layer": 2, "head_dim": None}, [(4, 16, 0)] * 2),
}


@pytest.mark.parametrize("case", RIGHT)
def test_geometry_is_what_the_layers_pass_to_attention(case: str) -> None:
    model_type, changes, expected = RIGHT[case]
    caches = geometry_of(model(model_type, IMPLEMENTATION, **changes))
    assert [(cache.num_kv_heads, cache.head_dim, cache.window) for cache in caches] == expected


@pytest.mark.parametrize("case", RIGHT)
def test_a_cache_of_that_geometry_and_nothing_else_continues_the_text(case: str) -> None:
    """Any split, by a plain cache in torch, against the eager model's one forward pass; float32 over two layers."""
    model_type, changes, _ = RIGHT[case]
    ours, eager = (model(model_type, implementation, **changes) for implementation in (IMPLEMENTATION, "eager"))
    tokens = torch.randint(4, VOCAB_SIZE, (1, 25), generator=torch.Generator().manual_seed(1))
    rows, start = [], 0
    with torch.no_grad(), history(geometry_of(ours)):
        for length in (5, 3, 1, 1, 7, 1, 4, 3):
            positions = torch.arange(start, start + length)[None]
            step = tokens[:, start : start + length]
            rows.append(ours(input_ids=step, position_ids=positions, use_cache=False).logits[0])
            start += length
        expected = eager(input_ids=tokens, use_cache=False).logits[0]
    torch.testing.assert_close(torch.cat(rows), expected, rtol=0, atol=1e-4 * float(expected.std()))


def calls(number: int, ids: str, model_type: str) -> str:
    return (
        f"model type '{model_type}': {number} attention calls with layer indices {ids} reach the off-graph cache; "
        "expected one for each of the 2 layers. Layers of another kind keep state that would not survive a step."
    )


def refused(model_type: str, what: str) -> str:
    return f"model type '{model_type}': {what}. It cannot be exported with the off-graph cache."


def changing_rope(model_type: str, rope_type: str) -> str:
    return (
        f"model type '{model_type}': rope_type '{rope_type}' changes the rotary frequencies with the length of the "
        "sequence; a graph traced once would be wrong beyond the first regime. It is refused."
    )


NOT_CAUSAL = "the model's attention mask is not causal; the off-graph cache op always masks causally."

WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "softcap": (
        "gemma2",
        {"pad_token_id": 0},
        refused("gemma2", "attention passes softcap=50.0, which the off-graph cache op cannot apply"),
    ),
    "sinks": (
        "gpt_oss",
        {"num_local_experts": 4},
        refused("gpt_oss", "attention passes s_aux=a tensor of shape (4,), which the off-graph cache op cannot apply"),
    ),
    "chunked attention": (
        "llama4_text",
        {
            "attention_chunk_size": 8,
            "layer_types": ["chunked_attention", "full_attention"],
            "intermediate_size_mlp": 64,
            "num_local_experts": 2,
        },
        "the model's attention mask reaches back by different lengths from different positions, or with gaps (chunked "
        "attention, attention sinks); the off-graph cache op knows full and sliding-window attention.",
    ),
    "attention of its own": ("bloom", {"n_head": 4, "n_layer": 2}, calls(0, "[]", "bloom")),
    "attention of its own, with positions": ("xglm", {}, calls(0, "[]", "xglm")),
    "no attention": ("mamba", {}, calls(0, "[]", "mamba")),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}, calls(1, "[1]", "lfm2")),
    "linear attention": ("qwen3_next", LINEAR, calls(1, "[1]", "qwen3_next")),
    "two calls in a layer": ("diffllama", {}, calls(4, "[0, 0, 1, 1]", "diffllama")),
    "a mask from content": (
        "doge",
        {},
        refused("doge", "attention passes a mask of its own, which the off-graph cache op cannot apply"),
    ),
    "an encoder's": ("bert", {"is_decoder": False}, NOT_CAUSAL),
    "bidirectional": ("gemma3_text", {"use_bidirectional_attention": True, "pad_token_id": 0}, NOT_CAUSAL),
    "an encoder-decoder's decoder": (
        "bart",
        {"pad_token_id": 1},
        "the model builds a padding mask for itself; the off-graph cache op cannot apply it.",
    ),
    "no positions": (
        "persimmon",
        {},
        refused("persimmon", "attention is not given position_ids, without which tokens cannot be placed in the cache"),
    ),
    "latent attention": (
        "deepseek_v3",
        LATENT,
        refused(
            "deepseek_v3",
            "layer 0 has head_dim 16 for keys and 12 for values, and a cache holds both with one head_dim",
        ),
    ),
    "shared K/V": (
        "gemma3n_text",
        SHARED_KV,
        refused("gemma3n_text", "layer 2 shares another layer's K/V, which this version does not address yet"),
    ),
    "windows in masks alone": (
        "qwen2_moe",
        {"use_sliding_window": True, "num_experts": 4, **SLIDING},
        "model type 'qwen2_moe': its masks have windows [8], its attention layers declare []; expected the same. A "
        "window that a layer does not declare cannot be published for its cache.",
    ),
    "code that needs a mask": (
        "mpt",
        {"n_heads": 4, "n_layers": 2, "d_model": 64},
        refused("mpt", "its forward fails, given positions and no mask: 'NoneType' object has no attribute 'to'"),
    ),
    "dynamic rope": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **ROPE}},
        changing_rope("llama", "dynamic"),
    ),
    "longrope": (
        "phi3",
        {"pad_token_id": 0, "rope_parameters": {"rope_type": "longrope", **FACTORS, **ROPE}},
        changing_rope("phi3", "longrope"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_needs_more_than_the_cache_gives_is_refused_with_the_cause(case: str) -> None:
    model_type, changes, expected = WRONG[case]
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        geometry_of(model(model_type, IMPLEMENTATION, **changes))


def test_a_regime_of_one_layer_type_is_found_too() -> None:
    gemma3 = model("gemma3_text", IMPLEMENTATION, **GEMMA3)
    gemma3.config.rope_parameters["full_attention"] = {"rope_type": "dynamic", "factor": 2.0, **ROPE}
    with pytest.raises(ExportError, match=f"^{re.escape(changing_rope('gemma3_text', 'dynamic'))}$"):
        geometry_of(gemma3)


def test_a_layer_that_contradicts_the_configuration_is_refused() -> None:
    qwen2 = model("qwen2", IMPLEMENTATION, **MIXED)
    qwen2.model.layers[0].self_attn.sliding_window = 8
    expected = (
        "model type 'qwen2': layer 0 is 'full_attention' in the configuration and attends with window 8; expected both "
        "to say the same."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        geometry_of(qwen2)


def test_a_window_that_no_mask_has_is_refused() -> None:
    qwen2 = model("qwen2", IMPLEMENTATION, **MIXED)
    qwen2.model.layers[1].self_attn.sliding_window = 6
    with pytest.raises(ExportError, match=re.escape("its masks have windows [8], its attention layers declare [6]")):
        geometry_of(qwen2)


def test_many_layer_indices_are_shortened() -> None:
    diffllama = model("diffllama", IMPLEMENTATION, num_hidden_layers=7)
    with pytest.raises(
        ExportError, match=re.escape("14 attention calls with layer indices [0, 0, 1, 1, 2, 2, 3, 3, 4,")
    ):
        geometry_of(diffllama)


def test_observing_leaves_no_trace_in_the_model() -> None:
    llama = model("llama", IMPLEMENTATION)
    before = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    assert geometry_of(llama) == geometry_of(llama)
    assert all(torch.equal(tensor, before[name]) for name, tensor in llama.state_dict().items())
