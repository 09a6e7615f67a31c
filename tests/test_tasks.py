"""``doit`` from end to end, on a tiny model: what runs when, what is told, and what is left when it is killed."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

MANIFEST = """\
version: 1
name: NAME
model:
  id: org/tiny
  source:
    path: ../model
dtype: fp32
max_seq_len: 8
max_context_len: 96
backend: mlx
smoke:
  prompts:
    - name: greeting
      user: Hi
      expect: "EXPECT"
      max_new_tokens: 24
"""

# What must not be loaded to find out that there is nothing to do.
BLOCKER = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"torch", "executorch", "transformers", "mlx", "numpy", "safetensors", "gguf"}:
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Blocker())
"""

# What a shell starts in the background ignores Ctrl-C, and so do its children unless they are told otherwise.
IN_FOREGROUND = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("doit", run_name="__main__")
"""

UP_TO_DATE = [f"-- {step}:tiny" for step in ("fetch", "build", "verify", "smoke", "bundle")]
FILES = {"model.pte", "metadata.json", "smoke.json", "build.json", "report.json"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}


@dataclass(frozen=True)
class Project:
    """A directory with manifests, in which doit runs."""

    directory: Path

    def write(self, text: str, name: str = "tiny") -> None:
        (self.directory / "manifests").mkdir(exist_ok=True)
        (self.directory / "manifests" / f"{name}.yaml").write_text(text.replace("NAME", name))

    @property
    def artifacts(self) -> Path:
        return self.directory / "artifacts"

    @property
    def bundle(self) -> Path:
        return self.artifacts / "bundles" / "tiny"

    def environment(self, *path: Path) -> dict[str, str]:
        # Compiled modules are cached for a user; a machine that switches that off must not be timed without them.
        kept = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        return {**kept, "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT)))}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """doit in a process group of its own, as a terminal would run it."""
        return subprocess.Popen(
            [sys.executable, "-c", IN_FOREGROUND, *arguments],
            cwd=self.directory,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def doit(self, *arguments: str, code: int = 0, path: tuple[Path, ...] = ()) -> tuple[list[str], str]:
        """The lines of doit's report, and all that was said on standard error; never a traceback."""
        done = subprocess.run(
            [sys.executable, "-m", "doit", *arguments],
            cwd=self.directory,
            env=self.environment(*path),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        return done.stdout.splitlines(), done.stderr

    def steps_run(self, *arguments: str) -> set[str]:
        """The steps that doit had to run."""
        return {line.split()[1].split(":")[0] for line in self.doit(*arguments)[0] if line.startswith(".  ")}


def link_project(directory: Path) -> Project:
    directory.mkdir()
    for name in ("dodo.py", "pyproject.toml"):
        (directory / name).symlink_to(ROOT / name)
    return Project(directory)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, str, str]:
    """A project with its bundle built, its manifest, and what doit said about a first try that had to fail."""
    from tests.tiny_models import library_warnings_ignored, save_snapshot

    project = link_project(tmp_path_factory.mktemp("tasks") / "project")
    with library_warnings_ignored():
        save_snapshot(project.directory / "model", "llama")
    # A model with random weights says something; what, the first try tells.
    project.write(MANIFEST.replace("EXPECT", "no model says this"))
    _, said = project.doit(code=1)
    decoded = re.search(r"decoded ('.*'|\".*\"); expected it to contain 'no model says this'", said)
    assert decoded is not None, said
    words: list[str] = re.findall(r"[A-Za-z0-9]+", ast.literal_eval(decoded[1]))
    manifest = MANIFEST.replace("EXPECT", max(words, key=len))
    project.write(manifest)
    assert project.steps_run() == {"smoke", "bundle"}, "a changed prompt runs smoke and bundle alone"
    return project, manifest, said


@pytest.fixture
def project(built: tuple[Project, str, str]) -> Iterator[Project]:
    """The built project; whatever a test does to its manifests is undone afterwards."""
    project, manifest, _ = built
    yield project
    shutil.rmtree(project.directory / "manifests")
    project.write(manifest)


def digests(directory: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in directory.iterdir()}


def test_a_failing_step_tells_its_sentence_and_its_log_and_leaves_no_bundle(built: tuple[Project, str, str]) -> None:
    _, _, said = built
    lines = [line for line in said.splitlines() if line]
    assert lines[-2].startswith("smoke:tiny: smoke 'greeting': decoded ")
    assert lines[-1] == "The log is artifacts/logs/tiny.smoke.log."
    assert "smoke:tiny  failed in" in said
    assert "verify:tiny  done in" in said
    assert "artifacts/bundles" not in said


def test_the_bundle_holds_the_artifact_and_what_belongs_to_it(project: Project) -> None:
    assert {file.name for file in project.bundle.iterdir()} == FILES | TOKENIZER
    for name in TOKENIZER:
        assert (project.bundle / name).read_bytes() == (project.directory / "model" / name).read_bytes()


def test_the_bundle_says_what_was_published_and_decoded(project: Project) -> None:
    metadata = json.loads((project.bundle / "metadata.json").read_bytes())
    assert metadata["size_bytes"] == (project.bundle / "model.pte").stat().st_size
    assert metadata["constant_methods"]["get_max_seq_len"] == 8
    assert metadata["constant_methods"]["get_max_context_len"] == 96
    smoke = json.loads((project.bundle / "smoke.json").read_bytes())
    assert smoke["dtype"] == "fp32"
    (greeting,) = smoke["prompts"]
    assert greeting["name"] == "greeting"
    assert greeting["expected"] in greeting["text"]
    assert 0 < len(greeting["generated"]) <= 24
    assert greeting["logits_distance"] <= smoke["tolerance"]["bound"]


def test_the_bundle_says_what_it_was_built_from(project: Project) -> None:
    record = json.loads((project.bundle / "build.json").read_bytes())
    assert (record["name"], record["model"]) == ("tiny", "org/tiny")
    assert record["files"] == {name: digest for name, digest in digests(project.bundle).items() if name != "build.json"}
    assert set(record["steps"]) == {"fetch", "build", "verify", "smoke"}
    build = record["steps"]["build"]
    assert build["asked"]["spec"]["max_context_len"] == 96
    assert build["asked"]["libraries"]["torch"]
    assert build["outputs"]["model.pte"]["sha256"] == record["files"]["model.pte"]
    for name, item in record["steps"]["fetch"]["outputs"].items():
        content = (project.directory / "model" / name).read_bytes()
        assert item == {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}
    # Where it was built is nobody's business, and would make equal builds differ.
    assert str(project.directory) not in (project.bundle / "build.json").read_text()


def test_a_second_run_runs_nothing_and_says_nothing(project: Project) -> None:
    assert project.doit() == (UP_TO_DATE, "")


@pytest.mark.parametrize("arguments", [["-n", "2"], ["-n", "2", "-P", "thread"], ["build:tiny"], ["smoke"]])
def test_nothing_runs_however_doit_is_asked(arguments: list[str], project: Project) -> None:
    assert project.steps_run(*arguments) == set()


def test_looking_and_doing_nothing_loads_no_heavy_library(project: Project, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BLOCKER)
    lines, _ = project.doit("list", path=(tmp_path,))
    assert [line.split()[0] for line in lines] == ["build", "bundle", "fetch", "smoke", "verify"]
    assert project.doit("list", "--all", "--status", path=(tmp_path,))[0]
    assert project.doit("info", "bundle:tiny", path=(tmp_path,))[0]
    assert project.doit(path=(tmp_path,)) == (UP_TO_DATE, "")
    done = subprocess.run(
        [sys.executable, "-c", "import dodo"], env=project.environment(tmp_path), cwd=project.directory, check=False
    )
    assert done.returncode == 0


def test_doit_keeps_nothing_of_its_own(project: Project) -> None:
    assert {entry.name for entry in project.artifacts.iterdir() if entry.is_file()} <= {"digests.json"}
    assert not [name for name in os.listdir(project.directory) if "doit" in name]  # noqa: PTH208
    project.doit("forget", "--all")
    project.doit("clean")
    assert project.steps_run() == set()


def test_looking_at_a_fresh_project_creates_nothing(tmp_path: Path) -> None:
    fresh = link_project(tmp_path / "fresh")
    fresh.write(MANIFEST)
    fresh.doit("list", "--all")
    fresh.doit("list", "--status")
    assert not fresh.artifacts.exists()


def test_broken_manifests_are_told_all_at_once(project: Project) -> None:
    project.write("version: 1\nname: one\ndtype: fp64\nmax_seq_len: 0\n", "one")
    project.write("version: [\n", "two")
    lines, said = project.doit(code=3)
    assert lines == []
    assert said.startswith("ERROR: \nmanifests/one.yaml:")
    for problem in ("one.yaml:3: dtype is 'fp64'", "one.yaml:4: max_seq_len is 0", "two.yaml:"):
        assert problem in said


def test_another_name_runs_bundle_alone_and_a_comment_nothing(
    project: Project, built: tuple[Project, str, str]
) -> None:
    project.write(f"# The smallest one.\n{built[1]}")
    project.write(built[1], "other")
    lines, _ = project.doit()
    assert [line for line in lines if line.startswith(".")] == [".  bundle:other"]


def test_weights_are_quantized_once_for_every_artifact_made_of_them(
    project: Project, built: tuple[Project, str, str]
) -> None:
    quantized = built[1] + "quantization: {linear: 8w}\n"
    project.write(quantized)
    lines, told = project.doit("verify")
    assert [line for line in lines if line.startswith(".")] == [".  quantize:tiny", ".  build:tiny", ".  verify:tiny"]
    assert "  8w by rows: 15 layers" in told.splitlines()
    project.write(quantized.replace("max_seq_len: 8", "max_seq_len: 4"))
    assert project.steps_run("verify") == {"build", "verify"}


def test_a_bundle_that_was_deleted_or_edited_is_put_right_without_building(project: Project) -> None:
    before = digests(project.bundle)
    shutil.rmtree(project.bundle)
    assert project.steps_run() == {"bundle"}
    (project.bundle / "tokenizer.json").unlink()
    (project.bundle / "tokenizer.json").write_text("{}")
    assert project.steps_run() == {"bundle"}
    assert digests(project.bundle) == before


def test_a_step_that_fails_leaves_the_last_good_bundle(project: Project) -> None:
    before = digests(project.bundle)
    config = project.directory / "model" / "config.json"
    config.rename(project.directory / "config.json")
    try:
        _, said = project.doit(code=1)
    finally:
        (project.directory / "config.json").rename(config)
    lines = [line for line in said.splitlines() if line]
    assert lines[0].startswith("fetch:tiny  failed in ")
    assert lines[1:] == [
        f"{config.parent}: config.json is missing; expected the model's configuration beside its weights."
    ]
    assert digests(project.bundle) == before
    assert project.steps_run() == set()


def test_with_continue_the_other_manifests_are_built_all_the_same(
    project: Project, built: tuple[Project, str, str]
) -> None:
    project.write(built[1].replace("../model", "../nowhere"), "broken")
    lines, said = project.doit("--continue", code=2)
    assert set(UP_TO_DATE) - {"-- bundle:tiny"} <= set(lines)
    assert "nowhere: model.source.path does not exist; expected a directory or a .gguf file." in said


def children(pid: int) -> set[int]:
    """The processes that a process has started and that still run."""
    found = set()
    if Path("/proc/self/stat").exists():
        for file in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = file.read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == pid and state != "Z":
                found.add(int(file.parent.name))
        return found
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return {int(child) for child, parent in map(str.split, listed.splitlines()) if int(parent) == pid}


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return False
        asked = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)
        state = asked.stdout.strip()
    return state[:1] not in ("Z", "")


def wait_until(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def end(doit: subprocess.Popen[str], log: Path, how: str) -> str:
    """Ends doit while it builds; returns what it said. The process that builds must end with it."""
    try:
        wait_until(log.exists)
        wait_until(lambda: children(doit.pid))
        (child,) = children(doit.pid)
        time.sleep(0.5)
        assert runs(child)
        if how == "kill it alone":
            doit.kill()
        else:
            os.killpg(doit.pid, signal.SIGKILL if how == "kill its group" else signal.SIGINT)
        _, said = doit.communicate(timeout=30)
        wait_until(lambda: not runs(child), 10)
    finally:
        doit.kill()
    return said


def corrupt(file: Path) -> None:
    """In place, through to the object that the file is another name of."""
    file.chmod(0o644)
    with file.open("r+b") as stream:
        stream.seek(5000)
        stream.write(b"\0\1\2\3")
    file.chmod(0o444)


def test_a_corrupted_artifact_is_built_again_however_often_the_build_is_ended(project: Project) -> None:
    before = digests(project.bundle)
    corrupt(project.bundle / "model.pte")
    assert digests(project.bundle) != before
    log = project.artifacts / "logs" / "tiny.build.log"
    for how in ("kill its group", "kill it alone", "interrupt"):
        log.unlink(missing_ok=True)
        doit = project.start()
        said = end(doit, log, how)
        assert "Traceback" not in said
        assert doit.returncode == (130 if how == "interrupt" else -signal.SIGKILL)
        assert ("build:tiny  failed in" in said) == (how == "interrupt")
    # What is after the build is current again as soon as the same bytes are there.
    assert project.steps_run() == {"build", "bundle"}
    assert digests(project.bundle) == before
    assert list((project.artifacts / "scratch").iterdir()) == []
    assert project.steps_run() == set()


def fastest(project: Project) -> float:
    """Seconds of the fastest of three runs with nothing to do."""
    seconds = []
    for _ in range(3):
        began = time.monotonic()
        project.doit()
        seconds.append(time.monotonic() - began)
    return min(seconds)


def test_doing_nothing_takes_a_moment_with_one_manifest_and_with_a_hundred(
    project: Project, built: tuple[Project, str, str]
) -> None:
    # Twice what it may take on a machine that does nothing else: one second, and one and a half.
    assert fastest(project) < 2
    for number in range(99):
        project.write(built[1], f"tiny-{number}")
    assert project.steps_run() == {"bundle"}
    assert fastest(project) < 3


def test_a_project_without_manifests_is_told_so(tmp_path: Path) -> None:
    project = link_project(tmp_path / "project")
    (project.directory / "manifests").mkdir()
    _, said = project.doit(code=3)
    assert said == "ERROR: manifests/ holds no manifest; expected at least one .yaml. The README shows one.\n"


def listed(project: Project, *arguments: str) -> set[str]:
    return {line.split()[0] for line in project.doit("list", "--all", *arguments)[0] if line.startswith("bundle:")}


def test_manifests_elsewhere_have_tasks_only_when_they_are_asked_for(tmp_path: Path) -> None:
    project = link_project(tmp_path / "project")
    project.write(MANIFEST)
    hub = project.directory / "manifests" / "hub"
    hub.mkdir()
    for name in ("one", "two"):
        (hub / f"{name}.yaml").write_text(MANIFEST.replace("NAME", name))
    assert listed(project) == {"bundle:tiny"}
    assert listed(project, "manifests=manifests/hub") == {"bundle:one", "bundle:two"}
    assert listed(project, "manifests=manifests/hub/two.yaml") == {"bundle:two"}


def test_manifests_that_are_not_there_are_told(tmp_path: Path) -> None:
    project = link_project(tmp_path / "project")
    project.write(MANIFEST)
    _, said = project.doit("manifests=absent", code=3)
    assert said == (
        "ERROR: \nabsent: cannot be listed (No such file or directory); expected a directory of manifests.\n"
    )
