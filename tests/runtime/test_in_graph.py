"""History in the graph's own buffers is decoded by the same decoder: it can be emptied, and not taken back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import CacheError, DelegateError
from pipeline.pte import PteFile
from pipeline.runtime.decoder import Decoder
from pipeline.runtime.generate import Engine, Request
from pipeline.runtime.policy import CachePolicy
from tests.runtime import in_graph

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5]


@pytest.fixture(scope="module", params=[False, True], ids=["all positions", "the start"])
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("in_graph") / "in_graph.pte"
    in_graph.write(path, takes_start=request.param, get_max_seq_len=in_graph.CONTEXT)
    return path


@pytest.fixture
def decoder(file: Path) -> Any:
    with PteFile.open(file) as pte:
        return Decoder(pte)


def test_it_decodes_what_the_module_itself_would(decoder: Decoder) -> None:
    assert decoder.plan is None
    assert (decoder.capacity, decoder.max_write) == (in_graph.CONTEXT, in_graph.CHUNK)
    assert [token for token, _ in decoder.greedy(PROMPT, 10)] == in_graph.greedy(PROMPT, 10)
    assert decoder.position == len(PROMPT) + 9


def test_emptied_it_starts_anew(decoder: Decoder) -> None:
    list(decoder.greedy([8, 8, 8], 5))
    decoder.clear()
    assert decoder.position == 0
    assert [token for token, _ in decoder.greedy(PROMPT, 6)] == in_graph.greedy(PROMPT, 6)


def test_it_is_taken_back_to_the_start_alone(decoder: Decoder) -> None:
    list(decoder.prefill(PROMPT))
    assert decoder.rewind(len(PROMPT))
    assert not decoder.rewind(len(PROMPT) - 1)
    assert decoder.position == len(PROMPT)
    assert decoder.rewind(0)
    assert decoder.position == 0


def test_an_engine_feeds_a_text_anew_that_parts_from_what_is_held(decoder: Decoder) -> None:
    engine = Engine(decoder)
    list(engine.generate(PROMPT, Request(max_new_tokens=3)))
    other = [*PROMPT[:4], 7, 7]
    generation = engine.generate(other, Request(max_new_tokens=4))
    assert list(generation) == in_graph.greedy(other, 4)
    assert generation.num_reused == 0
    longer = [*generation.text, 11]
    generation = engine.generate(longer, Request(max_new_tokens=2))
    assert list(generation) == in_graph.greedy(longer, 2)
    assert generation.num_reused == len(longer) - 2


def test_a_step_beyond_the_context_is_refused_and_changes_nothing(decoder: Decoder) -> None:
    list(decoder.prefill([1] * 30))
    with pytest.raises(CacheError) as caught:
        decoder.feed([1, 2, 3])
    assert str(caught.value) == (
        "in_graph.pte: a step of 3 tokens at position 30 exceeds the context of 32. Start a new text, or export it "
        "with a larger context."
    )
    assert decoder.position == 30
    decoder.feed([1, 2])


def test_a_step_that_fails_is_not_counted(decoder: Decoder) -> None:
    list(decoder.prefill(PROMPT))
    with pytest.raises(DelegateError):
        decoder.feed([1] * (in_graph.CHUNK + 1))
    assert decoder.position == len(PROMPT)
    decoder.feed([5])
    assert decoder.position == len(PROMPT) + 1


def test_nothing_about_its_cache_can_be_chosen(file: Path) -> None:
    with PteFile.open(file) as pte, pytest.raises(CacheError) as caught:
        Decoder(pte, policy=CachePolicy(storage="fp16"))
    assert str(caught.value) == (
        "in_graph.pte: its KV cache is in its graph, with the capacity, storage and windows that it was exported with; "
        "expected nothing to be chosen. Leave the --kv- options out, or export it with cache.placement: off_graph."
    )
