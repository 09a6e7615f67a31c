"""A chain of instructions becomes calls, and what could not run is refused before anything does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.plan import Slots, plan_chain
from pipeline.errors import CacheError, DelegateError
from pipeline.pte import MlxGraph, Node, Slot, Tid, Vid

CONSTANT, INPUT, OUTPUT, TEMP = map(Tid, range(4))


def graph(*chains: Sequence[Node], num_values: int = 2, input_map: tuple[Slot, ...] | None = None) -> MlxGraph:
    """One constant, one input, one output and one temporary tensor, in this order."""
    return MlxGraph(
        version=1,
        num_constant_tensors=1,
        num_input_tensors=1,
        num_output_tensors=1,
        num_mutable_buffer_tensors=0,
        num_temp_tensors=1,
        num_values=num_values,
        chains=tuple(map(tuple, chains)),
        main_chain=0,
        init_chain=None,
        input_map=(Slot("tensor", INPUT.idx),) if input_map is None else input_map,
        output_map=(Slot("tensor", OUTPUT.idx),),
        mutable_buffer_map=(),
        names={},
        tensor_meta=(),
    )


def node(name: str, **fields: Any) -> Node:
    return Node(name, fields)


def ran(
    *nodes: Node, constant: Any = 2.0, given: Any = (1.0, 2.0, 3.0), operators: dict[str, Any] | None = None
) -> Slots:
    planned = graph(nodes)
    slots = Slots(planned.num_tensors, planned.num_values)
    slots.tensors[:2] = mx.array(constant), mx.array(given)
    for call in plan_chain(planned, 0, operators or OPERATORS):
        call(slots)
    return slots


def refused(*nodes: Node, **others: Any) -> str:
    with pytest.raises(DelegateError) as caught:
        ran(*nodes, **others)
    return str(caught.value)


def test_instructions_run_in_order_over_named_fields() -> None:
    slots = ran(
        node("MultiplyNode", a=INPUT, b=CONSTANT, out=TEMP),
        node("NoopNode"),
        node("SubtractNode", a=TEMP, b=INPUT, out=OUTPUT),
    )
    assert slots.tensors[OUTPUT.idx].tolist() == [1.0, 2.0, 3.0]


def test_an_instruction_may_write_the_slot_it_reads() -> None:
    slots = ran(node("AddNode", a=INPUT, b=INPUT, out=TEMP), node("AddNode", a=TEMP, b=TEMP, out=TEMP))
    assert slots.tensors[TEMP.idx].tolist() == [4.0, 8.0, 12.0]


def test_values_and_literals_mix_in_a_list() -> None:
    slots = ran(
        node("SymSizeNode", a=INPUT, dim=0, out=Vid(1)),
        node("ReshapeNode", x=INPUT, shape=(1, Vid(1), 1), out=OUTPUT),
    )
    assert slots.values[1] == 3
    assert slots.tensors[OUTPUT.idx].shape == (1, 3, 1)


def test_tensors_in_a_list_are_read_from_their_slots() -> None:
    slots = ran(node("ConcatenateNode", tensors=(INPUT, INPUT), axis=0, out=OUTPUT))
    assert slots.tensors[OUTPUT.idx].tolist() == [1.0, 2.0, 3.0] * 2


def test_a_chain_runs_again_on_new_inputs() -> None:
    planned = graph([node("AddNode", a=INPUT, b=CONSTANT, out=OUTPUT)])
    calls = plan_chain(planned, 0, OPERATORS)
    for given in (1.0, 5.0):
        slots = Slots(planned.num_tensors, planned.num_values)
        slots.tensors[:2] = mx.array(2.0), mx.array(given)
        for call in calls:
            call(slots)
        assert slots.tensors[OUTPUT.idx].item() == given + 2.0


def test_literals_beyond_int32_are_clamped_as_the_runtime_does() -> None:
    seen: dict[str, Any] = {}

    def record(**fields: Any) -> mx.array:
        seen.update(fields)
        return mx.array(0)

    literals: dict[str, Any] = {"big": 2**63 - 1, "small": -(2**63), "flag": True, "real": 1e30, "none": None}
    ran(
        node("SymSizeNode", a=INPUT, dim=0, out=Vid(0)),
        node("RecordNode", **literals, several=(2**40, Vid(0), -1), out=OUTPUT),
        operators={**OPERATORS, "RecordNode": record},
    )
    assert seen == {
        "big": 2**31 - 1,
        "small": -(2**31),
        "flag": True,
        "real": 1e30,
        "none": None,
        "several": (2**31 - 1, 3, -1),
    }


def test_every_unknown_node_is_named_with_the_known_ones() -> None:
    message = refused(
        node("RollNode", x=INPUT, out=OUTPUT), node("AddNode", a=INPUT, b=INPUT, out=OUTPUT), node("FlipNode", x=INPUT)
    )
    assert message == (
        "the graph uses FlipNode, RollNode, which this executor does not implement, so the artifact cannot be shown to "
        f"be right; it knows {', '.join(sorted(OPERATORS))}. Choose a model of another architecture, or ask for the "
        "operator."
    )


@pytest.mark.parametrize(
    ("reader", "shown"),
    [
        (node("NegNode", x=TEMP, out=OUTPUT), "(NegNode) reads tensor 3"),
        (node("ConcatenateNode", tensors=(INPUT, TEMP), axis=0, out=OUTPUT), "(ConcatenateNode) reads tensor 3"),
        (node("TakeNode", x=INPUT, index=Vid(0), axis=0, out=OUTPUT), "(TakeNode) reads value 0"),
        (node("ReshapeNode", x=INPUT, shape=(1, Vid(1)), out=OUTPUT), "(ReshapeNode) reads value 1"),
        (node("AddNode", a=INPUT, b=OUTPUT, out=OUTPUT), "(AddNode) reads tensor 2"),
    ],
)
def test_a_slot_read_before_it_was_written_is_refused(reader: Node, shown: str) -> None:
    assert refused(node("NoopNode"), reader) == f"chain 0, instruction 1 {shown}, which nothing has written."


def test_a_plain_input_counts_as_written() -> None:
    planned = graph(
        [node("TakeNode", x=CONSTANT, index=Vid(1), axis=0, out=OUTPUT)],
        input_map=(Slot("tensor", INPUT.idx), Slot("int", 1)),
    )
    assert len(plan_chain(planned, 0, OPERATORS)) == 1


def test_a_constant_is_written_by_the_init_chain_alone() -> None:
    chain = [node("MultiplyNode", a=CONSTANT, b=CONSTANT, out=CONSTANT)]
    assert len(plan_chain(graph(chain), 0, OPERATORS, init=True)) == 1
    assert refused(*chain) == "chain 0, instruction 0 (MultiplyNode) writes tensor 0, a constant."


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1])
def test_a_value_that_is_no_int32_is_refused(value: int) -> None:
    message = refused(node("BigNode", out=Vid(0)), operators={"BigNode": lambda: value})
    assert message == f"chain 0, instruction 0 (BigNode) computed {value}, which is no int32."


@pytest.mark.parametrize("value", [2**31 - 1, -(2**31)])
def test_the_ends_of_int32_are_values(value: int) -> None:
    assert ran(node("BigNode", out=Vid(0)), operators={"BigNode": lambda: value}).values[0] == value


def test_an_operator_that_fails_is_named_with_its_place() -> None:
    message = refused(node("NoopNode"), node("ReshapeNode", x=INPUT, shape=(2,), out=OUTPUT))
    assert message.startswith("chain 0, instruction 1 (ReshapeNode) failed: ")
    assert "(2)" in message


@pytest.mark.parametrize("error", [CacheError("full"), DelegateError("wrong")])
def test_our_own_errors_pass_unchanged(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(type(error), match=f"^{re.escape(str(error))}$"):
        ran(node("FailNode", out=OUTPUT), operators={"FailNode": fail})


def test_a_mistake_in_an_operator_of_ours_is_not_dressed_up() -> None:
    def fail() -> None:
        raise AssertionError("a bug")

    with pytest.raises(AssertionError, match="a bug"):
        ran(node("FailNode", out=OUTPUT), operators={"FailNode": fail})


def test_an_operator_of_several_results_fills_several_slots() -> None:
    slots = ran(node("SplitNode", x=INPUT, outs=(TEMP, OUTPUT), sizes=(1, 2), axis=0))
    assert [slots.tensors[tid.idx].tolist() for tid in (TEMP, OUTPUT)] == [[1.0], [2.0, 3.0]]


def test_an_operator_that_makes_another_number_of_results_is_refused() -> None:
    assert refused(node("SplitNode", x=INPUT, outs=(TEMP, OUTPUT), sizes=(1,), axis=0)) == (
        "chain 0, instruction 0 (SplitNode) made 3 results; expected 2."
    )


def test_no_result_of_several_may_be_a_constant() -> None:
    assert refused(node("SplitNode", x=INPUT, outs=(TEMP, CONSTANT), sizes=(1, 2), axis=0)) == (
        "chain 0, instruction 0 (SplitNode) writes tensor 0, a constant."
    )
