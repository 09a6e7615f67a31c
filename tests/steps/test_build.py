"""A snapshot becomes an artifact that continues any text as its model does, or nothing is written."""

from __future__ import annotations

import importlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.contract import CacheGeometry, Contract
from pipeline.errors import ExportError
from pipeline.model import attention
from pipeline.model.checkpoint import load_model
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from pipeline.spec import BuildSpec
from pipeline.steps import build
from pipeline.steps.process import run_step
from pipeline.steps.smoke import distances
from pipeline.verify import Question, examine
from tests.tiny_models import (
    EOS,
    MIXED,
    SLIDING,
    SPEC,
    VOCAB_SIZE,
    Artifact,
    config,
    edit_json,
    library_warnings_ignored,
    save_snapshot,
    save_tokenizer,
)

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")

Artifacts = Callable[[str], Artifact]

TEXT = torch.randint(4, VOCAB_SIZE, (1, 60), generator=torch.Generator().manual_seed(1))

# Float32 rounding of two layers is about 1e-6 of the logits' spread; a lost token of history costs 1e-2 and more.
CLOSE = 1e-4


def flat(window: int = 0) -> CacheGeometry:
    return CacheGeometry(num_kv_heads=2, head_dim=16, window=window)


CACHES = {
    "llama": (flat(), flat()),
    "llama-bf16": (flat(), flat()),
    "sliding": (flat(8), flat(8)),
    "mixed": (flat(), flat(8)),
    "full": (flat(), flat(8)),
    "selected": (flat(), flat(8)),
}


@pytest.mark.parametrize("name", CACHES)
def test_the_contract_is_that_of_the_request_and_the_model(artifact: Artifacts, name: str) -> None:
    made = artifact(name)
    assert examine(made.pte, Question(asked=made.spec)).findings == ()
    with PteFile.open(made.pte) as pte:
        contract = Contract.read(pte.program.constants(), "model.pte")
    assert contract == Contract(
        max_seq_len=made.spec.max_seq_len,
        max_context_len=64,
        vocab_size=VOCAB_SIZE,
        dtype=made.spec.dtype,
        logits=made.spec.logits,
        caches=CACHES[name],
        eos_ids=frozenset({EOS}),
    )


def rows_of(decoder: Decoder, chunks: list[int]) -> tuple[np.ndarray, list[int]]:
    """The text fed in steps: each step's logits, and the position of its last token."""
    decoder.clear()
    rows, ends, start = [], [], 0
    for length in chunks:
        logits = decoder.feed(TEXT[0, start : start + length].tolist())
        rows.append(np.array(logits.astype(mx.float32)))
        start += length
        ends.append(start - 1)
    return np.stack(rows), ends


def eager_logits(snapshot: Path, dtype: str) -> np.ndarray:
    with torch.no_grad():
        return load_model(snapshot, dtype)(input_ids=TEXT, use_cache=False).logits[0].float().numpy()


def splits(longest: int) -> list[list[int]]:
    mixed = [longest, 1, 1, longest, 2, 1, longest, longest, 1]
    return [[1] * 60, [longest] * (60 // longest), mixed, [1] * 11 + [longest] * 5, [2] * 30]


@pytest.mark.parametrize("name", ["llama", "sliding", "mixed"])
def test_every_split_of_a_text_has_the_logits_of_eager_attention(artifact: Artifacts, name: str) -> None:
    """All 60 positions one by one, then the ends of the chunks of other splits; every ring wraps several times."""
    made = artifact(name)
    expected = eager_logits(made.snapshot, "fp32")
    with PteFile.open(made.pte) as pte:
        decoder = Decoder(pte)
    for chunks in splits(made.spec.max_seq_len):
        rows, ends = rows_of(decoder, chunks)
        assert distances(rows, expected[ends]).max() < CLOSE, chunks
    decoder.clear()
    forgetful = np.array(decoder.feed(TEXT[0, -1:].tolist()))
    assert distances(forgetful[None], expected[-1:]).max() > 100 * CLOSE, "the comparison could not tell"


@pytest.mark.parametrize("name", ["full", "selected"])
def test_every_row_of_logits_is_that_of_eager_attention(artifact: Artifacts, name: str) -> None:
    made = artifact(name)
    expected = eager_logits(made.snapshot, "fp32")
    with PteFile.open(made.pte) as pte:
        decoder = Decoder(pte)
    for chunks in splits(made.spec.max_seq_len):
        decoder.clear()
        for length in chunks:
            step = TEXT[0, decoder.position : decoder.position + length].tolist()
            selected = [*range(length), 0][::-1][:4] if name == "selected" else None
            positions, logits = decoder.step(step, selected)
            assert len(positions) == (min(length + 1, 4) if selected else length)
            assert distances(np.array(logits), expected[positions]).max() < CLOSE, chunks


def test_bfloat16_is_as_near_to_eager_bfloat16_as_that_is_to_float32(artifact: Artifacts) -> None:
    made = artifact("llama-bf16")
    exact, rounded = (eager_logits(made.snapshot, dtype) for dtype in ("fp32", "bf16"))
    rounding = distances(rounded, exact).max()
    with PteFile.open(made.pte) as pte:
        decoder = Decoder(pte)
    for chunks in splits(made.spec.max_seq_len):
        rows, ends = rows_of(decoder, chunks)
        assert distances(rows, rounded[ends]).max() < 2 * rounding, chunks
        assert distances(rows, exact[ends]).max() < 2 * rounding, chunks


def built(snapshot: Path, out: Path, spec: BuildSpec = SPEC) -> Path:
    out.mkdir(exist_ok=True)
    with library_warnings_ignored():
        build.run(spec, snapshot, out, lambda stage: None)
    assert sorted(file.name for file in out.iterdir()) == ["model.pte", "report.json"]
    return out / "model.pte"


@pytest.mark.parametrize("max_seq_len", [1, 2])
def test_the_shortest_steps_are_built_too(tmp_path: Path, max_seq_len: int) -> None:
    snapshot = save_snapshot(tmp_path / "snapshot", "llama", num_hidden_layers=1)
    pte = built(snapshot, tmp_path / "out", replace(SPEC, max_seq_len=max_seq_len))
    with PteFile.open(pte) as opened:
        decoder = Decoder(opened)
    expected = eager_logits(snapshot, "fp32")
    for chunks in ([1] * 20, [max_seq_len] * 10, [max_seq_len, 1] * 7):
        rows, ends = rows_of(decoder, chunks)
        assert distances(rows, expected[ends]).max() < CLOSE


FAMILIES: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gpt2": {"n_positions": 128},
    "gpt_neox": {},
    "phi": {},
    "phi3": {},
    "qwen3": {},
    "starcoder2": {},
}


@pytest.mark.parametrize("family", FAMILIES)
def test_families_with_other_parts_continue_a_text_as_eager_attention_does(family: str, tmp_path: Path) -> None:
    """GELU, LayerNorm, fused projections, partial rotary embeddings, learned positions, norms of queries and keys."""
    snapshot = save_snapshot(tmp_path / "snapshot", family, **FAMILIES[family])
    with PteFile.open(built(snapshot, tmp_path / "out", SPEC)) as pte:
        decoder = Decoder(pte)
    expected = eager_logits(snapshot, "fp32")
    rows, ends = rows_of(decoder, [4, 1, 4, 4, 3, *[4] * 8, *[1] * 12])
    assert distances(rows, expected[ends]).max() < CLOSE


def test_two_builds_are_equal_byte_for_byte(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("mixed")
    assert built(made.snapshot, tmp_path / "again", made.spec).read_bytes() == made.pte.read_bytes()


def test_a_context_beyond_the_model_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    stages: list[str] = []
    with pytest.raises(ExportError, match="Lower max_context_len to 128"):
        build.run(replace(SPEC, max_context_len=129), save_snapshot(tmp_path, "llama"), tmp_path, stages.append)
    assert stages == ["importing"]


def test_the_limit_of_a_composite_is_its_language_models(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps(
            {"model_type": "gemma4", "text_config": {"model_type": "gemma4_text", "max_position_embeddings": 96}}
        )
    )
    with pytest.raises(
        ExportError, match=r"^max_context_len is 128; .* at most 96 positions .* Lower max_context_len to"
    ):
        build.run(replace(SPEC, max_context_len=128), tmp_path, tmp_path, lambda stage: None)


def test_the_report_tells_where_each_end_is_named_and_what_is_odd(tmp_path: Path) -> None:
    snapshot = save_snapshot(tmp_path / "snapshot", "llama", num_hidden_layers=1, vocab_size=272)
    edit_json(snapshot / "generation_config.json", eos_token_id=[EOS, 270])
    save_tokenizer(snapshot, chat_template="{% for m in messages %}{{ m.content }}<unk>\n{% endfor %}")
    with PteFile.open(built(snapshot, tmp_path / "out")) as pte:
        assert Contract.read(pte.program.constants(), "model.pte").eos_ids == {EOS, 3, 270}
    report = json.loads((tmp_path / "out" / "report.json").read_bytes())
    del report["proof"]
    assert report == {
        "end_of_text": {"generation_config": [EOS, 270], "config": [EOS], "tokenizer": [EOS], "chat_template": [3]},
        "attention": [{"layer": 0, "cache": 0, "num_kv_heads": 2, "head_dim": 16, "window": 0}],
        "notes": [
            "12 of the 272 logits belong to no token of the tokenizer: padding",
            "the generation config ends a text with token 270, which the tokenizer has not",
        ],
    }


LONGROPE = {
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "long_factor": [4.0] * 8,
        "short_factor": [1.5] * 8,
    },
}

RULED_OUT: dict[str, tuple[str, dict[str, Any], str]] = {
    "softcap": ("gemma2", {"pad_token_id": 0}, "attn_logit_softcapping is 50.0"),
    "sinks": ("gpt_oss", {}, "its attention has sinks"),
    "chunked attention": ("llama4_text", {"layer_types": ["chunked_attention"] * 2}, "layer 0 is 'chunked_attention'"),
    "ALiBi": ("bloom", {}, "its attention adds biases"),
    "ALiBi as an option": ("mpt", {}, "alibi is true"),
    "state spaces": ("mamba", {}, "layer 0 is 'linear_attention', which keeps state besides K and V"),
    "convolutions": ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layer 0 is 'conv', which keeps state"),
    "an encoder-decoder without a causal LM": ("t5", {}, "it is an encoder-decoder"),
    "an encoder-decoder with one": ("bart", {}, "its configuration is that of an encoder-decoder"),
    "frequencies that change": (
        "phi3",
        LONGROPE | {"original_max_position_embeddings": 32},
        "max_context_len is 64; its rope_type 'longrope'",
    ),
}


@pytest.mark.parametrize("case", RULED_OUT)
def test_what_the_configuration_rules_out_is_refused_before_anything_is_loaded(tmp_path: Path, case: str) -> None:
    """There are no weights, and no tokenizer, to be loaded."""
    model_type, changes, expected = RULED_OUT[case]
    config(model_type, **changes).save_pretrained(tmp_path)
    stages: list[str] = []
    with pytest.raises(ExportError, match=f"^model type '{model_type}': {re.escape(expected)}"):
        build.run(SPEC, tmp_path, tmp_path, stages.append)
    assert stages == ["importing"]


def test_such_a_refusal_takes_seconds_from_a_cold_start(tmp_path: Path) -> None:
    """Six and a half on an idle machine, and most of those are the library's imports."""
    config("gpt_oss").save_pretrained(tmp_path)
    started = time.monotonic()
    with pytest.raises(ExportError, match=r"^model type 'gpt_oss': its attention has sinks"):
        run_step("build", {"spec": SPEC, "snapshot": tmp_path, "out": tmp_path}, tmp_path / "log", lambda stage: None)
    assert time.monotonic() - started < 20


def test_a_program_that_is_not_its_model_ends_the_build_before_it_is_lowered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would be, were a wide window lost that a rehearsal does not reach."""
    monkeypatch.setattr("pipeline.model.geometry.caches_of", lambda *_: (flat(), flat()))
    snapshot = save_snapshot(tmp_path / "snapshot", "mistral", sliding_window=32)
    stages: list[str] = []
    refused = r"^model type 'mistral': the exported program was fed a text in steps of "
    with library_warnings_ignored(), pytest.raises(ExportError, match=refused):
        build.run(SPEC, snapshot, tmp_path, stages.append)
    assert stages == ["importing", "loading", "rehearsing", "exporting", "proving"]
    assert [file.name for file in tmp_path.iterdir()] == ["snapshot"]


def test_what_was_proven_is_told(tmp_path: Path) -> None:
    built(save_snapshot(tmp_path / "snapshot", "llama", num_hidden_layers=1), tmp_path / "out")
    told = json.loads((tmp_path / "out" / build.REPORT).read_text())["proof"]
    assert told.startswith("The exported program has the model's own logits, at most ")
    assert " tokens fed in steps of " in told
    assert "Left out" not in told


def test_longrope_is_served_to_the_end_of_its_first_regime(tmp_path: Path) -> None:
    changes = LONGROPE | {"original_max_position_embeddings": 60}
    snapshot = save_snapshot(tmp_path / "snapshot", "phi3", **changes)
    with PteFile.open(built(snapshot, tmp_path / "out", replace(SPEC, max_context_len=60))) as pte:
        decoder = Decoder(pte)
    expected = eager_logits(snapshot, "fp32")
    for chunks in splits(SPEC.max_seq_len):
        rows, ends = rows_of(decoder, chunks)
        assert distances(rows, expected[ends]).max() < CLOSE, chunks


def sharing(attend: Callable[..., Any]) -> Callable[..., Any]:
    """Attention in which the second layer attends the K/V of the first, with queries of its own."""
    written: list[Any] = []

    def attend_shared(module: Any, query: Any, key: Any, value: Any, *others: Any, **named: Any) -> Any:
        if module.layer_idx == 0:
            written[:] = key, value
        return attend(module, query, *written, *others, **named)

    return attend_shared


@pytest.mark.parametrize(("model_type", "changes"), [("llama", {}), ("mistral", SLIDING)])
def test_layers_that_share_kv_share_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_type: str, changes: dict[str, Any]
) -> None:
    """Flat and ring: one cache for two layers, through the graph and the runtime, against eager attention."""
    modeling = importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")
    monkeypatch.setattr(modeling, "eager_attention_forward", sharing(modeling.eager_attention_forward))
    snapshot = save_snapshot(tmp_path / "snapshot", model_type, **changes)
    with monkeypatch.context() as patch:
        patch.setattr(attention, "off_graph_attention", sharing(attention.off_graph_attention))
        pte = built(snapshot, tmp_path / "out")
    attention.register()
    expected = eager_logits(snapshot, "fp32")
    assert examine(pte, Question(asked=SPEC)).findings == ()
    with PteFile.open(pte) as opened:
        decoder = Decoder(opened)
    assert decoder.contract.caches == (flat(changes.get("sliding_window", 0)),)
    for chunks in splits(SPEC.max_seq_len):
        rows, ends = rows_of(decoder, chunks)
        assert distances(rows, expected[ends]).max() < CLOSE, chunks


def without_stop_tokens(snapshot: Path) -> None:
    edit_json(snapshot / "config.json", eos_token_id=None)
    edit_json(snapshot / "generation_config.json", eos_token_id=None)
    save_tokenizer(snapshot, eos_token=None)


def nothing(snapshot: Path) -> None:
    pass


REFUSED: dict[str, tuple[str, dict[str, Any], Callable[[Path], object], BuildSpec, str]] = {
    "weights are missing": (
        "llama",
        {},
        lambda snapshot: edit_json(snapshot / "config.json", num_hidden_layers=3),
        SPEC,
        "SNAPSHOT: the checkpoint has no matching weights for model.layers.2.input_layernorm.weight,",
    ),
    "the configuration is broken": (
        "llama",
        {},
        lambda snapshot: (snapshot / "config.json").write_text("{"),
        SPEC,
        "SNAPSHOT: its ",
    ),
    "there is no tokenizer": (
        "llama",
        {},
        lambda snapshot: (snapshot / "tokenizer.json").unlink(),
        SPEC,
        "SNAPSHOT: its tokenizer cannot be loaded: ",
    ),
    "nothing would stop a runner": (
        "llama",
        {},
        without_stop_tokens,
        SPEC,
        "neither the generation config, the configuration, the tokenizer nor its chat template names an end-of-text "
        "token; a runner would never stop. Add eos_token_id to the model's generation_config.json.",
    ),
    "the tokenizer is another model's": (
        "llama",
        {"vocab_size": 200},
        nothing,
        SPEC,
        "the tokenizer's ids go up to 259, and the model's vocabulary ends at 199; expected no higher id, since a "
        "prompt would read beyond the embedding.",
    ),
    "the context is longer than the model's": (
        "llama",
        {},
        nothing,
        replace(SPEC, max_context_len=129),
        "max_context_len is 129; the model was made for at most 128 positions (max_position_embeddings). Lower "
        "max_context_len to 128.",
    ),
    "a step is longer than the window": (
        "mistral",
        SLIDING,
        nothing,
        replace(SPEC, max_seq_len=9),
        "max_seq_len is 9; the model's narrowest attention window is 8, and a step may not be longer. Lower "
        "max_seq_len to 8.",
    ),
    "a step is longer than one layer's window": (
        "qwen2",
        MIXED,
        nothing,
        replace(SPEC, max_seq_len=16),
        "max_seq_len is 16; the model's narrowest attention window is 8, and a step may not be longer. Lower "
        "max_seq_len to 8.",
    ),
    "the cache cannot hold the model": (
        "gemma2",
        {"pad_token_id": 0},
        nothing,
        SPEC,
        "model type 'gemma2': attn_logit_softcapping is 50.0, and the off-graph cache op does not cap scores.",
    ),
    "attention has sinks": (
        "gpt_oss",
        {"num_local_experts": 4},
        nothing,
        SPEC,
        "model type 'gpt_oss': its attention has sinks, which take a share of every softmax, ",
    ),
    "a table of positions is shorter than the context": (
        "roberta",
        {"is_decoder": True, "pad_token_id": 3},
        nothing,
        replace(SPEC, max_context_len=125),
        "max_context_len is 125; the model does not reach position 124. Lower max_context_len.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_build_says_why_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    model_type, changes, damage, spec, expected = REFUSED[case]
    snapshot = save_snapshot(tmp_path / "snapshot", model_type, **changes)
    damage(snapshot)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ExportError) as caught:
        build.run(spec, snapshot, out, lambda stage: None)
    assert str(caught.value).replace(str(snapshot), "SNAPSHOT").startswith(expected)
    assert not list(out.iterdir())
