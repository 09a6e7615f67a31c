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


def test_every_unknown_node_is_named() -> None:
    nodes = [node("NewNode", x=INPUT, out=OUTPUT), node("AddNode", a=INPUT, b=INPUT, out=OUTPUT), node("LaterNode")]
    with pytest.raises(DelegateError) as caught:
        plan_chain(graph(nodes[:2], nodes[2:]), 0, OPERATORS)
    assert str(caught.value) == (
        "the graph uses LaterNode, NewNode, which this executor does not implement, so the artifact cannot be shown to "
        "be right. Choose a model of another architecture, or ask for the operator."
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


@pytest.mark.parametrize("name", ["SliceUpdateNode", "IndexCopyNode"])
def test_a_constant_is_not_updated_even_into_another_slot(name: str) -> None:
    """The runtime wants what it updates to be writable, wherever the result goes."""
    assert refused(node(name, dst=CONSTANT, update=INPUT, out=TEMP)) == (
        f"chain 0, instruction 0 ({name}) writes tensor 0, a constant."
    )


def branch(condition: Any, chosen: int = 1, otherwise: int = 2) -> Node:
    return node("IfNode", cond=condition, then_chain_idx=chosen, else_chain_idx=otherwise)


def scan(**changes: Any) -> Node:
    """A running sum over the rows of the input: TEMP is the row and then the sum so far."""
    slots = {"originals": (INPUT,), "sliced": (TEMP,), "outputs": (OUTPUT,), "carry": ()}
    return node("ScanNode", **{**slots, "body_chain_idx": 1, "scan_axis": 1, **changes})


def ran_chains(*chains: Sequence[Node], given: Any = (1.0, 2.0, 3.0)) -> Slots:
    planned = graph(*chains)
    slots = Slots(planned.num_tensors, planned.num_values)
    slots.tensors[:2] = mx.array(2.0), mx.array(given)
    for call in plan_chain(planned, 0, OPERATORS):
        call(slots)
    return slots


def refused_chains(*chains: Sequence[Node]) -> str:
    with pytest.raises(DelegateError) as caught:
        ran_chains(*chains)
    return str(caught.value)


DOUBLED = [node("AddNode", a=INPUT, b=INPUT, out=OUTPUT)]
NEGATED = [node("NegNode", x=INPUT, out=OUTPUT)]
SIZE = node("SymSizeNode", a=INPUT, dim=0, out=Vid(0))


@pytest.mark.parametrize(("given", "expected"), [([5.0], [-5.0]), ([1.0, 2.0], [2.0, 4.0])])
def test_one_of_two_chains_runs_by_a_number_known_then(given: list[float], expected: list[float]) -> None:
    less = node("SubtractIntNode", a=Vid(0), b=1, out=Vid(1))
    slots = ran_chains([SIZE, less, branch(Vid(1))], DOUBLED, NEGATED, given=given)
    assert slots.tensors[OUTPUT.idx].tolist() == expected


@pytest.mark.parametrize(("condition", "expected"), [(-1, 2.0), (0, -1.0)])
def test_a_literal_condition_chooses_too(condition: int, expected: float) -> None:
    assert ran_chains([branch(condition)], DOUBLED, NEGATED, given=1.0).tensors[OUTPUT.idx].item() == expected


def test_what_only_one_chain_writes_counts_as_unwritten() -> None:
    copy = node("IdCopyNode", x=TEMP, out=OUTPUT)
    half = [node("IdCopyNode", x=INPUT, out=TEMP)]
    assert refused_chains([branch(1), copy], half, NEGATED) == (
        "chain 0, instruction 1 (IdCopyNode) reads tensor 3, which nothing has written."
    )
    both = [half[0], NEGATED[0]]
    assert ran_chains([branch(1), copy], half, both).tensors[OUTPUT.idx].tolist() == [1.0, 2.0, 3.0]


def test_what_a_chain_reads_must_be_written_by_who_runs_it() -> None:
    inner = [node("NegNode", x=TEMP, out=OUTPUT)]
    assert refused_chains([SIZE, branch(1)], inner, NEGATED) == (
        "chain 1, instruction 0 (NegNode) reads tensor 3, which nothing has written."
    )
    before = node("AddNode", a=INPUT, b=CONSTANT, out=TEMP)
    assert ran_chains([before, branch(1)], inner, NEGATED).tensors[OUTPUT.idx].tolist() == [-3.0, -4.0, -5.0]
    assert refused_chains([branch(Vid(1))], DOUBLED, NEGATED) == (
        "chain 0, instruction 0 (IfNode) reads value 1, which nothing has written."
    )


def test_a_constant_is_not_written_from_within_either() -> None:
    inner = [node("NegNode", x=INPUT, out=CONSTANT)]
    assert refused_chains([branch(1)], DOUBLED, inner) == (
        "chain 2, instruction 0 (NegNode) writes tensor 0, a constant."
    )


def test_a_scan_runs_over_an_axis_and_stacks_what_it_left() -> None:
    body = [node("MultiplyNode", a=TEMP, b=CONSTANT, out=OUTPUT)]
    slots = ran_chains([scan()], body, given=[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    assert slots.tensors[OUTPUT.idx].tolist() == [[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]]
    assert slots.tensors[TEMP.idx].tolist() == [3.0, 6.0], "the last column is left in its slot"


def test_a_scan_carries_what_its_chain_overwrites() -> None:
    total = Vid(0)
    body = [
        node("SymSizeNode", a=TEMP, dim=0, out=Vid(1)),
        node("AddIntNode", a=total, b=Vid(1), out=total),
        node("FullLikeNode", x=TEMP, v=total, scalar_type=None, out=OUTPUT),
    ]
    start = node("AddIntNode", a=0, b=0, out=total)
    slots = ran_chains([start, scan(carry=(CONSTANT,))], body, given=[[0.0] * 3] * 2)
    assert slots.tensors[OUTPUT.idx].tolist() == [[2.0, 4.0, 6.0]] * 2
    assert (
        refused_chains([scan()], body)
        == "chain 1, instruction 1 (AddIntNode) reads value 0, which nothing has written."
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"sliced": ()}, "slices 1 tensors into 0; expected one into each."),
        ({"originals": (), "sliced": ()}, "slices 0 tensors into 0; expected one into each."),
        ({"carry": (OUTPUT,)}, "reads tensor 2, which nothing has written."),
        ({"sliced": (CONSTANT,)}, "writes tensor 0, a constant."),
        ({"outputs": (CONSTANT,)}, "writes tensor 0, a constant."),
        ({"scan_axis": 7}, "failed: "),
    ],
    ids=str,
)
def test_a_scan_that_could_not_run_is_refused(changes: dict[str, Any], expected: str) -> None:
    body = [node("IdCopyNode", x=INPUT, out=OUTPUT)]
    assert refused_chains([scan(**changes)], body).startswith(f"chain 0, instruction 0 (ScanNode) {expected}")


def test_a_scan_of_nothing_is_refused() -> None:
    planned = graph([scan()], [node("IdCopyNode", x=TEMP, out=OUTPUT)])
    slots = Slots(planned.num_tensors, planned.num_values)
    slots.tensors[1] = mx.zeros((2, 0))
    with pytest.raises(DelegateError, match=r"^chain 0, instruction 0 \(ScanNode\) failed: .*stack"):
        plan_chain(planned, 0, OPERATORS)[0](slots)


def test_chains_inside_chains_are_planned_once_and_only_so_deep() -> None:
    """Each runs the next twice: planned anew every time, thirty of them would take a billion plans."""
    chains = [[branch(1, index + 1, index + 1)] for index in range(30)]
    assert ran_chains(*chains, NEGATED).tensors[OUTPUT.idx].tolist() == [-1.0, -2.0, -3.0]
    endless = [[branch(1, 0, 0)]]
    assert refused_chains(*endless) == "chain 0 is run by more than 32 others inside one another."
    deep = [[branch(1, index + 1, index + 1)] for index in range(40)]
    assert "is run by more than 32 others" in refused_chains(*deep, NEGATED)
