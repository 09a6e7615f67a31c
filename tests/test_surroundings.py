"""What the machine contributes to keys: the source of each step and all it imports, versions, local files."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline import surroundings
from pipeline.errors import FetchError
from pipeline.plan import STEPS
from pipeline.store.digests import DigestMemo

ROOT = Path(__file__).resolve().parents[1]
LONG_AGO = 1_600_000_000 * 10**9

DIGESTS = """
from pipeline import surroundings
from pipeline.plan import STEPS
print(*(surroundings.source_digest(step) for step in STEPS))
"""


def closure(step: str) -> set[str]:
    """The modules that make the step's source, without the package's name."""
    return {name.removeprefix("pipeline.") for name in surroundings._closure(f"pipeline.steps.{step}")}


CONTAINS = {
    "fetch": {"steps.fetch", "snapshot", "digest", "spec", "errors", "model.gguf"},
    "quantize": {"steps.quantize", "spec", "errors", "model.checkpoint", "model.quantization", "model.suitability"},
    "build": {"steps.build", "model.attention", "model.export", "model.geometry", "model.lower", "model.metadata"},
    "verify": {"steps.verify", "verify", "pte", "pte.flatbuffer", "pte.program", "pte.mlx_graph", "schema", "spec"}
    | {"verify.graph", "verify.contracts", "evidence"},
    "smoke": {"steps.smoke", "delegate.ops", "delegate.executor", "runtime.decoder", "runtime.kv_cache"}
    | {"pte.flatbuffer", "contract", "model.checkpoint", "model.reference"},
    "bundle": {"steps.bundle"},
}


@pytest.mark.parametrize("step", STEPS)
def test_the_source_of_a_step_is_all_it_imports_however_far_and_wherever(step: str) -> None:
    assert CONTAINS[step] <= closure(step)


@pytest.mark.parametrize(
    ("module", "steps"),
    [
        ("pte.flatbuffer", {"verify", "smoke"}),
        ("verify.graph", {"verify"}),
        ("contract", {"build", "verify", "smoke"}),
        ("delegate.ops.attention", {"smoke"}),
        ("delegate.executor", {"smoke"}),
        ("runtime.kv_cache", {"smoke"}),
        ("model.reference", {"smoke"}),
        ("model.attention", {"build"}),
        ("model.lower", {"build"}),
        ("model.serializer", {"build"}),
        ("model.checkpoint", {"quantize", "build", "smoke"}),
        ("model.quantization", {"quantize", "build", "smoke"}),
        ("model.proof", {"build"}),
        ("model.gguf", {"fetch"}),
        ("snapshot", {"fetch"}),
        # What runs and shows steps shapes none of their outputs.
        ("steps.process", set()),
        ("workspace", set()),
        ("tasks", set()),
        ("progress", set()),
        ("plan", set()),
        ("store.objects", set()),
        ("cli.main", set()),
    ],
)
def test_an_edit_concerns_exactly_the_steps_that_run_the_module(module: str, steps: set[str]) -> None:
    assert (ROOT / "pipeline" / f"{module.replace('.', '/')}.py").is_file()
    assert {step for step in STEPS if module in closure(step)} == steps


@pytest.mark.parametrize("step", STEPS)
def test_the_packages_that_a_module_lies_in_are_part_of_its_source(step: str) -> None:
    found = closure(step)
    # The map of the steps holds words alone.
    assert len(ast.parse((ROOT / "pipeline/steps/__init__.py").read_bytes()).body) == 1
    assert {name.rpartition(".")[0] for name in found} <= found | {"", "steps"}


def test_every_module_that_a_light_step_loads_is_in_its_source() -> None:
    """Independent of how imports are read: a process that imports the step is asked what it has loaded."""
    for step in ("fetch", "quantize", "build", "verify", "bundle"):
        script = (
            f"import sys, pipeline.steps.{step}\nprint(*(name for name in sys.modules if name.startswith('pipeline.')))"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
        loaded = {name.removeprefix("pipeline.") for name in done.stdout.split()}
        assert loaded <= closure(step) | {"steps"}


def test_imports_are_absolute_statements_so_that_reading_them_finds_them_all() -> None:
    dynamic = set()
    for file in sorted((ROOT / "pipeline").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{file} imports from '{'.' * node.level}'"
                assert all(alias.name != "*" for alias in node.names), f"{file} imports '*'"
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
                dynamic.add(file.relative_to(ROOT / "pipeline").as_posix())
    # The process that runs a step, and the command that runs a verb and writes a format, choose by name; neither is
    # part of a step.
    assert dynamic == {"cli/formats/__init__.py", "cli/main.py", "steps/process.py"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("copy")
    for part in ("pipeline", "schemas"):
        shutil.copytree(ROOT / part, directory / part, ignore=shutil.ignore_patterns("__pycache__"))
    return directory


def digests(directory: Path) -> dict[str, str]:
    done = subprocess.run([sys.executable, "-c", DIGESTS], capture_output=True, text=True, check=True, cwd=directory)
    return dict(zip(STEPS, done.stdout.split(), strict=True))


@pytest.mark.parametrize(
    ("file", "steps"),
    [
        ("pipeline/pte/flatbuffer.py", {"verify", "smoke"}),
        ("pipeline/delegate/ops/attention.py", {"smoke"}),
        ("schemas/contracts/run_llm_hf@2.schema.json", {"verify"}),
        ("schemas/manifest.schema.json", set()),
        ("pipeline/workspace.py", set()),
    ],
)
def test_an_edited_file_changes_the_digests_of_the_steps_that_use_it(file: str, steps: set[str], copy: Path) -> None:
    before = digests(copy)
    content = (copy / file).read_text()
    try:
        (copy / file).write_text(
            content.replace('"type": "object"', '"type": "object", "description": "x"', 1)
            if file.endswith(".json")
            else f"{content}\n# edited\n"
        )
        after = digests(copy)
    finally:
        (copy / file).write_text(content)
    assert {step for step in STEPS if before[step] != after[step]} == steps


def test_a_library_that_is_not_installed_has_a_version_all_the_same(tmp_path: Path) -> None:
    around = surroundings.of_this_machine(DigestMemo(tmp_path / "memo.json"))
    assert around.version("no-such-distribution") == "not installed"
    assert around.version("jsonschema").split(".")[0].isdigit()
    assert f"python {sys.version_info.major}.{sys.version_info.minor}" in around.platform


def snapshot(directory: Path) -> Path:
    directory.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
        (directory / name).write_text(name)
        os.utime(directory / name, ns=(LONG_AGO, LONG_AGO))
    return directory


def test_a_local_model_contributes_the_digest_of_each_of_its_files(tmp_path: Path) -> None:
    around = surroundings.of_this_machine(DigestMemo(tmp_path / "memo.json"))
    assert around.local_files(snapshot(tmp_path / "model")) == {
        name: hashlib.sha256(name.encode()).hexdigest()
        for name in ("config.json", "model.safetensors", "tokenizer.json")
    }
    assert (tmp_path / "memo.json").is_file()


@pytest.mark.parametrize("length", [300, 5000])
def test_a_local_model_that_cannot_be_looked_at_is_a_sentence(length: int, tmp_path: Path) -> None:
    around = surroundings.of_this_machine(DigestMemo(tmp_path / "memo.json"))
    path = tmp_path / ("x" * length)
    with pytest.raises(FetchError) as caught:
        around.local_files(path)
    assert str(caught.value) == (
        f"{path}: model.source.path cannot be read (File name too long); expected a directory or a .gguf file."
    )
