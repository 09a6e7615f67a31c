"""The traced program is the model for every step from one token to the longest, or there is no program."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from pipeline.errors import ExportError
from pipeline.model.attention import IMPLEMENTATION
from pipeline.model.export import export_forward
from pipeline.model.geometry import geometry_of
from tests.model.conftest import history
from tests.tiny_models import MIXED, VOCAB_SIZE, model

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)` is deprecated:FutureWarning")


class Toy(torch.nn.Module):
    """Something with a configuration and logits, whose body the test decides."""

    def __init__(self, body: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.config = SimpleNamespace(model_type="toy")
        self.body = body

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool, logits_to_keep: int | torch.Tensor
    ) -> SimpleNamespace:
        assert not use_cache
        logits = (self.body(input_ids) + position_ids).float().unsqueeze(-1)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        return SimpleNamespace(logits=logits[:, kept])


@pytest.mark.parametrize("max_seq_len", [1, 2, 3, 4, 512])
def test_the_program_admits_one_token_to_the_longest_step(max_seq_len: int) -> None:
    program = export_forward(Toy(lambda ids: ids), max_seq_len)
    ranges = {(int(found.lower), int(found.upper)) for found in program.range_constraints.values()}
    assert ranges == (set() if max_seq_len == 1 else {(1, max_seq_len)})
    for length in {1, max_seq_len}:
        tokens, positions = torch.full((1, length), 3), torch.arange(length)
        logits = program.module()(input_ids=tokens, cache_position=positions)
        assert logits.tolist() == [[[3.0 + length - 1]]]


@pytest.mark.parametrize("max_seq_len", [1, 2, 3, 4, 512])
def test_full_logits_are_of_every_token(max_seq_len: int) -> None:
    program = export_forward(Toy(lambda ids: ids), max_seq_len, "full")
    for length in {1, max_seq_len}:
        tokens, positions = torch.full((1, length), 3), torch.arange(length)
        logits = program.module()(input_ids=tokens, cache_position=positions)
        assert logits.tolist() == [[[3.0 + position] for position in range(length)]]


@pytest.mark.parametrize("max_seq_len", [1, 2, 3, 4, 512])
def test_any_number_of_rows_is_selected_in_any_order_of_a_step_of_any_length(max_seq_len: int) -> None:
    program = export_forward(Toy(lambda ids: ids), max_seq_len, "selected")
    ranges = {(int(found.lower), int(found.upper)) for found in program.range_constraints.values()}
    assert ranges == (set() if max_seq_len == 1 else {(1, max_seq_len)})
    for length in {1, max_seq_len}:
        tokens, positions = torch.full((1, length), 3), torch.arange(length)
        for rows in ([length - 1], [0], [*range(length)][::-1], [0] * max_seq_len):
            logits = program.module()(input_ids=tokens, cache_position=positions, logit_rows=torch.tensor(rows))
            assert logits.tolist() == [[[3.0 + row] for row in rows]]


def test_a_longer_step_than_the_longest_is_refused_by_the_program() -> None:
    program = export_forward(Toy(lambda ids: ids), 4)
    with pytest.raises(AssertionError):
        program.module()(input_ids=torch.zeros(1, 5, dtype=torch.long), cache_position=torch.arange(5))


def test_the_traced_model_continues_a_text_as_eager_attention_does() -> None:
    """Logits of each step's last token; float32 over two layers, one of which slides."""
    ours, eager = (model("qwen2", implementation, **MIXED) for implementation in (IMPLEMENTATION, "eager"))
    program = export_forward(ours, 4)
    forward = program.module()
    tokens = torch.randint(4, VOCAB_SIZE, (1, 22), generator=torch.Generator().manual_seed(1))
    rows, ends, start = [], [], 0
    with torch.no_grad(), history(geometry_of(ours)) as cache:
        for length in (4, 4, 1, 1, 3, 1, 4, 4):
            step = tokens[:, start : start + length]
            rows.append(forward(input_ids=step, cache_position=torch.arange(start, start + length))[0, 0])
            start += length
            ends.append(start - 1)
        expected = eager(input_ids=tokens, use_cache=False).logits[0, ends]
    torch.testing.assert_close(torch.stack(rows), expected, rtol=0, atol=1e-4 * float(expected.std()))
    assert [layer for layer, _ in cache.calls] == [0, 1] * len(rows)


def refusal(body: Callable[[torch.Tensor], torch.Tensor], max_seq_len: int = 8) -> str:
    with pytest.raises(ExportError) as caught:
        export_forward(Toy(body), max_seq_len)
    return str(caught.value)


class Disobedient(Toy):
    """Is told which rows to keep, and keeps others: the last for all, and all for any others."""

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, use_cache: bool, logits_to_keep: int | torch.Tensor
    ) -> SimpleNamespace:
        all_rows = isinstance(logits_to_keep, int) and logits_to_keep == 0
        return super().forward(input_ids, position_ids, use_cache, 1 if all_rows else 0)


@pytest.mark.parametrize(
    ("mode", "returned", "expected"), [("last", "s\\d+", "1"), ("full", "1", "s\\d+"), ("selected", "s\\d+", "s\\d+")]
)
def test_a_model_that_keeps_other_rows_than_it_is_asked_for_is_refused(mode: str, returned: str, expected: str) -> None:
    with pytest.raises(ExportError) as caught:
        export_forward(Disobedient(lambda ids: ids), 8, mode)
    found = re.fullmatch(
        rf"the traced program returns logits \['1', '({returned})', '1'\]; expected \[1, ({expected}), vocab\] for "
        rf"{mode} logits\. The model's code does not keep the rows that it is asked for\.",
        str(caught.value),
    )
    assert found is not None, caught.value
    assert found[1] != found[2]


def branching(ids: torch.Tensor) -> torch.Tensor:
    """Takes one path for short steps and another for long ones, so only one of them is traced."""
    return ids if ids.shape[1] < 5 else ids + 1


def branching_on_content(ids: torch.Tensor) -> torch.Tensor:
    return ids if ids[0, 0] > 2 else ids + 1


def of_fixed_length(ids: torch.Tensor) -> torch.Tensor:
    return ids + torch.arange(3)


def with_a_bug(ids: torch.Tensor) -> torch.Tensor:
    raise KeyError


@pytest.mark.parametrize("body", [branching, of_fixed_length, branching_on_content])
def test_a_model_that_specializes_on_its_input_is_refused(body: Callable[[torch.Tensor], torch.Tensor]) -> None:
    message = refusal(body)
    assert message.startswith("model type 'toy': torch.export cannot trace it: ")
    assert message.endswith(". The log has the whole trace.")
    assert "\n" not in message


def test_an_error_without_words_is_named_by_its_class() -> None:
    assert refusal(with_a_bug) == (
        "model type 'toy': torch.export cannot trace it: KeyError. The log has the whole trace."
    )


def test_our_own_refusals_pass_unchanged() -> None:
    def refuse(ids: torch.Tensor) -> torch.Tensor:
        raise ExportError("softcap")

    assert refusal(refuse) == "softcap"


def test_a_program_whose_range_was_narrowed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export refuses narrowing itself; should it stop doing so, we still do."""
    traced = torch.export.export

    def narrower(*args: object, **others: object) -> object:
        length = torch.export.Dim("seq_len", min=1, max=6)
        return traced(*args, **others | {"dynamic_shapes": {"input_ids": {1: length}, "cache_position": {0: length}}})

    monkeypatch.setattr(torch.export, "export", narrower)
    expected = (
        "the traced program admits steps of 1 to 6 tokens; expected 1 to 8. The model's code specializes on the length "
        "of the input."
    )
    assert refusal(lambda ids: ids) == expected


def test_a_program_of_a_single_length_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = torch.export.export
    monkeypatch.setattr(
        torch.export, "export", lambda *args, **others: traced(*args, **others | {"dynamic_shapes": None})
    )
    assert refusal(lambda ids: ids) == (
        "the traced program admits steps of 3 to 3 tokens; expected 1 to 8. The model's code specializes on the length "
        "of the input."
    )


def test_refusals_of_attention_reach_the_trace() -> None:
    gemma2 = model("gemma2", IMPLEMENTATION, pad_token_id=0)
    with pytest.raises(ExportError, match=re.escape("attention passes softcap=50.0")):
        export_forward(gemma2, 4)
