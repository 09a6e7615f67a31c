"""Each way in which an artifact can contradict itself, its graph or its manifest has a finding that says so."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import pytest

from pipeline import schema
from pipeline.contract import LOGITS_MODE, Contract
from pipeline.evidence import Evidence, ForwardFacts, GraphFacts, QuantizedFormat
from pipeline.pte import PteFile, TensorValue
from pipeline.pte.mlx_shapes import Attend
from pipeline.pte.program import IntValue
from pipeline.spec import UNQUANTIZED, BuildSpec, WeightFormat
from pipeline.verify import RULES, check, verify
from tests.tiny_models import Artifact


def int32(*values: int) -> dict[str, Any]:
    return {"dtype": "int32", "sizes": [len(values)], "values": list(values)}


GOOD_CONSTANTS: dict[str, Any] = {
    "get_max_seq_len": 128,
    "get_max_context_len": 1024,
    "get_vocab_size": 1000,
    "get_activation_dtype": 15,
    "get_logits_to_keep_mode": 1,
    "get_n_caches": 3,
    "get_kv_heads": int32(2, 2, 1),
    "get_head_dims": int32(64, 64, 128),
    "get_windows": int32(0, 128, 0),
    "get_eos_ids": [2, 7],
    "get_bos_id": 1,
    "get_max_ctx_len": 1024,
    "get_prefill_chunk_size": 128,
    "of_another_tool": "anything",
}


def attend(layer_id: int | None, heads: int, dim: int, **changes: Any) -> Attend:
    fields: dict[str, Any] = {
        "layer_id": layer_id,
        "scale": 0.125,
        "out_dtype": 15,
        "query": (1, heads * 4, None, dim),
        "key": (1, heads, None, dim),
        "value": (1, heads, "0.1", dim),
    }
    return Attend(**(fields | changes))


ATTENDS = (attend(0, 2, 64), attend(1, 2, 64), attend(2, 1, 128))
GRAPH = GraphFacts(
    attends=ATTENDS,
    logits=(1, None, 1000),
    num_slots=3,
    num_mutable_buffers=0,
    float_dtypes=frozenset({"bfloat16", "float32"}),
)
TOKENS = TensorValue("int64", (1, 128), dynamic=True)
POSITIONS = TensorValue("int64", (128,), dynamic=True)
LOGITS = TensorValue("bfloat16", (1, 1, 1000), dynamic=False)
MANY_LOGITS = TensorValue("bfloat16", (1, 128, 1000), dynamic=True)
SELECTOR = TensorValue("int64", (128,), dynamic=True)
FORWARD = ForwardFacts(
    inputs=(TOKENS, POSITIONS),
    outputs=(LOGITS,),
    delegates=("MLXBackend",),
    others={},
    num_delegate_args=3,
    graph=GRAPH,
)
GOOD = Evidence(where="llama.pte", constants=GOOD_CONSTANTS, methods=("forward", "get_bos_id"), forward=FORWARD)
ASKED = BuildSpec(
    dtype="bf16",
    linear=UNQUANTIZED,
    embedding=UNQUANTIZED,
    max_seq_len=128,
    max_context_len=1024,
    placement="off_graph",
    backend="mlx",
    logits="last",
)


def with_constants(**changes: Any) -> Evidence:
    constants = {name: value for name, value in (GOOD_CONSTANTS | changes).items() if value is not None}
    return dataclasses.replace(GOOD, constants=constants)


def with_forward(**changes: Any) -> Evidence:
    return dataclasses.replace(GOOD, forward=dataclasses.replace(FORWARD, **changes))


def with_graph(**changes: Any) -> Evidence:
    return with_forward(graph=dataclasses.replace(GRAPH, **changes))


def with_mode(mode: str, rows_of: str | None = None, **changes: Any) -> Evidence:
    """An artifact that gives full or selected logits as it should, but for the changes to its forward."""
    code, inputs = {"full": (0, (TOKENS, POSITIONS)), "selected": (2, (TOKENS, POSITIONS, SELECTOR))}[mode]
    graph = dataclasses.replace(GRAPH, rows_of=rows_of, num_slots=len(inputs) + 1)
    given = {"inputs": inputs, "outputs": (MANY_LOGITS,), "graph": graph, "num_delegate_args": len(inputs) + 1}
    forward = dataclasses.replace(FORWARD, **given | changes)  # type: ignore[arg-type]
    constants = GOOD_CONSTANTS | {"get_logits_to_keep_mode": code}
    return dataclasses.replace(GOOD, constants=constants, forward=forward)


def found(evidence: Evidence, asked: BuildSpec | None = None) -> list[tuple[str, str]]:
    return [(finding.rule, finding.message) for finding in check(evidence, asked)]


def said(rule: str, text: str) -> list[tuple[str, str]]:
    return [(rule, f"llama.pte: {text}. Rebuild the artifact.")]


def test_a_good_artifact_has_no_findings() -> None:
    assert found(GOOD, ASKED) == []
    assert GOOD.summary() == "3 caches, vocab 1000, bf16, steps of 128 in 1024 tokens, last logits"


@pytest.mark.parametrize(("mode", "rows_of"), [("full", "token"), ("selected", "selected row")])
def test_an_artifact_of_another_logits_mode_has_no_findings(mode: str, rows_of: str) -> None:
    for follows in (None, rows_of):
        good = with_mode(mode, follows)
        assert found(good, dataclasses.replace(ASKED, logits=mode)) == []
        assert good.summary().endswith(f", {mode} logits")


def test_a_runner_that_selects_one_row_needs_no_more() -> None:
    one = TensorValue("int64", (1,), dynamic=False)
    assert found(with_mode("selected", inputs=(TOKENS, POSITIONS, one), outputs=(LOGITS,))) == []


def test_a_model_without_bos_and_with_one_eos_is_fine() -> None:
    assert found(with_constants(get_bos_id=None, get_eos_ids=2)) == []


@pytest.mark.parametrize("name", schema.load("constant-methods")["required"])
def test_a_missing_method_is_found(name: str) -> None:
    expected = schema.load("constant-methods")["properties"][name]["x-expected"]
    assert found(with_constants(**{name: None})) == said("published", f"{name} is missing; expected {expected}")


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
    ((rule, message),) = found(with_constants(**{name: wrong}))
    assert rule == "published"
    assert message.startswith(f"llama.pte: {name} is ")
    assert message.endswith("; expected an integer of at least 1. Rebuild the artifact.")


@pytest.mark.parametrize("name", ["get_kv_heads", "get_head_dims", "get_windows"])
@pytest.mark.parametrize(
    "wrong",
    [
        3,
        [2, 2, 1],
        {"dtype": "int64", "sizes": [3], "values": [2, 2, 1]},
        {"dtype": "int32", "sizes": [3, 1], "values": [2, 2, 1]},
        {"dtype": "int32", "sizes": [], "values": [2]},
        int32(2, -1, 1),
    ],
)
def test_per_cache_values_of_another_kind_are_found(name: str, wrong: Any) -> None:
    ((rule, message),) = found(with_constants(**{name: wrong}))
    assert rule == "published"
    assert f"llama.pte: {name} is " in message
    assert "; expected a one-dimensional int32 tensor of entries of at least " in message


CASES: list[tuple[Evidence, str, str]] = [
    (
        with_constants(get_activation_dtype=7),
        "published",
        "get_activation_dtype is 7; expected 5 (fp16), 6 (fp32) or 15 (bf16)",
    ),
    (
        with_constants(get_logits_to_keep_mode=3),
        "published",
        "get_logits_to_keep_mode is 3; expected 0 (full), 1 (last) or 2 (selected)",
    ),
    (with_constants(get_eos_ids=[]), "published", "get_eos_ids is []; expected one or more token ids"),
    (with_constants(get_eos_ids=[2, -1]), "published", "get_eos_ids is [2, -1]; expected one or more token ids"),
    (with_constants(get_bos_id=[1, 2]), "published", "get_bos_id is [1, 2]; expected a token id"),
    (
        with_constants(get_kv_heads=int32(0, 2, 1)),
        "published",
        "get_kv_heads is a tensor of int32 [3] with [0, 2, 1]; expected a one-dimensional int32 tensor of entries of "
        "at least 1",
    ),
    (
        with_constants(get_kv_heads=int32(2, 2)),
        "lengths",
        "get_kv_heads has 2 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_head_dims=int32(64, 64, 128, 128)),
        "lengths",
        "get_head_dims has 4 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_windows=int32()),
        "lengths",
        "get_windows has 0 entries but get_n_caches is 3; they describe the same caches",
    ),
    (
        with_constants(get_max_ctx_len=2048),
        "older-names",
        "get_max_ctx_len is 2048 but get_max_context_len is 1024; they are two names of one value",
    ),
    (
        with_constants(get_prefill_chunk_size=64),
        "older-names",
        "get_prefill_chunk_size is 64 but get_max_seq_len is 128; they are two names of one value",
    ),
    (
        with_constants(get_max_context_len=127, get_max_ctx_len=127),
        "bounds",
        "get_max_seq_len is 128 but get_max_context_len is 127; a step must fit the context",
    ),
    (
        with_constants(get_windows=int32(0, 127, 512)),
        "bounds",
        "get_max_seq_len is 128 but get_windows has 127; a step must fit the narrowest window",
    ),
    (
        with_constants(get_eos_ids=[2, 1000]),
        "token-ids",
        "get_eos_ids has 1000 but get_vocab_size is 1000; a token id must be below it",
    ),
    (
        with_constants(get_bos_id=1001),
        "token-ids",
        "get_bos_id has 1001 but get_vocab_size is 1000; a token id must be below it",
    ),
    (
        dataclasses.replace(GOOD, forward=None),
        "one-delegate",
        "there is no method 'forward'; it has 'forward', 'get_bos_id'",
    ),
    (
        with_forward(delegates=("MLXBackend", "XnnpackBackend")),
        "one-delegate",
        "forward calls 'MLXBackend', 'XnnpackBackend'; expected exactly one MLXBackend",
    ),
    (
        with_forward(delegates=(), graph=None),
        "one-delegate",
        "forward calls no delegate; expected exactly one MLXBackend",
    ),
    (
        with_forward(others={"aten::mul.out": 1, "aten::add.out": 2}),
        "one-delegate",
        "forward leaves 'aten::add.out' (2), 'aten::mul.out' (1) outside its delegate; expected one MLXBackend and "
        "nothing else",
    ),
    (
        with_forward(num_delegate_args=4),
        "one-delegate",
        "forward passes 4 values to its delegate but the graph takes and returns 3; they are bound in order",
    ),
    (
        with_forward(inputs=(TOKENS, POSITIONS, POSITIONS)),
        "inputs",
        "forward takes 3 inputs; expected tokens and positions for last logits",
    ),
    (
        with_mode("full", inputs=(TOKENS, POSITIONS, SELECTOR)),
        "inputs",
        "forward takes 3 inputs; expected tokens and positions for full logits",
    ),
    (
        with_constants(get_logits_to_keep_mode=2),
        "inputs",
        "forward takes 2 inputs; expected tokens, positions and a selector for selected logits",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int32", (128,), dynamic=True))),
        "inputs",
        "forward's selector is int32 [128]; expected int64 [rows]",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int64", (1, 128), dynamic=True))),
        "inputs",
        "forward's selector is int64 [1, 128]; expected int64 [rows]",
    ),
    (
        with_mode("selected", inputs=(TOKENS, POSITIONS, TensorValue("int64", (128,), dynamic=False))),
        "inputs",
        "forward's selector names exactly 128 rows; expected any number up to that, as decoding selects one",
    ),
    (
        with_forward(inputs=(TensorValue("int32", (1, 128), dynamic=True), POSITIONS)),
        "inputs",
        "forward's tokens are int32 [1, 128]; expected int64 [1, T]",
    ),
    (
        with_forward(inputs=(TensorValue("int64", (2, 128), dynamic=True), POSITIONS)),
        "inputs",
        "forward's tokens are int64 [2, 128]; expected int64 [1, T]",
    ),
    (with_forward(inputs=(TOKENS, IntValue(3))), "inputs", "forward's positions are a int; expected int64 [T]"),
    (
        with_forward(inputs=(TOKENS, TensorValue("int64", (64,), dynamic=True))),
        "inputs",
        "forward's positions are int64 [64] and its tokens int64 [1, 128]; expected one each",
    ),
    (
        with_constants(get_max_seq_len=64, get_prefill_chunk_size=64),
        "inputs",
        "forward takes up to 128 tokens but get_max_seq_len is 64; they bound the same step",
    ),
    (
        with_forward(inputs=(TensorValue("int64", (1, 128), dynamic=False), POSITIONS)),
        "inputs",
        "forward takes exactly 128 tokens; expected any number up to that, as decoding feeds one at a time",
    ),
    (with_forward(outputs=(LOGITS, LOGITS)), "logits", "forward returns 2 values; expected logits alone"),
    (
        with_forward(outputs=(TensorValue("bfloat16", (1, 1000), dynamic=False),)),
        "logits",
        "forward returns bfloat16 [1, 1000]; expected logits [1, rows, vocab]",
    ),
    (
        with_forward(outputs=(TensorValue("float16", (1, 1, 1000), dynamic=False),)),
        "logits",
        "forward returns float16 [1, 1, 1000]; expected float32 or the activation dtype, bf16",
    ),
    (
        with_constants(get_vocab_size=999),
        "logits",
        "forward returns logits 1000 wide but get_vocab_size is 999; they count the same tokens",
    ),
    (
        with_forward(outputs=(MANY_LOGITS,)),
        "logits",
        "forward returns up to 128 rows of logits; expected 1 for last logits",
    ),
    (
        with_constants(get_logits_to_keep_mode=0),
        "logits",
        "forward returns up to 1 rows of logits; expected 128 for full logits",
    ),
    (
        with_mode("full", outputs=(TensorValue("bfloat16", (1, 128, 1000), dynamic=False),)),
        "logits",
        "forward returns exactly 128 rows of logits; expected any number up to that, as a step may be shorter",
    ),
    (
        with_mode("selected", outputs=(TensorValue("bfloat16", (1, 1, 1000), dynamic=False),)),
        "logits",
        "forward returns up to 1 rows of logits; expected 128 for selected logits",
    ),
    (
        with_mode("full", graph=dataclasses.replace(GRAPH, logits=(1, 1, 1000))),
        "logits",
        "the graph computes 1 rows of logits but forward returns 128; they are the same tensor",
    ),
    (
        with_graph(rows_of="token"),
        "logits",
        "the graph computes logits of each token; expected those of the last token alone for last logits",
    ),
    (
        with_mode("selected", rows_of="token"),
        "logits",
        "the graph computes logits of each token; expected those of each selected row for selected logits",
    ),
    (
        with_mode("full", rows_of="selected row"),
        "logits",
        "the graph computes logits of each selected row; expected those of each token for full logits",
    ),
    (
        with_graph(logits=(1, None, 500)),
        "logits",
        "the graph computes logits 500 wide but forward returns 1000; they are the same tensor",
    ),
    (
        with_graph(attends=ATTENDS[:2]),
        "cache-ids",
        "the graph never attends to cache 2 but get_n_caches is 3; expected every cache at least once",
    ),
    (
        with_graph(attends=()),
        "cache-ids",
        "the graph never attends to cache 0 and 2 more but get_n_caches is 3; expected every cache at least once",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(3, 2, 64))),
        "cache-ids",
        "the graph attends to caches [3] but get_n_caches is 3; ids run from 0",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(None, 2, 64))),
        "cache-ids",
        "an UpdateAndAttendNode has no layer_id; expected the id of its cache",
    ),
    (
        with_graph(attends=(*ATTENDS, attend(0, 2, 64, scale=None))),
        "cache-ids",
        "an UpdateAndAttendNode has no scale; expected what its scores are multiplied by",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, key=(1, 4, None, 128)))),
        "geometry",
        "cache 2 is given keys of 4 heads of 128 but get_kv_heads and get_head_dims say 1 heads of 128",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, value=(1, 1, None, 64)))),
        "geometry",
        "cache 2 is given values of 1 heads of 64 but get_kv_heads and get_head_dims say 1 heads of 128",
    ),
    (
        with_graph(attends=(attend(0, 2, 64, query=(1, 7, None, 64)), *ATTENDS[1:])),
        "geometry",
        "cache 0 is asked by 7 heads of 64 but get_kv_heads and get_head_dims say 2 heads of 64; expected a multiple "
        "of heads and the same size",
    ),
    (
        with_graph(attends=(*ATTENDS[:2], attend(2, 1, 128, out_dtype=6))),
        "activation-dtype",
        "the graph attends in fp32 but get_activation_dtype is 15 (bf16)",
    ),
    (
        with_graph(
            attends=tuple(dataclasses.replace(call, out_dtype=None) for call in ATTENDS),
            float_dtypes=frozenset({"float16", "float32"}),
        ),
        "activation-dtype",
        "the graph's constants are float16, float32 but get_activation_dtype is 15 (bf16)",
    ),
    (
        with_graph(num_mutable_buffers=2),
        "state",
        "the graph keeps 2 mutable buffers; expected none, as a runner rewinds its caches and could not rewind them",
    ),
    (with_graph(bad_constants=("'a' has 3 bytes",)), "data", "'a' has 3 bytes"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("evidence", "rule", "text"), CASES, ids=[f"{rule}-{i}" for i, (_, rule, _) in enumerate(CASES)]
)
def test_a_contradiction_is_found_and_nothing_else(evidence: Evidence, rule: str, text: str) -> None:
    assert found(evidence) == said(rule, text)


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"dtype": "fp16"}, "get_activation_dtype says bf16 but the manifest asks for fp16"),
        ({"logits": "full"}, "get_logits_to_keep_mode says last but the manifest asks for full"),
        ({"max_seq_len": 64}, "get_max_seq_len says 128 but the manifest asks for 64"),
        ({"max_context_len": 4096}, "get_max_context_len says 1024 but the manifest asks for 4096"),
    ],
)
def test_an_artifact_of_another_manifest_is_found(asked: dict[str, Any], text: str) -> None:
    assert found(GOOD, dataclasses.replace(ASKED, **asked)) == said("as-asked", text)


INT4, INT8 = QuantizedFormat("affine", 4, 32), QuantizedFormat("affine", 8, 128)
AS_4W, AS_8W = WeightFormat(scheme="4w", group_size=32), WeightFormat(scheme="8w", group_size=0)


@pytest.mark.parametrize(
    ("held", "asked"),
    [
        ({INT4}, {"linear": AS_4W}),
        ({INT4, INT8}, {"linear": AS_4W, "embedding": AS_8W}),
        ({QuantizedFormat("affine", 8, 32), INT8}, {"embedding": AS_8W}),
        ({QuantizedFormat("nvfp4", 4, 16)}, {"linear": WeightFormat(scheme="nvfp4", group_size=16)}),
        ({QuantizedFormat("mxfp8", 8, 32)}, {"linear": WeightFormat(scheme="mxfp8", group_size=32)}),
    ],
)
def test_weights_quantized_as_asked_are_no_finding(held: set[QuantizedFormat], asked: dict[str, Any]) -> None:
    assert found(with_graph(quantized=frozenset(held)), dataclasses.replace(ASKED, **asked)) == []


@pytest.mark.parametrize(
    ("held", "asked", "text"),
    [
        (set(), {"linear": AS_4W}, "the graph has no weights as 4w in groups of 32 but the manifest asks for them"),
        (
            {INT4},
            {"linear": AS_4W, "embedding": AS_8W},
            "the graph has no weights as 8w by rows but the manifest asks for them",
        ),
        (
            {INT4},
            {},
            "the graph has affine weights of 4 bits in groups of 32 but the manifest asks for none that are quantized",
        ),
        (
            {INT4, QuantizedFormat("affine", 4, 64)},
            {"linear": AS_4W},
            "the graph has affine weights of 4 bits in groups of 64 but the manifest asks for 4w in groups of 32",
        ),
    ],
)  # fmt: skip
def test_weights_quantized_otherwise_are_found(held: set[QuantizedFormat], asked: dict[str, Any], text: str) -> None:
    assert found(with_graph(quantized=frozenset(held)), dataclasses.replace(ASKED, **asked)) == said("as-asked", text)


def test_every_rule_has_a_case() -> None:
    assert {rule for _, rule, _ in CASES} == {"published", *RULES} - {"as-asked"}


def test_shapes_that_do_not_follow_are_no_finding_and_are_admitted() -> None:
    unknown = with_graph(attends=(attend(0, 2, 64, key=None, value=None, query=None), *ATTENDS[1:]), logits=None)
    assert found(unknown) == []
    assert unknown.summary().endswith("K/V shapes of 1 caches do not follow from the graph")


def test_layers_that_share_a_cache_are_no_finding() -> None:
    assert not found(with_graph(attends=(*ATTENDS, ATTENDS[0], ATTENDS[2])))


def test_a_nonsense_number_of_caches_costs_nothing() -> None:
    texts = [message for _, message in found(with_constants(get_n_caches=2**31 - 1))]
    assert any("cache 3 and 2147483643 more" in text for text in texts)


def test_several_findings_come_in_the_order_of_the_rules() -> None:
    broken = with_constants(get_eos_ids=[5000], get_max_ctx_len=1, get_kv_heads=int32(2), get_windows=None)
    assert [rule for rule, _ in found(broken)] == ["published", "lengths", "older-names", "token-ids"]


def test_the_schema_is_valid_and_describes_every_method() -> None:
    from jsonschema import Draft202012Validator

    rules = schema.load("constant-methods")
    Draft202012Validator.check_schema(rules)
    for name, rule in rules["properties"].items():
        assert rule["description"], name
        assert rule["x-expected"], name
    assert set(rules["required"]) <= set(rules["properties"])


def test_a_lowered_artifact_verifies_and_its_contract_reads(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        assert verify(pte) == []
        assert Evidence.of(pte).summary() == "2 caches, vocab 11, fp32, steps of 6 in 32 tokens, last logits"
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
    rules = {rule for rule, _ in found(dataclasses.replace(evidence, constants=relabelled))}
    assert rules == {
        ("mixed", "full"): {"logits"},
        ("mixed", "selected"): {"inputs"},
        ("full", "last"): {"logits"},
        ("full", "selected"): {"inputs", "logits"},
        ("selected", "full"): {"inputs", "logits"},
        ("selected", "last"): {"inputs", "logits"},
    }.get((name, published), set())


def test_published_heads_are_held_against_a_real_graph(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        evidence = Evidence.of(pte)
    wrong = {**evidence.constants, "get_head_dims": int32(8, 4)}
    rules = [rule for rule, _ in found(dataclasses.replace(evidence, constants=wrong))]
    assert rules == ["geometry"] * 3  # keys, values and queries of cache 1


def test_missing_data_is_found(tiny_pte: Any) -> None:
    data = tiny_pte.path.read_bytes()
    # The name stands in the program and in the graph; renamed in one of them, the other misses it.
    at = data.rindex(b"/head.weight")
    renamed = PteFile.from_bytes(data[:at] + b"/HEAD" + data[at + 5 :], "tiny.pte")
    ((rule, text),) = [(finding.rule, finding.message) for finding in verify(renamed)]
    assert rule == "data"
    assert "/HEAD.weight', which is not among the file's named data" in text


def test_short_data_is_found(tiny_pte: Any) -> None:
    data = tiny_pte.path.read_bytes()
    vocab_by_hidden = struct.pack("<Q", 11 * 16 * 4)
    shortened = PteFile.from_bytes(data.replace(vocab_by_hidden, struct.pack("<Q", 700), 1), "tiny.pte")
    ((rule, text),) = [(finding.rule, finding.message) for finding in verify(shortened)]
    assert rule == "data"
    assert text.endswith(".weight' has 700 bytes but its shape and dtype need 704. Rebuild the artifact.")
