"""A right artifact passes, and whatever makes it another model than its snapshot's is found and told."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from pipeline.delegate.ops import OPERATORS
from pipeline.errors import CacheError, DelegateError, SmokeError
from pipeline.pte import PteFile
from pipeline.spec import SmokePrompt, SmokeSpec
from pipeline.steps import smoke
from pipeline.steps.smoke import Answer, Feeding, distances
from tests.tiny_models import ARTIFACTS, VOCAB_SIZE, Artifact, edit_json, save_tokenizer, words_only

Artifacts = Callable[[str], Artifact]

PROMPT = SmokePrompt(name="greeting", user="hello there", expect="", max_new_tokens=12)
SPEC = SmokeSpec(prompts=(PROMPT,))


def passed(pte: Path, snapshot: Path, out: Path, spec: SmokeSpec = SPEC) -> dict[str, Any]:
    out.mkdir(exist_ok=True)
    smoke.run(spec, pte, snapshot, out, lambda stage: None)
    (report,) = out.iterdir()
    assert report.name == "smoke.json"
    content: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return content


def failure(pte: Path, snapshot: Path, out: Path, spec: SmokeSpec = SPEC, kind: type[Exception] = SmokeError) -> str:
    out.mkdir()
    with pytest.raises(kind) as caught:
        smoke.run(spec, pte, snapshot, out, lambda stage: None)
    assert not list(out.iterdir()), "a failed smoke left a report"
    return str(caught.value)


def doctored(made: Artifact, path: Path, change: Callable[[PteFile], object]) -> Path:
    """A copy of the artifact with bytes written through the reader's views of it."""
    data = bytearray(made.pte.read_bytes())
    with PteFile.from_bytes(data, "model.pte") as pte:
        change(pte)
    assert data != made.pte.read_bytes()
    path.write_bytes(data)
    return path


def with_windows(*windows: int) -> Callable[[PteFile], None]:
    def change(pte: PteFile) -> None:
        (value,) = pte.program.methods["get_windows"].outputs
        np.frombuffer(value.data, np.int32)[:] = windows  # type: ignore[union-attr]

    return change


def with_weights(named: str, change: Callable[[np.ndarray], None]) -> Callable[[PteFile], None]:
    """``change`` is given the float32 elements of the one constant whose name ends so."""

    def apply(pte: PteFile) -> None:
        (name,) = (name for name in pte.named_data if name.endswith(named))
        change(np.frombuffer(pte.named_data[name], np.float32))

    return apply


@pytest.mark.parametrize("name", ARTIFACTS)
def test_a_right_artifact_passes_and_the_report_says_what_was_decoded(
    artifact: Artifacts, tmp_path: Path, name: str
) -> None:
    made = artifact(name)
    second = replace(PROMPT, name="name", user="Who are you?", max_new_tokens=5)
    report = passed(made.pte, made.snapshot, tmp_path, SmokeSpec(prompts=(PROMPT, second)))
    assert report["dtype"] == made.spec.dtype
    first, other = report["prompts"]
    assert (first["name"], other["name"]) == ("greeting", "name")
    assert (len(first["generated"]), len(other["generated"])) == (12, 5)
    assert first["prompt_tokens"] == len("user: hello there\nassistant:") + 1
    assert first["logits_rows"] > 12
    bound, rounding = report["tolerance"]["bound"], report["tolerance"]["model_rounding"]
    assert bound == (1e-4 if made.spec.dtype == "fp32" else 2 * rounding)
    assert 0 < first["logits_distance"] < bound
    if made.spec.dtype == "fp32":
        assert first["logits_distance"] < 1e-5
        assert first["near_ties"] == other["near_ties"] == []


@pytest.mark.parametrize(
    ("name", "num_rows"),
    [
        # 29 tokens and 12 decoded, in steps of 4: while they are decoded, fed again, and beyond a window of 8.
        ("mixed", (8 + 11) + 11 + (3 + 8)),
        ("full", (29 + 11) + 41 + (12 + 8)),
        ("selected", (8 + 11) + (6 * 4 - 3 + 5) + (4 + 1 + 4 + 8)),
    ],
)
def test_every_row_that_the_artifact_gives_is_compared(
    artifact: Artifacts, tmp_path: Path, name: str, num_rows: int
) -> None:
    made = artifact(name)
    (told,) = passed(made.pte, made.snapshot, tmp_path)["prompts"]
    assert told["logits_rows"] == num_rows


def test_a_row_before_the_last_that_is_wrong_fails(
    artifact: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Full logits of which a runner that samples the last row would notice nothing."""
    multiply = mx.matmul

    def wrong_in_the_second_row(a: Any, b: Any) -> Any:
        product = multiply(a, b)
        if product.shape[-1] == VOCAB_SIZE and product.shape[1] > 1:
            product[:, 1] *= mx.arange(VOCAB_SIZE)
        return product

    monkeypatch.setattr(mx, "matmul", wrong_in_the_second_row)
    made = artifact("full")
    assert place_of(failure(made.pte, made.snapshot, tmp_path / "out"))[0] == 1


def test_a_selector_that_is_not_obeyed_is_found_though_the_last_row_is_right(
    artifact: Artifacts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = OPERATORS["TakeNode"]

    def last_rows(x: Any, index: Any, axis: int) -> Any:
        return take(x, index, axis) if x.ndim == 2 else x[:, -index.shape[0] :]

    monkeypatch.setitem(OPERATORS, "TakeNode", last_rows)
    made = artifact("selected")
    assert place_of(failure(made.pte, made.snapshot, tmp_path / "out"))[0] == 0


def test_two_runs_write_the_same_report(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("mixed")
    assert passed(made.pte, made.snapshot, tmp_path / "a") == passed(made.pte, made.snapshot, tmp_path / "b")


def test_the_expected_text_is_looked_for_in_the_answer(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    (told,) = passed(made.pte, made.snapshot, tmp_path / "first")["prompts"]
    right = replace(PROMPT, expect=told["text"][2:5])
    assert passed(made.pte, made.snapshot, tmp_path / "right", SmokeSpec(prompts=(right,)))
    wrong = replace(PROMPT, expect="Paris")
    assert failure(made.pte, made.snapshot, tmp_path / "wrong", SmokeSpec(prompts=(wrong,))) == (
        f"smoke 'greeting': decoded {told['text']!r}; expected it to contain 'Paris'. The artifact computes what its "
        "model computes: the model answers so, or max_new_tokens is too small."
    )


def test_a_prompt_without_a_chat_template_is_plain_text(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    save_tokenizer(snapshot, chat_template=None)
    (snapshot / "chat_template.jinja").unlink(missing_ok=True)
    (told,) = passed(made.pte, snapshot, tmp_path / "out")["prompts"]
    assert told["prompt_tokens"] == len("hello there")


DIFFER = re.compile(
    r"smoke 'greeting': decoded .*; logits first differ from the model's own at token (\d+): (\S+) apart "
    r"\(relative\); expected at most 0\.0001\. The artifact does not compute its model\."
)


def place_of(message: str) -> tuple[int, float]:
    """After which token, and how far apart."""
    found = DIFFER.fullmatch(message)
    assert found is not None, message
    return int(found[1]), float(found[2])


HISTORY: dict[str, tuple[str, tuple[int, ...]]] = {
    "all history is lost": ("llama", (1, 1)),
    "history is lost in one layer": ("llama", (0, 1)),
    "old history is lost": ("llama", (20, 20)),
    "the window is one too narrow": ("sliding", (7, 7)),
    "the window is one too wide": ("sliding", (9, 9)),
    "the window is far too wide": ("sliding", (50, 50)),
    "the window is not there": ("sliding", (0, 0)),
    "one layer's window is not there": ("sliding", (0, 8)),
    "windows are swapped": ("mixed", (8, 0)),
    "the flat layer slides": ("mixed", (8, 8)),
    "the sliding layer is flat": ("mixed", (0, 0)),
    "the sliding layer is one too wide": ("mixed", (0, 9)),
}


@pytest.mark.parametrize("case", HISTORY)
def test_an_artifact_with_another_history_than_its_models_fails(artifact: Artifacts, tmp_path: Path, case: str) -> None:
    name, windows = HISTORY[case]
    made = artifact(name)
    pte = doctored(made, tmp_path / "model.pte", with_windows(*windows))
    _, apart = place_of(failure(pte, made.snapshot, tmp_path / "out"))
    assert apart > 1e-3


def test_a_missing_window_is_found_though_the_prompts_are_shorter(artifact: Artifacts, tmp_path: Path) -> None:
    """The longer text that finds it is asked for by the model's configuration, not by the artifact."""
    made = artifact("sliding")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    save_tokenizer(snapshot, chat_template=None)
    (snapshot / "chat_template.jinja").unlink(missing_ok=True)
    short = SmokeSpec(prompts=(SmokePrompt(name="greeting", user="hi", expect="", max_new_tokens=4),))
    assert passed(made.pte, snapshot, tmp_path / "right", short)
    pte = doctored(made, tmp_path / "model.pte", with_windows(0, 0))
    token, _ = place_of(failure(pte, snapshot, tmp_path / "out", short))
    assert token >= 8


@pytest.mark.parametrize(("window", "fed"), [(63, True), (64, False)])
def test_a_declared_window_that_no_text_outgrows_asks_for_no_longer_text(
    artifact: Artifacts, tmp_path: Path, window: int, fed: bool
) -> None:
    made = artifact("llama")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    edit_json(snapshot / "config.json", sliding_window=window)
    (plain,) = passed(made.pte, made.snapshot, tmp_path / "plain")["prompts"]
    (declaring,) = passed(made.pte, snapshot, tmp_path / "declaring")["prompts"]
    assert (declaring["logits_rows"] > plain["logits_rows"]) == fed


def add_to_first(amount: float) -> Callable[[np.ndarray], None]:
    def change(elements: np.ndarray) -> None:
        elements[0] += amount

    return change


def make_nan(elements: np.ndarray) -> None:
    elements[:] = np.nan


def test_one_changed_weight_fails(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    change = with_weights("layers.1.mlp.down_proj.weight", add_to_first(0.5))
    pte = doctored(made, tmp_path / "model.pte", change)
    _, apart = place_of(failure(pte, made.snapshot, tmp_path / "out"))
    assert 1e-4 < apart < 0.5


def test_a_snapshot_with_one_other_weight_fails(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("mixed")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    tensors = load_file(snapshot / "model.safetensors")
    tensors["model.layers.0.self_attn.k_proj.weight"][3, 3] += 1.0
    save_file(tensors, snapshot / "model.safetensors", metadata={"format": "pt"})
    place_of(failure(made.pte, snapshot, tmp_path / "out"))


def test_logits_that_are_not_numbers_fail(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    pte = doctored(made, tmp_path / "model.pte", with_weights("model.norm.weight", make_nan))
    token, apart = place_of(failure(pte, made.snapshot, tmp_path / "out"))
    assert token == 7, "the last token of the first step"
    assert np.isnan(apart)


def swap_signs(elements: np.ndarray) -> None:
    """Of the first eight, in bfloat16: two lie in each element, and the top bit of either is its sign."""
    elements.view(np.uint16)[:8] ^= 0x8000


@pytest.mark.parametrize(
    "change",
    [with_windows(1, 1), with_windows(0, 1), with_weights("layers.0.self_attn.v_proj.weight", swap_signs)],
    ids=["all history is lost", "history is lost in one layer", "eight weights have the wrong sign"],
)
def test_a_half_precision_artifact_is_held_to_its_models_rounding(
    artifact: Artifacts, tmp_path: Path, change: Callable[[PteFile], None]
) -> None:
    made = artifact("llama-bf16")
    pte = doctored(made, tmp_path / "model.pte", change)
    assert re.fullmatch(
        r"smoke 'greeting': decoded .*; logits first differ from the model's own at token \d+: \S+ apart "
        r"\(relative\); expected at most 0\.0\d+\. The artifact does not compute its model\.",
        failure(pte, made.snapshot, tmp_path / "out"),
    )


def test_a_prompt_that_leaves_no_room_is_refused(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    long = SmokeSpec(prompts=(replace(PROMPT, user="x" * 40, max_new_tokens=20),))
    assert failure(made.pte, made.snapshot, tmp_path / "out", long) == (
        "smoke 'greeting': 58 prompt tokens and 20 new ones exceed the context of 64. Shorten the prompt, or lower "
        "max_new_tokens to 6."
    )


def test_a_prompt_longer_than_the_context_asks_for_more_context(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    long = SmokeSpec(prompts=(replace(PROMPT, user="x" * 80, max_new_tokens=20),))
    assert failure(made.pte, made.snapshot, tmp_path / "out", long).endswith(
        "exceed the context of 64. Shorten the prompt, or raise max_context_len."
    )


@pytest.mark.parametrize("template", ["{{ raise_exception('no user here') }}", "{% for %}"])
def test_a_chat_template_that_fails_is_named(template: str, artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    snapshot = tmp_path / "snapshot"
    shutil.copytree(made.snapshot, snapshot)
    (snapshot / "chat_template.jinja").write_text(template)
    found = failure(made.pte, snapshot, tmp_path / "out")
    assert found.startswith("the tokenizer's chat template fails on a user's turn: ")
    assert found.endswith(". Correct the model's chat_template.")


def test_a_prompt_that_the_tokenizer_has_no_tokens_for_is_refused(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    words_only(chat_template=None).save_pretrained(snapshot)
    (snapshot / "chat_template.jinja").unlink()
    assert failure(made.pte, snapshot, tmp_path / "out") == (
        "the model's tokenizer cannot read the prompt 'hello there': WordLevel error: Missing [UNK] token from the "
        "vocabulary. Put it in words that it has."
    )


def test_a_tokenizer_of_another_model_is_refused(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    tokenizer = json.loads((snapshot / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] = {token: 1000 + index for token, index in tokenizer["model"]["vocab"].items()}
    (snapshot / "tokenizer.json").write_text(json.dumps(tokenizer))
    message = failure(made.pte, snapshot, tmp_path / "out", kind=DelegateError)
    assert re.fullmatch(
        r"model\.pte: token id 1\d\d\d is outside the vocabulary of 260\. Use the tokenizer that belongs to the "
        r"model\.",
        message,
    )


def test_a_prompt_of_no_tokens_is_refused(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("llama")
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    save_tokenizer(snapshot, chat_template="{{ '' }}")
    message = failure(made.pte, snapshot, tmp_path / "out", kind=CacheError)
    assert message == "model.pte: the prompt has no tokens; expected at least 1 to continue."


def test_the_artifacts_stop_tokens_end_an_answer_and_not_the_snapshots(artifact: Artifacts, tmp_path: Path) -> None:
    made = artifact("mixed")
    (told,) = passed(made.pte, made.snapshot, tmp_path / "first")["prompts"]
    snapshot = Path(shutil.copytree(made.snapshot, tmp_path / "snapshot"))
    edit_json(snapshot / "generation_config.json", eos_token_id=told["generated"][0])
    (again,) = passed(made.pte, snapshot, tmp_path / "again")["prompts"]
    assert again["generated"] == told["generated"]


class TestJudgement:
    """On logits given by hand."""

    def answer(self, rows: list[list[float]], generated: list[int]) -> Answer:
        feeding = Feeding(ids=[5, 6, *generated], rows=list(range(1, 1 + len(rows))), logits=list(map(np.array, rows)))
        return Answer(name="x", expect="", prompt=[5, 6], generated=generated, text="t", feedings=[feeding])

    def judged(
        self, dtype: str, rows: list[list[float]], exact: list[list[float]], rounded: list[list[float]]
    ) -> dict[str, Any]:
        generated = [int(np.argmax(row)) for row in rows]
        report: dict[str, Any] = smoke._judge(
            [self.answer(rows, generated)], dtype, [np.array(exact)], [np.array(rounded)]
        )
        return report

    def test_equal_rows_pass(self) -> None:
        rows = [[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]]
        assert self.judged("fp32", rows, rows, rows)["prompts"][0]["logits_distance"] == 0.0

    def test_a_shift_of_all_logits_changes_nothing(self) -> None:
        assert distances([[1.0, 2.0, 4.0]], [[101.0, 102.0, 104.0]]) == pytest.approx([0.0])

    def test_distance_is_relative_to_the_references_spread(self) -> None:
        assert distances([[-2.0, 2.0]], [[-1.0, 1.0]]) == pytest.approx([1.0])
        assert distances([[0.0, 0.0]], [[-1.0, 1.0]]) == pytest.approx([1.0])

    def test_logits_that_are_all_equal_are_near_only_to_such(self) -> None:
        assert distances([[2.0, 2.0], [0.0, 1.0]], [[0.0, 0.0], [3.0, 3.0]]).tolist() == [0.0, np.inf]

    def test_the_bound_is_twice_the_models_own_rounding(self) -> None:
        exact, rounded = [[0.0, 0.0, 10.0]], [[0.0, 0.0, 10.1]]
        report = self.judged("bf16", rounded, exact, rounded)
        assert report["tolerance"]["model_rounding"] == pytest.approx(0.01)
        assert report["tolerance"]["bound"] == pytest.approx(0.02)
        assert self.judged("bf16", [[0.0, 0.0, 10.29]], exact, rounded)
        with pytest.raises(SmokeError, match=r"^smoke 'x': decoded 't'; logits first differ .* at token 1: 0\.02"):
            self.judged("bf16", [[0.0, 0.0, 10.4]], exact, rounded)

    def test_a_dtype_too_coarse_for_the_model_is_refused(self) -> None:
        exact, rounded = [[0.0, 0.0, 10.0]], [[0.0, 5.0, 10.0]]
        with pytest.raises(SmokeError) as caught:
            self.judged("fp16", rounded, exact, rounded)
        assert str(caught.value) == (
            "the model's own fp16 logits are 0.5 from its float32 logits (relative); expected at most 0.25. This "
            "dtype is too coarse for the model: choose fp32, or bf16 in place of fp16."
        )

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_a_reference_that_is_no_number_is_refused(self, value: float) -> None:
        exact, rounded = [[0.0, 0.0, 10.0]], [[0.0, value, 10.0]]
        with pytest.raises(SmokeError, match=r"^the model's own fp16 logits are nan from its float32 logits"):
            self.judged("fp16", exact, exact, rounded)

    @pytest.mark.parametrize("value", [np.nan, np.inf])
    def test_weights_that_give_no_number_are_called_damaged(self, value: float) -> None:
        exact = [[0.0, value, 10.0]]
        with pytest.raises(SmokeError, match=r"^the model's own float32 logits are not finite numbers; .* check the"):
            self.judged("fp32", exact, exact, exact)

    def test_another_token_is_reported_where_the_reference_nearly_ties(self) -> None:
        exact, rounded = [[0.0, 10.0, 10.01]], [[0.0, 10.02, 10.0]]
        (told,) = self.judged("bf16", rounded, exact, rounded)["prompts"]
        (tie,) = told["near_ties"]
        assert (tie["index"], tie["token"], tie["reference"]) == (0, 1, 2)
        assert 0 < tie["margin"] < 0.004

    def test_another_token_fails_where_the_reference_is_sure(self) -> None:
        """The logits are the reference's, and the decoder chose the second best."""
        rows = [[0.0, 0.0, 10.0], [0.0, 9.0, 10.0]]
        with pytest.raises(SmokeError) as caught:
            smoke._judge([self.answer(rows, [2, 1])], "fp32", [np.array(rows)], [np.array(rows)])
        assert str(caught.value) == (
            "smoke 'x': decoded 't'; token 1 of the answer is 1, the model's own is 2, which it prefers by 0.222 "
            "standard deviations; expected the same token."
        )
