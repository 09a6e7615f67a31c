"""Tiny Transformers models with random weights, saved as snapshots, and artifacts built from them.

A snapshot has what a fetched one has: config.json, generation_config.json, model.safetensors, and a byte-level
tokenizer with a chat template. Weights are drawn wide, so that every token of history moves the logits.
"""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.spec import UNQUANTIZED, BuildSpec

VOCAB_SIZE = 260
BOS, EOS = 0, 1

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
    "pad_token_id": None,
}

SPEC = BuildSpec(
    dtype="fp32",
    linear=UNQUANTIZED,
    embedding=UNQUANTIZED,
    max_seq_len=4,
    max_context_len=64,
    placement="off_graph",
    backend="mlx",
    logits="last",
)

# What the libraries say about themselves while they load, trace and lower; nothing here can change it.
LIBRARY_WARNINGS = (
    (DeprecationWarning, r"\w+ is deprecated\. Use files\(\) instead"),
    (DeprecationWarning, r"`torch\.jit\.\w+` is deprecated"),
    (FutureWarning, r"`isinstance\(treespec, LeafSpec\)` is deprecated"),
    (Warning, r"This API is experimental and subject to change"),
)


@contextmanager
def library_warnings_ignored() -> Iterator[None]:
    with warnings.catch_warnings():
        for category, message in LIBRARY_WARNINGS:
            warnings.filterwarnings("ignore", message, category=category)
        yield


@dataclass(frozen=True)
class Artifact:
    """A snapshot, the ``.pte`` built from it, and what it was built to be."""

    snapshot: Path
    pte: Path
    spec: BuildSpec


def config(model_type: str, **changes: Any) -> Any:
    """A tiny configuration; a change that the model type does not know is an attribute all the same."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[model_type](**SIZES | changes)


def model(model_type: str, attention: str = "eager", **changes: Any) -> Any:
    """A tiny causal LM with random weights, the same at every call."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(20_26)
        return AutoModelForCausalLM.from_config(config(model_type, **changes), attn_implementation=attention).eval()


def save_snapshot(directory: Path, model_type: str, **changes: Any) -> Path:
    """``directory``, filled with a whole snapshot."""
    model(model_type, **changes).save_pretrained(directory)
    save_tokenizer(directory)
    return directory


def save_tokenizer(directory: Path, **changes: Any) -> None:
    """``directory`` has the files of a tokenizer."""
    tokenizer(**changes).save_pretrained(directory)


def tokenizer(**changes: Any) -> Any:
    """One token per byte, after the four special ones."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {token: index for index, token in enumerate(["<s>", "</s>", "<pad>", "<unk>"])}
    vocab |= {byte: len(vocab) + index for index, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    bytes_only = Tokenizer(models.BPE(vocab, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
    template = (
        "<s>{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}"
    )
    return PreTrainedTokenizerFast(**{"tokenizer_object": bytes_only, "chat_template": template, **special, **changes})


def words_only(**changes: Any) -> Any:
    """A tokenizer of three words and no unknown one, which fails on any other word."""
    from tokenizers import Tokenizer, models

    vocab = {word: index for index, word in enumerate(["<s>", "</s>", "hello"])}
    return tokenizer(tokenizer_object=Tokenizer(models.WordLevel(vocab, "<none>")), unk_token=None, **changes)


def edit_json(path: Path, *removed: str, **changes: Any) -> None:
    """Removes and sets fields of a JSON file."""
    content = {key: value for key, value in json.loads(path.read_text()).items() if key not in removed}
    path.write_text(json.dumps(content | changes))


SLIDING = {"sliding_window": 8}
MIXED = {"sliding_window": 8, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]}

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}

ARTIFACTS: dict[str, tuple[str, dict[str, Any], BuildSpec]] = {
    "llama": ("llama", {}, replace(SPEC, max_seq_len=8)),
    "llama-bf16": ("llama", {}, replace(SPEC, dtype="bf16", max_seq_len=8)),
    "sliding": ("mistral", SLIDING, SPEC),
    "mixed": ("qwen2", MIXED, SPEC),
    # What the executor's fused graph is held against the plain one on.
    "query-key-norms": ("qwen3", {}, replace(SPEC, dtype="bf16")),
    "two-tables": ("gemma3_text", {"sliding_window": 8, "num_hidden_layers": 6, "sliding_window_pattern": 3}, SPEC),
    "rotated-in-part": ("phi3", {"partial_rotary_factor": 0.5}, SPEC),
    "split-heads": ("gpt_neox", {"rotary_pct": 0.25}, SPEC),
    "scaled-tables": ("llama", {"rope_parameters": YARN}, SPEC),
    "shared-caches": ("gemma3n_text", {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "sliding_window": 8}, SPEC),
    # Prompts far beyond its window, which steps do not divide; heads wide enough to be stored in few bits.
    "long": (
        "gemma3_text",
        {"sliding_window": 16, "sliding_window_pattern": 2, "head_dim": 32, "max_position_embeddings": 256},
        replace(SPEC, logits="full", max_seq_len=12, max_context_len=256),
    ),
    # Room for some turns of talk, and a window that they outgrow.
    "talk": (
        "qwen2",
        {**MIXED, "max_position_embeddings": 256},
        replace(SPEC, max_seq_len=8, max_context_len=256),
    ),
    "full": ("qwen2", MIXED, replace(SPEC, logits="full")),
    "selected": ("qwen2", MIXED, replace(SPEC, logits="selected")),
}


@pytest.fixture(scope="session")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Artifact]:
    """The artifact of a name in ARTIFACTS, built when it is first asked for, in about five seconds."""
    from pipeline.steps import build
    from tests.pte.agreement import assert_read_as_executorch_reads

    built: dict[str, Artifact] = {}

    def get(name: str) -> Artifact:
        if name not in built:
            model_type, changes, spec = ARTIFACTS[name]
            directory = tmp_path_factory.mktemp(name)
            snapshot = save_snapshot(directory / "snapshot", model_type, **changes)
            with library_warnings_ignored():
                build.run(spec, snapshot, directory, lambda stage: None)
            # A build puts garbage collection off, since its process ends with it.
            gc.collect()
            built[name] = Artifact(snapshot, directory / build.ARTIFACT, spec)
            assert_read_as_executorch_reads(built[name].pte)
        return built[name]

    return get
