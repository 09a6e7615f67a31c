"""What a bundle has on record is read where a build wrote it, and told of where it is anything else."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pipeline.spec import DEFAULT_GROUP_SIZE, BuildSpec, WeightFormat
from pipeline.verify.asked import IN_MLX, NONE, Asked, Weights
from pipeline.verify.bundle import Bundle, Layer, read

LAYER: dict[str, Any] = {"layer": 0, "cache": 0, "num_kv_heads": 2, "head_dim": 64, "window": 0}
REPORT: dict[str, Any] = {"end_of_text": {"config": [2, 7]}, "attention": [LAYER], "notes": []}
SPEC: dict[str, Any] = {
    "dtype": "bf16",
    "linear": {"scheme": "4w", "group_size": 32},
    "embedding": "none",
    "max_seq_len": 128,
    "max_context_len": 1024,
    "placement": "off_graph",
    "backend": "mlx",
    "logits": "last",
}
RECORD: dict[str, Any] = {
    "name": "tiny",
    "files": {"model.pte": "00", "tokenizer.json": "11"},
    "steps": {
        "fetch": {"outputs": {"tokenizer.json": {"size_bytes": 5}, "model.safetensors": {"size_bytes": 99}}},
        "build": {
            "asked": {"spec": SPEC, "libraries": {"executorch": "1.5.1"}},
            "outputs": {"model.pte": {"size_bytes": 10}},
        },
    },
}


def written(directory: Path, report: Any = None, record: Any = None) -> Path:
    for name, content in (("report.json", report), ("build.json", record)):
        if content is not None:
            (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def test_a_directory_without_records_is_no_bundle(tmp_path: Path) -> None:
    assert read(tmp_path) is None


def test_what_is_recorded_is_read(tmp_path: Path) -> None:
    assert read(written(tmp_path, REPORT, RECORD)) == Bundle(
        directory=tmp_path,
        layers=(Layer(layer=0, cache=0, num_kv_heads=2, head_dim=64, window=0),),
        ends={"config": (2, 7)},
        asked=Asked(
            dtype="bf16",
            linear=Weights("4w", 32),
            embedding=Weights("none", 0),
            max_seq_len=128,
            max_context_len=1024,
            placement="off_graph",
            backend="mlx",
            logits="last",
        ),
        libraries={"executorch": "1.5.1"},
        sizes={"model.pte": 10, "tokenizer.json": 5},
        problems=(),
    )


def test_a_report_of_before_layers_were_recorded_says_nothing_of_them(tmp_path: Path) -> None:
    found = read(written(tmp_path, {"end_of_text": {}, "notes": []}))
    assert found is not None
    assert (found.layers, found.asked, found.problems) == (None, None, ())


def changed(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A record whose build was asked for something else."""
    asked = {"spec": SPEC | fields, "libraries": {}}
    return record | {"steps": {"build": {"asked": asked, "outputs": {}}}}


NO_REPORTS: list[dict[str, Any]] = [
    {"attention": [{"layer": 0}]},
    {"attention": 5},
    {"attention": [LAYER | {"window": "0"}]},
    {"attention": [LAYER | {"window": True}]},
    {"end_of_text": [2]},
    {"end_of_text": {"config": 2}},
    {"end_of_text": {"config": ["2"]}},
]
NO_RECORDS: list[dict[str, Any]] = [
    {"steps": []},
    {"steps": {"build": 5}},
    {"steps": {"build": {"outputs": {}}}},
    {"files": {"a": "0"}, "steps": {"fetch": {"outputs": {"a": {"size_bytes": "5"}}}}},
    changed(RECORD, dtype=["bf16"]),
    {"files": {"../a": "0"}, "steps": {"fetch": {"outputs": {"../a": {"size_bytes": 5}}}}},
    {"files": {"a\0": "0"}, "steps": {"fetch": {"outputs": {"a\0": {"size_bytes": 5}}}}},
    changed(RECORD, backend={}),
    changed(RECORD, backend="m\nlx"),
    changed(RECORD, max_seq_len="128"),
    changed(RECORD, linear={"scheme": "9w", "group_size": 3}),
    changed(RECORD, linear={"scheme": [], "group_size": 3}),
    changed(RECORD, linear={"scheme": "4w"}),
    changed(RECORD, linear=["4w"]),
]


@pytest.mark.parametrize(
    ("report", "record", "problem"),
    [
        ("{", None, ("report.json", "is no JSON")),
        ("[" * 100_000, None, ("report.json", "is no JSON")),
        ("[]", None, ("report.json", "is no JSON object")),
        (" " * (1 << 24) + "{}", None, ("report.json", "has more than 16777216 bytes")),
        *(
            (REPORT | changes, None, ("report.json", "does not say of layers and ends of text what a build writes"))
            for changes in NO_REPORTS
        ),
        *(
            (None, record, ("build.json", "does not say what the artifact was built from as a build writes it"))
            for record in NO_RECORDS
        ),
    ],
)
def test_a_record_that_is_none_is_a_problem(report: Any, record: Any, problem: Any, tmp_path: Path) -> None:
    found = read(written(tmp_path, report, record))
    assert found is not None
    assert found.problems == (problem,)


def test_a_record_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    found = read(tmp_path)
    assert found is not None
    assert found.problems == (("report.json", "cannot be read (Is a directory)"),)


@pytest.mark.parametrize("scheme", DEFAULT_GROUP_SIZE)
@pytest.mark.parametrize("size", [0, 64])
def test_a_record_of_a_manifests_spec_is_what_the_manifest_asks_for(scheme: str, size: int) -> None:
    form = WeightFormat(scheme=scheme, group_size=size)
    spec = BuildSpec(**SPEC | {"linear": form, "embedding": WeightFormat(scheme="none", group_size=0)})
    assert Asked.recorded(json.loads(json.dumps(asdict(spec)))) == Asked.of(spec)
    assert str(Asked.of(spec).linear) == str(form)
    assert {NONE, *IN_MLX} == set(DEFAULT_GROUP_SIZE)
