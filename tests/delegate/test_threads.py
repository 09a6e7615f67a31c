"""A thread may decode, one at a time, and end, as any other may."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate.body import Body, Step
from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.replay import Replayed
from pipeline.delegate.threads import tidied
from pipeline.pte import PteFile, Tid
from pipeline.runtime.decoder import Decoder
from tests.tiny_models import Artifact


def in_a_thread(job: Callable[[], object]) -> Any:
    """What it returned, or raised, in a thread that has ended."""
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(job())
        except Exception as error:
            ended.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    (result,) = ended
    if isinstance(result, Exception):
        raise result
    return result


def decoded(decoder: Decoder) -> list[int]:
    decoder.clear()
    return [token for token, _ in decoder.greedy([3, 1, 4, 1, 5], 12)]


def test_a_decoder_is_handed_from_thread_to_thread(artifact: Callable[[str], Artifact]) -> None:
    with PteFile.open(artifact("mixed").pte) as pte:
        expected = decoded(Decoder(pte))
        decoder = Decoder(pte)
        assert in_a_thread(lambda: decoded(decoder)) == expected
        assert decoded(decoder) == expected
        assert in_a_thread(lambda: decoded(decoder)) == expected
        assert decoded(in_a_thread(lambda: Decoder(pte))) == expected


def test_each_thread_is_tidied_when_it_ends_and_the_main_one_is_not(
    artifact: Callable[[str], Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    clear, cleared = mx.clear_streams, []

    def counted() -> None:
        cleared.append(threading.get_ident())
        clear()

    # What MLX itself drops of a thread, it drops after the thread is joined, maybe while Python ends, and aborts then.
    monkeypatch.setattr(mx, "clear_streams", counted)
    with PteFile.open(artifact("mixed").pte) as pte:
        decoder = Decoder(pte)
        idents = []

        def work() -> None:
            idents.append(threading.get_ident())
            decoded(decoder)
            decoded(Decoder(pte))
            assert not set(cleared) & {threading.get_ident()}

        for _ in range(2):
            cleared.clear()
            in_a_thread(work)
            assert cleared == idents[-1:]
        decoded(decoder)
    assert cleared == idents[-1:]


def test_what_threads_recorded_goes_with_what_they_recorded_it_of() -> None:
    """MLX finds a record by an address, and would replay it for whatever is loaded there later."""
    size = 256

    def product(line: Replayed) -> mx.array:
        tidied()
        (result,) = line(mx.ones((1, size)))
        mx.eval(result)
        return result

    for factor in range(1, 6):
        gc.collect()
        before = mx.get_active_memory()
        weight = mx.full((size, size), factor / size)
        mx.eval(weight)
        steps = tuple(
            Step("AddmmNode", {"mat1": Tid(n), "mat2": Tid(9), "bias": None}, (Tid(n + 1),), "product")
            for n in range(4)
        )
        body = Body(
            steps=steps, inputs=(Tid(0),), results=(Tid(4),), constants={Tid(9): weight}, shapes={Tid(0): (None, size)}
        )
        line = Replayed(body, OPERATORS)
        assert [step.name for step in line._replayed.body.steps] == ["Replay0"]
        for result in (product(line), in_a_thread(partial(product, line))):
            assert result[0, 0].item() == pytest.approx(factor**4)
        del line, body, weight, result
        gc.collect()
        assert mx.get_active_memory() - before < size * size
