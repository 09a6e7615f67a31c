"""Each way in which an artifact can contradict itself, or what lies beside it, has a rule that says so."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.contract import LOGITS_MODE, Contract
from pipeline.evidence import Evidence, QuantizedFormat
from pipeline.pte import PteFile, TensorValue
from pipeline.pte.program import IntValue
from pipeline.spec import BuildSpec, WeightFormat
from pipeline.verify import RULES, Severity, contract_files, contracts, examine, summary
from pipeline.verify.asked import Asked
from pipeline.verify.bundle import Layer
from pipeline.verify.case import Case
from pipeline.verify.tokenizer_files import Unreadable
from tests.tiny_models import Artifact
from tests.verify.examples import (
    ASKED,
    ATTENDS,
    BUNDLE,
    FORWARD,
    GOOD,
    GOOD_CONSTANTS,
    GRAPH,
    LAYERS,
    LOGITS,
    MANY_LOGITS,
    POSITIONS,
    SELECTOR,
    TOKENIZER,
    TOKENS,
    attend,
    case,
    found,
    in_graph,
    int32,
    said,
    with_bundle,
    with_constants,
    with_file,
    with_forward,
    with_graph,
    with_mode,
    with_tokenizer,
)


def test_a_good_artifact_has_no_findings() -> None:
    assert found(GOOD, ASKED) == []
    assert found(case(tokenizer=TOKENIZER, bundle=BUNDLE)) == []


def test_a_good_artifact_of_another_backend_has_a_note_about_its_kernels_alone() -> None:
    text = "forward runs 2 instructions outside of its 25 delegates: 'llama::custom_sdpa.out' (2)"
    assert found(in_graph()) == [said("PTE322", "forward", text)]
    assert RULES["PTE322"].severity == Severity.NOTE


@pytest.mark.parametrize(("mode", "rows_of"), [("full", "token"), ("selected", "selected row")])
def test_an_artifact_of_another_logits_mode_has_no_findings(mode: str, rows_of: str) -> None:
    for follows in (None, rows_of):
        good = with_mode(mode, follows)
        assert found(good, dataclasses.replace(ASKED, logits=mode)) == []


def test_a_runner_that_selects_one_row_needs_no_more() -> None:
    one = TensorValue("int64", (1,), dynamic=False)
    assert found(with_mode("selected", inputs=(TOKENS, POSITIONS, one), outputs=(LOGITS,))) == []


def test_a_model_without_bos_and_with_one_eos_is_fine() -> None:
    assert found(with_constants(get_bos_id=None, get_eos_ids=2)) == []


@pytest.mark.parametrize("name", [name for name in GOOD_CONSTANTS if name not in ("of_another_tool", "get_bos_id")])
def test_a_missing_method_is_found(name: str) -> None:
    said_of = [contract.methods[name] for contract in contracts.claimed(GOOD_CONSTANTS) if name in contract.methods]
    ((rule, subject, message),) = found(with_constants(**{name: None}))
    assert rule == ("PTE106" if name in ("get_eos_ids", "get_max_ctx_len") else "PTE101")
    assert subject == name
    assert message.startswith(f"{name} is missing; expected {said_of[0]['x-expected']}")


def test_a_method_that_is_published_under_its_older_name_alone_is_told_of_with_it() -> None:
    ((_, _, message),) = found(with_constants(get_max_context_len=None))
    assert "(get_max_ctx_len, its older name, is published)" in message


COUNTS = [
    "get_max_seq_len",
    "get_max_context_len",
    "get_vocab_size",
    "get_n_caches",
    "get_max_ctx_len",
    "get_prefill_chunk_size",
]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("wrong", [0, -1, 2**31, True, 512.0, "512", [512, 512], int32(512)])
def test_a_count_of_another_kind_is_found(name: str, wrong: Any) -> None:
    ((rule, subject, message),) = found(with_constants(**{name: wrong}))
    assert rule == ("PTE104" if type(wrong) is int else "PTE102")
    assert subject == name
    assert message.startswith(f"{name} is ")
    assert message.endswith("; expected an integer of at least 1. Rebuild the artifact.")


@pytest.mark.parametrize("name", ["get_kv_heads", "get_head_dims", "get_windows"])
@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (3, "PTE102"),
        ([2, 2, 1], "PTE102"),
        ({"dtype": "int64", "sizes": [3], "values": [2, 2, 1]}, "PTE103"),
        ({"dtype": "float32", "sizes": [3], "values": [2.0, 2.0, 1.0]}, "PTE103"),
        ({"dtype": "int32", "sizes": [3, 1], "values": [2, 2, 1]}, "PTE103"),
        ({"dtype": "int32", "sizes": [], "values": [2]}, "PTE103"),
        (int32(2, -1, 1), "PTE104"),
    ],
)
def test_per_cache_values_of_another_kind_are_found(name: str, wrong: Any, rule: str) -> None:
    ((broken, subject, message),) = found(with_constants(**{name: wrong}))
    assert (broken, subject) == (rule, name)
    assert message.startswith(f"{name} is ")
    assert "; expected a one-dimensional int32 tensor of entries of at least " in message


INT4, INT8 = QuantizedFormat("affine", 4, 32), QuantizedFormat("affine", 8, 128)
AS_4W, AS_8W = WeightFormat(scheme="4w", group_size=32), WeightFormat(scheme="8w", group_size=0)
ONE_TOKEN = TensorValue("int64", (1, 1), dynamic=False)
ONE_POSITION = TensorValue("int64", (1,), dynamic=False)
SMALL = contract_files.of_rules("small", "3", {"maxProperties": 2, "properties": {"get_bos_id": {}}})


def asked(**changes: Any) -> BuildSpec:
    return dataclasses.replace(ASKED, **changes)


def layer(index: int, **changes: int) -> Layer:
    return LAYERS[index]._replace(**changes)


def wide(vocab: int) -> Evidence:
    """A good artifact of another vocabulary."""
    logits = TensorValue("bfloat16", (1, 1, vocab), dynamic=False)
    forward = dataclasses.replace(FORWARD, outputs=(logits,), graph=dataclasses.replace(GRAPH, logits=(1, None, vocab)))
    return dataclasses.replace(with_constants(get_vocab_size=vocab), forward=forward)


CASES: list[tuple[Evidence | Case, str, str, str]] = [
    (
        with_constants(get_n_caches=None),
        "PTE101",
        "get_n_caches",
        "get_n_caches is missing; expected an integer of at least 1",
    ),
    (
        with_constants(get_windows={"dtype": "int64", "sizes": [3], "values": [0, 128, 0]}),
        "PTE103",
        "get_windows",
        "get_windows is a tensor of int64 [3] with [0, 128, 0]; expected a one-dimensional int32 tensor of entries of "
        "at least 0",
    ),
    (
        with_constants(get_activation_dtype=7),
        "PTE104",
        "get_activation_dtype",
        "get_activation_dtype is 7; expected 5 (fp16), 6 (fp32) or 15 (bf16)",
    ),
    (
        with_constants(get_logits_to_keep_mode=3),
        "PTE104",
        "get_logits_to_keep_mode",
        "get_logits_to_keep_mode is 3; expected 0 (full), 1 (last) or 2 (selected)",
    ),
    (with_constants(get_eos_ids=[]), "PTE104", "get_eos_ids", "get_eos_ids is []; expected one or more token ids"),
    (
        with_constants(get_eos_ids=[2, -1]),
        "PTE104",
        "get_eos_ids",
        "get_eos_ids is [2, -1]; expected one or more token ids",
    ),
    (with_constants(get_bos_id=[1, 2]), "PTE102", "get_bos_id", "get_bos_id is [1, 2]; expected a token id"),
    (
        with_constants(get_kv_heads=int32(0, 2, 1)),
        "PTE104",
        "get_kv_heads",
        "get_kv_heads is a tensor of int32 [3] with [0, 2, 1]; expected a one-dimensional int32 tensor of entries of "
        "at least 1",
    ),
    (
        with_constants(get_kv_heads=int32(2, 2)),
        "PTE203",
        "get_kv_heads",
        "get_kv_heads has 2 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_head_dims=int32(64, 64, 128, 128)),
        "PTE203",
        "get_head_dims",
        "get_head_dims has 4 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_windows=int32()),
        "PTE203",
        "get_windows",
        "get_windows has 0 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_max_ctx_len=2048),
        "PTE201",
        "get_max_ctx_len",
        "get_max_ctx_len is 2048 but get_max_context_len is 1024; they are two names of one value",
    ),
    (
        with_constants(get_prefill_chunk_size=64),
        "PTE201",
        "get_prefill_chunk_size",
        "get_prefill_chunk_size is 64 but get_max_seq_len is 128; they are two names of one value",
    ),
    (
        with_constants(get_max_context_len=127, get_max_ctx_len=127),
        "PTE202",
        "get_max_seq_len",
        "get_max_seq_len is 128 but get_max_context_len is 127; a step must fit the context",
    ),
    (
        with_constants(get_windows=int32(0, 127, 512)),
        "PTE205",
        "get_max_seq_len",
        "get_max_seq_len is 128 but get_windows has 127; a step must fit the narrowest window",
    ),
    (
        with_constants(get_eos_ids=[2, 1000]),
        "PTE204",
        "get_eos_ids",
        "get_eos_ids has 1000 but get_vocab_size is 1000; a token id must be below it",
    ),
    (
        with_constants(get_bos_id=1001),
        "PTE204",
        "get_bos_id",
        "get_bos_id has 1001 but get_vocab_size is 1000; a token id must be below it",
    ),
    (
        dataclasses.replace(GOOD, forward=None),
        "PTE301",
        "forward",
        "there is no method 'forward'; it has 'forward', 'get_bos_id'",
    ),
    (
        with_forward(delegates=("MLXBackend", "XnnpackBackend")),
        "PTE302",
        "forward",
        "forward calls 'MLXBackend', 'XnnpackBackend'; expected exactly one MLXBackend",
    ),
    (
        with_forward(delegates=(), graph=None),
        "PTE302",
        "forward",
        "forward calls no delegate; expected exactly one MLXBackend",
    ),
    (
        with_forward(others={"aten::mul.out": 1, "aten::add.out": 2}),
        "PTE303",
        "forward",
        "forward leaves 'aten::add.out' (2), 'aten::mul.out' (1) outside its delegate; expected one MLXBackend and "
        "nothing else",
    ),
    (
        with_forward(num_delegate_args=4),
        "PTE304",
        "forward",
        "forward passes 4 values to its delegate but the graph takes and returns 3; they are bound in order",
    ),
    (
        with_forward(inputs=(TOKENS, POSITIONS, POSITIONS)),
        "PTE305",
        "forward",
        "forward takes 3 inputs; expected tokens and positions for last logits",
    ),
    (
        with_mode("full", inputs=(TOKENS, POSITIONS, SELECTOR)),
        "PTE305",
        "forward",
        "forward takes 3 inputs; expected tokens and positions for full logits",
    ),
    (
        with_constants(get_logits_to_keep_mode=2),
        "PTE305",
        "forward",
        "forward takes 2 inputs; expected tokens, positions and a selector for selected logits",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int32", (128,), dynamic=True))),
        "PTE306",
        "forward",
        "forward's selector is int32 [128]; expected int64 [rows]",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int64", (1, 128), dynamic=True))),
        "PTE306",
        "forward",
        "forward's selector is int64 [1, 128]; expected int64 [rows]",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int64", (128,), dynamic=False))),
        "PTE309",
        "forward",
        "forward's selector names exactly 128 rows; expected any number up to that, as decoding selects one",
    ),
    (
        with_forward(inputs=(TensorValue("int32", (1, 128), dynamic=True), POSITIONS)),
        "PTE306",
        "forward",
        "forward's tokens are int32 [1, 128]; expected int64 [1, T]",
    ),
    (
        with_forward(inputs=(TensorValue("int64", (2, 128), dynamic=True), POSITIONS)),
        "PTE306",
        "forward",
        "forward's tokens are int64 [2, 128]; expected int64 [1, T]",
    ),
    (
        with_forward(inputs=(TOKENS, IntValue(3))),
        "PTE306",
        "forward",
        "forward's positions are an int; expected int64 [T]",
    ),
    (
        with_forward(inputs=(TOKENS, TensorValue("int64", (64,), dynamic=True))),
        "PTE306",
        "forward",
        "forward's positions are int64 [64] and its tokens int64 [1, 128]; expected one each",
    ),
    (
        with_constants(get_max_seq_len=64, get_prefill_chunk_size=64),
        "PTE307",
        "get_max_seq_len",
        "forward takes up to 128 tokens but get_max_seq_len is 64; they bound the same step",
    ),
    (
        with_forward(inputs=(TensorValue("int64", (1, 128), dynamic=False), POSITIONS)),
        "PTE308",
        "forward",
        "forward takes exactly 128 tokens; expected any number up to that, as decoding feeds one at a time",
    ),
    (with_forward(outputs=(LOGITS, LOGITS)), "PTE310", "forward", "forward returns 2 values; expected logits alone"),
    (
        with_forward(outputs=(TensorValue("bfloat16", (1, 1000), dynamic=False),)),
        "PTE310",
        "forward",
        "forward returns bfloat16 [1, 1000]; expected logits [1, rows, vocab]",
    ),
    (
        with_forward(outputs=(TensorValue("float16", (1, 1, 1000), dynamic=False),)),
        "PTE311",
        "forward",
        "forward returns float16 [1, 1, 1000]; expected float32 or the activation dtype, bf16",
    ),
    (
        with_constants(get_vocab_size=999),
        "PTE312",
        "get_vocab_size",
        "forward returns logits 1000 wide but get_vocab_size is 999; they count the same tokens",
    ),
    (
        with_forward(outputs=(MANY_LOGITS,)),
        "PTE313",
        "get_logits_to_keep_mode",
        "forward returns up to 128 rows of logits; expected 1 for last logits",
    ),
    (
        with_constants(get_logits_to_keep_mode=0),
        "PTE313",
        "get_logits_to_keep_mode",
        "forward returns up to 1 rows of logits; expected 128 for full logits",
    ),
    (
        with_mode("full", outputs=(TensorValue("bfloat16", (1, 128, 1000), dynamic=False),)),
        "PTE313",
        "forward",
        "forward returns exactly 128 rows of logits; expected any number up to that, as a step may be shorter",
    ),
    (
        with_mode("selected", outputs=(TensorValue("bfloat16", (1, 1, 1000), dynamic=False),)),
        "PTE313",
        "get_logits_to_keep_mode",
        "forward returns up to 1 rows of logits; expected 128 for selected logits",
    ),
    (
        with_mode("full", graph=dataclasses.replace(GRAPH, logits=(1, 1, 1000))),
        "PTE314",
        "forward",
        "the graph computes 1 rows of logits but forward returns 128; they are the same tensor",
    ),
    (
        with_graph(rows_of="token"),
        "PTE313",
        "get_logits_to_keep_mode",
        "the graph computes logits of each token; expected those of the last token alone for last logits",
    ),
    (
        with_mode("selected", rows_of="token"),
        "PTE313",
        "get_logits_to_keep_mode",
        "the graph computes logits of each token; expected those of each selected row for selected logits",
    ),
    (
        with_mode("full", rows_of="selected row"),
        "PTE313",
        "get_logits_to_keep_mode",
        "the graph computes logits of each selected row; expected those of each token for full logits",
    ),
    (
        with_graph(logits=(1, None, 500)),
        "PTE314",
        "forward",
        "the graph computes logits 500 wide but forward returns 1000; they are the same tensor",
    ),
    (
        with_graph(attends=ATTENDS[:2]),
        "PTE315",
        "get_n_caches",
        "the graph never attends to cache 2 but get_n_caches is 3; expected every cache at least once",
    ),
    (
        with_graph(attends=()),
        "PTE315",
        "get_n_caches",
        "the graph never attends to cache 0 and 2 more but get_n_caches is 3; expected every cache at least once",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(3, 2, 64))),
        "PTE315",
        "get_n_caches",
        "the graph attends to caches [3] but get_n_caches is 3; ids run from 0",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(None, 2, 64))),
        "PTE316",
        "forward",
        "an UpdateAndAttendNode has no layer_id; expected the id of its cache",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(0, 2, 64, scale=None))),
        "PTE316",
        "forward",
        "an UpdateAndAttendNode has no scale; expected what its scores are multiplied by",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, key=(1, 4, None, 128)))),
        "PTE317",
        "get_kv_heads",
        "cache 2 is given keys of 4 heads of 128 but get_kv_heads and get_head_dims say 1 heads of 128",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, value=(1, 1, None, 64)))),
        "PTE317",
        "get_head_dims",
        "cache 2 is given values of 1 heads of 64 but get_kv_heads and get_head_dims say 1 heads of 128",
    ),
    (
        with_graph(attends=(attend(0, 2, 64, query=(1, 7, None, 64)), *ATTENDS[1:])),
        "PTE318",
        "get_kv_heads",
        "cache 0 is asked by 7 heads of 64 but get_kv_heads and get_head_dims say 2 heads of 64; expected a multiple "
        "of heads and the same size",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, out_dtype=6))),
        "PTE319",
        "get_activation_dtype",
        "the graph attends in fp32 but get_activation_dtype is 15 (bf16)",
    ),
    (
        with_graph(
            attends=tuple(dataclasses.replace(call, out_dtype=None) for call in ATTENDS),
            float_dtypes=frozenset({"float16", "float32"}),
        ),
        "PTE319",
        "get_activation_dtype",
        "the graph's constants are float16, float32 but get_activation_dtype is 15 (bf16)",
    ),
    (
        with_graph(num_mutable_buffers=2),
        "PTE320",
        "forward",
        "the graph keeps 2 mutable buffers; expected none, as a runner rewinds its caches and could not rewind them",
    ),
    (with_graph(short_data=(("a", "'a' has 3 bytes"),)), "PTE704", "a", "'a' has 3 bytes"),
    (
        dataclasses.replace(GOOD, constants={"get_kv_heads": int32(2), "of_another_tool": 3}, forward=None),
        "PTE105",
        "the published methods",
        "the artifact publishes some of what a runner reads and claims no contract; the nearest is run_llm_hf@1, for "
        "which it lacks get_prefill_chunk_size, get_n_caches, get_head_dims, get_windows",
    ),
    (
        dataclasses.replace(GOOD, constants={"classes": 1000}, forward=dataclasses.replace(FORWARD, graph=None)),
        "PTE105",
        "the published methods",
        "the artifact publishes nothing that a runner of language models reads and claims no contract; the nearest is "
        "text_llm_runner@1, for which it lacks get_max_seq_len",
    ),
    (
        with_constants(get_eos_ids=None),
        "PTE106",
        "get_eos_ids",
        "get_eos_ids is missing; expected one or more token ids, since a runner then stops at the tokenizer's one end "
        "of text alone, which seldom ends a turn of a chat",
    ),
    (
        in_graph(use_kv_cache=False, others={}),
        "PTE305",
        "forward",
        "forward takes 2 inputs; expected tokens alone for a graph that keeps no KV cache",
    ),
    (
        in_graph(inputs=(TOKENS,), others={}),
        "PTE305",
        "forward",
        "forward takes 1 inputs; expected tokens and positions",
    ),
    (
        in_graph(outputs=(TensorValue("float64", (1, 1, 1000), dynamic=False),), others={}),
        "PTE311",
        "forward",
        "forward returns float64 [1, 1, 1000]; expected float16, bfloat16 or float32",
    ),
    (
        dataclasses.replace(
            with_forward(), constants={"get_max_seq_len": 128, "get_vocab_size": 1000, "get_eos_ids": [2]}
        ),
        "PTE321",
        "forward",
        "the graph attends to 3 caches outside of it and no cache is published; expected their number, heads, head "
        "sizes and windows",
    ),
    (
        in_graph(),
        "PTE322",
        "forward",
        "forward runs 2 instructions outside of its 25 delegates: 'llama::custom_sdpa.out' (2)",
    ),
    (
        in_graph(get_max_seq_len=129, others={}),
        "PTE323",
        "get_max_seq_len",
        "forward takes up to 128 tokens but get_max_seq_len is 129; a runner that does not know the bound feeds a long "
        "prompt in steps that are refused",
    ),
    (
        in_graph(inputs=(ONE_TOKEN, ONE_POSITION), others={}),
        "PTE324",
        "enable_dynamic_shape",
        "enable_dynamic_shape is true but forward takes exactly 1 tokens; a runner feeds prompts in longer steps",
    ),
    (
        with_file(segment_starts=(128, 264, 391)),
        "PTE701",
        "segment 1",
        "segment 1 begins at byte 264, and 1 more do as badly; expected multiples of 16, as delegates map them",
    ),
    (
        with_file(program_version=1),
        "PTE702",
        "program",
        "the program is of schema version 1; expected at most 0",
    ),
    (with_graph(absent_data=(("a", "'a' is not there"),)), "PTE703", "a", "'a' is not there"),
    (
        with_file(unused_data=(("old", 10), ("older", 20))),
        "PTE705",
        "old",
        "'old' and 1 more, 30 bytes, are used by no constant of the graph",
    ),
    (
        case(tokenizer_problem=Unreadable("tokenizer.json", "has no vocabulary")),
        "PTE501",
        "tokenizer.json",
        "tokenizer.json has no vocabulary",
    ),
    (
        with_tokenizer(last_own=1000, ids=frozenset(range(1001))),
        "PTE502",
        "get_vocab_size",
        "the tokenizer's vocabulary goes up to 1000 but get_vocab_size is 1000; a text may have any of its ids",
    ),
    (
        with_tokenizer(added={"<image>": 1000}, ids=frozenset(range(1001))),
        "PTE503",
        "get_vocab_size",
        "the tokenizer adds '<image>' (1000) but get_vocab_size is 1000",
    ),
    (
        with_tokenizer(ids=frozenset(range(900)), added={}, last_own=899),
        "PTE504",
        "get_vocab_size",
        "get_vocab_size is 1000 and the tokenizer's last id is 899",
    ),
    (
        with_tokenizer(wide(4096), ids=frozenset(range(1000))),
        "PTE505",
        "get_vocab_size",
        "get_vocab_size is 4096 but the tokenizer's last id is 999; expected at most 1024 more, for padding",
    ),
    (
        with_tokenizer(ids=frozenset(range(1000)) - {7}),
        "PTE506",
        "get_eos_ids",
        "get_eos_ids has [7], and the tokenizer has no such token",
    ),
    (
        with_tokenizer(ids=frozenset(range(1000)) - {1}, bos=None),
        "PTE506",
        "get_bos_id",
        "get_bos_id has [1], and the tokenizer has no such token",
    ),
    (
        with_tokenizer(ids=frozenset(range(1000)) - {2, 7}),
        "PTE507",
        "get_eos_ids",
        "get_eos_ids has [2, 7], and the tokenizer has no such token; expected ids that end a generation",
    ),
    (
        with_tokenizer(with_constants(get_eos_ids=7)),
        "PTE508",
        "get_eos_ids",
        "get_eos_ids has [7] but the tokenizer ends a text with [2]; expected every end of text, or a generation "
        "goes on past it",
    ),
    (
        with_bundle(ends={"chat_template": (2, 9)}),
        "PTE508",
        "get_eos_ids",
        "get_eos_ids has [2, 7] but the chat template ends a text with [9]; expected every end of text, or a "
        "generation goes on past it",
    ),
    (
        with_tokenizer(added={"<|im_end|>": 9}, template="{{ x }}<|im_end|>"),
        "PTE509",
        "get_eos_ids",
        "the chat template has <|im_end|> (9) but get_eos_ids has [2, 7]; expected the end of a turn among them",
    ),
    (
        with_tokenizer(bos=5),
        "PTE510",
        "get_bos_id",
        "get_bos_id is 1 but the tokenizer opens a text with 5",
    ),
    (
        with_tokenizer(with_constants(get_bos_id=None)),
        "PTE511",
        "get_bos_id",
        "the tokenizer opens a text with 1 and get_bos_id is missing",
    ),
    (
        with_tokenizer(unknown={"eos": "</s>"}),
        "PTE512",
        "eos_token",
        "tokenizer_config.json names '</s>' as eos_token, and the tokenizer has no such token",
    ),
    (
        with_bundle(problems=(("report.json", "is no JSON"),)),
        "PTE601",
        "report.json",
        "report.json is no JSON",
    ),
    (
        with_bundle(layers=LAYERS[:2]),
        "PTE602",
        "get_n_caches",
        "get_n_caches is 3 but the model's 2 layers write 2 caches, as report.json says",
    ),
    (
        with_bundle(layers=(layer(1, num_kv_heads=4), *LAYERS)),
        "PTE603",
        "get_kv_heads",
        "get_kv_heads has 2 for cache 1 but layer 1 of the model has 4 KV heads, as report.json says",
    ),
    (
        with_bundle(layers=(layer(2, head_dim=64), *LAYERS)),
        "PTE604",
        "get_head_dims",
        "get_head_dims has 128 for cache 2 but layer 2 of the model has 64 elements a head, as report.json says",
    ),
    (
        with_bundle(layers=(layer(1, window=0), *LAYERS)),
        "PTE605",
        "get_windows",
        "get_windows has 128 for cache 1 but layer 1 of the model has 0 positions of window, as report.json says",
    ),
    (
        with_bundle(sizes={"model.pte": 10}),
        "PTE606",
        "model.pte",
        "model.pte is missing; build.json has it with 10 bytes",
    ),
    (
        with_bundle(libraries={"executorch": "1.6.0"}),
        "PTE607",
        "executorch",
        "build.json says executorch '1.6.0'; known here are 1.5",
    ),
    (
        case(asked=dataclasses.replace(ASKED, dtype="fp16")),
        "PTE401",
        "get_activation_dtype",
        "get_activation_dtype says bf16 but the manifest asks for fp16",
    ),
    (
        case(asked=dataclasses.replace(ASKED, logits="full")),
        "PTE402",
        "get_logits_to_keep_mode",
        "get_logits_to_keep_mode says last but the manifest asks for full",
    ),
    (
        with_bundle(
            with_constants(get_prefill_chunk_size=None, get_max_ctx_len=None), asked=Asked.of(asked(max_seq_len=64))
        ),
        "PTE403",
        "get_max_seq_len",
        "get_max_seq_len says 128 but build.json asked for 64",
    ),
    (
        case(with_constants(get_max_ctx_len=None, get_prefill_chunk_size=None), asked=asked(max_context_len=4096)),
        "PTE404",
        "get_max_context_len",
        "get_max_context_len says 1024 but the manifest asks for 4096",
    ),
    (
        case(asked=asked(backend="xnnpack")),
        "PTE405",
        "forward",
        "forward calls 'MLXBackend' but the manifest asks for backend xnnpack, xnnpack",
    ),
    (
        case(asked=asked(placement="in_graph")),
        "PTE406",
        "cache.placement",
        "the graph has its KV cache outside of it but the manifest asks for cache.placement in_graph",
    ),
    (
        case(with_graph(multiplied=frozenset({INT4})), asked=ASKED),
        "PTE407",
        "quantization.linear",
        "the graph has linear layers with affine weights of 4 bits in groups of 32 but the manifest asks for none that "
        "are quantized",
    ),
    (
        case(asked=asked(embedding=AS_8W)),
        "PTE408",
        "quantization.embedding",
        "the graph has no embeddings as 8w by rows but the manifest asks for them",
    ),
    (
        case(held_to=[SMALL]),
        "PTE107",
        "small@3",
        "the published methods together break 'maxProperties' of the contract's schema",
    ),
]


@pytest.mark.parametrize(
    ("of", "rule", "subject", "text"), CASES, ids=[f"{rule}-{i}" for i, (_, rule, _, _) in enumerate(CASES)]
)
def test_a_contradiction_is_found_and_nothing_else(of: Evidence | Case, rule: str, subject: str, text: str) -> None:
    assert found(of) == [said(rule, subject, text)]


def test_every_rule_has_a_case() -> None:
    assert {rule for _, rule, _, _ in CASES} == set(RULES)


Formats = set[QuantizedFormat]


@pytest.mark.parametrize(
    ("multiplied", "looked_up", "asked"),
    [
        ({INT4}, set(), {"linear": AS_4W}),
        ({INT4}, {INT8}, {"linear": AS_4W, "embedding": AS_8W}),
        ({INT4, INT8}, {INT8}, {"linear": AS_4W, "embedding": AS_8W}),
        ({INT8}, {QuantizedFormat("affine", 8, 32), INT8}, {"embedding": AS_8W}),
        ({QuantizedFormat("nvfp4", 4, 16)}, set(), {"linear": WeightFormat(scheme="nvfp4", group_size=16)}),
        ({QuantizedFormat("mxfp8", 8, 32)}, set(), {"linear": WeightFormat(scheme="mxfp8", group_size=32)}),
    ],
)
def test_weights_quantized_as_asked_are_no_finding(
    multiplied: Formats, looked_up: Formats, asked: dict[str, Any]
) -> None:
    held = with_graph(multiplied=frozenset(multiplied), looked_up=frozenset(looked_up))
    assert found(held, dataclasses.replace(ASKED, **asked)) == []


@pytest.mark.parametrize(
    ("multiplied", "looked_up", "asked", "texts"),
    [
        (set(), set(), {"linear": AS_4W}, ["no linear layers as 4w in groups of 32 but the manifest asks for them"]),
        (
            {INT4},
            set(),
            {"linear": AS_4W, "embedding": AS_8W},
            ["no embeddings as 8w by rows but the manifest asks for them"],
        ),
        (
            {INT4},
            set(),
            {},
            ["linear layers with INT4 but the manifest asks for none that are quantized"],
        ),
        (
            {INT4},
            set(),
            {"linear": dataclasses.replace(AS_4W, group_size=64)},
            [
                "linear layers with INT4 but the manifest asks for 4w in groups of 64",
                "no linear layers as 4w in groups of 64 but the manifest asks for them",
            ],
        ),
        (
            {INT4},
            {INT4},
            {"linear": AS_4W},
            ["embeddings with INT4 but the manifest asks for none that are quantized"],
        ),
        (
            {INT8},
            {INT4},
            {"linear": AS_4W, "embedding": AS_8W},
            [
                "no linear layers as 4w in groups of 32 but the manifest asks for them",
                "embeddings with INT4 but the manifest asks for 8w by rows",
                "no embeddings as 8w by rows but the manifest asks for them",
            ],
        ),
    ],
)  # fmt: skip
def test_weights_quantized_otherwise_are_found(
    multiplied: Formats, looked_up: Formats, asked: dict[str, Any], texts: list[str]
) -> None:
    held = with_graph(multiplied=frozenset(multiplied), looked_up=frozenset(looked_up))
    shown = [text.replace("INT4", "affine weights of 4 bits in groups of 32") for text in texts]
    messages = [message for _, _, message in found(held, dataclasses.replace(ASKED, **asked))]
    assert messages == [f"the graph has {text}. Rebuild the artifact." for text in shown]


def test_shapes_that_do_not_follow_are_no_finding_and_are_admitted() -> None:
    unknown = with_graph(attends=(attend(0, 2, 64, key=None, value=None, query=None), *ATTENDS[1:]), logits=None)
    assert found(unknown) == []
    assert summary(case(unknown)).endswith("K/V shapes of 1 caches do not follow from the graph")


def test_layers_that_share_a_cache_are_no_finding() -> None:
    assert not found(with_graph(attends=(*ATTENDS, ATTENDS[0], ATTENDS[2])))


def test_a_nonsense_number_of_caches_costs_nothing() -> None:
    texts = [message for _, _, message in found(with_constants(get_n_caches=2**31 - 1))]
    assert any("cache 3 and 2147483643 more" in text for text in texts)


def test_several_findings_come_in_the_order_of_the_rules() -> None:
    broken = with_constants(get_eos_ids=[5000], get_max_ctx_len=1, get_kv_heads=int32(2), get_windows=None)
    assert [rule for rule, _, _ in found(broken)] == ["PTE101", "PTE201", "PTE203", "PTE204"]


def test_a_lowered_artifact_verifies_and_its_contract_reads(tiny_pte: Any) -> None:
    report = examine(tiny_pte.path)
    assert report.findings == ()
    assert report.summary == "2 caches, vocab 11, fp32, steps of 6 in 32 tokens, last logits"
    with PteFile.open(tiny_pte.path) as pte:
        contract = Contract.read(pte.program.constants(), "tiny.pte")
        assert (len(contract.caches), contract.caches[1].window) == (2, 6)


@pytest.mark.parametrize("name", ["mixed", "full", "selected"])
@pytest.mark.parametrize("published", ["full", "last", "selected"])
def test_a_published_logits_mode_is_held_against_a_real_signature(
    artifact: Callable[[str], Artifact], name: str, published: str
) -> None:
    """Whatever a real artifact publishes besides its own mode contradicts its forward."""
    made = artifact(name)
    with PteFile.open(made.pte) as pte:
        evidence = Evidence.of(pte)
    relabelled = {**evidence.constants, "get_logits_to_keep_mode": LOGITS_MODE[published]}
    rules = {rule for rule, _, _ in found(dataclasses.replace(evidence, constants=relabelled))}
    assert rules == {
        ("mixed", "full"): {"PTE313"},
        ("mixed", "selected"): {"PTE305"},
        ("full", "last"): {"PTE313"},
        ("full", "selected"): {"PTE305", "PTE313"},
        ("selected", "full"): {"PTE305", "PTE313"},
        ("selected", "last"): {"PTE305", "PTE313"},
    }.get((name, published), set())


def test_published_heads_are_held_against_a_real_graph(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        evidence = Evidence.of(pte)
    wrong = {**evidence.constants, "get_head_dims": int32(8, 4)}
    rules = [rule for rule, _, _ in found(dataclasses.replace(evidence, constants=wrong))]
    assert rules == ["PTE317", "PTE317", "PTE318"]  # keys, values and queries of cache 1


def test_missing_data_is_found(tiny_pte: Any, tmp_path: Path) -> None:
    data = tiny_pte.path.read_bytes()
    # The name stands in the program and in the graph; renamed in one of them, the other misses it.
    at = data.rindex(b"/head.weight")
    renamed = tmp_path / "renamed.pte"
    renamed.write_bytes(data[:at] + b"/HEAD" + data[at + 5 :])
    absent, unused = examine(renamed).findings
    assert (absent.rule.id, unused.rule.id) == ("PTE703", "PTE705")
    assert absent.subject.endswith("/HEAD.weight")
    assert "/HEAD.weight', which is not among the file's named data" in absent.message
    assert unused.subject.endswith("/head.weight")


def test_short_data_is_found(tiny_pte: Any, tmp_path: Path) -> None:
    vocab_by_hidden = struct.pack("<Q", 11 * 16 * 4)
    shortened = tmp_path / "shortened.pte"
    shortened.write_bytes(tiny_pte.path.read_bytes().replace(vocab_by_hidden, struct.pack("<Q", 700), 1))
    (finding,) = examine(shortened).findings
    assert finding.rule.id == "PTE704"
    assert finding.message.endswith(".weight' has 700 bytes but its shape and dtype need 704. Rebuild the artifact.")
