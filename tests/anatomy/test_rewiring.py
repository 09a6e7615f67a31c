"""A change is told where it is: not again by all that follows, and never not at all."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pipeline.anatomy import rewiring, ssa, uses
from pipeline.anatomy.ssa import Block, Line, Named, Output, Result
from pipeline.pte import Node
from pipeline.pte.program import Instruction, Method, TensorValue
from tests.anatomy.graphs import graph, node

CONSTANTS = dict.fromkeys(("q", "k", "v", "o"), ("float32", (4, 4)))


def block(chain: Sequence[Node], constants: dict[str, Any] | None = None) -> Block:
    """The main chain over the constants t0 to t3, the input t4 and the output t5; t6 and on are temporaries."""
    made = graph(list(chain), constants=constants or CONSTANTS, inputs={"x": (4, 4)}, outputs=("y",), temporaries=40)
    return ssa.of_graph(made, {tid: use.name for tid, use in uses.of_constants(made).items()})[0]


def attention(q: str = "t6", k: str = "t7", v: str = "t8", out: str = "t9") -> list[Node]:
    return [
        node("Addmm", mat1="t4", mat2="t0", out=q, bias=None, alpha=1.0, beta=1.0),
        node("Addmm", mat1="t4", mat2="t1", out=k, bias=None, alpha=1.0, beta=1.0),
        node("Addmm", mat1="t4", mat2="t2", out=v, bias=None, alpha=1.0, beta=1.0),
        node("Sdpa", q=q, k=k, v=v, out=out, scale=0.5, mask=None, causal=False),
        node("Addmm", mat1=out, mat2="t3", out="t5", bias=None, alpha=1.0, beta=1.0),
    ]


def changes(old: Block, new: Block, **renamed: str) -> list[tuple[list[str], list[str]]]:
    """The operators that went and came, place by place."""
    found = rewiring.compared(old, new, lambda name: renamed.get(name, name))
    return [
        (
            [line.operator for line in old.lines[slice(*hunk.old)]],
            [line.operator for line in new.lines[slice(*hunk.new)]],
        )
        for hunk in found.hunks
    ]


def test_other_slots_are_no_change() -> None:
    assert changes(block(attention()), block(attention("t10", "t11", "t6", "t7"))) == []
    assert changes(block(attention()), block(attention(out="t6"))) == []


def test_constants_in_another_order_are_no_change() -> None:
    """The same graph with its constants numbered the other way round."""
    turned = [
        Node(one.name, {k: type(v)(3 - v.idx) if getattr(v, "idx", 9) < 4 else v for k, v in one.fields.items()})
        for one in attention()
    ]
    assert changes(block(attention()), block(turned, dict(reversed(CONSTANTS.items())))) == []


def test_a_changed_attribute_is_one_change() -> None:
    other = attention()
    other[3] = Node("SdpaNode", other[3].fields | {"scale": 0.25})
    assert changes(block(attention()), block(other)) == [(["Sdpa"], ["Sdpa"])]


@pytest.mark.parametrize(("old", "new"), [(1, 1.0), (True, 1), (0.0, -0.0)])
def test_numbers_that_compare_equal_and_are_not_the_same_are_a_change(old: Any, new: Any) -> None:
    before, after = ([node("Full", shape=[4], v=value, scalar_type=6, out="t5")] for value in (old, new))
    assert changes(block(before), block(after)) == [(["Full"], ["Full"])]


def test_an_operand_from_elsewhere_is_a_change() -> None:
    other = attention()
    other[3] = Node("SdpaNode", other[3].fields | {"k": other[3].fields["v"], "v": other[3].fields["k"]})
    assert changes(block(attention()), block(other)) == [(["Sdpa"], ["Sdpa"])]


def test_another_constant_is_a_change_and_a_renamed_one_is_not() -> None:
    other = block(attention(), {"p": CONSTANTS["q"], "k": CONSTANTS["k"], "v": CONSTANTS["v"], "o": CONSTANTS["o"]})
    assert changes(block(attention()), other) == [(["Addmm"], ["Addmm"])]
    assert changes(block(attention()), other, q="p") == []


def test_what_follows_an_inserted_instruction_is_not_told_again() -> None:
    other = attention()
    other.insert(3, node("Multiply", a="t6", b="t6", out="t6"))
    assert changes(block(attention()), block(other)) == [(["Sdpa"], ["Multiply", "Sdpa"])]


def test_a_replaced_pair_stands_for_the_one_that_replaced_it() -> None:
    """A transposed weight and a matmul become one quantized matmul; what reads the product is the same."""
    before = [
        node("Transpose", x="t0", out="t6", perm=[1, 0]),
        node("Addmm", mat1="t4", mat2="t6", out="t7", bias=None, alpha=1.0, beta=1.0),
        node("Silu", x="t7", out="t8"),
        node("Multiply", a="t7", b="t8", out="t5"),
    ]
    after = [
        node("QuantizedMatmul", x="t4", w="t0", scales="t1", out="t7", biases=None, group_size=32, bits=4),
        *before[2:],
    ]
    after[0] = Node(after[0].name, after[0].fields | {"mode": "affine", "transpose": True})
    assert changes(block(before), block(after)) == [(["Transpose", "Addmm"], ["QuantizedMatmul"])]


def test_one_that_changed_stands_for_the_same_one_everywhere() -> None:
    """Both readers of a changed value read another's place: the second is a change though the first may be none."""
    before = [
        node("Exp", x="t4", out="t6"),
        node("Sin", x="t4", out="t7"),
        node("Add", a="t6", b="t7", out="t8"),
        node("Multiply", a="t6", b="t8", out="t5"),
    ]
    after = [
        node("Tanh", x="t4", out="t6"),
        node("Cos", x="t4", out="t7"),
        node("Add", a="t6", b="t7", out="t8"),
        node("Multiply", a="t7", b="t8", out="t5"),
    ]
    assert changes(block(before), block(after)) == [(["Exp", "Sin"], ["Tanh", "Cos"]), (["Multiply"], ["Multiply"])]


def test_one_that_changed_does_not_stand_for_two() -> None:
    before = [
        node("Exp", x="t4", out="t6"),
        node("Sin", x="t4", out="t7"),
        node("Reciprocal", x="t4", out="t8"),
        node("Add", a="t6", b="t7", out="t5"),
    ]
    after = [
        node("Tanh", x="t4", out="t6"),
        node("Cos", x="t4", out="t7"),
        node("Reciprocal", x="t4", out="t8"),
        node("Add", a="t6", b="t6", out="t5"),
    ]
    assert changes(block(before), block(after)) == [(["Exp", "Sin"], ["Tanh", "Cos"]), (["Add"], ["Add"])]


def test_a_tensor_that_the_file_states_otherwise_is_a_change() -> None:
    def method(**changes: Any) -> Block:
        result = replace(TensorValue("float32", (2, 3), False, None, (0, 1)), **changes)
        values = (TensorValue("float32", (2, 3), False), result)
        call = Instruction("kernel_call", "aten::neg.out", None, (0, 1, 1))
        return ssa.of_method(Method("forward", values, (0,), (), (call,), ()), {}, str, {})

    assert changes(method(), method()) == []
    for changed in ({"dtype": "int32"}, {"sizes": (3, 2)}, {"dim_order": (1, 0)}, {"dynamic": True}):
        assert changes(method(), method(**changed)) == [(["aten::neg.out"], ["aten::neg.out"])]


def test_a_result_from_elsewhere_is_told() -> None:
    lines = (
        Line("Exp", (("x", Named("x")),), (Output(None),), 0),
        Line("Exp", (("x", Result(0)),), (Output(None),), 1),
    )
    old, new = Block("b", lines, (("y", Result(0)),)), Block("b", lines, (("y", Result(1)),))
    found = rewiring.compared(old, new, lambda name: name)
    assert (found.hunks, found.results) == ((), ("y",))
    assert (
        rewiring.compared(old, Block("b", lines, (("z", Result(0)),)), lambda name: {"y": "z"}.get(name, name)).results
        == ()
    )


def evaluated(block: Block) -> object:
    """What a block computes as a formula without numbers, to know whether two blocks mean the same."""
    known: dict[int, object] = {}

    def formula(operand: Any) -> object:
        if isinstance(operand, tuple):
            return tuple(map(formula, operand))
        return known[operand.number] if isinstance(operand, Result) else repr(operand)

    for line in block.lines:
        known[line.first] = (line.operator, tuple((name, formula(operand)) for name, operand in line.arguments))
    return [known[line.first] for line in block.lines]


def test_no_hunk_means_the_same_formulas_and_a_hunk_means_others() -> None:
    rng = random.Random(20261130)
    same = 0
    for _ in range(400):
        chain = [
            node(rng.choice(["Add", "Multiply"]), a=f"t{rng.randint(4, 9)}", b=f"t{rng.randint(0, 9)}", out="t6")
            for _ in range(rng.randint(1, 12))
        ]
        chain = [Node(one.name, one.fields | node("x", out=f"t{rng.randint(6, 9)}").fields) for one in chain]
        other = list(chain)
        place = rng.randrange(len(other))
        field = rng.choice("ab")
        other[place] = Node(
            other[place].name, other[place].fields | node("x", **{field: f"t{rng.randint(0, 9)}"}).fields
        )
        before, after = block(chain), block(other)
        means_the_same = evaluated(before) == evaluated(after)
        same += means_the_same
        assert (changes(before, after) == []) == means_the_same
    assert 20 < same < 380
