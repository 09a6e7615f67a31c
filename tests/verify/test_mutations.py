"""Whatever of a real bundle is changed, the rule that should find it does, and no change goes unnoticed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.evidence import Evidence, QuantizedFormat
from pipeline.pte import PteFile
from pipeline.spec import WeightFormat
from pipeline.verify import Question, check, examine, tokenizer_files
from pipeline.verify import bundle as records
from pipeline.verify.case import Case
from tests.tiny_models import Artifact, edit_json
from tests.verify.editor import Editor
from tests.verify.examples import int32

ABSENT = object()

MOST, BEYOND = 2**31 - 1, 2**31

# What the bundle publishes, so that the table below can be read: two caches of 2 heads of 16, the second a ring of 8;
# steps of 4 in 64 tokens, 260 logits of the last token in fp32, texts from token 0 to token 1. Each method is changed
# in every way; beside the way is the rule that must find it. No change is harmless.
KINDS: dict[str, Callable[[Any], Any]] = {
    "a Double": float,
    "a String": str,
    "a Bool": lambda value: True,
    "nothing": lambda value: None,
    "two outputs": lambda value: [value, value],
    "a tensor": lambda value: int32(value),
}
NUMBERS: dict[str, Callable[[int], Any]] = {
    "absent": lambda value: ABSENT,
    "one more": lambda value: value + 1,
    "one less": lambda value: value - 1,
    "zero": lambda value: 0,
    "negative": lambda value: -7,
    "the largest": lambda value: MOST,
    "beyond 32 bits": lambda value: BEYOND,
}
TENSORS: dict[str, Callable[[list[int]], Any]] = {
    "absent": lambda values: ABSENT,
    "an Int": lambda values: values[0],
    "outputs": lambda values: list(values),
    "int64": lambda values: int32(*values) | {"dtype": "int64"},
    "float32": lambda values: {"dtype": "float32", "sizes": [len(values)], "values": list(map(float, values))},
    "of rank 2": lambda values: int32(*values) | {"sizes": [1, len(values)]},
    "of rank 0": lambda values: {"dtype": "int32", "sizes": [], "values": values[:1]},
    "one entry less": lambda values: int32(*values[:-1]),
    "one entry more": lambda values: int32(*values, values[-1]),
    "no entry": lambda values: int32(),
    "first one more": lambda values: int32(values[0] + 1, *values[1:]),
    "first one less": lambda values: int32(values[0] - 1, *values[1:]),
    "last one more": lambda values: int32(*values[:-1], values[-1] + 1),
    "last one less": lambda values: int32(*values[:-1], values[-1] - 1),
    "last zero": lambda values: int32(*values[:-1], 0),
    "last negative": lambda values: int32(*values[:-1], -values[-1]),
    "last the largest": lambda values: int32(*values[:-1], MOST),
}

COUNT = {"absent": "PTE101", "zero": "PTE104", "negative": "PTE104", "beyond 32 bits": "PTE104"}
TENSOR = {
    "absent": "PTE101",
    "an Int": "PTE102",
    "outputs": "PTE102",
    "int64": "PTE103",
    "float32": "PTE103",
    "of rank 2": "PTE103",
    "of rank 0": "PTE103",
    "one entry less": "PTE203",
    "one entry more": "PTE203",
    "no entry": "PTE203",
    "last negative": "PTE104",
}


def differing(rule: str) -> dict[str, str]:
    """A number whose every other value contradicts something else."""
    return {"one more": rule, "one less": rule, "the largest": rule}


EXPECTED: dict[str, dict[str, str]] = {
    "get_max_seq_len": COUNT | differing("PTE201"),
    "get_max_context_len": COUNT | differing("PTE201"),
    "get_prefill_chunk_size": COUNT | differing("PTE201"),
    "get_max_ctx_len": COUNT | differing("PTE201") | {"absent": "PTE106"},
    "get_vocab_size": COUNT | differing("PTE312"),
    "get_n_caches": COUNT | differing("PTE203"),
    # 5 is fp16, and 7 a dtype that no graph computes in.
    "get_activation_dtype": COUNT | {"one more": "PTE104", "one less": "PTE319", "the largest": "PTE104"},
    # 0 is full, 2 is selected.
    "get_logits_to_keep_mode": COUNT
    | {"zero": "PTE313", "one less": "PTE313", "one more": "PTE305", "the largest": "PTE104"},
    "get_eos_ids": {
        "absent": "PTE106",
        "one more": "PTE508",
        "one less": "PTE508",
        "zero": "PTE508",
        "negative": "PTE104",
        "the largest": "PTE204",
        "beyond 32 bits": "PTE204",
        "none": "PTE104",
        "one beyond the vocabulary": "PTE204",
        "without the tokenizer's": "PTE508",
        "one that is no Int": "PTE102",
        "a Double": "PTE102",
        "a String": "PTE102",
        "a Bool": "PTE102",
        "nothing": "PTE102",
        "a tensor": "PTE102",
    },
    "get_bos_id": {
        "absent": "PTE511",
        "one more": "PTE510",
        "one less": "PTE104",
        "negative": "PTE104",
        "the largest": "PTE204",
        "beyond 32 bits": "PTE204",
    },
    "get_kv_heads": TENSOR
    | dict.fromkeys(("first one more", "first one less", "last one more", "last one less"), "PTE317")
    | {"last zero": "PTE104", "last the largest": "PTE317"},
    "get_head_dims": TENSOR
    | dict.fromkeys(("first one more", "first one less", "last one more", "last one less"), "PTE317")
    | {"last zero": "PTE104", "last the largest": "PTE317"},
    # Only the layers, as the build saw them, tell what a window should be.
    "get_windows": TENSOR
    | dict.fromkeys(("first one more", "last one more", "last one less", "last zero", "last the largest"), "PTE605")
    | {"first one less": "PTE104"},
}
IDS: dict[str, Callable[[Any], Any]] = {
    "none": lambda value: [],
    "one beyond the vocabulary": lambda value: [value, 260],
    "without the tokenizer's": lambda value: [5, 6],
    "one that is no Int": lambda value: [value, 2.0],
}
PER_CACHE = ("get_kv_heads", "get_head_dims", "get_windows")


def mutations() -> Iterator[tuple[str, str, Callable[[Any], Any], str]]:
    """Each method with each way to change it and the rule that finds it."""
    for name, expected in EXPECTED.items():
        if name in PER_CACHE:
            ways: dict[str, Callable[[Any], Any]] = TENSORS
        elif name == "get_eos_ids":
            # Several outputs are as good as one.
            ways = {way: change for way, change in (NUMBERS | KINDS).items() if way != "two outputs"} | IDS
        else:
            ways = {way: change for way, change in NUMBERS.items() if (name, way) != ("get_bos_id", "zero")} | KINDS
            expected = dict.fromkeys(KINDS, "PTE102") | expected
        assert set(ways) == set(expected), name
        for way, change in ways.items():
            yield name, way, change, expected[way]


MUTATIONS = list(mutations())


def case_of(bundle: Path, change: Callable[[Evidence], Evidence] = lambda evidence: evidence, **given: Any) -> Case:
    with PteFile.open(bundle / "model.pte") as pte:
        evidence = Evidence.of(pte)
    return Case.of(change(evidence), tokenizer=tokenizer_files.read(bundle), bundle=records.read(bundle), **given)


def rules(case: Case) -> list[str]:
    return [finding.rule.id for finding in check(case)]


@pytest.fixture(scope="session")
def whole(shipped: Path) -> Case:
    return case_of(shipped)


def test_the_bundle_has_no_findings_and_publishes_what_the_table_says(shipped: Path, whole: Case) -> None:
    report = examine(shipped)
    assert report.findings == ()
    assert set(report.compared.values()) == {None}
    assert report.contracts == ("run_llm_hf@1", "run_llm_hf@2")
    assert whole.evidence.constants == {
        "get_max_seq_len": 4,
        "get_max_context_len": 64,
        "get_vocab_size": 260,
        "get_activation_dtype": 6,
        "get_logits_to_keep_mode": 1,
        "get_n_caches": 2,
        "get_kv_heads": int32(2, 2),
        "get_head_dims": int32(16, 16),
        "get_windows": int32(0, 8),
        "get_eos_ids": 1,
        "get_bos_id": 0,
        "get_max_ctx_len": 64,
        "get_prefill_chunk_size": 4,
    }
    assert set(EXPECTED) == set(whole.evidence.constants)


@pytest.mark.parametrize(
    ("name", "change", "rule"),
    [(name, change, rule) for name, _, change, rule in MUTATIONS],
    ids=[f"{name}-{way}" for name, way, _, _ in MUTATIONS],
)
def test_no_changed_value_survives(name: str, change: Callable[[Any], Any], rule: str, whole: Case) -> None:
    published = whole.evidence.constants[name]
    value = change(published["values"] if isinstance(published, dict) else published)
    constants = {**whole.evidence.constants, name: value}
    if value is ABSENT:
        del constants[name]
    changed = dataclasses.replace(whole.evidence, constants=constants)
    case = Case.of(changed, tokenizer=whole.tokenizer, bundle=whole.bundle)
    found = [(finding.rule.id, finding.subject) for finding in check(case)]
    assert rule in [id_ for id_, _ in found]
    if rule not in ("PTE203", "PTE201", "PTE305"):
        # Where two values contradict each other, either may be the wrong one.
        assert (rule, name) in found


IN_THE_FILE: list[tuple[str, Callable[[Editor], None], str]] = [
    *(
        (f"{name} absent", lambda file, name=name: file.rename(name), expected["absent"])
        for name, expected in EXPECTED.items()
    ),
    *(
        (f"{name} {value}", lambda file, name=name, value=value: file.set_int(name, value), rule)
        for name, value, rule in (
            ("get_max_seq_len", 5, "PTE307"),
            ("get_max_seq_len", 3, "PTE307"),
            ("get_max_seq_len", -4, "PTE104"),
            ("get_max_context_len", 63, "PTE201"),
            ("get_max_context_len", BEYOND, "PTE104"),
            ("get_max_ctx_len", 65, "PTE201"),
            ("get_prefill_chunk_size", MOST, "PTE201"),
            ("get_vocab_size", 261, "PTE312"),
            ("get_vocab_size", 259, "PTE312"),
            ("get_vocab_size", 2**62, "PTE104"),
            ("get_n_caches", 3, "PTE315"),
            ("get_n_caches", 1, "PTE315"),
            ("get_n_caches", MOST, "PTE203"),
            ("get_activation_dtype", 15, "PTE319"),
            ("get_activation_dtype", 7, "PTE104"),
            ("get_logits_to_keep_mode", 0, "PTE313"),
            ("get_logits_to_keep_mode", 2, "PTE305"),
            ("get_logits_to_keep_mode", -1, "PTE104"),
            ("get_eos_ids", 2, "PTE508"),
            ("get_eos_ids", 260, "PTE204"),
            ("get_eos_ids", -1, "PTE104"),
        )
    ),
    *(
        (f"{name} a Double", lambda file, name=name: file.make_double(name), "PTE102")
        for name in EXPECTED
        if name not in (*PER_CACHE, "get_bos_id")
    ),
    *(
        (f"{name} {index} {entry}", lambda file, args=(name, index, entry): file.set_entry(*args), rule)
        for name, index, entry, rule in (
            ("get_kv_heads", 0, 1, "PTE317"),
            ("get_kv_heads", 1, 0, "PTE104"),
            ("get_kv_heads", 1, -2, "PTE104"),
            ("get_kv_heads", 0, 4, "PTE603"),
            ("get_head_dims", 1, 17, "PTE318"),
            ("get_head_dims", 0, 15, "PTE604"),
            ("get_head_dims", 0, MOST, "PTE317"),
            ("get_windows", 0, 4, "PTE605"),
            ("get_windows", 1, 7, "PTE605"),
            ("get_windows", 1, 3, "PTE205"),
            ("get_windows", 1, -8, "PTE104"),
        )
    ),
    *((f"{name} shorter", lambda file, name=name: file.set_length(name, 1), "PTE203") for name in PER_CACHE),
    *((f"{name} float32", lambda file, name=name: file.set_dtype(name, 6), "PTE103") for name in PER_CACHE),
]


@pytest.mark.parametrize(
    ("edit", "rule"), [(edit, rule) for _, edit, rule in IN_THE_FILE], ids=[i for i, _, _ in IN_THE_FILE]
)
def test_no_changed_byte_of_a_value_survives(edit: Callable[[Editor], None], rule: str, bundle: Path) -> None:
    file = bundle / "model.pte"
    editor = Editor(file.read_bytes())
    edit(editor)
    assert editor.data != file.read_bytes()
    file.write_bytes(editor.data)
    assert rule in [finding.rule.id for finding in examine(bundle).findings]


def graph(evidence: Evidence, **changes: Any) -> Evidence:
    assert evidence.forward is not None
    assert evidence.forward.graph is not None
    return forward(evidence, graph=dataclasses.replace(evidence.forward.graph, **changes))


def forward(evidence: Evidence, **changes: Any) -> Evidence:
    assert evidence.forward is not None
    return dataclasses.replace(evidence, forward=dataclasses.replace(evidence.forward, **changes))


def inputs(evidence: Evidence, index: int, **changes: Any) -> Evidence:
    assert evidence.forward is not None
    values: list[Any] = list(evidence.forward.inputs)
    values[index] = dataclasses.replace(values[index], **changes)
    return forward(evidence, inputs=tuple(values))


def logits(evidence: Evidence, **changes: Any) -> Evidence:
    assert evidence.forward is not None
    (value,) = evidence.forward.outputs
    return forward(evidence, outputs=(dataclasses.replace(value, **changes),))


def attends(evidence: Evidence, **changes: Any) -> Evidence:
    """The last call of attention is another."""
    assert evidence.forward is not None
    assert evidence.forward.graph is not None
    *others, last = evidence.forward.graph.attends
    return graph(evidence, attends=(*others, dataclasses.replace(last, **changes)))


GRAPHS: list[tuple[str, Callable[[Evidence], Evidence]]] = [
    ("PTE301", lambda it: dataclasses.replace(it, forward=None)),
    ("PTE302", lambda it: forward(it, delegates=("MLXBackend", "MLXBackend"))),
    ("PTE302", lambda it: forward(it, delegates=(), graph=None)),
    ("PTE303", lambda it: forward(it, others={"aten::add.out": 1})),
    ("PTE304", lambda it: forward(it, num_delegate_args=2)),
    ("PTE305", lambda it: forward(it, inputs=())),
    ("PTE306", lambda it: inputs(it, 0, dtype="int32")),
    ("PTE306", lambda it: inputs(it, 0, sizes=(2, 4))),
    ("PTE306", lambda it: inputs(it, 1, sizes=(3,))),
    ("PTE306", lambda it: inputs(it, 1, sizes=(1, 4))),
    ("PTE307", lambda it: inputs(inputs(it, 0, sizes=(1, 5)), 1, sizes=(5,))),
    ("PTE308", lambda it: inputs(it, 0, dynamic=False)),
    ("PTE308", lambda it: inputs(it, 1, dynamic=False)),
    ("PTE310", lambda it: logits(it, sizes=(1, 260))),
    ("PTE310", lambda it: forward(it, outputs=())),
    ("PTE311", lambda it: logits(it, dtype="float16")),
    ("PTE312", lambda it: logits(it, sizes=(1, 1, 259))),
    ("PTE313", lambda it: logits(it, sizes=(1, 4, 260))),
    ("PTE313", lambda it: graph(it, rows_of="token")),
    ("PTE314", lambda it: graph(it, logits=(1, 1, 100))),
    ("PTE314", lambda it: graph(it, logits=(1, 2, 260))),
    ("PTE315", lambda it: attends(it, layer_id=0)),
    ("PTE315", lambda it: attends(it, layer_id=2)),
    ("PTE315", lambda it: attends(it, layer_id=-1)),
    ("PTE316", lambda it: attends(it, layer_id=None)),
    ("PTE316", lambda it: attends(it, scale=None)),
    ("PTE317", lambda it: attends(it, key=(1, 4, None, 16))),
    ("PTE317", lambda it: attends(it, value=(1, 2, None, 8))),
    ("PTE318", lambda it: attends(it, query=(1, 3, None, 16))),
    ("PTE318", lambda it: attends(it, query=(1, 4, None, 8))),
    ("PTE319", lambda it: attends(it, out_dtype=15)),
    ("PTE320", lambda it: graph(it, num_mutable_buffers=1)),
    ("PTE407", lambda it: graph(it, multiplied=frozenset({QuantizedFormat("affine", 4, 32)}))),
    ("PTE408", lambda it: graph(it, looked_up=frozenset({QuantizedFormat("affine", 8, 64)}))),
    ("PTE701", lambda it: dataclasses.replace(it, file=dataclasses.replace(it.file, segment_starts=(100,)))),
    ("PTE702", lambda it: dataclasses.replace(it, file=dataclasses.replace(it.file, program_version=1))),
]


@pytest.mark.parametrize(("rule", "change"), GRAPHS, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(GRAPHS)])
def test_no_changed_fact_of_the_graph_survives(rule: str, change: Callable[[Evidence], Evidence], whole: Case) -> None:
    case = Case.of(change(whole.evidence), tokenizer=whole.tokenizer, bundle=whole.bundle)
    assert rule in rules(case)


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("PTE401", {"dtype": "bf16"}),
    ("PTE402", {"logits": "full"}),
    ("PTE403", {"max_seq_len": 5}),
    ("PTE403", {"max_seq_len": 3}),
    ("PTE404", {"max_context_len": 65}),
    ("PTE404", {"max_context_len": 63}),
    ("PTE405", {"backend": "xnnpack"}),
    ("PTE406", {"placement": "in_graph"}),
    ("PTE407", {"linear": WeightFormat(scheme="4w", group_size=32)}),
    ("PTE408", {"embedding": WeightFormat(scheme="8w", group_size=0)}),
]


@pytest.mark.parametrize(("rule", "changes"), ASKED, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(ASKED)])
def test_no_other_manifest_passes_for_the_one_it_was_built_from(
    rule: str, changes: dict[str, Any], shipped: Path, artifact: Callable[[str], Artifact]
) -> None:
    other = dataclasses.replace(artifact("mixed").spec, **changes)
    findings = examine(shipped, Question(asked=other)).findings
    assert {finding.rule.id for finding in findings} == {rule}
    assert all("but the manifest asks for" in finding.message for finding in findings)


def other_record(bundle: Path, **changes: Any) -> None:
    record = json.loads((bundle / "build.json").read_text())
    record["steps"]["build"]["asked"]["spec"] |= changes
    (bundle / "build.json").write_text(json.dumps(record))


def edited_layers(bundle: Path, **changes: int) -> None:
    report = json.loads((bundle / "report.json").read_text())
    report["attention"][1] |= changes
    (bundle / "report.json").write_text(json.dumps(report))


def other_vocabulary(bundle: Path, change: Callable[[dict[str, Any]], None]) -> None:
    file = bundle / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


def grow(content: dict[str, Any], by: int) -> None:
    vocab = content["model"]["vocab"]
    vocab |= {f"more {index}": index for index in range(len(vocab), len(vocab) + by)}


def shrink(content: dict[str, Any], to: int) -> None:
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {token: index for token, index in vocab.items() if index < to}


def move(content: dict[str, Any], token: str, index: int) -> None:
    content["model"]["vocab"].pop(token)
    for entry in content["added_tokens"]:
        if entry["content"] == token:
            entry["id"] = index


BESIDE: list[tuple[str, Callable[[Path], object]]] = [
    ("PTE501", lambda it: (it / "tokenizer.json").write_text("{")),
    ("PTE501", lambda it: (it / "tokenizer_config.json").write_text("")),
    ("PTE502", lambda it: other_vocabulary(it, lambda content: grow(content, 1))),
    ("PTE503", lambda it: other_vocabulary(it, lambda content: move(content, "<pad>", 260))),
    ("PTE504", lambda it: other_vocabulary(it, lambda content: shrink(content, 250))),
    ("PTE506", lambda it: other_vocabulary(it, lambda content: move(content, "<s>", 5))),
    ("PTE507", lambda it: other_vocabulary(it, lambda content: move(content, "</s>", 5))),
    ("PTE508", lambda it: edit_json(it / "tokenizer_config.json", eos_token="<unk>")),
    ("PTE510", lambda it: edit_json(it / "tokenizer_config.json", bos_token="<unk>")),
    ("PTE512", lambda it: edit_json(it / "tokenizer_config.json", eos_token="<|im_end|>")),
    ("PTE508", lambda it: edit_json(it / "report.json", end_of_text={"chat_template": [3]})),
    ("PTE601", lambda it: (it / "report.json").write_text("{}}")),
    ("PTE601", lambda it: (it / "build.json").write_text("[]")),
    ("PTE602", lambda it: edited_layers(it, cache=0)),
    ("PTE602", lambda it: edited_layers(it, cache=2)),
    ("PTE603", lambda it: edited_layers(it, num_kv_heads=4)),
    ("PTE604", lambda it: edited_layers(it, head_dim=8)),
    ("PTE605", lambda it: edited_layers(it, window=9)),
    ("PTE605", lambda it: edited_layers(it, window=0)),
    ("PTE606", lambda it: (it / "chat_template.jinja").write_text("changed")),
    ("PTE606", lambda it: (it / "tokenizer_config.json").unlink()),
    ("PTE401", lambda it: other_record(it, dtype="bf16")),
    ("PTE403", lambda it: other_record(it, max_seq_len=8)),
    ("PTE407", lambda it: other_record(it, linear={"scheme": "4w", "group_size": 32})),
]


@pytest.mark.parametrize(("rule", "change"), BESIDE, ids=[f"{rule}-{i}" for i, (rule, _) in enumerate(BESIDE)])
def test_nothing_changed_beside_the_artifact_survives(
    rule: str, change: Callable[[Path], object], bundle: Path
) -> None:
    change(bundle)
    assert rule in [finding.rule.id for finding in examine(bundle).findings]
