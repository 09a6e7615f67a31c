"""The pre-commit hooks, the GitHub Action and the GitLab job do what docs/ci.md says of them, with its examples.

pre-commit is the real one. What GitHub and GitLab do with their files is done here as their references describe it:
what a user gives comes into the environment, and scripts run under the shell that is meant for them.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.distributions import ELSEWHERE, ROOT, Distributions

EXAMPLES = {
    block.split("\n", 1)[0].removeprefix("# "): block
    for block in re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "ci.md").read_text(), re.DOTALL | re.MULTILINE)
}
MANIFEST = (ROOT / "manifests" / "smollm2-135m.yaml").read_text()
ANNOTATION = "\n::error file=bad.pte"
FINDING = "get_windows is missing"

# A shell that evaluates it in whatever quotes leaves a file behind.
HOSTILE = (
    """$(touch hacked) `touch hacked` "$(touch hacked)" '; touch hacked; ' ; touch hacked\n--help\n* | touch hacked"""
)

shell = partial(subprocess.run, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def workspace(tiny_pte: Any, tmp_path: Path) -> Path:
    """A user's directory: an artifact that holds, one that does not, and modules that must not be run."""
    directory = tmp_path / "a workspace"
    directory.mkdir()
    good = tiny_pte.path.read_bytes()
    (directory / "good one.pte").write_bytes(good)
    (directory / "bad.pte").write_bytes(good.replace(b"get_windows", b"got_windows"))
    return with_modules_of_its_own(directory)


def with_modules_of_its_own(directory: Path) -> Path:
    """The directory, with modules that end a Python in whose path they are."""
    for module in ("pip", "pipeline", "jsonschema", "yaml", "sitecustomize"):
        (directory / f"{module}.py").write_text("raise SystemExit('a module of the workspace was run')\n")
    return directory


def accepted(linter: str, *arguments: str) -> str:
    """What a linter says of files that it has nothing against."""
    program = Path(sysconfig.get_path("scripts")) / linter
    done = shell([program, *arguments], env=ELSEWHERE, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)


# pre-commit


@dataclass(frozen=True)
class Project:
    """A git repository whose pre-commit configuration is the documentation's example."""

    directory: Path
    environment: Mapping[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = shell(command, cwd=self.directory, env=self.environment)
        return done

    def pre_commit(self) -> subprocess.CompletedProcess[str]:
        """Of all files that git knows."""
        self.run("git", "add", "--all")
        return self.run(sys.executable, "-m", "pre_commit", "run", "--all-files", "--verbose")


@pytest.fixture(scope="module")
def git_environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Whose git knows no other configuration, and whose pre-commit keeps its environments to this run."""
    who = {f"GIT_{role}_{part}": f"test@{part}" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    nothing = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    apart = {name: value for name, value in ELSEWHERE.items() if not name.startswith(("GIT_", "PRE_COMMIT", "SKIP"))}
    return {**apart, **who, **nothing, "PRE_COMMIT_HOME": str(tmp_path_factory.mktemp("pre-commit"))}


@pytest.fixture(scope="module")
def repository(source_tree: Path, git_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Project:
    """pte-pipeline as a git repository of its own: what is here may be changed, shallow or no repository at all."""
    project = Project(tmp_path_factory.mktemp("repository") / "pte-pipeline", git_environment)
    shutil.copytree(source_tree, project.directory)
    for command in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "A release"]):
        assert project.run("git", *command).returncode == 0
    return project


@pytest.fixture
def project(repository: Project, tiny_pte: Any, tmp_path: Path) -> Project:
    project = Project(tmp_path, repository.environment)
    project.run("git", "init", "--quiet")
    config = yaml.safe_load(EXAMPLES[".pre-commit-config.yaml"])
    (repo,) = config["repos"]
    repo |= {"repo": str(repository.directory), "rev": repository.run("git", "rev-parse", "HEAD").stdout.strip()}
    (tmp_path / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    shutil.copy(tiny_pte.path, tmp_path / "tiny model.pte")
    (tmp_path / "manifests").mkdir()
    (tmp_path / "manifests" / "smollm2-135m.yaml").write_text(MANIFEST)
    (tmp_path / "manifests" / "notes.txt").write_text("This is no manifest.\n")
    (tmp_path / "other.yaml").write_text("This: neither.\n")
    return project


def test_the_hooks_pass_an_artifact_and_a_manifest_that_hold(project: Project) -> None:
    done = project.pre_commit()
    assert done.returncode == 0, done.stdout + done.stderr
    for id_ in ("pte-verify", "pte-check"):
        assert re.search(rf"\.Passed\n- hook id: {id_}\n", done.stdout)
    assert "tiny model.pte" in done.stdout
    assert "ok  smollm2-135m  manifests/smollm2-135m.yaml\n" in done.stdout


def test_the_hooks_fail_with_what_they_found(project: Project) -> None:
    good = project.directory / "tiny model.pte"
    (project.directory / "bad.pte").write_bytes(good.read_bytes().replace(b"get_windows", b"got_windows"))
    manifest = project.directory / "manifests" / "smollm2-135m.yaml"
    manifest.write_text(MANIFEST.replace("backend:", "backnd:"))
    done = project.pre_commit()
    assert done.returncode == 1
    assert re.search(r"\.Failed\n- hook id: pte-verify\n(- .*\n)*- exit code: 1\n", done.stdout)
    assert FINDING in done.stdout
    assert re.search(r"\.Failed\n- hook id: pte-check\n(- .*\n)*- exit code: 1\n", done.stdout)
    assert "unknown field 'backnd'. Did you mean 'backend'?" in done.stdout


def test_the_hooks_run_in_an_environment_without_torch(project: Project) -> None:
    assert project.pre_commit().returncode == 0
    (package,) = Path(project.environment["PRE_COMMIT_HOME"]).glob("*/py_env-*/lib/*/site-packages/pipeline")
    assert (package.parent / "jsonschema").is_dir()
    assert not (package.parent / "torch").exists()


def test_the_hooks_skip_a_project_without_artifacts_and_manifests(project: Project) -> None:
    (project.directory / "tiny model.pte").unlink()
    (project.directory / "manifests" / "smollm2-135m.yaml").unlink()
    done = project.pre_commit()
    assert done.returncode == 0
    assert done.stdout.count("(no files to check)Skipped\n") == 2


def test_pre_commit_accepts_the_hooks_and_the_example(tmp_path: Path) -> None:
    accepted("pre-commit", "validate-manifest", ".pre-commit-hooks.yaml")
    accepted("pre-commit", "validate-config", str(example(".pre-commit-config.yaml", tmp_path)))


def example(name: str, directory: Path) -> Path:
    """The documentation's example as a file of its name."""
    path = directory / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(EXAMPLES[name])
    return path


# GitHub


@dataclass(frozen=True)
class Runner:
    """What a GitHub runner has: where it put the action, and a directory for the time of a job."""

    action: Path
    temp: Path

    def step(self, script: Mapping[str, Any], workspace: Path, inputs: Mapping[str, str]) -> Any:
        """Runs a step's script as ``shell: bash`` is documented to be run."""
        assert script["shell"] == "bash"
        declared = yaml.safe_load((self.action / "action.yml").read_text())["inputs"]
        assert set(inputs) <= set(declared)
        values = {f"inputs.{name}": one.get("default", "") for name, one in declared.items()}
        values |= {f"inputs.{name}": value for name, value in inputs.items()}
        values["steps.python.outputs.python-path"] = sys.executable
        environment = {
            name: values[re.fullmatch(r"\$\{\{ ([\w.-]+) \}\}", value)[1]]  # type: ignore[index]
            for name, value in script["env"].items()
        }
        environment |= {"GITHUB_ACTION_PATH": str(self.action), "RUNNER_TEMP": str(self.temp)}
        file = self.temp / "script.sh"
        file.write_text(script["run"])
        return shell(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(file)],
            cwd=workspace,
            env={**ELSEWHERE, "PYTHONPATH": str(workspace), **environment},
        )

    def verify(self, workspace: Path, **inputs: str) -> Any:
        """Runs the action, but for its installation, as a workflow that says ``with: inputs``."""
        named = {name.replace("_", "-"): value for name, value in inputs.items()}
        return self.step(self.steps()[-1], workspace, named)

    def steps(self) -> list[dict[str, Any]]:
        steps: list[dict[str, Any]] = yaml.safe_load((self.action / "action.yml").read_text())["runs"]["steps"]
        return steps


@pytest.fixture(scope="module")
def runner(source_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """On which the action's first steps have run."""
    runner = Runner(source_tree, tmp_path_factory.mktemp("runner temp"))
    setup, install, _ = runner.steps()
    assert setup["uses"].startswith("actions/setup-python@")
    done = runner.step(install, with_modules_of_its_own(tmp_path_factory.mktemp("workspace")), {})
    assert done.returncode == 0, done.stderr
    return runner


def test_the_action_passes_files_that_hold_one_a_line_or_by_a_pattern(runner: Runner, workspace: Path) -> None:
    (workspace / "build").mkdir()
    shutil.copy(workspace / "good one.pte", workspace / "build" / "another.pte")
    done = runner.verify(workspace, files="good one.pte\n\nbuild/*.pte\n", format="text")
    assert (done.returncode, done.stderr) == (0, "")
    assert "good one.pte" in done.stdout
    assert "build/another.pte" in done.stdout


def test_the_action_holds_files_to_each_contract_named(runner: Runner, workspace: Path) -> None:
    done = runner.verify(workspace, files="good one.pte", contract="run_llm_hf@2\nrun_llm_hf@1\n", format="text")
    assert done.returncode == 0
    assert re.search(r"held to run_llm_hf@[12], run_llm_hf@[12]\n", done.stdout)


def test_the_action_annotates_what_it_found_and_fails(runner: Runner, workspace: Path) -> None:
    done = runner.verify(workspace, files="bad.pte\ngood one.pte")
    assert done.returncode == 1
    assert "ok  good one.pte" in done.stdout
    assert done.stdout.count(ANNOTATION) == 1
    assert FINDING in done.stdout.partition(ANNOTATION)[2]


def test_the_action_writes_sarif_beside_the_annotations(runner: Runner, workspace: Path) -> None:
    done = runner.verify(workspace, files="bad.pte", sarif="the results.sarif")
    assert done.returncode == 1
    assert ANNOTATION in done.stdout
    (run,) = json.loads((workspace / "the results.sarif").read_text())["runs"]
    assert any(FINDING in result["message"]["text"] for result in run["results"])


def test_the_action_fails_where_sarif_cannot_be_written(runner: Runner, workspace: Path) -> None:
    done = runner.verify(workspace, files="good one.pte", sarif="absent/results.sarif")
    assert done.returncode == 1
    assert done.stderr.startswith("absent/results.sarif: No such file or directory; ")


def test_the_action_tells_an_unreadable_file_from_a_mistake_of_the_workflow(runner: Runner, workspace: Path) -> None:
    assert runner.verify(workspace, files="absent.pte").returncode == 3
    for mistake in ({"files": ""}, {"files": "good one.pte", "fail_on": "never mind", "sarif": "results.sarif"}):
        assert runner.verify(workspace, **mistake).returncode == 2
    assert not (workspace / "results.sarif").exists()


@pytest.mark.parametrize("value", [HOSTILE, "--help"])
@pytest.mark.parametrize("name", ["files", "contract", "manifest", "tokenizer", "fail_on", "format", "sarif"])
def test_an_input_of_the_action_is_never_run_nor_taken_for_an_option(
    name: str, value: str, runner: Runner, workspace: Path
) -> None:
    done = runner.verify(workspace, **{"files": "good one.pte", name: value})
    assert not (workspace / "hacked").exists()
    assert "usage: pte verify [-h]" not in done.stdout
    if name == "sarif":
        assert done.returncode == 0
        assert json.loads((workspace / value).read_text())["version"] == "2.1.0"
    else:
        assert done.returncode in (1, 2, 3)


def test_the_action_and_its_example_are_what_github_takes(tmp_path: Path) -> None:
    workflow = example(".github/workflows/artifacts.yml", tmp_path)
    accepted("check-jsonschema", "--builtin-schema", "vendor.github-actions", "action.yml")
    accepted("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow))
    (given,) = (
        step["with"]
        for step in yaml.safe_load(workflow.read_text())["jobs"]["verify"]["steps"]
        if "OWNER" in step["uses"]
    )
    assert set(given) <= set(yaml.safe_load((ROOT / "action.yml").read_text())["inputs"])


def test_an_audit_of_the_action_and_the_hooks_has_no_findings() -> None:
    """zizmor's audits: templates in scripts, actions that are not pinned, credentials left behind and the like."""
    files = ("action.yml", ".pre-commit-hooks.yaml")
    assert json.loads(accepted("zizmor", "--offline", "--persona=auditor", "--format=json", *files)) == []


# GitLab


def job(script: str, workspace: Path, interpreter: tuple[str, ...], **given: str) -> Any:
    """Runs part of the job's script as a runner does, with the variables of a job that extends it."""
    variables = {**yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".pte-verify"]["variables"], **given}
    file = workspace.parent / "script.sh"
    file.write_text(script)
    environment = {**ELSEWHERE, "PYTHONPATH": str(workspace), **variables}
    return shell([*interpreter, str(file)], cwd=workspace, env=environment)


BASH, SH = ("bash", "-eo", "pipefail"), ("sh", "-e")
INSTALL, VERIFY = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".pte-verify"]["script"]


@pytest.fixture(scope="module")
def verify(runner: Runner) -> str:
    """The job's script, but for its installation."""
    return f"venv={shlex.quote(str(runner.temp / 'pte-pipeline'))}\n{VERIFY}"


def failed_tests(report: Path) -> str:
    return "".join("".join(one.itertext()) + str(one.attrib) for one in ElementTree.parse(report).iter("failure"))


def test_the_job_installs_and_reports_what_it_found(distributions: Distributions, workspace: Path) -> None:
    (workspace / "$(touch hacked) here").mkdir()
    wheel = shutil.copy(distributions.wheel, workspace / "$(touch hacked) here")
    files = {"PTE_PIPELINE": str(wheel), "PTE_FILES": "bad.pte\ngood one.pte\n"}
    done = job(f"{INSTALL}\n{VERIFY}", workspace, BASH, **files)
    assert done.returncode == 1
    assert FINDING in done.stdout + done.stderr
    assert FINDING in failed_tests(workspace / "pte-verify.xml")
    assert not (workspace / "hacked").exists()


@pytest.mark.parametrize("interpreter", [BASH, SH])
def test_the_job_passes_files_that_hold(interpreter: tuple[str, ...], verify: str, workspace: Path) -> None:
    files = {"PTE_FILES": "good*.pte\n", "PTE_CONTRACT": "run_llm_hf@2\nrun_llm_hf@1\n"}
    done = job(verify, workspace, interpreter, **files)
    assert (done.returncode, done.stderr) == (0, "")
    assert "good one.pte" in done.stdout
    assert re.search(r"held to run_llm_hf@[12], run_llm_hf@[12]\n", done.stdout)
    assert failed_tests(workspace / "pte-verify.xml") == ""


def test_a_job_that_does_not_say_what_to_install_is_told_so(workspace: Path) -> None:
    done = job(INSTALL, workspace, SH)
    assert done.returncode != 0
    assert "PTE_PIPELINE: is what pip installs, such as the address of an archive of pte-pipeline" in done.stderr


@pytest.mark.parametrize("interpreter", [BASH, SH])
@pytest.mark.parametrize("value", [HOSTILE, "--help"])
@pytest.mark.parametrize("name", ["PTE_FILES", "PTE_CONTRACT", "PTE_MANIFEST", "PTE_TOKENIZER", "PTE_FAIL_ON"])
def test_a_variable_of_the_job_is_never_run_nor_taken_for_an_option(
    name: str, value: str, interpreter: tuple[str, ...], verify: str, workspace: Path
) -> None:
    done = job(verify, workspace, interpreter, **{"PTE_FILES": "good one.pte", name: value})
    assert done.returncode in (1, 2, 3)
    assert not (workspace / "hacked").exists()
    assert "usage: pte verify [-h]" not in done.stdout


def test_the_job_and_its_example_are_what_gitlab_takes(tmp_path: Path) -> None:
    theirs = example(".gitlab-ci.yml", tmp_path)
    accepted("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "ci/gitlab.yml", str(theirs))
    variables = yaml.safe_load((ROOT / "ci" / "gitlab.yml").read_text())[".pte-verify"]["variables"]
    assert set(yaml.safe_load(theirs.read_text())["verify-artifacts"]["variables"]) <= set(variables)
