"""No model type that Transformers has is exported silently wrong, and the number of those that are right only grows.

``known.json`` is what the last sweep found (``python -m tests.sweep --record``). A type that becomes right is added to
it; none is wrong, and none ever becomes so.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.model.oracle import OracleCache
from tests.sweep import page, sweep
from tests.sweep.sweep import Case, Result

KNOWN: dict[str, Any] = json.loads(page.KNOWN.read_text())


@pytest.fixture(scope="module")
def results() -> dict[str, Result]:
    """Of every model type and variant, in about forty seconds."""
    return {result.name: result for result in sweep.sweep(sweep.cases())}


def named(results: dict[str, Result], verdict: str) -> list[str]:
    return sorted(name for name, result in results.items() if result.verdict == verdict)


def test_what_is_right_stays_right_and_what_becomes_right_is_recorded(results: dict[str, Result]) -> None:
    assert named(results, "right") == KNOWN["right"], sweep.table(list(results.values()))


def test_nothing_is_silently_wrong(results: dict[str, Result]) -> None:
    assert named(results, "wrong") == KNOWN["wrong"] == [], sweep.table(list(results.values()))


def test_every_refusal_has_the_reason_that_is_recorded(results: dict[str, Result]) -> None:
    refused = {name: result.detail for name, result in results.items() if result.verdict == "refused"}
    assert refused == KNOWN["refused"]


def test_nothing_but_its_message_hangs_on_the_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the configuration rules out would be refused later too, by what the model does."""
    monkeypatch.setattr("pipeline.model.suitability.refuse_unsuitable", lambda config, **_: None)
    early = [
        name
        for name, reason in KNOWN["refused"].items()
        if re.search("layer .* is '|attn_logit_softcapping|alibi|ALiBi|sinks|attn_temperature_tuning", reason)
    ]
    assert len(early) > 30
    verdicts = {result.name: result.verdict for result in sweep.sweep(sweep.cases(early))}
    assert verdicts == dict.fromkeys(early, "refused")


def test_the_page_of_architectures_says_what_is_recorded() -> None:
    assert page.PAGE.read_text() == page.page(KNOWN), "run `python -m tests.sweep --record`"
    for name in (*KNOWN["right"], *KNOWN["refused"], *KNOWN["unbuildable"]):
        assert page.PAGE.read_text().count(f"`{name}`") == 1


def test_every_failure_is_an_error_of_ours(results: dict[str, Result]) -> None:
    assert not named(results, "crash"), sweep.table(list(results.values()))


def test_every_model_type_is_tried_in_earnest(results: dict[str, Result]) -> None:
    assert named(results, "unbuildable") == KNOWN["unbuildable"], sweep.table(list(results.values()))
    assert not named(results, "no-evidence"), sweep.table(list(results.values()))
    assert len(results) >= 196 + len(sweep.configs.VARIANTS)


def test_a_refusal_is_a_sentence(results: dict[str, Result]) -> None:
    refused = [result.detail for result in results.values() if result.verdict == "refused"]
    assert all(detail.endswith((".", ")")) and "\n" not in detail for detail in refused)


def verdict_of(name: str) -> str:
    [result] = sweep.sweep(sweep.cases([name]))
    return result.verdict


@contextmanager
def _changed(change: Any) -> Iterator[None]:
    """A cache that treats what the model writes or reads otherwise than it should."""
    with pytest.MonkeyPatch.context() as patch:
        original = OracleCache.update_and_fetch
        patch.setattr(OracleCache, "update_and_fetch", lambda self, *arguments: change(original, self, *arguments))
        yield


def _lose_a_value(original: Any, self: Any, layer_id: int, k: Any, v: Any, position: Any) -> Any:
    keys, values, spec = original(self, layer_id, k, v, position)
    values = values.clone()
    values[:, :, 0] = 0
    return keys, values, spec


def _widen(original: Any, self: Any, layer_id: int, k: Any, v: Any, position: Any) -> Any:
    keys, values, spec = original(self, layer_id, k, v, position)
    spec.mask = position >= torch.arange(keys.shape[2])
    return keys, values, spec


def _swap_layers(original: Any, self: Any, layer_id: int, k: Any, v: Any, position: Any) -> Any:
    return original(self, layer_id ^ 1, k, v, position)


@pytest.mark.parametrize(
    ("name", "change", "verdict"),
    [
        ("llama", _lose_a_value, "wrong"),
        ("llama", _widen, "right"),
        ("mistral", _widen, "wrong"),
        # Every cache of a llama is like every other; which is which is the runtime's business.
        ("llama", _swap_layers, "right"),
        ("gemma3_text", _swap_layers, "wrong"),
    ],
)
def test_a_cache_that_breaks_the_contract_is_found_by_the_logits(name: str, change: Any, verdict: str) -> None:
    with _changed(change):
        assert verdict_of(name) == verdict


def test_weights_that_history_does_not_reach_are_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    def silence_attention(model: torch.nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if "o_proj" in name:
                parameter.zero_()

    monkeypatch.setattr(sweep, "_randomize", silence_attention)
    assert verdict_of("llama") == "no-evidence"


def test_a_model_type_that_takes_too_long_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(case: Case, directory: Path) -> Result:
        while True:
            pass

    monkeypatch.setattr(sweep, "judge", hang)
    monkeypatch.setattr(sweep, "SECONDS", 0.1)
    assert verdict_of("llama") == "crash"


def test_a_model_type_that_takes_too_much_memory_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sweep.configs.OVERRIDES, "llama", {"vocab_size": 1 << 30})
    assert verdict_of("llama") == "unbuildable"
