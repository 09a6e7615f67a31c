"""Published constants equal what executorch's own runtime returns; every broken reference has a message."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.errors import PteError
from pipeline.pte import PteFile, TensorValue
from pipeline.pte.program import build

# Importing executorch's Python side warns about torch internals it uses.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def plain(value: Any) -> Any:
    """A runtime value in the representation of ``Program.constants``."""
    if isinstance(value, torch.Tensor):
        name = str(value.dtype).removeprefix("torch.")
        return {"dtype": name, "sizes": list(value.shape), "values": value.flatten().tolist()}
    return value


def test_constants_equal_what_executorchs_runtime_returns(tiny_pte: Any) -> None:
    from executorch.runtime import Runtime

    runtime = Runtime.get().load_program(tiny_pte.path)
    with PteFile.open(tiny_pte.path) as pte:
        constants = pte.program.constants()
    assert set(constants) == set(tiny_pte.constants) == runtime.method_names - {"forward"}
    for name, value in constants.items():
        outputs = [plain(output) for output in runtime.load_method(name).execute([])]
        expected = outputs[0] if len(outputs) == 1 else outputs
        assert value == expected, name
        assert type(value) is type(expected), name


def test_constants_equal_what_was_published(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        constants = pte.program.constants()
    given = {name: plain(value) for name, value in tiny_pte.constants.items()}
    given["one"] = 5  # a list of one has one output
    assert constants == given


def test_forward_reads_as_lowered(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        forward = pte.program.methods["forward"]
        assert not forward.is_constant
        assert forward.inputs == (
            TensorValue("int64", (1, 6), dynamic=True, dim_order=(0, 1)),
            TensorValue("int64", (6,), dynamic=True, dim_order=(0,)),
        )
        assert [value.sizes for value in forward.outputs] == [(1, 1, 11)]
        (call,) = forward.instructions
        assert (call.kind, call.operator, call.delegate) == ("delegate_call", None, 0)
        assert call.args == forward.input_ids + forward.output_ids
        assert [delegate.id for delegate in forward.delegates] == ["MLXBackend"]
        assert bytes(forward.delegates[0].payload[4:8]) == b"MLX0"


def tensor(**changes: Any) -> dict[str, Any]:
    fields = {
        "scalar_type": 3,
        "storage_offset": 0,
        "sizes": (2,),
        "dim_order": (0,),
        "data_buffer_idx": 1,
        "allocation_info": None,
        "shape_dynamism": 0,
        "extra_tensor_info": None,
    }
    return {"val": ("Tensor", fields | changes)}


def tables() -> dict[str, Any]:
    """A decoded program with one of everything: a portable method, a delegate, constants inline and in a segment."""
    spec = {"key": "k", "value": memoryview(b"v")}
    return {
        "version": 0,
        "constant_buffer": None,
        "backend_delegate_data": ({"data": memoryview(b"inline")},),
        "constant_segment": {"segment_index": 0, "offsets": (0, 4)},
        "execution_plan": (
            {
                "name": "forward",
                "values": (
                    {"val": ("Null", {})},
                    {"val": ("Int", {"int_val": 3})},
                    {"val": ("IntList", {"items": (1, 1)})},
                    {"val": ("OptionalTensorList", {"items": (3, -1)})},
                    tensor(),
                ),
                "inputs": (1,),
                "outputs": (4,),
                "operators": ({"name": "aten::add", "overload": "out"}, {"name": "aten::neg", "overload": None}),
                "delegates": (
                    {"id": "A", "processed": {"location": 0, "index": 0}, "compile_specs": (spec,)},
                    {"id": "B", "processed": {"location": 1, "index": 1}, "compile_specs": None},
                ),
                "chains": (
                    {
                        "instructions": (
                            {"instr_args": ("KernelCall", {"op_index": 0, "args": (1, 4)})},
                            {"instr_args": ("KernelCall", {"op_index": 1, "args": (4,)})},
                            {"instr_args": ("DelegateCall", {"delegate_index": 1, "args": (4,)})},
                            {"instr_args": ("MoveCall", {"move_from": 1, "move_to": 4})},
                            {"instr_args": ("JumpFalseCall", {"cond_value_index": 1, "destination_instruction": 0})},
                            {"instr_args": ("FreeCall", {"value_index": 4})},
                        )
                    },
                ),
            },
        ),
    }


SEGMENTS = (memoryview(bytes(range(12))), memoryview(b"payload"))


def built(changed: dict[str, Any]) -> Any:
    return build(changed, lambda index: SEGMENTS[index], "x.pte").methods["forward"]


def test_a_method_of_kernels_and_delegates_is_read_whole() -> None:
    forward = built(tables())
    assert [(i.kind, i.operator, i.delegate, i.args) for i in forward.instructions] == [
        ("kernel_call", "aten::add.out", None, (1, 4)),
        ("kernel_call", "aten::neg", None, (4,)),
        ("delegate_call", None, 1, (4,)),
        ("move", None, None, (1, 4)),
        ("jump_false", None, None, (1, 0)),
        ("free", None, None, (4,)),
    ]
    assert [(d.id, bytes(d.payload), d.compile_specs) for d in forward.delegates] == [
        ("A", b"inline", (("k", b"v"),)),
        ("B", b"payload", ()),
    ]
    assert [type(value).__name__ for value in forward.values] == [
        "NoneValue", "IntValue", "ListValue", "ListValue", "TensorValue",
    ]  # fmt: skip
    assert forward.values[3].kind == "optional_tensor"
    assert bytes(forward.values[4].data) == bytes(range(4, 12))
    assert not forward.is_constant


def test_constants_stored_inline_are_found() -> None:
    inline = tables()
    inline["constant_segment"] = None
    inline["constant_buffer"] = ({"storage": None}, {"storage": memoryview(b"\1\0\0\0\2\0\0\0")})
    assert bytes(built(inline).values[4].data) == b"\1\0\0\0\2\0\0\0"


def test_only_constants_have_data() -> None:
    for changes in ({"allocation_info": {}}, {"data_buffer_idx": 0}, {"extra_tensor_info": {"location": 1}}):
        changed = tables()
        changed["execution_plan"][0]["values"] = (*changed["execution_plan"][0]["values"][:4], tensor(**changes))
        assert built(changed).values[4].data is None


def plan(edit: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda program: edit(program["execution_plan"][0])


def instruction(kind: str, fields: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return plan(lambda p: p.update(chains=({"instructions": ({"instr_args": (kind, fields)},)},)))


def value(entry: Any) -> Callable[[dict[str, Any]], None]:
    return plan(lambda p: p.update(values=(*p["values"][:4], entry)))


@pytest.mark.parametrize(
    ("edit", "wrong"),
    [
        (plan(lambda p: p.update(inputs=(5,))), "has input 5; expected one of its 5 values"),
        (plan(lambda p: p.update(outputs=(-1,))), "has output -1; expected one of its 5 values"),
        (instruction("KernelCall", {"op_index": 2, "args": ()}), "calls operator 2; expected one of 2"),
        (instruction("KernelCall", {"op_index": 0, "args": (9,)}), "has argument 9"),
        (instruction("DelegateCall", {"delegate_index": -1, "args": ()}), "calls delegate -1; expected one of 2"),
        (instruction("JumpFalseCall", {"cond_value_index": 7, "destination_instruction": 0}), "has condition 7"),
        (plan(lambda p: p.update(chains=({"instructions": ({"instr_args": None},)},))), "an instruction of no kind"),
        (value({"val": None}), "has a value of no kind; expected one of Null, Int"),
        (value(tensor(scalar_type=99)), "has a tensor of scalar type 99"),
        (value(tensor(sizes=(2, -1))), r"has a tensor of sizes \[2, -1\]"),
        (value(tensor(sizes=(1,) * 17)), r"has a tensor of sizes .*expected at most 16"),
        (value(tensor(dim_order=(1,))), r"has a tensor of dim_order \[1\] and sizes \[2\]"),
        (value(tensor(data_buffer_idx=2)), "has constant 2; expected one of 2"),
        (value(tensor(sizes=(3,))), "has constant 1 of 12 bytes where 8 are left"),
        (value(tensor(sizes=(2**31 - 1,) * 16, dim_order=())), "has constant 1 of .* bytes where 8 are left"),
        (lambda p: p.update(constant_segment=None), "has constant 1; expected one of 0"),
        (lambda p: p.update(backend_delegate_data=()), "has delegate data 0 at location 0; 0 are inline"),
        (lambda p: p.update(execution_plan=p["execution_plan"] * 2), "appears twice"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_refused(edit: Callable[[dict[str, Any]], None], wrong: str) -> None:
    changed = copy.copy(tables())
    edit(changed)
    with pytest.raises(PteError, match=rf"^x\.pte: method 'forward' (has )?{wrong}"):
        build(changed, lambda index: SEGMENTS[index], "x.pte")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"sizes": (1, 2), "dim_order": (1, 0)}, r"a tensor laid out as \[1, 0\]; expected row-major"),
        ({"scalar_type": 9, "sizes": (1,)}, "a complex64 tensor, which has no plain numbers"),
    ],
)
def test_a_constant_without_plain_numbers_is_refused(changes: dict[str, Any], wrong: str) -> None:
    changed = tables()
    changed["execution_plan"][0].update(
        values=(tensor(**changes),), inputs=(), outputs=(0,), chains=(), delegates=(), operators=()
    )
    with pytest.raises(PteError, match=rf"^x\.pte: 'forward' publishes {wrong}"):
        build(changed, lambda index: SEGMENTS[index], "x.pte").constants()
