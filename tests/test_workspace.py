"""Where plans meet the store: what is current, what a step leaves, and what it leaves when it fails."""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline import plan
from pipeline.errors import FetchError, PteError, StepError, StoreError
from pipeline.manifest import Cache, Manifest, Model
from pipeline.plan import BUILD, BUNDLE, FETCH, QUANTIZE, STEPS, VERIFY, Step
from pipeline.spec import PathSource, Quantization, SmokePrompt, WeightFormat
from pipeline.store import Object, Receipt
from pipeline.workspace import Workspace

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]", "chat_template.jinja": b"x"}
LONG_AGO = 1_600_000_000 * 10**9


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
        os.utime(directory / name, ns=(LONG_AGO, LONG_AGO))
    return directory


@pytest.fixture
def steps(model: Path) -> dict[str, Step]:
    return plan.steps_of(
        Manifest(
            path=Path("manifests/tiny.yaml"),
            version=1,
            name="tiny",
            model=Model(id="org/tiny", source=PathSource(path=model)),
            dtype="fp32",
            quantization=Quantization(linear=WeightFormat(scheme="4w", group_size=32)),
            max_seq_len=8,
            max_context_len=64,
            cache=Cache(),
            backend="mlx",
            logits="last",
            smoke=(SmokePrompt(name="capital", user="What is the capital of France?", expect="Paris"),),
        )
    )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def run(root: Path, step: Step) -> Workspace:
    workspace = Workspace(root)
    workspace.run(step, lambda stage: None)
    return workspace


def pretend(root: Path, step: Step, outputs: dict[str, bytes]) -> None:
    """Records the step as finished with these outputs, as another machine's run could have."""
    workspace = Workspace(root)
    asked = workspace._asked(step)
    assert asked is not None
    with workspace.store.scratch() as scratch:
        for name, content in outputs.items():
            (scratch / name).write_bytes(content)
        items = workspace.store.put_tree(scratch)
    workspace.store.record(
        Receipt(
            step=step.name,
            key=plan.key_of(asked),
            asked=asked,
            outputs={name: {"sha256": item.sha256, "size_bytes": item.size_bytes} for name, item in items.items()},
            seconds=1.0,
        )
    )


MADE = {
    "quantize": {"quantized.safetensors": b"small weights", "quantization.json": b'{"layers": []}'},
    "build": {"model.pte": b"pte", "report.json": b'{"notes": ["padded"]}'},
    "verify": {
        "metadata.json": json.dumps(
            {
                "findings": [
                    {"rule": "PTE106", "severity": "warning", "message": "It is odd."},
                    {"rule": "PTE504", "severity": "note", "message": "It is padded."},
                ]
            }
        ).encode()
    },
    "smoke": {"smoke.json": b'{"prompts": []}'},
}


@pytest.fixture
def bundled(root: Path, steps: dict[str, Step]) -> Workspace:
    """A workspace with everything current, the heavy steps' outputs being made up."""
    run(root, steps[FETCH])
    for name, outputs in MADE.items():
        pretend(root, steps[name], outputs)
    return run(root, steps[BUNDLE])


def current(root: Path, steps: dict[str, Step]) -> set[str]:
    """What a new process finds current."""
    workspace = Workspace(root)
    return {name for name in STEPS if workspace.receipt(steps[name]) is not None}


def test_nothing_is_current_at_first_and_asking_creates_nothing(root: Path, steps: dict[str, Step]) -> None:
    assert current(root, steps) == set()
    assert not (root / "objects").exists()
    assert not (root / "scratch").exists()


def test_a_step_that_ran_is_current_in_every_later_process(root: Path, steps: dict[str, Step]) -> None:
    workspace = run(root, steps[FETCH])
    assert current(root, steps) == {FETCH}
    receipt = workspace.receipt(steps[FETCH])
    assert receipt is not None
    assert set(receipt.outputs) == set(FILES)
    assert receipt.key == plan.key_of(receipt.asked)
    assert list((root / "scratch").iterdir()) == []


def test_a_step_is_refused_while_those_before_it_are_not_finished(root: Path, steps: dict[str, Step]) -> None:
    with pytest.raises(StepError) as caught:
        run(root, steps[BUILD])
    assert str(caught.value) == "build:tiny: a step before it is not finished. Run doit build:tiny."


def test_verification_is_given_the_artifact_the_report_and_the_tokenizer_alone(
    bundled: Workspace, steps: dict[str, Step]
) -> None:
    """The weights are in the artifact; laying them out again would take space for nothing."""
    assert set(bundled._inputs(steps[VERIFY]) or ()) == {
        "model.pte",
        "report.json",
        "snapshot/chat_template.jinja",
        "snapshot/tokenizer.json",
    }


def test_what_verification_warns_of_is_told_when_it_is_done(bundled: Workspace, steps: dict[str, Step]) -> None:
    assert bundled.summary(steps[VERIFY]) == ["  warning: PTE106 It is odd."]


def test_what_a_build_noted_is_told_when_it_is_done(bundled: Workspace, steps: dict[str, Step]) -> None:
    assert bundled.summary(steps[BUILD]) == ["  note: padded"]


def test_an_edited_model_makes_its_steps_stale_and_an_edit_undone_makes_them_current(
    root: Path, steps: dict[str, Step], bundled: Workspace, model: Path
) -> None:
    (model / "model.safetensors").write_bytes(b"WEIGHTS")
    assert current(root, steps) == set()
    (model / "model.safetensors").write_bytes(b"weights")
    assert current(root, steps) == set(STEPS)


def test_a_file_that_does_not_belong_to_the_model_makes_nothing_stale(
    root: Path, steps: dict[str, Step], bundled: Workspace, model: Path
) -> None:
    (model / "README.md").write_text("hello")
    assert current(root, steps) == set(STEPS)


def edit(file: Path) -> None:
    file.write_bytes(b"[]")


def test_a_model_edited_while_it_is_read_is_refused_and_not_kept(
    root: Path, steps: dict[str, Step], model: Path
) -> None:
    with pytest.raises(FetchError) as caught:
        Workspace(root).run(steps[FETCH], lambda stage: edit(model / "config.json"))
    assert str(caught.value) == "fetch:tiny: the model's files changed while they were read. Run doit again."
    assert current(root, steps) == set()
    assert not (root / "receipts").exists()
    run(root, steps[FETCH])
    assert current(root, steps) == {FETCH}


def test_a_model_that_is_gone_is_a_sentence_with_the_log(root: Path, steps: dict[str, Step], model: Path) -> None:
    model.rename(model.with_name("elsewhere"))
    with pytest.raises(FetchError) as caught:
        run(root, steps[FETCH])
    assert str(caught.value) == f"{model}: model.source.path does not exist; expected a directory or a .gguf file."


def test_a_step_that_cannot_read_its_input_names_it_by_the_step(root: Path, steps: dict[str, Step]) -> None:
    run(root, steps[FETCH])
    pretend(root, steps[QUANTIZE], MADE["quantize"])
    pretend(root, steps[BUILD], {"model.pte": b"no pte at all"})
    with pytest.raises(PteError) as caught:
        run(root, steps[VERIFY])
    assert str(caught.value).startswith("verify:tiny: model.pte: ")
    assert "scratch" not in str(caught.value)
    assert VERIFY not in current(root, steps)


def test_a_bundle_holds_what_a_user_ships_and_nothing_else(bundled: Workspace, steps: dict[str, Step]) -> None:
    directory = bundled.bundle_path(steps[BUNDLE])
    found = {file.name: file.read_bytes() for file in directory.iterdir()}
    reports = {"metadata.json", "quantization.json", "report.json", "smoke.json", "build.json"}
    assert set(found) == {"model.pte", "tokenizer.json", "chat_template.jinja"} | reports
    assert found["model.pte"] == b"pte"
    assert found["tokenizer.json"] == FILES["tokenizer.json"]
    assert all(file.stat().st_mode & 0o222 == 0 for file in directory.iterdir())


def edit_in_place(file: Path) -> None:
    file.chmod(0o644)
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    file.chmod(0o444)
    os.utime(file, ns=(time.time_ns(), time.time_ns() + 10**9))


def swap(file: Path) -> None:
    """As most editors save: a new file of the same size and mode takes the old one's name."""
    new = file.with_name("new")
    new.write_bytes(bytes(file.stat().st_size))
    new.chmod(file.stat().st_mode)
    new.replace(file)


def misplace(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


HARM = {
    "deleted": lambda bundle: (bundle / "tokenizer.json").unlink(),
    "replaced": lambda bundle: swap(bundle / "tokenizer.json"),
    "a link to nowhere": lambda bundle: misplace(bundle / "tokenizer.json"),
    "added": lambda bundle: (bundle / "notes.txt").write_text("mine"),
    "renamed": lambda bundle: (bundle / "tokenizer.json").rename(bundle / "tokens.json"),
    "a directory in its place": lambda bundle: ((bundle / "build.json").unlink(), (bundle / "build.json").mkdir()),
    "moved away": lambda bundle: bundle.rename(bundle.with_name("mine")),
    "a file in its place": lambda bundle: (bundle.rename(bundle.with_name("mine")), bundle.write_text("x")),
}


@pytest.mark.parametrize("harm", HARM)
def test_a_harmed_bundle_is_put_right_and_nothing_else_runs(
    harm: str, root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    directory = bundled.bundle_path(steps[BUNDLE])
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    HARM[harm](directory)  # type: ignore[no-untyped-call]
    assert current(root, steps) == set(STEPS) - {BUNDLE}
    run(root, steps[BUNDLE])
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before
    assert current(root, steps) == set(STEPS)


@pytest.mark.parametrize(
    ("file", "made_again"), [("build.json", {BUNDLE}), ("model.pte", {"build", "verify", "smoke", BUNDLE})]
)
def test_an_edit_that_went_through_to_the_object_makes_it_again(
    file: str, made_again: set[str], root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    # A bundle's file is its object by another name, and root may write to what is read-only.
    edit_in_place(bundled.bundle_path(steps[BUNDLE]) / file)
    assert current(root, steps) == set(STEPS) - made_again


def test_a_step_made_again_with_the_same_bytes_makes_nothing_after_it_again(
    root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    receipt = bundled.receipt(steps[BUILD])
    assert receipt is not None
    bundled.store.path(Object(**receipt.outputs["model.pte"])).unlink()
    # Unknown until it is there again, and then as before.
    assert current(root, steps) == {FETCH, QUANTIZE}
    pretend(root, steps[BUILD], MADE["build"])
    assert current(root, steps) >= set(STEPS) - {BUNDLE}


def test_what_is_told_of_an_artifact_goes_to_verification_and_into_the_bundle_and_nowhere_else(
    root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    pretend(root, steps[BUILD], {"model.pte": b"pte", "report.json": b'{"notes": []}'})
    assert current(root, steps) == set(STEPS) - {VERIFY, BUNDLE}
    pretend(root, steps[VERIFY], MADE["verify"])
    run(root, steps[BUNDLE])
    assert (bundled.bundle_path(steps[BUNDLE]) / "report.json").read_bytes() == b'{"notes": []}'


def test_a_corrupted_input_is_refused_dropped_and_made_again(
    root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    receipt = bundled.receipt(steps[BUILD])
    assert receipt is not None
    file = bundled.store.path(Object(**receipt.outputs["model.pte"]))
    dates = file.stat().st_atime_ns, file.stat().st_mtime_ns
    edit_in_place(file)
    os.utime(file, ns=dates)
    with pytest.raises(StoreError, match=r"hash to .* The object was dropped; run doit to rebuild it\."):
        run(root, steps[VERIFY])
    assert current(root, steps) == {FETCH, QUANTIZE}


def test_where_links_are_impossible_a_bundle_of_copies_is_current(
    root: Path, steps: dict[str, Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("links are not supported here")

    monkeypatch.setattr(os, "link", refuse)
    run(root, steps[FETCH])
    for name, outputs in MADE.items():
        pretend(root, steps[name], outputs)
    directory = run(root, steps[BUNDLE]).bundle_path(steps[BUNDLE])
    assert current(root, steps) == set(STEPS)
    swap(directory / "model.pte")
    assert current(root, steps) == set(STEPS) - {BUNDLE}


def test_a_renamed_manifest_has_a_bundle_of_its_own_and_shares_all_else(
    root: Path, steps: dict[str, Step], bundled: Workspace
) -> None:
    other = plan.steps_of(replace(steps[BUNDLE].manifest, name="other"))
    assert current(root, other) == set(STEPS) - {BUNDLE}
    run(root, other[BUNDLE])
    assert current(root, other) == current(root, steps) == set(STEPS)


def test_a_failed_bundle_leaves_the_last_good_one(root: Path, steps: dict[str, Step], bundled: Workspace) -> None:
    directory = bundled.bundle_path(steps[BUNDLE])
    before = {file.name: file.read_bytes() for file in directory.iterdir()}
    other = plan.steps_of(replace(steps[BUNDLE].manifest, model=replace(steps[BUNDLE].manifest.model, id="org/other")))
    with limited(size_bytes=16), pytest.raises(StepError):
        run(root, other[BUNDLE])
    assert {file.name: file.read_bytes() for file in directory.iterdir()} == before


@contextmanager
def limited(size_bytes: int) -> Iterator[None]:
    """No file may grow beyond the size: what a full disk does, where tests run as root too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("size_bytes", [0, 3, 100, 400])
def test_a_full_disk_is_a_sentence_at_whatever_point_it_is_full(
    size_bytes: int, root: Path, steps: dict[str, Step]
) -> None:
    with limited(size_bytes), pytest.raises(StepError) as caught:
        run(root, steps[FETCH])
    assert "File too large" in str(caught.value)
    assert current(root, steps) == set()
    run(root, steps[FETCH])
    assert current(root, steps) == {FETCH}


@pytest.mark.parametrize("name", ["", "scratch", "logs", "objects", "receipts"])
def test_a_file_where_a_directory_should_be_is_a_sentence(name: str, root: Path, steps: dict[str, Step]) -> None:
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("in the way")
    with pytest.raises(StepError) as caught:
        run(root, steps[FETCH])
    text = str(caught.value)
    assert text.startswith(f"fetch:tiny: {root / name}")
    assert text.endswith("Nothing half-made was kept; run doit again when it is mended.")
    assert current(root, steps) == set()
