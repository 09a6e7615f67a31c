"""Random traces of one sequence, and of several in cells, never differ from models that keep everything."""

from __future__ import annotations

import pytest

from tests.runtime.traces import TRACES, divergences


@pytest.mark.parametrize("kind", TRACES)
def test_random_traces_are_planned_as_by_a_model_that_keeps_everything(kind: str) -> None:
    assert divergences(kind, range(2_000)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", TRACES)
def test_a_hundred_thousand_more_are_too(kind: str) -> None:
    assert divergences(kind, range(2_000, 102_000)) == []
