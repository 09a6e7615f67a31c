"""What the configuration alone rules out is refused by name, and nothing else is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pipeline.errors import ExportError
from pipeline.model.suitability import UNSUITABLE_LAYERS, UNSUITABLE_TYPES, refuse_unsuitable
from tests.tiny_models import MIXED, config

ROPE = {"rope_theta": 10000.0}
FACTORS = {"long_factor": [1.0] * 8, "short_factor": [2.0] * 8}
STATE = "keeps state besides K and V from one step to the next"

SINKS = "has sinks, which take a share of every softmax, and the off-graph cache op gives all of it to keys"
ALIBI = "alibi is true, and the off-graph cache op adds no bias to scores"


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "softcap": (
        "gemma2",
        {},
        "attn_logit_softcapping is 50.0, and the off-graph cache op does not cap scores",
    ),
    "chunked attention": (
        "llama4_text",
        {"layer_types": ["full_attention", "chunked_attention"]},
        "layer 1 is 'chunked_attention', which attends from the start of a chunk on, which is neither full nor "
        "sliding-window attention",
    ),
    "queries scaled by counted positions": (
        "llama4_text",
        {"layer_types": ["full_attention"] * 2},
        "attn_temperature_tuning is true: it scales queries by positions that it counts from 0 in every step",
    ),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}, f"layer 0 is 'conv', which {STATE}"),
    "linear attention": (
        "qwen3_next",
        {"layer_types": ["full_attention", "linear_attention"]},
        f"layer 1 is 'linear_attention', which {STATE}",
    ),
    "state spaces": ("mamba", {}, f"layer 0 is 'linear_attention', which {STATE}"),
    "ALiBi": ("mpt", {}, ALIBI),
    "attention sinks": ("gpt_oss", {}, f"its attention {SINKS}"),
    "attention sinks in the sliding layers": ("mimo_v2_flash", MIXED, f"its attention {SINKS}"),
    "ALiBi in every configuration": (
        "bloom",
        {},
        "its attention adds biases to scores by distance (ALiBi), and the off-graph cache op adds none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_configuration_rules_out_is_refused_with_the_cause(case: str) -> None:
    model_type, changes, expected = REFUSED[case]
    message = f"model type '{model_type}': {expected}. It cannot be exported with the off-graph cache."
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        refuse_unsuitable(config(model_type, **changes), max_context_len=64)


def test_alibi_is_refused_wherever_the_configuration_says_so() -> None:
    from transformers import FalconConfig

    with pytest.raises(ExportError, match=f"^model type 'falcon': {re.escape(ALIBI)}"):
        refuse_unsuitable(FalconConfig(alibi=True), max_context_len=64)
    refuse_unsuitable(FalconConfig(alibi=False), max_context_len=64)


CHANGING: dict[str, tuple[str, dict[str, Any], int]] = {
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, **ROPE}}, 128),
    "longrope": (
        "phi3",
        {
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "longrope", **FACTORS, **ROPE},
            "original_max_position_embeddings": 64,
        },
        64,
    ),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_a_context_beyond_the_first_regime_of_its_rotary_embedding_is_refused_and_none_before(kind: str) -> None:
    model_type, changes, longest = CHANGING[kind]
    refuse_unsuitable(config(model_type, **changes), max_context_len=longest)
    message = (
        f"model type '{model_type}': max_context_len is {longest + 1}; its rope_type '{kind}' rotates a whole text "
        f"anew once it is longer than {longest} tokens, which the keys in a cache cannot follow. Lower "
        f"max_context_len to {longest}."
    )
    with pytest.raises(ExportError, match=f"^{re.escape(message)}$"):
        refuse_unsuitable(config(model_type, **changes), max_context_len=longest + 1)


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("llama", {}),
        ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, **ROPE}}),
        ("qwen2", MIXED),
        ("gemma2", {"attn_logit_softcapping": None}),
        ("gpt2", {}),
        ("mimo_v2_flash", {"layer_types": ["full_attention"] * 2}),
        ("bart", {}),
    ],
)
def test_a_configuration_that_rules_nothing_out_passes(model_type: str, changes: dict[str, Any]) -> None:
    refuse_unsuitable(config(model_type, **changes), max_context_len=64)


def test_kinds_of_layers_are_named_as_the_library_names_them() -> None:
    from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES

    assert set(UNSUITABLE_LAYERS) <= set(ALLOWED_ATTN_LAYER_TYPES)


def test_model_types_are_named_as_the_library_names_them() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert set(UNSUITABLE_TYPES) <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
