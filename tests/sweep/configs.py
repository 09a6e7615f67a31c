"""A tiny configuration of every causal-LM model type: one recipe, and what the recipe does not get right by type.

The recipe takes the fields that a configuration class has out of SIZES, thins lists with an entry for each layer so
that every kind of layer is kept, and does the same for the configurations inside it. Sizes are small and different
from one another, so that a dimension which is mistaken for another one shows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

NUM_LAYERS = 4
WINDOW = 6
"""Narrower than the sweep's text, wider than some of its steps."""

_HIDDEN, _HEADS, _KV_HEADS, _HEAD_DIM, _FEED, _VOCAB, _POSITIONS = 64, 4, 2, 16, 48, 96, 128

SIZES: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_dim", "word_embed_proj_dim"), _HIDDEN),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), NUM_LAYERS),
    **dict.fromkeys(("num_decoder_layers", "num_blocks"), NUM_LAYERS),
    **dict.fromkeys(("encoder_layers", "num_encoder_layers"), NUM_LAYERS),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"), _HEADS),
    **dict.fromkeys(("decoder_attention_heads", "num_decoder_attention_heads"), _HEADS),
    **dict.fromkeys(("encoder_attention_heads", "num_encoder_attention_heads"), _HEADS),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), _KV_HEADS),
    **dict.fromkeys(("intermediate_size", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner", "ffn_dim"), _FEED),
    **dict.fromkeys(
        ("feed_forward_size", "d_inner", "dff", "dim_ff", "intermediate_size_mlp", "ffn_hidden_size"), _FEED
    ),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "decoder_vocab_size"), _VOCAB),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), _POSITIONS),
    "head_dim": _HEAD_DIM,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "type_vocab_size": 2,
    "is_decoder": True,
    "is_encoder_decoder": False,
    # windows
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "attention_window_size"), WINDOW),
    **dict.fromkeys(("attention_chunk_size", "keep_window_size"), WINDOW),
    "local_attention": 2 * WINDOW,
    "use_sliding_window": True,
    "max_window_layers": 2,
    # experts
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "moe_layer_start_index"), 1),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size"), 24),
    **dict.fromkeys(("expert_ffn_hidden_size", "moe_shared_expert_intermediate_size", "dense_intermediate_size"), 24),
    **dict.fromkeys(("shared_experts_intermediate_size", "prefix_dense_intermediate_size"), 24),
    "moe_layer_end_index": NUM_LAYERS - 1,
    # latent attention: keys of 16 + 8, values of 20
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "index_topk": WINDOW,
    "index_head_dim": 16,
    "index_n_heads": 2,
    # state-space, convolution, linear attention
    "mamba_d_state": 8,
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "n_mamba_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    "ssm_state_size": 8,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "mamba_chunk_size": 8,
    "chunk_size": 8,
    "state_size": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    **dict.fromkeys(("swa_num_attention_heads",), _HEADS),
    **dict.fromkeys(("swa_num_key_value_heads",), 1),
    "swa_head_dim": 8,
    "rel_extent": 16,
    "unpadded_vocab_size": _VOCAB - 2,
    "rotary_dim": 8,
    **dict.fromkeys(("pronunciation_vocab_size", "shape_vocab_size"), 16),
    **dict.fromkeys(("pronunciation_embed_dim", "shape_embed_dim"), 16),
    # towers that read no text
    "image_size": 32,
    "patch_size": 16,
}

_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_FULL, _SLIDING, _LINEAR = "full_attention", "sliding_attention", "linear_attention"
_MAMBA = {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16}
_PER_LAYER_INPUT = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": _VOCAB}
_GEMMA3N: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "intermediate_size": [_FEED] * 5,
    "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0, 0.0],
    "num_kv_shared_layers": 2,
    "laurel_rank": 8,
    **_PER_LAYER_INPUT,
}
_GEMMA4: dict[str, Any] = {
    "num_hidden_layers": 5,
    "layer_types": [_SLIDING, _SLIDING, _FULL, _SLIDING, _FULL],
    "num_kv_shared_layers": 2,
    "global_head_dim": 32,
    **_PER_LAYER_INPUT,
}
_QWEN4: dict[str, Any] = {
    "layer_types": [_LINEAR, "indexed_attention", _LINEAR, "indexed_attention"],
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
_DOTS3: dict[str, Any] = {
    "head_dim": 24,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 2,
    "swa_q_lora_rank": 16,
    "swa_kv_lora_rank": 16,
    "swa_head_dim": 32,
    "swa_qk_nope_head_dim": 24,
    "swa_v_head_dim": 12,
}
_LLAMA4 = {
    "num_hidden_layers": NUM_LAYERS,
    "moe_layers": [1, 3],
    "no_rope_layers": [1, 1, 1, 0],
    "layer_types": ["chunked_attention", "chunked_attention", "chunked_attention", _FULL],
    "floor_scale": 8,
}
# A scale of the queries that steps up with the position.
_SCALED_BY_POSITION = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 2.0,
    "original_max_position_embeddings": 8,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.5,
}
_LOCAL_BYTES = {"num_hidden_layers": 2, "hidden_size_global": _HIDDEN}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3]},
    "blt": {
        "encoder_hash_byte_group_vocab": 50,
        "local_attention_window_len": WINDOW,
        "encoder_config": _LOCAL_BYTES,
        "decoder_config": _LOCAL_BYTES,
    },
    "cohere_compass_text": {
        "layer_types": [_SLIDING, _FULL, _SLIDING, _FULL],
        "rope_parameters": {_SLIDING: _MROPE, _FULL: _MROPE},
    },
    "dbrx": {"attn_config": {"kv_n_heads": _KV_HEADS, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v4": {"o_groups": 2, "o_lora_rank": 16},
    "dots3_note": {
        "text_config": _DOTS3,
        "vision_config": {"adapter_in_dim": _HIDDEN, "adapter_out_dim": _HIDDEN},
        "audio_config": {"adapter_input_size": _HIDDEN, "adapter_out_dim": _HIDDEN},
    },
    "dots3_note_text": _DOTS3,
    "dots1": {"n_shared_experts": 1},
    "dory": {"n_input_layers": 1, "n_output_layers": 1},
    "falcon_h1": _MAMBA,
    "gemma3n": {"text_config": _GEMMA3N},
    "gemma3n_text": _GEMMA3N,
    "gemma4": {"text_config": _GEMMA4},
    "gemma4_text": _GEMMA4,
    "gemma4_unified": {"text_config": _GEMMA4},
    "gemma4_unified_text": _GEMMA4,
    "gpt_neo": {"attention_types": [[["global", "local"], NUM_LAYERS // 2]]},
    "granitemoehybrid": {"layer_types": [_LINEAR, _FULL, _LINEAR, _FULL]},
    "hrm_text": {"num_hidden_layers": 2, "num_layers_per_stack": ...},
    "inkling2_loop_text": {
        "n_layers_per_attn_res_block": 2,
        "loop_layer_index_start": 2,
        "loop_layer_index_end": 4,
        "log_scaling_n_floor": 8,
    },
    "inkling2_text": {"log_scaling_n_floor": 8},
    "inkling_text": {"log_scaling_n_floor": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "mamba_dt_rank": 4},
    "jetmoe": {"kv_channels": _HEAD_DIM},
    "laguna": {"layer_types": [_FULL, _SLIDING, _SLIDING, _FULL], "num_attention_heads_per_layer": [4, 2, 2, 4]},
    "lfm2": {"num_hidden_layers": NUM_LAYERS, "layer_types": ["conv", _FULL, "conv", _FULL], "full_attn_idxs": ...},
    "lfm2_moe": {"layer_types": ["conv", _FULL, "conv", _FULL]},
    "llama4": {"text_config": _LLAMA4},
    "llama4_text": _LLAMA4,
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "n_groups": 2},
    "mellum": {"layer_types": [_FULL, _SLIDING, _SLIDING, _FULL]},
    "minimax_m3_vl_text": {
        "layer_types": [_FULL, "minimax_m3_sparse", _FULL, "minimax_m3_sparse"],
        "index_block_size": 4,
        "index_topk_blocks": 2,
        "index_n_heads": _KV_HEADS,
    },
    "ministral3": {"rope_parameters": _SCALED_BY_POSITION},
    "mllama": {"text_config": {"cross_attention_layers": [2]}},
    "qwen4_exp": {"text_config": _QWEN4},
    "qwen4_exp_text": _QWEN4,
    "reformer": {
        "axial_pos_shape": (8, 16),
        "axial_pos_embds_dim": (32, 32),
        "attention_head_size": _HEAD_DIM,
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_hidden_layers": ...,
    },
    "xlm": {"causal": True},
    "xlnet": {"attn_type": "uni"},
    "xmod": {"default_language": "en_XX"},
    "zamba": {
        "num_hidden_layers": 6,
        "layers_block_type": [_LINEAR, _LINEAR, "hybrid", _LINEAR, "hybrid", _LINEAR],
        "num_key_value_heads": _HEADS,
    },
    "zaya": {
        "num_experts_per_tok": 1,
        "router_hidden_size": 16,
        "layer_types": ["hybrid", "hybrid_sliding", "hybrid", "hybrid_sliding"],
    },
}
"""Arguments of a configuration class, nested by its inner configurations; ``...`` leaves the default."""


_ROPE = {"rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 8}
_LONG = {"long_factor": [4.0] * (_HEAD_DIM // 2), "short_factor": [1.0] * (_HEAD_DIM // 2)}

VARIANTS: dict[str, dict[str, Any]] = {
    "bart:positions-alone": {"pad_token_id": None},
    "dots1:full": {"sliding_window": None},
    "falcon:alibi": {"alibi": True},
    "falcon:grouped": {"new_decoder_architecture": True},
    "gemma2:uncapped": {"attn_logit_softcapping": None},
    "gemma3n_text:unshared": {"num_kv_shared_layers": 0},
    "gemma4_text:unshared": {"num_kv_shared_layers": 0},
    "gemma4_text:keys-are-values": {"num_kv_shared_layers": 0, "attention_k_eq_v": True},
    "gpt_neo:global": {"attention_types": [[["global"], NUM_LAYERS]]},
    "granitemoehybrid:attention": {"layer_types": [_FULL] * NUM_LAYERS},
    "granitemoehybrid:attention-rope": {"layer_types": [_FULL] * NUM_LAYERS, "position_embedding_type": "rope"},
    "lfm2:attention": {"layer_types": [_FULL] * NUM_LAYERS},
    "lfm2_moe:attention": {"layer_types": [_FULL] * NUM_LAYERS},
    "llama:dynamic": {"rope_parameters": {"rope_type": "dynamic", **_ROPE}, "max_position_embeddings": 8},
    "llama:dynamic-short": {"rope_parameters": {"rope_type": "dynamic", **_ROPE}},
    "llama:linear": {"rope_parameters": {"rope_type": "linear", **_ROPE}},
    "llama:llama3": {
        "rope_parameters": {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0, **_ROPE}
    },
    "llama:yarn": {"rope_parameters": {"rope_type": "yarn", **_ROPE}},
    "llama4_text:full": {"layer_types": [_FULL] * NUM_LAYERS},
    "mistral:full": {"sliding_window": None},
    "mixtral:full": {"sliding_window": None},
    "opt:scaled": {"word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "phi3:full": {"sliding_window": None},
    "phi3:longrope": {
        "rope_parameters": {"rope_type": "longrope", **_LONG, **_ROPE},
        "original_max_position_embeddings": 8,
    },
    "phi3:longrope-short": {
        "rope_parameters": {"rope_type": "longrope", **_LONG, **_ROPE},
        "original_max_position_embeddings": 64,
    },
    "phimoe:full": {"sliding_window": None},
    "qwen2:full": {"use_sliding_window": False},
    "qwen2_moe:full": {"use_sliding_window": False},
    "qwen3_5_text:attention": {"layer_types": [_FULL] * NUM_LAYERS},
    "qwen3_next:attention": {"layer_types": [_FULL] * NUM_LAYERS},
}
"""More of a model type than one configuration shows: ``type:what`` and what it changes."""

TEXT_VOCAB = SIZES["unpadded_vocab_size"]
"""Every token id below it is in every vocabulary."""


def tiny_config(model_type: str, changes: Mapping[str, Any]) -> Any:
    """The smallest configuration that still has everything the model type is known for."""
    from transformers import CONFIG_MAPPING

    return _tiny(CONFIG_MAPPING[model_type], OVERRIDES.get(model_type, {}) | dict(changes))


def _tiny(cls: Any, overrides: Mapping[str, Any]) -> Any:
    from transformers import PreTrainedConfig

    fields = {field.name for field in dataclasses.fields(cls)}
    fields -= {field.name for field in dataclasses.fields(PreTrainedConfig)} - {"is_decoder", "is_encoder_decoder"}
    arguments = {name: value for name, value in SIZES.items() if name in fields}
    if "kv_lora_rank" in fields:
        # Latent attention has as many KV heads as heads, and calls the rotated dimensions head_dim.
        arguments |= {"num_key_value_heads": _HEADS, "head_dim": SIZES["qk_rope_head_dim"]}
        arguments = {name: value for name, value in arguments.items() if name in fields}
    default = cls()
    arguments |= _thinned(default, fields)
    for name in cls.sub_configs:
        inner = getattr(default, name, None)
        if inner is not None:
            given = overrides.get(name, {})
            arguments[name] = _tiny(type(inner), given) if isinstance(given, Mapping) else given
    nested = {name for name in cls.sub_configs if isinstance(overrides.get(name), Mapping)}
    arguments |= {name: value for name, value in overrides.items() if name not in nested}
    return cls(**{name: value for name, value in arguments.items() if value is not ...})


def _thinned(default: Any, fields: set[str]) -> dict[str, Any]:
    """The lists that have an entry for each layer, cut to the first layer of each kind and some more."""
    num_layers = next((vars(default)[name] for name in ("num_hidden_layers",) if name in vars(default)), None)
    lists = {
        name: value
        for name, value in vars(default).items()
        if name in fields and isinstance(value, list | tuple) and len(value) == num_layers
    }
    if not lists:
        return {}
    kinds = list(zip(*(map(str, value) for value in lists.values()), strict=True))
    chosen = sorted({kinds.index(kind) for kind in kinds})
    chosen = sorted(
        [*chosen, *(layer for layer in range(len(kinds)) if layer not in chosen)][: max(NUM_LAYERS, len(chosen))]
    )
    if "max_window_layers" in fields:
        # The kinds follow from the sizes.
        lists.pop("layer_types", None)
    return {"num_hidden_layers": len(chosen)} | {
        name: [value[layer] for layer in chosen] for name, value in lists.items()
    }
