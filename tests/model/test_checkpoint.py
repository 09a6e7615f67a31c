"""A snapshot loads as the causal LM it is, or the message says what about it is wrong."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.checkpoint import load_config, load_model, load_tokenizer
from tests.tiny_models import SIZES, VOCAB_SIZE, edit_json, save_snapshot


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_snapshot(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def snapshot(pristine: Path, tmp_path: Path) -> Path:
    """One that a test may break."""
    return Path(shutil.copytree(pristine, tmp_path / "snapshot"))


def refusal(load: Callable[[], object], snapshot: Path) -> str:
    with pytest.raises(ExportError) as caught:
        load()
    return str(caught.value).replace(str(snapshot), "SNAPSHOT")


@pytest.mark.parametrize(
    ("dtype", "expected"), [("fp32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16)]
)
def test_the_model_is_loaded_in_its_dtype_for_evaluation(snapshot: Path, dtype: str, expected: torch.dtype) -> None:
    model = load_model(snapshot, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {expected}
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert model.config._attn_implementation == "eager"


def test_weights_are_those_of_the_file(snapshot: Path) -> None:
    stored = load_file(snapshot / "model.safetensors")
    loaded = load_model(snapshot, "fp32").state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())


def without(snapshot: Path, *names: str) -> None:
    file = snapshot / "model.safetensors"
    tensors = load_file(file)
    for name in names:
        del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})


def test_missing_weights_are_named(snapshot: Path) -> None:
    without(snapshot, "model.layers.1.mlp.up_proj.weight", "model.norm.weight")
    assert refusal(lambda: load_model(snapshot, "fp32"), snapshot) == (
        "SNAPSHOT: the checkpoint has no matching weights for model.layers.1.mlp.up_proj.weight, model.norm.weight; "
        "they would be random. The checkpoint is incomplete, or it belongs to another architecture than its "
        "config.json says."
    )


def test_many_missing_weights_are_counted(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", num_hidden_layers=3)
    message = refusal(lambda: load_model(snapshot, "fp32"), snapshot)
    assert message.startswith("SNAPSHOT: the checkpoint has no matching weights for model.layers.2.input_layernorm.wei")
    assert "and 4 more; they would be random." in message


def test_weights_of_another_shape_are_refused(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", intermediate_size=80)
    message = refusal(lambda: load_model(snapshot, "fp32"), snapshot)
    assert message.startswith(
        "SNAPSHOT: the checkpoint has no matching weights for model.layers.0.mlp.down_proj.weight"
    )
    assert "and 1 more; they would be random." in message


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda s: (s / "config.json").unlink(), "config.json"),
    "config that is no JSON": (lambda s: (s / "config.json").write_text("{"), "is not a valid JSON file"),
    "config that is a list": (lambda s: (s / "config.json").write_text("[]"), "config.json"),
    "config of an unknown type": (lambda s: edit_json(s / "config.json", model_type="llama9"), "llama9"),
    "config without a type": (lambda s: edit_json(s / "config.json", "model_type"), "model_type"),
    "config with a field of the wrong type": (
        lambda s: edit_json(s / "config.json", hidden_size="wide"),
        "Validation error for field 'hidden_size': ",
    ),
    "no weights": (lambda s: (s / "model.safetensors").unlink(), "model.safetensors"),
    "weights cut short": (
        lambda s: (s / "model.safetensors").write_bytes((s / "model.safetensors").read_bytes()[:5000]),
        "file not fully covered",
    ),
    "weights that are none": (lambda s: (s / "model.safetensors").write_bytes(b"nothing like it"), "header too large"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_snapshot_is_refused(snapshot: Path, case: str) -> None:
    damage, word = BROKEN[case]
    damage(snapshot)
    message = refusal(lambda: (load_config(snapshot), load_model(snapshot, "fp32")), snapshot)
    assert message.startswith(("SNAPSHOT: its config.json cannot be used: ", "SNAPSHOT: Transformers cannot load it"))
    assert word in message
    assert "\n" not in message


def test_an_encoder_decoder_is_no_causal_lm(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", model_type="t5")
    message = refusal(lambda: load_model(snapshot, "fp32"), snapshot)
    assert message.startswith("SNAPSHOT: Transformers cannot load it as a causal LM: Unrecognized configuration class")
    assert message.endswith(
        "Check that its files are whole, and that the installed Transformers knows its architecture."
    )


def test_a_composite_without_one_language_model_is_refused(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", model_type="musicgen")
    message = refusal(lambda: load_config(snapshot), snapshot)
    assert message.startswith("SNAPSHOT: its config.json cannot be used: ")


def test_the_configuration_is_that_of_the_language_model(snapshot: Path) -> None:
    assert load_config(snapshot).max_position_embeddings == 128
    edit_json(snapshot / "config.json", model_type="gemma3", text_config={"max_position_embeddings": 77})
    assert load_config(snapshot).max_position_embeddings == 77


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: [file.unlink() for file in s.glob("tokenizer*")],
        lambda s: (s / "tokenizer.json").write_text("{"),
        lambda s: (s / "tokenizer.json").write_text("{}"),
        lambda s: (s / "tokenizer_config.json").write_text("["),
    ],
    ids=["absent", "no JSON", "empty", "no JSON configuration"],
)
def test_a_tokenizer_that_cannot_be_loaded_is_refused(snapshot: Path, damage: Callable[[Path], object]) -> None:
    damage(snapshot)
    message = refusal(lambda: load_tokenizer(snapshot), snapshot)
    assert re.match(r"SNAPSHOT: its tokenizer cannot be loaded: .*\.$", message)


def test_nothing_is_looked_for_on_the_hub(tmp_path: Path) -> None:
    for load in (load_config, load_tokenizer, lambda path: load_model(path, "fp32")):
        assert refusal(lambda load=load: load(tmp_path / "absent"), tmp_path).startswith("SNAPSHOT/absent: ")


def test_a_chat_template_comes_with_the_tokenizer(snapshot: Path) -> None:
    tokenizer = load_tokenizer(snapshot)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == (
        "<s>user: hi\nassistant:"
    )
    ids = tokenizer("hi there é")["input_ids"]
    assert tokenizer.decode(ids) == "hi there é"


def test_a_model_type_without_a_causal_lm_is_refused_by_its_configuration(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", model_type="t5")
    assert refusal(lambda: load_config(snapshot), snapshot) == (
        "model type 't5': it is an encoder-decoder; expected a model type that Transformers has a causal LM for. It "
        "cannot be exported."
    )
    edit_json(snapshot / "config.json", model_type="vit", is_encoder_decoder=False)
    assert refusal(lambda: load_config(snapshot), snapshot).startswith("model type 'vit': it is no causal LM; expected")


def test_an_encoder_decoder_is_refused_although_its_decoder_would_load(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", model_type="bart", is_encoder_decoder=True)
    assert refusal(lambda: load_config(snapshot), snapshot) == (
        "model type 'bart': its configuration is that of an encoder-decoder, whose decoder reads what the encoder made "
        "of another text; expected a decoder alone (is_encoder_decoder: false). It cannot be exported."
    )
    edit_json(snapshot / "config.json", is_encoder_decoder=False)
    assert load_config(snapshot).model_type == "bart"


def test_attention_that_is_not_pluggable_is_refused(tmp_path: Path) -> None:
    snapshot = save_snapshot(tmp_path, "gpt_neo", num_layers=2, attention_types=[[["global"], 2]], num_heads=4)
    assert refusal(lambda: load_model(snapshot, "fp32", IMPLEMENTATION), snapshot) == (
        "model type 'gpt_neo': its attention is not pluggable: Transformers chooses among attention classes of the "
        "model's own, and the off-graph cache cannot take their place. It cannot be exported with the off-graph cache."
    )


@pytest.fixture
def seeing(tmp_path: Path) -> Path:
    """A Gemma 4 that sees and hears, as it is published: its language model is a part of it."""
    save_snapshot(
        tmp_path,
        "gemma4",
        text_config={
            **SIZES,
            "global_head_dim": 32,
            "hidden_size_per_layer_input": 8,
            "layer_types": ["sliding_attention", "full_attention"],
            "pad_token_id": 2,
            "vocab_size_per_layer_input": VOCAB_SIZE,
        },
        vision_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 8},
        audio_config={"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2},
        image_token_id=256,
        video_token_id=257,
        audio_token_id=258,
    )
    return tmp_path


def test_a_language_model_among_others_is_loaded_with_its_own_weights(seeing: Path) -> None:
    stored = load_file(seeing / "model.safetensors")
    loaded = load_model(seeing, "fp32").state_dict()
    language = [name for name in stored if name.startswith("model.language_model.")]
    assert language
    assert all(torch.equal(loaded[name], stored[name]) for name in language)
    assert load_config(seeing).model_type == "gemma4_text"


def test_missing_weights_of_a_language_model_among_others_are_named(seeing: Path) -> None:
    missing = "model.language_model.layers.1.mlp.up_proj.weight"
    without(seeing, missing)
    message = refusal(lambda: load_model(seeing, "fp32"), seeing)
    assert message.startswith(f"SNAPSHOT: the checkpoint has no matching weights for {missing}; they would be random.")
