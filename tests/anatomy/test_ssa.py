"""Lines refer to what computed their operands, however slots are used again."""

from __future__ import annotations

from pipeline.anatomy import ssa, uses
from pipeline.anatomy.listing import text_of
from pipeline.anatomy.ssa import After, Named, Result
from pipeline.pte import MlxGraph
from pipeline.pte.program import Delegate, DoubleValue, Instruction, IntValue, ListValue, Method, NoneValue, TensorValue
from tests.anatomy.graphs import graph, node


def blocks(graph: MlxGraph) -> tuple[ssa.Block, ...]:
    return ssa.of_graph(graph, {tid: use.name for tid, use in uses.of_constants(graph).items()})


def lines(block: ssa.Block) -> list[str]:
    return [text_of(line) for line in block.lines]


ONE = {"w": ("float32", (3, 3))}


def test_a_slot_that_is_used_again_is_another_value() -> None:
    chain = [
        node("Exp", x="t1", out="t4"),
        node("Multiply", a="t4", b="t0", out="t4"),
        node("Add", a="t4", b="t4", out="t2"),
    ]
    (main,) = blocks(graph(chain, constants=ONE, inputs={"x": (3, 3)}, outputs=("y",)))
    assert lines(main) == [
        "%0: float32[3, 3] = Exp(x)",
        "%1: float32[3, 3] = Multiply(%0, w)",
        "%2: float32[3, 3] = Add(%1, %1) -> y",
    ]
    assert main.results == (("y", Result(2)),)


def test_a_written_buffer_is_read_as_what_was_written() -> None:
    chain = [
        node("Exp", x="t3", out="t5"),
        node("SliceUpdate", dst="t3", update="t5", out="t3", axis=0, start=0, stop="v1", step=1),
        node("Exp", x="t3", out="t2"),
    ]
    (main,) = blocks(graph(chain, constants=ONE, inputs={"x": (3,)}, outputs=("y",), buffers=("cache",)))
    assert lines(main)[1:] == [
        "%1: float32[] = SliceUpdate(cache, %0, axis=0, start=0, stop=v1, step=1) -> cache",
        "%2: float32[] = Exp(%1) -> y",
    ]
    assert main.results == (("y", Result(2)), ("cache", Result(1)))


def test_an_output_that_is_an_input_is_given_back_as_that() -> None:
    (main,) = blocks(graph([], inputs={"x": (3,)}, outputs=("y",)))
    assert main.results == (("y", Named("y")),)


def test_the_init_chain_and_nested_chains_are_blocks_of_their_own() -> None:
    main = [
        node("Exp", x="t1", out="t5"),
        node("If", cond="v0", then_chain_idx=2, else_chain_idx=3),
        node("Add", a="t5", b="t4", out="t2"),
    ]
    init = [node("Multiply", a="t0", b="t0", out="t0")]
    then = [node("Exp", x="t5", out="t4")]
    otherwise = [node("Neg", x="t5", out="t4")]
    found = blocks(graph(main, init, then, otherwise, constants=ONE, inputs={"x": (3,)}, outputs=("y",), init_chain=1))
    assert [block.title for block in found] == ["main chain", "init chain, run once when loaded", "chain 2", "chain 3"]
    # t5 cannot be written by a branch, t4 can: it is whatever the branches left.
    add = found[0].lines[2]
    assert dict(add.arguments) == {"a": Result(0), "b": After(1, "t4")}
    assert text_of(add) == "%2 = Add(%0, %1.t4) -> y"
    assert text_of(found[1].lines[0]) == "%3: float32[3, 3] = Multiply(w, w) -> w"
    assert text_of(found[2].lines[0]).endswith("= Exp(t5)")


def test_what_a_scan_carries_comes_from_it() -> None:
    scan = node("Scan", originals=["t1"], sliced=["t4"], outputs=["t5"], carry=["t6"], body_chain_idx=1, scan_axis=1)
    main = [node("Exp", x="t1", out="t6"), scan, node("Add", a="t5", b="t6", out="t2")]
    body = [node("Add", a="t4", b="t6", out="t6")]
    first = blocks(graph(main, body, constants=ONE, inputs={"x": (3,)}, outputs=("y",)))[0]
    assert len(first.lines[1].outputs) == 2
    # The body writes t6, but not after the scan has: what it leaves is the carry.
    assert dict(first.lines[2].arguments) == {"a": Result(1), "b": Result(2)}


def test_dtypes_are_told_where_they_follow_and_nowhere_else() -> None:
    half = {"w": ("float16", (3,)), "n": ("int32", (3,))}
    chain = [
        node("Multiply", a="t0", b="t2", out="t4"),
        node("Multiply", a="t0", b="t0", out="t5"),
        node("Less", a="t0", b="t2", out="t6"),
        node("AsType", x="t5", out="t7", scalar_type=15),
        node("Take", x="t1", out="t4", index=0, axis=0),
        node("Divide", a="t1", b="t1", out="t5"),
        node("UpdateAndAttend", q="t7", k="t7", v="t7", position="t1", out="t8", layer_id=0, scale=0.5, out_dtype=6),
        node("Exp", x="t9", out="t9"),
    ]
    (main,) = blocks(graph(chain, constants=half, inputs={"x": (3,)}))
    assert [line.outputs[0].dtype for line in main.lines] == [
        None, "float16", "bool", "bfloat16", "int32", None, "float32", None,
    ]  # fmt: skip


F = ("float32", (2,), False)
METHOD = Method(
    name="forward",
    values=(
        TensorValue(*F),
        TensorValue(*F, data=memoryview(bytes(8)), constant=3),
        DoubleValue(0.5),
        TensorValue(*F),
        TensorValue(*F),
        ListValue("tensor", (0, 3)),
        NoneValue(),
        ListValue("int", (8, -1)),
        IntValue(7),
        TensorValue(*F),
        TensorValue(*F, key="abcd/outside"),
        ListValue("tensor", (11, 12)),
        TensorValue(*F),
        TensorValue(*F),
    ),
    input_ids=(0,),
    output_ids=(4,),
    instructions=(
        Instruction("kernel_call", "aten::add.out", None, (0, 1, 2, 3, 3)),
        Instruction("kernel_call", "aten::cat.out", None, (5, 6, 7, 9, 10, 4, 4)),
        Instruction("jump_false", None, None, (2, 5)),
        Instruction("delegate_call", None, 0, (0, 4)),
        Instruction("free", None, None, (3,)),
    ),
    delegates=(Delegate("Xnn", memoryview(b"")),),
)


def test_kernels_read_what_kernels_computed() -> None:
    block = ssa.of_method(METHOD, {4: "y"}, lambda value: value.key or f"constant {value.constant}", {})
    assert lines(block) == [
        "%0: float32[2] = aten::add.out(input 0, constant 3, 0.5)",
        # Value 9 was computed by nothing: it is a buffer.
        "%1: float32[2] = aten::cat.out([input 0, %0], none, [7, none], value 9, abcd/outside) -> y",
        "%2 = jump_false(0.5, to=5)",
        "%3 = Xnn[0](input 0, %1)",
        "%4 = free(%0)",
    ]
    assert block.results == (("y", Result(1)),)


def test_a_list_of_tensors_to_compute_is_what_is_computed() -> None:
    split = Method(
        name="forward",
        values=(TensorValue(*F), ListValue("tensor", (2, 3)), TensorValue(*F), TensorValue(*F), TensorValue(*F)),
        input_ids=(0,),
        output_ids=(4,),
        instructions=(
            Instruction("kernel_call", "aten::split_copy.out", None, (0, 1, 1)),
            Instruction("kernel_call", "aten::mul.out", None, (2, 3, 4, 4)),
        ),
        delegates=(),
    )
    assert lines(ssa.of_method(split, {}, str, {})) == [
        "%0: float32[2], %1: float32[2] = aten::split_copy.out(input 0)",
        "%2: float32[2] = aten::mul.out(%0, %1) -> output 0",
    ]


def test_a_delegate_takes_its_inputs_by_name() -> None:
    call = Method(
        name="forward",
        values=(TensorValue(*F), TensorValue(*F), TensorValue(*F)),
        input_ids=(0, 1),
        output_ids=(2,),
        instructions=(Instruction("delegate_call", None, 0, (1, 0, 2)),),
        delegates=(Delegate("MLXBackend", memoryview(b"")),),
    )
    block = ssa.of_method(call, {0: "tokens", 1: "positions"}, str, {0: ["positions", "tokens"]})
    assert lines(block) == ["%0: float32[2] = MLXBackend[0](positions, tokens) -> output 0"]
    swapped = ssa.of_method(call, {0: "tokens", 1: "positions"}, str, {0: ["right", "left"]})
    assert lines(swapped) == ["%0: float32[2] = MLXBackend[0](left=tokens, right=positions) -> output 0"]
