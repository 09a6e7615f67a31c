"""Every matrix of weights is quantized as asked, left because the manifest says so, or the reason for a refusal.

The judges are executorch's own quantization of a whole model, and numbers rounded by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model import quantization
from pipeline.model.quantization import Layer, layers_of
from pipeline.spec import DEFAULT_GROUP_SIZE, UNQUANTIZED, Quantization, WeightFormat
from tests.tiny_models import library_warnings_ignored, model

WIDE = {"vocab_size": 272, "hidden_size": 64, "intermediate_size": 128}
TIED = {**WIDE, "tie_word_embeddings": True}


def form(scheme: str, group_size: int | None = None) -> WeightFormat:
    return WeightFormat(scheme=scheme, group_size=DEFAULT_GROUP_SIZE[scheme] if group_size is None else group_size)


def asked(linear: str = "none", embedding: str = "none", **others: Any) -> Quantization:
    return Quantization(linear=form(linear), embedding=form(embedding), **others)


def parts_of(weight: Any) -> dict[str, torch.Tensor]:
    return {name: getattr(weight, name) for name in weight.tensor_data_names}


def bits(data: torch.Tensor) -> bytes:
    return bytes(data.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("linear", "embedding"),
    [
        (form("4w"), form("8w")),
        (form("4w", 64), form("4w", 32)),
        (form("8w", 128), form("8w")),
        (form("nvfp4"), form("nvfp4")),
    ],
)
def test_weights_are_those_of_executorchs_own_quantization(
    linear: WeightFormat, embedding: WeightFormat, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks of a few rows, every layer has the bits that quantizing the whole model gives it."""
    from executorch.exir._warnings import ExperimentalWarning
    from executorch.extension.llm.export.quantize import quantize_model_

    monkeypatch.setattr(quantization, "CHUNK_WEIGHTS", 32 * 128)
    expected, ours = (model("llama", **WIDE | {"hidden_size": 128, "head_dim": 32}).to(dtype) for _ in range(2))
    with pytest.warns(ExperimentalWarning), library_warnings_ignored():
        quantize_model_(
            expected,
            linear.scheme,
            linear.group_size,
            qembedding_config=embedding.scheme,
            qembedding_group_size=embedding.group_size,
        )
    layers = layers_of(ours, Quantization(linear=linear, embedding=embedding))
    quantization.apply(ours, layers, quantization.quantize(ours, layers))
    quantized = [name for name, module in expected.named_modules() if hasattr(getattr(module, "weight", None), "qdata")]
    assert [layer.name for layer in layers] == quantized
    for name in quantized:
        theirs, mine = (parts_of(one.get_submodule(name).weight) for one in (expected, ours))
        assert {part: (data.dtype, data.shape) for part, data in theirs.items()} == {
            part: (data.dtype, data.shape) for part, data in mine.items()
        }
        assert all(bits(theirs[part]) == bits(mine[part]) for part in theirs), name
    ids = torch.arange(8)[None]
    assert torch.equal(expected(ids).logits, ours(ids).logits)


def test_mxfp8_is_the_nearest_float8_under_a_power_of_two() -> None:
    made = model("llama", **WIDE)
    weight = made.lm_head.weight.detach().clone()
    layers = layers_of(made, asked(linear="mxfp8"))
    quantization.apply(made, layers, quantization.quantize(made, layers), dequantized=True)
    got = made.lm_head.weight
    groups = weight.reshape(-1, 32)
    # The format's own rule (OCP Microscaling Formats 1.0, section 6.3): the exponent of the largest, less that of 448.
    scale = 2.0 ** (groups.abs().amax(1, keepdim=True).log2().floor() - 8)
    expected = ((groups / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale).reshape(weight.shape)
    assert torch.equal(got, expected)


@pytest.mark.parametrize("scheme", ["4w", "8w", "nvfp4", "mxfp8"])
def test_what_was_written_is_given_to_the_checkpoint_in_any_dtype(scheme: str, tmp_path: Path) -> None:
    narrow = model("llama", **WIDE).to(torch.bfloat16)
    quantization.write(narrow, layers_of(narrow, asked(scheme, scheme)), tmp_path / "w")
    quantized, wide = (model("llama", **WIDE).to(dtype) for dtype in (torch.bfloat16, torch.float32))
    quantization.give(quantized, tmp_path / "w")
    quantization.give(wide, tmp_path / "w", dequantized=True)
    for name in ("lm_head", "model.embed_tokens", "model.layers.1.mlp.down_proj"):
        stands_for = wide.get_submodule(name).weight
        assert type(stands_for) is torch.nn.Parameter
        assert stands_for.dtype == torch.float32
        assert torch.equal(quantization.dequantize(quantized.get_submodule(name).weight, torch.float32), stands_for)
        original = model("llama", **WIDE).get_submodule(name).weight
        apart = (stands_for - original).norm() / original.norm()
        assert 1e-3 < apart < {"4w": 0.1, "8w": 0.02, "nvfp4": 0.15, "mxfp8": 0.05}[scheme]


def test_nvfp4_of_half_precision_is_that_of_the_same_numbers_in_float32() -> None:
    narrow = model("llama", **WIDE).to(torch.float16)
    wide = model("llama", **WIDE).to(torch.float16).to(torch.float32)
    found, expected = (quantization.quantize(one, layers_of(one, asked("nvfp4", "nvfp4"))) for one in (narrow, wide))
    assert {name: bits(data) for name, data in found.items()} == {name: bits(data) for name, data in expected.items()}


def test_a_tied_head_is_stored_as_the_embedding_once() -> None:
    made = model("llama", **TIED)
    layers = layers_of(made, asked("4w", "8w"))
    assert layers[0] == Layer(modules=("model.embed_tokens", "lm_head"), shape=(272, 64), format=form("8w"))
    assert all(layer.format == form("4w") for layer in layers[1:])
    stored = quantization.quantize(made, layers)
    assert not [name for name in stored if name.startswith("lm_head")]
    quantization.apply(made, layers, stored)
    assert made.lm_head.weight is made.model.embed_tokens.weight


@pytest.mark.parametrize(("embedding", "kept"), [("8w", False), ("none", True)])
def test_a_head_untied_on_request_is_a_linear_layer(embedding: str, kept: bool) -> None:
    made = model("llama", **TIED)
    dense = made.lm_head.weight
    layers = layers_of(made, asked("4w", embedding, untie_head=True))
    assert (layers[0].modules, layers[-1].modules) == (("model.embed_tokens",), ("lm_head",))
    assert (layers[0].format, layers[-1].format) == (form(embedding), form("4w"))
    quantization.apply(made, layers, quantization.quantize(made, layers))
    assert (made.model.embed_tokens.weight is dense) is kept
    assert made.lm_head.weight.target_dtype == torch.int4


def test_a_tied_head_stays_as_it_is_with_an_embedding_that_does() -> None:
    layers = layers_of(model("llama", **TIED), asked("4w"))
    expected = Layer(
        modules=("model.embed_tokens", "lm_head"),
        shape=(272, 64),
        format=UNQUANTIZED,
        why="quantization.embedding is none",
    )
    assert layers[0] == expected


def test_what_the_manifest_lists_is_left_and_told() -> None:
    made = model("llama", **WIDE)
    layers = layers_of(made, asked("4w", skip=("lm_head", "model.layers.1.*_proj")))
    left = {layer.name: layer.why for layer in layers if layer.format == UNQUANTIZED}
    assert left.pop("model.embed_tokens") == "quantization.embedding is none"
    assert set(left.values()) == {"listed in quantization.skip"}
    assert len(left) == 8


REFUSED: dict[str, tuple[dict[str, Any], Quantization, str]] = {
    "a width that is no multiple": (
        {"intermediate_size": 96},
        Quantization(linear=form("4w", 64)),
        "2 of the model's layers cannot be quantized as the manifest asks: "
        "model.layers.0.mlp.down_proj [64, 96] as 4w: its width is not a multiple of 64; "
        "model.layers.1.mlp.down_proj [64, 96] as 4w: its width is not a multiple of 64. "
        "Choose a group size of 32, or list them under quantization.skip to leave them as they are.",
    ),
    "a width that no group size divides": (
        {"intermediate_size": 80},
        asked("8w"),
        "2 of the model's layers cannot be quantized as the manifest asks: "
        "model.layers.0.mlp.down_proj [64, 80] as 8w: its width is not a multiple of 32; "
        "model.layers.1.mlp.down_proj [64, 80] as 8w: its width is not a multiple of 32. "
        "List them under quantization.skip to leave them as they are.",
    ),
    "rows of NVFP4": (
        {"vocab_size": 260},
        asked(embedding="nvfp4"),
        "1 of the model's layers cannot be quantized as the manifest asks: model.embed_tokens [260, 64] as nvfp4: its "
        "260 rows are not a multiple of 16. List them under quantization.skip to leave them as they are.",
    ),
    "an embedding that MLX cannot look up in NVFP4": (
        {"hidden_size": 48, "intermediate_size": 48},
        asked("nvfp4", "nvfp4"),
        "1 of the model's layers cannot be quantized as the manifest asks: model.embed_tokens [272, 48] as nvfp4: its "
        "width is not a multiple of 32. List them under quantization.skip to leave them as they are.",
    ),
    "a pattern that matches nothing": (
        {},
        asked("4w", skip=("lm_haed",)),
        "quantization.skip lists 'lm_haed', which matches no layer of the model; expected names such as 'lm_head'. "
        "Correct it, or remove it.",
    ),
    "everything skipped": (
        {},
        asked("4w", "8w", skip=("model.embed_tokens",)),
        "quantization.embedding is 8w; every layer that it concerns is skipped, or is a head that is stored as the "
        "embedding it is tied to. Choose none for it.",
    ),
    "a head that is not tied": (
        {},
        asked("4w", untie_head=True),
        "quantization.untie_head is true; the model's head is not tied to its embedding. Remove untie_head.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_quantized_is_refused(name: str) -> None:
    changes, quantize, expected = REFUSED[name]
    with pytest.raises(ExportError) as caught:
        layers_of(model("llama", **WIDE | changes), quantize)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("scheme", "factor"), [("nvfp4", 1e5), ("nvfp4", 1e-4), ("8w", float("nan")), ("mxfp8", float("inf"))]
)
def test_weights_that_a_format_cannot_hold_are_refused(scheme: str, factor: float) -> None:
    made = model("llama", **WIDE)
    with torch.no_grad():
        made.lm_head.weight.mul_(factor)
    expected = (
        rf"^lm_head as {form(scheme)} would be off by (0\.[89]\d|1|nan) of its norm; expected at most 0\.5\. Its "
        r"weights are not finite, or larger or smaller than the scales of this format can say\. Choose another scheme, "
        r"or list it under quantization\.skip\.$"
    )
    with pytest.raises(ExportError, match=expected):
        quantization.quantize(made, layers_of(made, asked(scheme)))


def test_a_matrix_of_zeros_is_quantized() -> None:
    made = model("llama", **WIDE)
    torch.nn.init.zeros_(made.lm_head.weight)
    layers = layers_of(made, asked("4w"))
    quantization.apply(made, layers, quantization.quantize(made, layers), dequantized=True)
    assert not made.lm_head.weight.any()


def test_layers_of_a_kind_that_no_scheme_takes_are_refused_and_counted() -> None:
    # GPT-2's projections are modules of its own, [in, out]; executorch's exporter leaves them without a word.
    with pytest.raises(ExportError, match=r"^8 of the model's layers .*; and 3 more\. List them under") as caught:
        layers_of(model("gpt2", n_embd=64, n_layer=2, n_head=4), asked("4w"))
    assert "transformer.h.0.attn.c_attn [64, 192] as 4w: it is a Conv1D, which no scheme takes; " in str(caught.value)


def test_experts_that_are_no_linear_layers_are_refused_by_name() -> None:
    with pytest.raises(ExportError, match=r"mlp\.experts \[4, .* as 4w: it is a MixtralExperts, which no scheme takes"):
        layers_of(model("mixtral", num_local_experts=4, **WIDE), asked("4w"))
