"""Where plans meet the store: what is current, and how a step is run.

Knows the layout of ``artifacts/``; does not know doit.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline import plan, surroundings
from pipeline.errors import FetchError, PipelineError, StepError
from pipeline.plan import BUILD, BUNDLE, FETCH, QUANTIZE, SMOKE, VERIFY, Step
from pipeline.snapshot import is_tokenizer_file
from pipeline.spec import BuildSpec
from pipeline.steps import build, bundle, quantize, smoke, verify
from pipeline.steps.process import run_step
from pipeline.store import Object, Receipt, Store
from pipeline.store.digests import DigestMemo

SNAPSHOT = "snapshot"


class Workspace:
    """The directory that holds objects, receipts, logs and bundles, and the steps that fill it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = Store(root)
        self._current: dict[Step, Receipt] = {}
        self._around = surroundings.of_this_machine(DigestMemo(root / "digests.json"))

    def receipt(self, step: Step) -> Receipt | None:
        """The receipt that makes the step current; None when it, or a step before it, has to run."""
        receipt = self._current.get(step)
        if receipt is None:
            asked = self._asked(step)
            if asked is None:
                return None
            receipt = self.store.receipt(step.name, plan.key_of(asked))
            if receipt is None or (step.name == BUNDLE and not self._laid_out(step, receipt)):
                return None
            self._current[step] = receipt
        return receipt

    def run(self, step: Step, stage: Callable[[str], None]) -> None:
        """Runs the step and records its receipt. Steps before it must be current.

        Raises a PipelineError of the step's own kind; nothing half-made is left then.
        """
        asked = self._asked(step)
        if asked is None:
            raise StepError(f"{step.title}: a step before it is not finished. Run doit {step.title}.")
        try:
            self._finish(step, asked, stage)
        except OSError as error:
            raise StepError(
                f"{step.title}: {error.filename or self.root}: {error.strerror or error}. Nothing half-made was kept; "
                "run doit again when it is mended."
            ) from error

    def summary(self, step: Step) -> list[str]:
        """What a person wants to hear once the step is done."""
        receipt = self.receipt(step)
        if receipt is None:
            return []
        if step.name == QUANTIZE:
            return quantize.summary(self._report(receipt, quantize.REPORT))
        if step.name == BUILD:
            return [f"  note: {note}" for note in self._report(receipt, build.REPORT)["notes"]]
        if step.name == VERIFY:
            return verify.summary(self._report(receipt, verify.METADATA))
        if step.name == SMOKE:
            return smoke.summary(self._report(receipt, smoke.REPORT))
        if step.name == BUNDLE:
            return [f"  {self.bundle_path(step)}"]
        return []

    def bundle_path(self, step: Step) -> Path:
        """Where the step's manifest has its bundle."""
        return self.root / "bundles" / step.manifest.name

    def _report(self, receipt: Receipt, name: str) -> Any:
        return json.loads(self.store.path(Object(**receipt.outputs[name])).read_bytes())

    def _finish(self, step: Step, asked: dict[str, Any], stage: Callable[[str], None]) -> None:
        """The work, then its outputs in the store, then the receipt: in that order, whenever it is killed."""
        began = time.monotonic()
        with self.store.scratch() as scratch:
            given, out = scratch / "in", scratch / "out"
            given.mkdir()
            out.mkdir()
            if step.name == BUNDLE:
                outputs = self._bundle(step, asked, out)
            else:
                self.store.lay_out(self._inputs(step) or {}, given)
                self._work(step, given, out, stage)
                self._check_unchanged(step, asked)
                outputs = self.store.put_tree(out)
        receipt = Receipt(
            step=step.name,
            key=plan.key_of(asked),
            asked=asked,
            outputs={name: {"sha256": item.sha256, "size_bytes": item.size_bytes} for name, item in outputs.items()},
            seconds=round(time.monotonic() - began, 3),
        )
        self.store.record(receipt)
        if step.name == BUNDLE:
            self._publish_bundle(step, outputs)

    def _work(self, step: Step, given: Path, out: Path, stage: Callable[[str], None]) -> None:
        log = self.root / "logs" / f"{step.manifest.name}.{step.name}.log"
        artifact, snapshot = given / "model.pte", given / SNAPSHOT
        quantized = given / quantize.WEIGHTS if QUANTIZE in step.needs else None
        arguments: dict[str, dict[str, Any]] = {
            FETCH: {},
            QUANTIZE: {"snapshot": snapshot},
            BUILD: {"snapshot": snapshot, "quantized": quantized},
            SMOKE: {"artifact": artifact, "snapshot": snapshot, "quantized": quantized},
        }
        try:
            if step.name == VERIFY:
                assert isinstance(step.spec, BuildSpec)
                stage("verifying")
                verify.run(step.spec, artifact, snapshot, out)
            else:
                run_step(step.name, {"spec": step.spec, "out": out, **arguments[step.name]}, log, stage)
        except PipelineError as error:
            # Inside the step files have scratch names; a person knows them by the step.
            message = str(error).replace(f"{artifact}", "model.pte").replace(f"{snapshot}", "the snapshot")
            raise type(error)(f"{step.title}: {message}") from error

    def _asked(self, step: Step) -> dict[str, Any] | None:
        inputs = self._inputs(step)
        if inputs is None:
            return None
        return plan.asked_of(step, {name: item.sha256 for name, item in inputs.items()}, self._around)

    def _inputs(self, step: Step) -> dict[str, Object] | None:
        """The objects the step is given, by name; None when a step before it is not current."""
        steps = plan.steps_of(step.manifest)
        inputs: dict[str, Object] = {}
        for need in step.needs:
            receipt = self.receipt(steps[need])
            if receipt is None:
                return None
            for name, item in receipt.outputs.items():
                if _is_given(step.name, need, name):
                    inside = need == FETCH and step.name != BUNDLE
                    inputs[f"{SNAPSHOT}/{name}" if inside else name] = Object(**item)
        return inputs

    def _check_unchanged(self, step: Step, asked: Mapping[str, Any]) -> None:
        """A local model may be edited while it is read; then the key speaks of other bytes than the output."""
        if step.name == FETCH and self._asked(step) != asked:
            raise FetchError(f"{step.title}: the model's files changed while they were read. Run doit again.")

    def _bundle(self, step: Step, asked: Mapping[str, Any], out: Path) -> dict[str, Object]:
        steps = plan.steps_of(step.manifest)
        history = {}
        for name in step.needs:
            receipt = self.receipt(steps[name])
            assert receipt is not None, "a bundle's inputs were current a moment ago"
            history[name] = {"key": receipt.key, "asked": receipt.asked, "outputs": receipt.outputs}
        bundle.run(asked, history, out)
        return {**(self._inputs(step) or {}), **self.store.put_tree(out)}

    def _publish_bundle(self, step: Step, outputs: Mapping[str, Object]) -> None:
        """Puts the finished directory in the old one's place. Killed in between, the next run does it again."""
        target = self.bundle_path(step)
        target.parent.mkdir(parents=True, exist_ok=True)
        with self.store.scratch() as scratch:
            self.store.lay_out(outputs, scratch / "new")
            with contextlib.suppress(FileNotFoundError):
                target.rename(scratch / "old")
            (scratch / "new").rename(target)

    def _laid_out(self, step: Step, receipt: Receipt) -> bool:
        """Whether the bundle's directory holds exactly what the receipt says."""
        directory = self.bundle_path(step)
        try:
            found = {entry.name for entry in os.scandir(directory)}
            return found == set(receipt.outputs) and all(
                _same(directory / name, self.store.path(Object(**item))) for name, item in receipt.outputs.items()
            )
        except OSError:
            return False


def _is_given(step: str, need: str, name: str) -> bool:
    """Whether a step is given a file of an earlier one's.

    A bundle is what a user ships, and verification holds the artifact to what ships beside it: no weights, which are in
    the ``.pte``, and of the model the tokenizer alone. Other steps have no use for reports: what is told of weights or
    an artifact changes nothing in them.
    """
    if step in (VERIFY, BUNDLE):
        return is_tokenizer_file(name) if need == FETCH else need != QUANTIZE or name == quantize.REPORT
    return name not in (quantize.REPORT, build.REPORT)


def _same(file: Path, stored: Path) -> bool:
    """Whether a bundle's file is its object by another name or, where links are impossible, an untouched copy of it."""
    mine, its = file.lstat(), stored.stat()
    if (mine.st_dev, mine.st_ino) == (its.st_dev, its.st_ino):
        return True
    return (mine.st_mode, mine.st_size, mine.st_mtime_ns) == (its.st_mode, its.st_size, its.st_mtime_ns)
