"""Published constants equal what executorch's own runtime returns; every broken reference has a message."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pipeline.errors import PteError
from pipeline.pte import PteFile, TensorValue
from pipeline.pte.program_tables import build

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
            TensorValue("int64", (1, 6), dynamic=True, dim_order=(0, 1), planned=True),
            TensorValue("int64", (6,), dynamic=True, dim_order=(0,), planned=True),
        )
        assert [value.sizes for value in forward.outputs] == [(1, 1, 11)]
        (call,) = forward.instructions
        assert (call.kind, call.operator, call.delegate) == ("delegate_call", None, 0)
        assert call.args == forward.input_ids + forward.output_ids
        assert [delegate.id for delegate in forward.delegates] == ["MLXBackend"]
        assert bytes(forward.delegates[0].payload[4:8]) == b"MLX0"


def tensor(**changes: Any) -> tuple[str, dict[str, Any]]:
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
    return "Tensor", fields | changes


def tables() -> dict[str, Any]:
    """A decoded program with one of everything: a portable method, a delegate, constants inline and in a segment."""
    spec = {"key": "k", "value": b"v"}
    return {
        "version": 0,
        "constant_buffer": None,
        "backend_delegate_data": ({"data": memoryview(b"inline")},),
        "constant_segment": {"segment_index": 0, "offsets": (0, 4)},
        "mutable_data_segments": ({"segment_index": 0, "offsets": (0, 2)}, {"segment_index": 1, "offsets": (0, 1)}),
        "execution_plan": (
            {
                "name": "forward",
                "values": (
                    ("Null", {}),
                    ("Int", {"int_val": 3}),
                    ("IntList", {"items": (1, 1)}),
                    ("OptionalTensorList", {"items": (3, -1)}),
                    tensor(),
                ),
                "inputs": (1,),
                "outputs": (4,),
                "operators": ({"name": "aten::add", "overload": "out"}, {"name": "aten::neg", "overload": None}),
                "delegates": (
                    {"id": "A", "processed": {"location": 0, "index": 0}, "compile_specs": (spec,)},
                    {"id": "B", "processed": {"location": 1, "index": 1}, "compile_specs": None},
                ),
                "non_const_buffer_sizes": (0, 64, 32),
                "chains": (
                    (
                        ("KernelCall", {"op_index": 0, "args": (1, 4)}),
                        ("KernelCall", {"op_index": 1, "args": (4,)}),
                        ("DelegateCall", {"delegate_index": 1, "args": (4,)}),
                    ),
                    (
                        ("MoveCall", {"move_from": 1, "move_to": 4}),
                        ("JumpFalseCall", {"cond_value_index": 1, "destination_instruction": 0}),
                        ("FreeCall", {"value_index": 4}),
                    ),
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
    assert forward.values[4].constant == 1
    assert [delegate.segment for delegate in forward.delegates] == [None, 1]
    assert forward.planned_bytes == (64, 32)


def test_a_program_says_which_segments_hold_constants_and_buffers() -> None:
    found = build(tables(), lambda index: SEGMENTS[index], "x.pte")
    assert (found.constant_segment, found.mutable_segments) == (0, (0, 1))
    inline = tables() | {"constant_segment": {"segment_index": 0, "offsets": ()}, "execution_plan": None}
    assert build(inline, lambda index: SEGMENTS[index], "x.pte").constant_segment is None


def test_constants_stored_inline_are_found() -> None:
    inline = tables()
    inline["constant_segment"] = None
    inline["constant_buffer"] = ({"storage": None}, {"storage": memoryview(b"\1\0\0\0\2\0\0\0")})
    assert bytes(built(inline).values[4].data) == b"\1\0\0\0\2\0\0\0"


def only_value(*values: Any) -> Callable[[dict[str, Any]], None]:
    """The method becomes one without instructions; the last of ``values`` is what it returns."""
    return plan(
        lambda p: p.update(values=values, inputs=(), outputs=(len(values) - 1,), chains=(), delegates=(), operators=())
    )


def value_of(**changes: Any) -> Any:
    changed = tables()
    only_value(tensor(**changes))(changed)
    return built(changed).values[0]


def test_only_constants_have_data() -> None:
    external = {"mutable_data_segments_idx": 0, "fully_qualified_name": "a.b", "location": 1}
    for changes in ({"allocation_info": True}, {"data_buffer_idx": 0}, {"extra_tensor_info": external}):
        assert value_of(**changes).data is None
    assert value_of().data is not None


def test_a_tensor_says_where_its_data_come_from() -> None:
    extra = {"mutable_data_segments_idx": 1, "fully_qualified_name": "a.b", "location": 0}
    mutable = value_of(allocation_info=True)
    assert (mutable.planned, bytes(mutable.initial)) == (True, bytes(range(2, 10)))
    other = value_of(allocation_info=True, extra_tensor_info=extra, scalar_type=0)
    assert (other.name, bytes(other.initial), other.key) == ("a.b", b"ay", None)
    given = value_of(allocation_info=True, data_buffer_idx=0)
    assert (given.planned, given.initial) == (True, None)
    external = value_of(extra_tensor_info=extra | {"location": 1})
    assert (external.name, external.key, external.planned) == ("a.b", "a.b", False)


@pytest.mark.parametrize(("code", "dynamic", "unbounded"), [(0, False, False), (1, True, False), (2, True, True)])
def test_the_three_dynamisms_are_told_apart(code: int, dynamic: bool, unbounded: bool) -> None:
    found = value_of(shape_dynamism=code)
    assert (found.dynamic, found.unbounded, found.sizes, found.size_bytes) == (dynamic, unbounded, (2,), 8)


def plan(edit: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    return lambda program: edit(program["execution_plan"][0])


def instruction(kind: str, fields: dict[str, Any]) -> Callable[[dict[str, Any]], None]:
    return plan(lambda p: p.update(chains=(((kind, fields),),)))


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
        (plan(lambda p: p.update(chains=((None,),))), "an instruction of no kind"),
        (value(None), "has a value of no kind; expected one of Null, Int"),
        (value(tensor(scalar_type=99)), "has a tensor of scalar type 99"),
        (value(tensor(sizes=(2, -1))), r"has a tensor of sizes \[2, -1\]"),
        (value(tensor(sizes=(1,) * 17)), r"has a tensor of sizes .*expected at most 16"),
        (value(tensor(dim_order=(1,))), r"has a tensor of dim_order \[1\] and sizes \[2\]"),
        (value(tensor(dim_order=(0,) * 999_999)), r"has a tensor of dim_order \[0(, 0){16}\] and sizes \[2\]\."),
        (
            value(tensor(extra_tensor_info={"location": 1, "fully_qualified_name": None})),
            "has a tensor in a file beside it and no name to find it by",
        ),
        (value(tensor(storage_offset=1)), "has a tensor that begins 1 elements into its data; expected 0"),
        (value(tensor(shape_dynamism=3)), "has a tensor of shape dynamism 3; expected 0, 1 or 2"),
        (value(("IntList", {"items": (1, 5)})), "has list item 5; expected one of its 5 values"),
        (value(("TensorList", {"items": (-1,)})), "has list item -1"),
        (value(("OptionalTensorList", {"items": (-2,)})), "has list item -2"),
        (value(tensor(data_buffer_idx=2)), "has constant 2; expected one of 2"),
        (value(tensor(sizes=(3,))), "has constant 1 of 12 bytes where 8 are left"),
        (value(tensor(sizes=(2**31 - 1,) * 16, dim_order=())), "has constant 1 of .* bytes where 8 are left"),
        (lambda p: p.update(constant_segment=None), "has constant 1; expected one of 0"),
        (value(tensor(allocation_info=True, data_buffer_idx=2)), "has initial data 2; expected one of 2"),
        (value(tensor(allocation_info=True, sizes=(3,))), "has initial data 1 of 12 bytes where 10 are left"),
        (
            value(tensor(allocation_info=True, extra_tensor_info={"mutable_data_segments_idx": 2})),
            "has initial data in mutable segment 2; expected one of 2",
        ),
        (lambda p: p.update(backend_delegate_data=()), "has delegate data 0 at location 0; 0 are inline"),
        (lambda p: p.update(execution_plan=p["execution_plan"] * 2), "appears twice"),
    ],
)  # fmt: skip
def test_a_reference_that_leads_nowhere_is_refused(edit: Callable[[dict[str, Any]], None], wrong: str) -> None:
    changed = copy.copy(tables())
    edit(changed)
    with pytest.raises(PteError, match=rf"^x\.pte: method 'forward' (has )?{wrong}"):
        build(changed, lambda index: SEGMENTS[index], "x.pte")


INT, TRUE = ("Int", {"int_val": 3}), ("Bool", {"bool_val": True})

PUBLISHED: dict[str, tuple[tuple[Any, ...], Any]] = {
    "None": ((("Null", {}),), None),
    "an int": ((INT,), 3),
    "a list of ints": ((INT, ("Int", {"int_val": -4}), ("IntList", {"items": (0, 1, 0)})), [3, -4, 3]),
    "a list of doubles": ((("DoubleList", {"items": (0.5, -2.0)}),), [0.5, -2.0]),
    "a list of bools": ((("BoolList", {"items": (True, False)}),), [True, False]),
    "a list of tensors": (
        (tensor(), ("TensorList", {"items": (0,)})),
        [{"dtype": "int32", "sizes": [2], "values": [0x07060504, 0x0B0A0908]}],
    ),
    "a list of optional tensors": (
        (tensor(sizes=(0,)), ("OptionalTensorList", {"items": (-1, 0)})),
        [None, {"dtype": "int32", "sizes": [0], "values": []}],
    ),
    "an empty list": ((("IntList", {"items": None}),), []),
}


@pytest.mark.parametrize("case", PUBLISHED)
def test_every_kind_of_value_is_published_as_plain_python(case: str) -> None:
    values, expected = PUBLISHED[case]
    changed = tables()
    only_value(*values)(changed)
    (published,) = build(changed, lambda index: SEGMENTS[index], "x.pte").constants().values()
    assert published == expected
    assert repr(published) == repr(expected), "of the same types"


def test_a_method_that_returns_no_constant_publishes_nothing() -> None:
    for values in (
        (tensor(data_buffer_idx=0), ("TensorList", {"items": (0,)})),
        (("IntList", {"items": (0,)}),),  # a list of itself
        (("IntList", {"items": None}), ("IntList", {"items": (0,)})),
    ):
        changed = tables()
        only_value(*values)(changed)
        found = build(changed, lambda index: SEGMENTS[index], "x.pte")
        assert (found.constants(), found.executable) == ({}, ("forward",))


def test_a_tensor_is_published_in_the_order_of_its_sizes() -> None:
    expected = torch.arange(12, dtype=torch.uint8).reshape(2, 3, 2)
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0), (1, 2, 0)):
        changed = tables()
        changed["constant_segment"] = None
        stored = expected.permute(order).contiguous().numpy().tobytes()
        changed["constant_buffer"] = ({"storage": None}, {"storage": memoryview(stored)})
        only_value(tensor(scalar_type=0, sizes=(2, 3, 2), dim_order=order))(changed)
        published = build(changed, lambda index: SEGMENTS[index], "x.pte").constants()["forward"]
        assert published["values"] == expected.flatten().tolist()


def test_a_tensor_without_elements_is_published_at_once_whatever_its_sizes() -> None:
    changed = tables()
    only_value(tensor(sizes=(2**31 - 1, 2**31 - 1, 0), dim_order=(2, 1, 0)))(changed)
    assert build(changed, lambda index: SEGMENTS[index], "x.pte").constants()["forward"]["values"] == []


@pytest.mark.parametrize(
    ("shared", "times"),
    [
        (tensor(scalar_type=0, sizes=(8,)), 12_000),
        (("String", {"string_val": "x" * 8_000_000}), 3),
        (("DoubleList", {"items": (1.0,) * 1000}), 100),
        (("Int", {"int_val": 1}), 100_000),
    ],
)
def test_more_than_metadata_is_refused_however_little_the_file_holds(shared: Any, times: int) -> None:
    changed = tables()
    only_value(shared)(changed)
    changed["execution_plan"][0]["outputs"] = (0,) * times
    with pytest.raises(PteError, match=r"^x\.pte: 'forward' publishes what makes more than 65536 numbers"):
        build(changed, lambda index: SEGMENTS[index], "x.pte").constants()
    changed["execution_plan"][0]["outputs"] = (0,) * (times // 2)
    build(changed, lambda index: SEGMENTS[index], "x.pte").constants()
