"""One function for all steps: it names the step that fails, and holds nothing longer than it is read."""

from __future__ import annotations

import weakref
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate.body import Body, Step
from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.straight import StraightLine
from pipeline.errors import DelegateError
from pipeline.pte import Tid, Vid

X = Tid(0)


def run(*steps: Step, given: Any, results: tuple[Tid | Vid, ...], operators: dict[str, Any] | None = None) -> list[Any]:
    body = Body(steps=steps, inputs=(X,), results=results, constants={}, shapes={})
    return StraightLine(body, operators or OPERATORS)(given)


def step(name: str, *outs: Tid | Vid, several: bool = False, **fields: Any) -> Step:
    return Step(name, fields, outs, f"instruction {outs[0].idx} ({name})", several)


def test_numbers_arrays_and_literals_go_where_they_are_read() -> None:
    found = run(
        step("SymSizeNode", Vid(1), a=X, dim=0),
        step("ReshapeNode", Tid(2), x=X, shape=(1, Vid(1), 1)),
        step("SplitNode", Tid(3), Tid(4), several=True, x=Tid(2), sizes=(2, Vid(1)), axis=1),
        step("FullNode", Tid(5), shape=(), v=float("inf"), scalar_type=6),
        given=mx.array([1.0, 2.0, 3.0]),
        results=(Tid(4), Tid(3), Tid(5), X),
    )
    assert [array.tolist() for array in found] == [[[[3.0]]], [[[1.0], [2.0]]], float("inf"), [1.0, 2.0, 3.0]]


def test_the_step_that_mlx_refuses_is_named() -> None:
    with pytest.raises(DelegateError, match=r"^instruction 3 \(ReshapeNode\) failed: .*reshape"):
        run(
            step("NegNode", Tid(2), x=X),
            step("ReshapeNode", Tid(3), x=Tid(2), shape=(7,)),
            step("NegNode", Tid(4), x=Tid(3)),
            given=mx.ones(3),
            results=(Tid(4),),
        )


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (step("SplitNode", Tid(2), several=True, x=X, sizes=(1,), axis=0), "made 3 results; expected 1."),
        (step("SymSizeNode", Vid(2), a=X, dim=0), "computed 2147483648, which is no int32."),
    ],
    ids=["results", "int32"],
)
def test_results_that_do_not_fit_are_refused(made: Step, expected: str) -> None:
    operators = {**OPERATORS, "SymSizeNode": lambda a, dim: 2**31}
    with pytest.raises(DelegateError) as caught:
        run(made, given=mx.ones(3), results=made.outs, operators=operators)
    assert str(caught.value) == f"{made.place} {expected}"


def test_a_result_is_let_go_after_its_last_reader() -> None:
    class Thing:
        """As an array, but one that can be watched."""

    watched: list[weakref.ref[Thing]] = []
    alive: list[list[bool]] = []

    def make(x: Any) -> Thing:
        alive.append([ref() is not None for ref in watched])
        thing = Thing()
        watched.append(weakref.ref(thing))
        return thing

    run(
        *(step("MakeNode", Tid(n + 1), x=Tid(n)) for n in range(4)),
        step("MakeNode", Tid(9), x=Tid(1)),
        given=None,
        results=(Tid(9),),
        operators={"MakeNode": make},
    )
    assert alive == [[], [True], [True, True], [True, False, True], [True, False, False, False]]
