"""What a bundle has on record is read where a build wrote it, and told of where it is anything else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.spec import UNQUANTIZED, BuildSpec, WeightFormat
from pipeline.verify.bundle import Bundle, Layer, read

LAYER = {"layer": 0, "cache": 0, "num_kv_heads": 2, "head_dim": 64, "window": 0}
REPORT = {"end_of_text": {"config": [2, 7]}, "attention": [LAYER], "notes": []}
SPEC = {
    "dtype": "bf16",
    "linear": {"scheme": "4w", "group_size": 32},
    "embedding": "none",
    "max_seq_len": 128,
    "max_context_len": 1024,
    "placement": "off_graph",
    "backend": "mlx",
    "logits": "last",
}
RECORD = {
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
        spec=BuildSpec(
            dtype="bf16",
            linear=WeightFormat(scheme="4w", group_size=32),
            embedding=UNQUANTIZED,
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
    assert (found.layers, found.spec, found.problems) == (None, None, ())


def changed(record: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A record whose build was asked for something else."""
    asked = {"spec": SPEC | fields, "libraries": {}}
    return record | {"steps": {"build": {"asked": asked, "outputs": {}}}}


@pytest.mark.parametrize(
    ("report", "record", "problem"),
    [
        ("{", None, ("report.json", "is no JSON")),
        ("[" * 100_000, None, ("report.json", "is no JSON")),
        ("[]", None, ("report.json", "is no JSON object")),
        (" " * (1 << 24) + "{}", None, ("report.json", "has more than 16777216 bytes")),
        *(
            (REPORT | changes, None, ("report.json", "does not say of layers and ends of text what a build writes"))
            for changes in (
                {"attention": [{"layer": 0}]},
                {"attention": 5},
                {"attention": [LAYER | {"window": "0"}]},
                {"attention": [LAYER | {"window": True}]},
                {"end_of_text": [2]},
                {"end_of_text": {"config": 2}},
                {"end_of_text": {"config": ["2"]}},
            )
        ),
        *(
            (None, changes, ("build.json", "does not say what the artifact was built from as a build writes it"))
            for changes in (
                {"steps": []},
                {"steps": {"build": 5}},
                {"steps": {"build": {"outputs": {}}}},
                {"files": {"a": "0"}, "steps": {"fetch": {"outputs": {"a": {"size_bytes": "5"}}}}},
                changed(RECORD, dtype=["bf16"]),
                changed(RECORD, backend={}),
                changed(RECORD, max_seq_len="128"),
                changed(RECORD, linear={"scheme": "9w", "group_size": 3}),
                changed(RECORD, linear={"scheme": "4w"}),
                changed(RECORD, linear=["4w"]),
            )
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
