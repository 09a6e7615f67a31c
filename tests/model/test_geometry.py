"""The caches a model needs, read off the attention it really does; a model that needs something else is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.forward import OffGraphForward
from pipeline.model.geometry import geometry_of, within_context
from pipeline.model.oracle import OracleCache, active
from tests.tiny_models import MIXED, SLIDING, VOCAB_SIZE, model

ROPE = {"rope_theta": 10000.0}
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
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "intermediate_size": 64,
    "activation_sparsity_pattern": [0.0] * 4,
    **SLIDING,
}
GEMMA4 = {
    "num_hidden_layers": 35,
    "num_kv_shared_layers": 20,
    "layer_types": [*["sliding_attention"] * 4, "full_attention"] * 7,
    "hidden_size": 32,
    "intermediate_size": 32,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCAB_SIZE,
    "global_head_dim": 32,
    "num_key_value_heads": 1,
    "pad_token_id": 0,
    **SLIDING,
}
# (KV heads, head_dim, window) of each cache.
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
    "learned positions after those of padding": ("roberta", {"pad_token_id": 3, "is_decoder": True}, [(4, 16, 0)] * 2),
    "positions that the model counts": (
        "bart",
        {"pad_token_id": 1, "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 64, "decoder_ffn_dim": 64},
        [(4, 16, 0)] * 2,
    ),
    "attention that is told no positions": ("persimmon", {}, [(4, 16, 0)] * 2),
    "windows in masks alone": (
        "qwen2_moe",
        {"use_sliding_window": True, "num_experts": 4, "max_window_layers": 1, **SLIDING},
        [(2, 16, 8), (2, 16, 0)],
    ),
    "two calls in a layer": ("diffllama", {}, [(2, 16, 0)] * 4),
    "latent attention, values narrower than keys": ("deepseek_v3", LATENT, [(4, 16, 0)] * 2),
    "latent attention, values wider than keys": ("deepseek_v3", LATENT | {"v_head_dim": 24}, [(4, 24, 0)] * 2),
    "readers of other layers' K/V": ("gemma3n_text", SHARED_KV, [(2, 16, 8), (2, 16, 0)]),
    "35 layers over 15 caches": ("gemma4_text", GEMMA4, [*[(1, 16, 8)] * 4, (1, 32, 0)] * 3),
}


@pytest.mark.parametrize("case", RIGHT)
def test_geometry_is_what_the_layers_pass_to_attention(case: str) -> None:
    model_type, changes, expected = RIGHT[case]
    caches = geometry_of(model(model_type, IMPLEMENTATION, **changes))
    assert [(cache.num_kv_heads, cache.head_dim, cache.window) for cache in caches] == expected


@pytest.mark.parametrize("case", RIGHT)
def test_a_cache_of_that_geometry_and_nothing_else_continues_the_text(case: str) -> None:
    """The last token of each step, by a plain cache in torch, against the eager model's one forward pass; float32."""
    model_type, changes, _ = RIGHT[case]
    ours, eager = (model(model_type, implementation, **changes) for implementation in (IMPLEMENTATION, "eager"))
    tokens = torch.randint(4, VOCAB_SIZE, (1, 25), generator=torch.Generator().manual_seed(1))
    rows, ends, start = [], [], 0
    forward = OffGraphForward(ours)
    with torch.no_grad(), active(OracleCache(geometry_of(ours), capacity=len(tokens[0]))):
        for length in (5, 3, 1, 1, 7, 1, 4, 3):
            positions = torch.arange(start, start + length)
            rows.append(forward(tokens[:, positions], positions)[0, 0])
            start += length
            ends.append(start - 1)
        expected = eager(input_ids=tokens, use_cache=False).logits[0, ends]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-4 * float(expected.std()))


@pytest.mark.parametrize(("context", "expected"), [(7, [0, 0]), (8, [0, 0]), (9, [0, 8]), (100, [0, 8])])
def test_a_window_that_no_text_outgrows_is_none(context: int, expected: list[int]) -> None:
    caches = within_context(geometry_of(model("qwen2", IMPLEMENTATION, **MIXED)), context)
    assert [cache.window for cache in caches] == expected


def refused(model_type: str, what: str) -> str:
    return f"model type '{model_type}': {what}. It cannot be exported with the off-graph cache."


def unreached(model_type: str) -> str:
    return refused(
        model_type,
        "none of its attention goes through Transformers' attention interface, where the off-graph cache takes its "
        "place",
    )


def not_causal(model_type: str) -> str:
    return refused(model_type, "an attention module is not causal, and the off-graph cache op always masks causally")


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
    "attention of its own": ("bloom", {"n_head": 4, "n_layer": 2}, unreached("bloom")),
    "attention of its own, with positions": ("xglm", {}, unreached("xglm")),
    "no attention": ("mamba", {}, unreached("mamba")),
    "a mask from content": (
        "doge",
        {},
        refused("doge", "attention passes a mask of its own, which the off-graph cache op cannot apply"),
    ),
    "an encoder's": ("bert", {"is_decoder": False}, not_causal("bert")),
    "bidirectional": (
        "gemma3_text",
        {"use_bidirectional_attention": True, "pad_token_id": 0},
        not_causal("gemma3_text"),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_model_that_needs_more_than_the_cache_gives_is_refused_with_the_cause(case: str) -> None:
    model_type, changes, expected = WRONG[case]
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        geometry_of(model(model_type, IMPLEMENTATION, **changes))


@pytest.mark.parametrize(("layer", "declared", "masked"), [(0, 8, "none"), (1, 6, "8")])
def test_a_layer_that_declares_another_window_than_its_mask_has_is_refused(
    layer: int, declared: int, masked: str
) -> None:
    qwen2 = model("qwen2", IMPLEMENTATION, **MIXED)
    qwen2.model.layers[layer].self_attn.sliding_window = declared
    expected = refused(
        "qwen2",
        f"an attention layer declares a window of {declared} and is masked with {masked}, and only one of them can be "
        "published for its cache",
    )
    with pytest.raises(ExportError, match=f"^{re.escape(expected)}$"):
        geometry_of(qwen2)


def test_readers_with_another_window_than_their_donor_are_refused() -> None:
    gemma = model("gemma3n_text", IMPLEMENTATION, **SHARED_KV)
    text = gemma.model.language_model if hasattr(gemma.model, "language_model") else gemma.model
    text.layers[2].self_attn.layer_type = "full_attention"
    expected = "layers that share the K/V of cache 1 attend with windows 0 and 8; expected the same"
    with pytest.raises(ExportError, match=f"^{re.escape(refused('gemma3n_text', expected))}$"):
        geometry_of(gemma)


def test_observing_leaves_no_trace_in_the_model() -> None:
    llama = model("llama", IMPLEMENTATION)
    before = {name: tensor.clone() for name, tensor in llama.state_dict().items()}
    assert geometry_of(llama) == geometry_of(llama)
    assert all(torch.equal(tensor, before[name]) for name, tensor in llama.state_dict().items())
