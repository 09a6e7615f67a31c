"""Rotary embeddings that change with the length are told apart from those that do not, and held still while traced."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pipeline.model.rope import first_regimes, in_first_regime
from tests.tiny_models import config, model

THETA = {"rope_theta": 10000.0}
LONGROPE = {"rope_type": "longrope", "long_factor": [4.0] * 8, "short_factor": [1.5] * 8, **THETA}
SCALED = {"factor": 4.0, "original_max_position_embeddings": 32, **THETA}


@pytest.mark.parametrize(
    ("model_type", "changes", "expected"),
    [
        ("llama", {}, []),
        ("gpt2", {}, []),
        ("llama", {"rope_parameters": {"rope_type": "yarn", **SCALED}}, []),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, **THETA}}, []),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **THETA}}, [("dynamic", 128)]),
        (
            "phi3",
            {"pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
            [("longrope", 64)],
        ),
    ],
)
def test_the_first_regime_ends_where_the_library_changes_frequencies(
    model_type: str, changes: dict[str, Any], expected: list[tuple[str, int]]
) -> None:
    assert list(first_regimes(config(model_type, **changes))) == expected


def test_a_regime_of_one_layer_type_is_found_too() -> None:
    gemma3 = config("gemma3_text")
    gemma3.rope_parameters["full_attention"] = {"rope_type": "dynamic", "factor": 2.0, **THETA}
    assert list(first_regimes(gemma3)) == [("dynamic", 128)]


CHANGING: dict[str, tuple[str, dict[str, Any]]] = {
    "dynamic": ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, **THETA}}),
    "longrope": ("phi3", {"pad_token_id": 0, "rope_parameters": LONGROPE, "original_max_position_embeddings": 64}),
}


@pytest.mark.parametrize("kind", CHANGING)
def test_frequencies_hold_still_and_change_again_afterwards(kind: str) -> None:
    """The library itself is asked where they change: one position beyond what ``first_regimes`` says."""
    model_type, changes = CHANGING[kind]
    ours = model(model_type, **changes)
    rotary = ours.model.rotary_emb
    ((_, longest),) = first_regimes(ours.config)
    hidden = torch.zeros(1, 1, 64)

    def frequencies(length: int) -> torch.Tensor:
        rotary(hidden, torch.tensor([[length - 1]]))
        kept: torch.Tensor = rotary.inv_freq.clone()
        return kept

    short = frequencies(1)
    assert torch.equal(frequencies(longest), short)
    with in_first_regime(ours):
        assert torch.equal(frequencies(longest + 1), short)
    assert not torch.equal(frequencies(longest + 1), short)
