"""One question about one path: a file, or a bundle; what was compared is told of every pair, or why it was not."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import PteError, VerifyError
from pipeline.spec import WeightFormat
from pipeline.steps import verify as step
from pipeline.verify import Pair, Question, Severity, contracts, examine
from tests.tiny_models import Artifact, edit_json

Artifacts = Callable[[str], Artifact]

NO_MANIFEST = "no manifest was given, and no build.json of a bundle says what was asked for"
NO_TOKENIZER = "no tokenizer was given, and no tokenizer.json lies beside a bundle's model.pte"
NO_REPORT = "no report.json of a build lies beside it and says what layers the model has"


def test_a_bundle_and_its_artifact_are_one_question(shipped: Path) -> None:
    report = examine(shipped)
    assert report == examine(shipped / "model.pte")
    assert report.file == str(shipped / "model.pte")
    assert report.size_bytes == (shipped / "model.pte").stat().st_size
    assert report.summary == "2 caches, vocab 260, fp32, steps of 4 in 64 tokens, last logits"
    assert report.compared == dict.fromkeys(Pair)
    assert report.worst() is None


def test_an_artifact_alone_is_compared_with_nothing_beside_it(shipped: Path, tmp_path: Path) -> None:
    shutil.copy(shipped / "model.pte", tmp_path)
    report = examine(tmp_path / "model.pte")
    assert report.findings == ()
    assert report.compared == {
        Pair.PUBLISHED: None,
        Pair.PUBLISHED_GRAPH: None,
        Pair.PUBLISHED_MANIFEST: NO_MANIFEST,
        Pair.GRAPH_MANIFEST: NO_MANIFEST,
        Pair.PUBLISHED_TOKENIZER: NO_TOKENIZER,
        Pair.PUBLISHED_MODEL: NO_REPORT,
        Pair.FILE: None,
    }


def test_what_lies_beside_a_file_of_another_name_is_not_its_own(bundle: Path) -> None:
    (bundle / "model.pte").rename(bundle / "other.pte")
    (bundle / "report.json").write_text("somebody's")
    report = examine(bundle / "other.pte")
    assert report.findings == ()
    assert report.compared[Pair.PUBLISHED_TOKENIZER] == NO_TOKENIZER


def test_a_tokenizer_that_is_given_prevails(bundle: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(bundle / name, other)
    edit_json(other / "tokenizer_config.json", eos_token="<unk>")
    (finding,) = examine(bundle, Question(tokenizer=other)).findings
    assert finding.rule.id == "PTE508"
    assert "the tokenizer ends a text with [3]" in finding.message


def test_a_tokenizer_that_is_given_and_not_there_is_a_finding_and_not_compared(shipped: Path, tmp_path: Path) -> None:
    report = examine(shipped, Question(tokenizer=tmp_path / "no"))
    assert [finding.rule.id for finding in report.findings] == ["PTE501"]
    assert report.compared[Pair.PUBLISHED_TOKENIZER] == f"no does not exist in {tmp_path}"


def test_a_tokenizer_of_another_kind_is_not_compared_and_no_finding(bundle: Path) -> None:
    (bundle / "tokenizer.model").write_bytes(b"\n")
    report = examine(bundle, Question(tokenizer=bundle / "tokenizer.model"))
    assert report.findings == ()
    assert report.compared[Pair.PUBLISHED_TOKENIZER] == "tokenizer.model is no tokenizer.json, which alone is read"


def test_what_a_build_makes_has_no_findings(artifact: Artifacts) -> None:
    made = artifact("selected")
    report = examine(made.pte, Question(asked=made.spec, tokenizer=made.snapshot))
    assert report.findings == ()
    assert report.compared == dict.fromkeys(Pair)


def test_a_file_of_another_backend_is_held_to_the_generic_runners_contract(in_graph_pte: Path) -> None:
    report = examine(in_graph_pte)
    assert report.contracts == ("text_llm_runner@1",)
    (finding,) = report.findings
    assert (finding.rule.id, finding.rule.severity) == ("PTE322", Severity.NOTE)
    assert "aten::embedding.out" in finding.message
    assert report.compared[Pair.PUBLISHED_GRAPH] == (
        "forward's signature is compared, its graph is not: it calls 'XnnpackBackend' (2 times), and one MLXBackend "
        "alone is looked into"
    )
    assert report.summary == "vocab 11, steps of 6 in 32 tokens, calls 'XnnpackBackend' (2 times)"


def test_a_file_of_another_backend_is_refused_for_another_runner(in_graph_pte: Path) -> None:
    report = examine(in_graph_pte, Question(contracts=(contracts.find("run_llm_hf@2"),)))
    assert [(finding.rule.id, finding.subject) for finding in report.findings] == [
        ("PTE101", "get_activation_dtype"),
        ("PTE101", "get_logits_to_keep_mode"),
    ]


def test_an_artifact_with_its_cache_outside_is_told_of_when_it_publishes_none(shipped: Path, tmp_path: Path) -> None:
    data = (shipped / "model.pte").read_bytes()
    for name in (b"get_n_caches", b"get_kv_heads", b"get_head_dims", b"get_windows"):
        data = data.replace(name, b"got" + name[3:])
    (tmp_path / "in_graph.pte").write_bytes(data)
    report = examine(tmp_path / "in_graph.pte")
    assert "text_llm_runner@1" in report.contracts
    assert [finding.rule.id for finding in report.findings] == ["PTE321"]


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b"])
def test_a_path_that_the_system_refuses_is_a_sentence(name: str, shipped: Path) -> None:
    with pytest.raises(PteError, match="cannot be read"):
        examine(Path(name))
    (finding,) = examine(shipped, Question(tokenizer=Path(name))).findings
    assert finding.rule.id == "PTE501"


@pytest.mark.parametrize(
    ("content", "text"), [(None, "there is no such file; expected a .pte"), (b"", "the file is empty")]
)
def test_a_file_that_cannot_be_read_is_an_error(content: bytes | None, text: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "model.pte").write_bytes(content)
    with pytest.raises(PteError) as caught:
        examine(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'model.pte'}: {text}")


def test_the_step_of_a_build_finds_what_the_command_finds(bundle: Path, artifact: Artifacts, tmp_path: Path) -> None:
    edit_json(bundle / "tokenizer_config.json", eos_token="<unk>")
    edit_json(bundle / "report.json", attention=[])
    spec = artifact("mixed").spec
    report = examine(bundle, Question(asked=spec))
    told = [f"{bundle / 'model.pte'}: {finding.rule.id} {finding.message}" for finding in report.findings]
    assert {finding.rule.id for finding in report.findings} == {"PTE508", "PTE602", "PTE606"}
    with pytest.raises(VerifyError) as caught:
        step.run(spec, bundle / "model.pte", bundle, tmp_path)
    assert str(caught.value).splitlines() == told


def test_a_quantized_artifact_is_none_that_a_manifest_asks_for_in_full(shipped: Path, artifact: Artifacts) -> None:
    asked = replace(artifact("mixed").spec, linear=WeightFormat(scheme="8w", group_size=0))
    (finding,) = examine(shipped, Question(asked=asked)).findings
    assert (finding.rule.id, finding.rule.pair) == ("PTE407", Pair.GRAPH_MANIFEST)


EXAMINED = "import sys, pathlib; from pipeline.verify import examine; examine(pathlib.Path(sys.argv[1]))"


def test_neither_a_general_validator_nor_the_specs_classes_are_imported_for_it(shipped: Path) -> None:
    """Each takes as long to import as an artifact to read."""
    script = f"{EXAMINED}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, str(shipped)], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"jsonschema", "referencing", "attr", "yaml", "numpy", "torch", "pipeline.spec", "hashlib"}


IN_ANOTHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', *sys.argv[1:]], check=True)"


def test_a_cold_verification_takes_a_blink_and_little_memory(shipped: Path) -> None:
    """Of the process's own time and memory; the bound is generous for a busy machine."""
    script = (
        f"{EXAMINED}; import resource; u = resource.getrusage(resource.RUSAGE_SELF); print(u.ru_utime, u.ru_maxrss)"
    )

    def spent() -> tuple[float, int]:
        # A process starts with the memory of the one that started it on its account: hence a small one in between.
        done = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER, script, str(shipped)], capture_output=True, text=True, check=True
        )
        seconds, kilobytes = done.stdout.split()
        return float(seconds), int(kilobytes)

    seconds, kilobytes = min(spent() for _ in range(3))
    assert kilobytes < 60_000
    assert seconds < 2
