"""Several texts through one artifact at once, in cells that they share, are decoded as each alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest

from pipeline.contract import Contract
from pipeline.delegate import MlxMethod, Program, executor
from pipeline.delegate.fuse import fused
from pipeline.delegate.straight import StraightLine
from pipeline.errors import CacheError
from pipeline.runtime.cell_cache import CellCache
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.policy import CachePolicy
from tests.tiny_models import Artifact

PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [2, 7, 1], [8, 28, 18, 28, 45, 90, 45]]
NEW = 12

LONGEST_STEP = 4

# Float32 rounding of logits that spread by 1; a lost or foreign token of history moves them by 1e-2 and more.
CLOSE = 1e-4


@dataclass
class Batch:
    """An artifact with cells bound to it. A step is (sequence, token) pairs."""

    program: Program
    policy: CachePolicy = field(default_factory=CachePolicy)

    def __post_init__(self) -> None:
        self.contract = Contract.read(self.program.constants, "model.pte")
        self.cache = CellCache.of(self.policy.plan(self.contract, num_sequences=3))
        self.table = self.cache.table
        self.forward: MlxMethod = self.program.method(cache=self.cache)

    def step(self, pairs: list[tuple[int, int]]) -> np.ndarray:
        """Logits of each token, [tokens, vocab], or of the last, [1, vocab], as the artifact gives them."""
        sequences, ids = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        before = [sequences[:place].count(each) for place, each in enumerate(sequences)]
        positions = [self.table.pos(each) + more for each, more in zip(sequences, before, strict=True)]
        self.table.declare_step(sequences)
        inputs = [mx.array([ids], mx.int64), mx.array(positions, mx.int64)]
        if self.contract.logits == "selected":
            inputs.append(mx.arange(len(ids), dtype=mx.int64))
        (logits,) = self.forward(*inputs)
        return np.array(logits[0])


@pytest.fixture
def program(artifact: Callable[[str], Artifact]) -> Iterator[Program]:
    """Two layers, one of which slides over 8 positions; steps of at most 4 tokens, 64 in all."""
    with Program.load(artifact("selected").pte) as opened:
        yield opened


def alone(program: Program, prompt: list[int]) -> tuple[list[int], list[np.ndarray]]:
    """The tokens that continue a prompt, and the logits that each was chosen from."""
    decoder = Decoder(program)
    text, rows = list(prompt), []
    *_, logits = decoder.prefill(prompt)
    for _ in range(NEW):
        rows.append(np.array(logits))
        text.append(int(np.argmax(rows[-1])))
        logits = decoder.feed(text[-1:])
    return text[len(prompt) :], rows


def check_together(batch: Batch, prompts: list[list[int]]) -> None:
    """Prompts go in by turns, one token of each, and as many to a step as it takes; whoever is ready is decoded."""
    expected = [alone(batch.program, prompt) for prompt in prompts]
    waiting = {batch.table.seq_new(): list(prompt) for prompt in prompts}
    chosen: dict[int, list[int]] = {sequence: [] for sequence in waiting}
    while any(len(tokens) < NEW for tokens in chosen.values()):
        pairs: list[tuple[int, int]] = []
        for turn in range(LONGEST_STEP):
            for sequence, tokens in waiting.items():
                if turn < len(tokens) and len(pairs) < LONGEST_STEP:
                    pairs.append((sequence, tokens[turn]))
        logits = batch.step(pairs)
        for row, (sequence, _) in zip(logits, pairs, strict=True):
            del waiting[sequence][0]
            if not waiting[sequence] and len(chosen[sequence]) < NEW:
                number = len(chosen[sequence])
                np.testing.assert_allclose(row, expected[sequence][1][number], atol=CLOSE, rtol=0)
                chosen[sequence].append(int(np.argmax(row)))
                waiting[sequence] = chosen[sequence][-1:] if number + 1 < NEW else []
    assert [chosen[sequence] for sequence in sorted(chosen)] == [tokens for tokens, _ in expected]


@pytest.mark.parametrize("initial_capacity", [0, 512])
def test_interleaved_sequences_are_decoded_token_for_token_as_alone(program: Program, initial_capacity: int) -> None:
    check_together(Batch(program, CachePolicy(initial_capacity=initial_capacity)), PROMPTS)


def test_a_sequence_alone_in_the_cells_is_decoded_as_in_a_cache_of_its_own(program: Program) -> None:
    check_together(Batch(program), PROMPTS[:1])


@pytest.fixture
def with_gpu_rules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executor, "fused_body", lambda body, operators, on_gpu: fused(body, operators, on_gpu=True))
    # On a CPU, MLX compiles with the system's C++ compiler, which nobody needs otherwise.
    mx.disable_compile()
    yield
    mx.enable_compile()


@pytest.mark.usefixtures("with_gpu_rules")
def test_by_a_gpus_rules_each_token_is_rotated_by_its_own_position(program: Program) -> None:
    batch = Batch(program)
    assert isinstance(batch.forward._run, StraightLine)
    assert "RopeByTablesNode" in {step.name for step in batch.forward._run.body.steps}
    check_together(batch, PROMPTS)


def test_a_clone_goes_on_from_the_prefix_that_it_shares(program: Program) -> None:
    batch = Batch(program)
    prompt, other = PROMPTS[0], [70, 71, 72]
    first = batch.table.seq_new()
    for start in range(0, len(prompt), LONGEST_STEP):
        batch.step([(first, token) for token in prompt[start : start + LONGEST_STEP]])
    free = batch.table.num_free
    second = batch.table.seq_clone(first, 5)
    assert batch.table.num_free == free
    rows = [batch.step([(second, token), (first, 99)])[0] for token in other]
    decoder = Decoder(program)
    list(decoder.prefill(prompt[:5]))
    for row, token in zip(rows, other, strict=True):
        np.testing.assert_allclose(row, np.array(decoder.feed([token])), atol=CLOSE, rtol=0)
    assert batch.table.rewind(first, len(prompt))
    decoder.clear()
    list(decoder.prefill(prompt))
    found = batch.step([(second, 1), (first, 50)])[1]
    np.testing.assert_allclose(found, np.array(decoder.feed([50])), atol=CLOSE, rtol=0)


def test_a_step_that_fails_leaves_every_sequence_as_it_was(program: Program) -> None:
    batch = Batch(program)
    first, second = batch.table.seq_new(), batch.table.seq_new()
    batch.step([(first, 3), (second, 4), (first, 5)])
    tokens = mx.array([[6, 7]], mx.int64)
    rows = mx.arange(2, dtype=mx.int64)
    batch.table.declare_step([first, second])
    with pytest.raises(CacheError, match=r"^token 1 of the step has position 2 of sequence 1; expected 1, where"):
        batch.forward(tokens, mx.array([2, 2], mx.int64), rows)
    batch.table.declare_step([first, second])
    batch.forward.begin(tokens, mx.array([2, 1], mx.int64), rows).abandon()
    with pytest.raises(CacheError, match=r"^the step has 2 tokens, and 0 were declared\."):
        batch.forward(tokens, mx.array([2, 1], mx.int64), rows)
    assert (batch.table.pos(first), batch.table.pos(second), batch.table.used_end) == (2, 1, 3)
    found = batch.step([(second, 8), (first, 9)])
    for row, text in zip(found, ([4, 8], [3, 5, 9]), strict=True):
        expected = np.array(Decoder(program).feed(text))
        np.testing.assert_allclose(row, expected, atol=CLOSE, rtol=0)


def test_layers_that_share_keys_and_values_do_so_in_cells_too(artifact: Callable[[str], Artifact]) -> None:
    with Program.load(artifact("shared-caches").pte) as program:
        batch = Batch(program)
        first, second = batch.table.seq_new(), batch.table.seq_new()
        texts: dict[int, list[int]] = {first: [], second: []}
        for token in range(10, 34):
            pairs = [(first, token), (second, 2 * token), (first if token % 2 else second, 3 * token)]
            for sequence, each in pairs:
                texts[sequence].append(each)
            (found,) = batch.step(pairs)
            if token % 5 == 0:
                *_, expected = Decoder(program).prefill(texts[pairs[-1][0]])
                np.testing.assert_allclose(found, np.array(expected), atol=CLOSE, rtol=0)
