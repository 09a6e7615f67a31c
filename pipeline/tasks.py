"""Steps become doit tasks. The only module that knows doit.

Whether a task is up to date is asked of the store alone; doit keeps no database (``pyproject.toml``). Which manifests
there are tasks for is doit's own kind of variable: ``doit manifests=PATH``, a directory or one file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from doit import get_var
from doit.exceptions import InvalidDodoFile, TaskFailed

from pipeline import manifest, plan
from pipeline.errors import PipelineError
from pipeline.plan import BUNDLE, Step
from pipeline.progress import Progress
from pipeline.workspace import Workspace

INTERRUPTED = 130
"""The shells' exit code of a command that Ctrl-C ended."""

MANIFESTS = Path("manifests")
ARTIFACTS = Path("artifacts")

DOIT_CONFIG = {"default_tasks": [BUNDLE]}


def task_fetch() -> Iterator[dict[str, Any]]:
    """bring the model here: configuration, weights, tokenizer"""
    return _tasks(plan.FETCH)


def task_quantize() -> Iterator[dict[str, Any]]:
    """choose the quantized weights, where the manifest asks for them"""
    return _tasks(plan.QUANTIZE)


def task_build() -> Iterator[dict[str, Any]]:
    """export the model, lower it and write model.pte"""
    return _tasks(plan.BUILD)


def task_verify() -> Iterator[dict[str, Any]]:
    """check what model.pte publishes against schema, manifest and graph"""
    return _tasks(plan.VERIFY)


def task_smoke() -> Iterator[dict[str, Any]]:
    """decode model.pte and compare it with its own model"""
    return _tasks(plan.SMOKE)


def task_bundle() -> Iterator[dict[str, Any]]:
    """put together what a user ships, in artifacts/bundles/"""
    return _tasks(plan.BUNDLE)


def _tasks(name: str) -> Iterator[dict[str, Any]]:
    for item in _manifests():
        step = plan.steps_of(item).get(name)
        if step is not None:
            yield {
                "name": item.name,
                "doc": f"{name} {item.model.id}",
                "actions": [(_run, [step])],
                "uptodate": [(_is_current, [step])],
                "task_dep": [f"{need}:{item.name}" for need in step.needs],
                "verbosity": 2,
            }


def _run(step: Step) -> TaskFailed | None:
    try:
        with Progress(step.title) as progress:
            _workspace().run(step, progress.stage)
        for line in _workspace().summary(step):
            progress.say(line)
    except PipelineError as error:
        sys.stderr.write(f"\n{error}\n")
        return TaskFailed(str(error), report=False)
    except KeyboardInterrupt:
        # doit would print where in the code it was; what is finished is in the store, so there is nothing to tell.
        raise SystemExit(INTERRUPTED) from None
    return None


def _is_current(step: Step) -> bool:
    try:
        return _workspace().receipt(step) is not None
    except PipelineError:
        # Running the step says what is wrong, in its own words.
        return False


@cache
def _workspace() -> Workspace:
    return Workspace(ARTIFACTS)


@cache
def _manifests() -> tuple[manifest.Manifest, ...]:
    # None, not the default, where dodo.py is imported by something else than doit.
    chosen = Path(get_var("manifests") or MANIFESTS)
    try:
        manifests = (manifest.load(chosen),) if chosen.is_file() else manifest.load_all(chosen)
    except PipelineError as error:
        raise InvalidDodoFile(f"\n{error}") from error
    if not manifests:
        raise InvalidDodoFile(f"{chosen}/ holds no manifest; expected at least one .yaml. The README shows one.")
    return manifests
