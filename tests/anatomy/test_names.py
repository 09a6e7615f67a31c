"""Names lose what exporters put around them, and keep everything else."""

from __future__ import annotations

import pytest

from pipeline.anatomy import names


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("e463/model.norm.weight", "model.norm.weight"),
        ("model.norm.weight", "model.norm.weight"),
        ("E463/x", "E463/x"),
        ("e463x/y", "e463x/y"),
        ("0000/1111/x", "1111/x"),
        ("", ""),
    ],
)
def test_the_exporters_prefix_goes(key: str, name: str) -> None:
    assert names.without_prefix(key) == name


@pytest.mark.parametrize(
    ("name", "weight"),
    [
        ("q_proj.parametrizations.weight.original0_to_packed", "q_proj.weight"),
        ("q_proj.parametrizations.weight.original0", "q_proj.weight"),
        ("q_proj.parametrizations.weight.original0_mx_packed", "q_proj.weight"),
        ("q_proj.weight_to_packed", "q_proj.weight"),
        ("q_proj.weight", "q_proj.weight"),
    ],
)
def test_a_packed_tensor_is_called_what_its_weight_was(name: str, weight: str) -> None:
    assert names.of_weight(name) == weight


@pytest.mark.parametrize(
    ("name", "layer", "pattern"),
    [
        ("model.layers.12.mlp.up_proj.weight", "model.layers.12", "model.layers.*.mlp.up_proj.weight"),
        ("model.embed_tokens.weight", "model.embed_tokens", "model.embed_tokens.weight"),
        ("h.3", "h.3", "h.*"),
        ("blocks.0.experts.7.w1", "blocks.0", "blocks.*.experts.*.w1"),
        ("norm2.weight", "norm2", "norm2.weight"),
        ("weight", "weight", "weight"),
    ],
)
def test_a_layer_is_the_first_numbered_block(name: str, layer: str, pattern: str) -> None:
    assert (names.layer_of(name), names.pattern_of(name)) == (layer, pattern)
