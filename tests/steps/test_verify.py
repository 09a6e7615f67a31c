"""An artifact becomes its metadata, or every finding at once and nothing written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import PteError, VerifyError
from pipeline.steps import verify
from tests.tiny_models import Artifact

Artifacts = Callable[[str], Artifact]


def test_the_metadata_is_what_the_artifact_publishes(artifact: Artifacts, tmp_path: Path) -> None:
    built = artifact("llama")
    verify.run(built.spec, built.pte, built.snapshot, tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["metadata.json"]
    metadata = json.loads((tmp_path / "metadata.json").read_bytes())
    assert metadata["size_bytes"] == built.pte.stat().st_size
    constants = metadata["constant_methods"]
    assert constants["get_max_seq_len"] == built.spec.max_seq_len
    assert constants["get_max_context_len"] == built.spec.max_context_len
    assert constants["get_kv_heads"]["values"] == [2, 2]
    assert "forward" not in constants
    assert metadata["contracts"] == ["run_llm_hf@1", "run_llm_hf@2"]
    assert metadata["findings"] == []


def test_all_findings_come_at_once_and_nothing_is_written(artifact: Artifacts, tmp_path: Path) -> None:
    built = artifact("llama")
    other = replace(built.spec, dtype="bf16", max_seq_len=4, max_context_len=32)
    with pytest.raises(VerifyError) as caught:
        verify.run(other, built.pte, built.snapshot, tmp_path)
    findings = str(caught.value).splitlines()
    for name in ("get_activation_dtype", "get_max_seq_len", "get_max_context_len"):
        assert [line for line in findings if name in line], name
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_artifact_is_a_sentence(artifact: Artifacts, tmp_path: Path) -> None:
    file = tmp_path / "model.pte"
    file.write_bytes(b"no artifact at all")
    with pytest.raises(PteError, match=r"^model\.pte: |/model\.pte: "):
        verify.run(artifact("llama").spec, file, tmp_path, tmp_path)
    assert list(tmp_path.iterdir()) == [file]
