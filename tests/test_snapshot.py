"""Which files make a model's snapshot, told from their names alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import FetchError
from pipeline.snapshot import belongs, check_complete, is_tokenizer_file, local_files

WHOLE = ("config.json", "model.safetensors", "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "in_snapshot", "of_tokenizer"),
    [
        ("config.json", True, False),
        ("generation_config.json", True, False),
        ("model.safetensors", True, False),
        ("model-00001-of-00002.safetensors", True, False),
        ("model.safetensors.index.json", True, False),
        ("tokenizer.json", True, True),
        ("tokenizer_config.json", True, True),
        ("special_tokens_map.json", True, True),
        ("added_tokens.json", True, True),
        ("chat_template.jinja", True, True),
        ("tokenizer.model", True, True),
        ("qwen.tiktoken", True, True),
        ("vocab.json", True, True),
        ("vocab.txt", True, True),
        ("merges.txt", True, True),
        ("README.md", False, False),
        ("LICENSE", False, False),
        (".gitattributes", False, False),
        ("pytorch_model.bin", False, False),
        ("modeling_custom.py", False, False),
        ("model.gguf", False, False),
        ("training_args.json", False, False),
        ("original/model.safetensors", False, False),
        ("onnx/config.json", False, False),
    ],
)
def test_a_file_belongs_by_its_name(name: str, in_snapshot: bool, of_tokenizer: bool) -> None:
    assert belongs(name) is in_snapshot
    assert not of_tokenizer or is_tokenizer_file(name)


def refused(names: tuple[str, ...]) -> str:
    with pytest.raises(FetchError) as caught:
        check_complete(names, "models/tiny")
    return str(caught.value)


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "vocab.json", "vocab.txt", "tokenizer.model", "qwen.tiktoken"])
def test_configuration_weights_and_any_vocabulary_are_enough(tokenizer: str) -> None:
    check_complete(("config.json", "model-00001-of-00002.safetensors", tokenizer), "models/tiny")


@pytest.mark.parametrize("weights", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "weights.pkl"])
def test_pickled_weights_are_refused(weights: str) -> None:
    assert refused(("config.json", weights, "tokenizer.json")) == (
        f"models/tiny: its weights are {weights}; expected safetensors or GGUF. Such checkpoints can run code when "
        "they are opened and are refused. Convert them to safetensors first."
    )


def test_pickled_weights_beside_safe_ones_do_no_harm() -> None:
    check_complete((*WHOLE, "pytorch_model.bin"), "models/tiny")


@pytest.mark.parametrize("also", [(), ("sub/model.safetensors",)])
def test_missing_weights_are_named(also: tuple[str, ...]) -> None:
    assert refused(("config.json", "tokenizer.json", *also)) == (
        "models/tiny: it has no weights; expected *.safetensors at the top, or a .gguf file."
    )


def test_a_missing_configuration_is_named() -> None:
    assert refused(("model.safetensors", "tokenizer.json")) == (
        "models/tiny: config.json is missing; expected the model's configuration beside its weights."
    )


def test_a_missing_tokenizer_is_named() -> None:
    assert refused(("config.json", "model.safetensors", "tokenizer_config.json", "merges.txt")) == (
        "models/tiny: it has no tokenizer; expected tokenizer.json or another tokenizer file."
    )


def test_a_directory_contributes_the_files_at_its_top_that_belong(tmp_path: Path) -> None:
    for name in (*WHOLE, "README.md", "modeling_custom.py", "sub/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "extra.safetensors").mkdir()
    (tmp_path / "vocab.txt").symlink_to("nowhere")
    (tmp_path / "merges.txt").symlink_to("README.md")
    assert local_files(tmp_path) == {name: tmp_path / name for name in (*WHOLE, "merges.txt")}


def test_a_gguf_file_contributes_itself(tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"GGUF")
    assert local_files(file) == {"tiny.gguf": file}


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.bin"
    file.write_bytes(b"x")
    with pytest.raises(FetchError) as caught:
        local_files(file)
    assert str(caught.value) == (f"{file}: model.source.path is a '.bin' file; expected a directory or a .gguf file.")


def test_a_path_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError) as caught:
        local_files(tmp_path / "absent")
    assert str(caught.value) == (
        f"{tmp_path}/absent: model.source.path does not exist; expected a directory or a .gguf file."
    )
