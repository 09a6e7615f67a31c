"""Graphs read as executorch's own serializer wrote them; what the runtime would trip over is refused at once."""

from __future__ import annotations

import random
import struct
from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest

from pipeline.errors import PteError
from pipeline.pte import Dim, MlxGraph, Node, PteFile, Slot, TensorMeta, Tid, Vid, parse_mlx_payload
from pipeline.pte.mlx_ops import OPS
from tests.pte.graphs import NUM_TENSORS, NUM_VALUES, graph_of, node_like, schema, written

# Importing executorch's Python side warns about torch internals it uses.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    return schema()


@pytest.mark.parametrize("full", [True, False], ids=["all-fields", "optionals-absent"])
def test_every_node_reads_as_executorchs_serializer_wrote_it(theirs: ModuleType, full: bool) -> None:
    rng = random.Random(1)
    made = [node_like(theirs, name, text, rng, full) for _, name, text in OPS for _ in range(3)]
    graph = parse_mlx_payload(written(graph_of(theirs, [[op for op, _ in made], []])))
    names = [name for _, name, _ in OPS for _ in range(3)]
    assert len(graph.chains[0]) == len(made)
    for name, (_, expected), node in zip(names, made, graph.chains[0], strict=True):
        assert node == Node(name, expected)
        assert list(node.fields) == list(expected), "fields come in the schema's order"


def test_defaults_are_executorchs(theirs: ModuleType) -> None:
    """A node written with only its required fields reads with the defaults of their dataclass."""
    rng = random.Random(2)
    for _, name, text in OPS:
        required = " ".join(word for word in text.split() if "=" not in word and "?" not in word)
        op, _ = node_like(theirs, name, required, rng, full=False)
        (node,) = parse_mlx_payload(written(graph_of(theirs, [[op], []]))).chains[0]
        for field in fields(op):
            if "=" in text and f"{field.name}:" not in required:
                assert node.fields[field.name] == getattr(op, field.name), f"{name}.{field.name}"


def test_slots_and_metadata_read_as_written(theirs: ModuleType) -> None:
    graph = parse_mlx_payload(written(graph_of(theirs, [[], []], init_chain_idx=1)))
    assert graph == MlxGraph(
        version=1,
        num_constant_tensors=1,
        num_input_tensors=1,
        num_output_tensors=1,
        num_mutable_buffer_tensors=1,
        num_temp_tensors=NUM_TENSORS - 4,
        num_values=NUM_VALUES,
        chains=((), ()),
        main_chain=0,
        init_chain=1,
        input_map=(Slot("tensor", 1), Slot("int", 3)),
        output_map=(Slot("tensor", 2),),
        mutable_buffer_map=(Slot("tensor", 3),),
        names={Slot("tensor", 0): "abcd/weight", Slot("tensor", 1): "x"},
        tensor_meta=(
            TensorMeta((Dim(4), Dim(8)), "bfloat16"),
            TensorMeta((Dim(1), Dim(None, 1, 512)), "int64"),
            TensorMeta((Dim(None, 0, None),), "float32"),
            TensorMeta((), "int32"),
        ),
    )
    assert (graph.input_tids, graph.mutable_tids, graph.num_tensors) == (range(1, 2), range(3, 4), NUM_TENSORS)
    assert graph.meta(10) is None


def test_a_lowered_graph_reads_as_executorchs_own_reader_reads_it(tiny_pte: Any, theirs: ModuleType) -> None:
    from executorch.backends.mlx.serialization._generated.mlx_delegate import MLXGraph as FlatGraph

    with PteFile.open(tiny_pte.path) as pte:
        payload = bytes(pte.program.methods["forward"].delegates[0].payload)
    graph = parse_mlx_payload(memoryview(payload))
    flat = FlatGraph.MLXGraph.GetRootAs(payload[24:], 0)
    chain = flat.InstructionChains(0)
    assert len(graph.chains[0]) == chain.InstructionsLength()
    op_types = [OPS[chain.Instructions(i).OpType() - 1][1] for i in range(chain.InstructionsLength())]
    assert [node.name for node in graph.chains[0]] == op_types
    assert graph.num_temp_tensors == flat.NumTempTensors()
    assert [slot.idx for slot in graph.input_map] == [flat.InputMap(i).Idx() for i in range(flat.InputMapLength())]
    for index in range(flat.NamedSlotsLength()):
        named = flat.NamedSlots(index)
        assert graph.names[Slot("tensor", named.Slot().Idx())] == named.Name().decode()
    for index in range(flat.TensorMetaLength()):
        shape = flat.TensorMeta(index).Shape
        sizes = [shape(i).Value() for i in range(flat.TensorMeta(index).ShapeLength())]
        meta = graph.tensor_meta[index]
        assert meta is not None
        assert [-1 if dim.value is None else dim.value for dim in meta.shape] == sizes


def test_tids_and_vids_are_never_equal() -> None:
    assert len({Tid(1), Vid(1), Tid(2), Tid(1)}) == 3


def test_a_noop_of_no_type_is_a_noop(theirs: ModuleType) -> None:
    payload = bytearray(written(graph_of(theirs, [[theirs.NoopNode()], []])))
    (place,) = [at for at in range(24, len(payload)) if refused_op(payload, at)]
    payload[place] = 0
    assert parse_mlx_payload(memoryview(payload)).chains[0] == (Node("NoopNode", {}),)


def refused_op(payload: bytearray, at: int) -> bool:
    """Whether the byte at ``at`` is the only instruction's op type."""
    changed = bytearray(payload)
    changed[at] = 200
    try:
        parse_mlx_payload(memoryview(changed))
    except PteError as error:
        return "has OpNode type 200" in str(error)
    return False


def test_an_unknown_op_is_named_with_the_highest_known(theirs: ModuleType) -> None:
    payload = bytearray(written(graph_of(theirs, [[theirs.NoopNode()], []])))
    (place,) = [at for at in range(24, len(payload)) if refused_op(payload, at)]
    payload[place] = 137
    with pytest.raises(
        PteError,
        match=r"^m\.pte: MLXGraph\.instruction_chains\[0\]\.instructions\[0\]\.op has OpNode type 137; "
        r"the highest known is 136\.",
    ):
        parse_mlx_payload(memoryview(payload), "m.pte")


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"version": "2"}, "its graph is of version '2'; expected at most 1"),
        ({"version": "x"}, "its graph is of version 'x'"),
        ({"num_values": 1_000_001}, "num_values is 1000001; expected at most 1000000"),
        ({"num_temp_tensors": 999_999}, "it has 1000003 tensors; expected at most 1000000"),
        ({"main_chain_idx": 2}, "it runs chain 2; there are 2"),
        ({"init_chain_idx": -2}, "it runs chain -2; there are 2"),
        (
            {"num_temp_tensors": 0, "num_output_tensors": 0, "mutable_buffer_map": []},
            "it describes 4 tensors and has 3",
        ),
        ({"num_values": 3}, "input_map refers to int 3; there are 3"),
        ({"num_mutable_buffer_tensors": 2}, "mutable buffer 4 has no shape and dtype"),
        ({"num_constant_tensors": 2}, "constant 1 has a dynamic shape; expected a static one"),
        ({"num_output_tensors": 0}, "mutable buffer 2 has a dynamic shape"),
    ],
)
def test_a_graph_that_contradicts_itself_is_refused(theirs: ModuleType, changes: dict[str, Any], wrong: str) -> None:
    with pytest.raises(PteError, match=rf"^m\.pte: {wrong}"):
        parse_mlx_payload(written(graph_of(theirs, [[], []], **changes)), "m.pte")


@pytest.mark.parametrize(
    ("dims", "code", "order", "wrong"),
    [
        ([(-2, 0, -1)], 6, None, r"shape\[0\] has value -2, bounds 0 to -1"),
        ([(-1, -1, -1)], 6, None, "has value -1, bounds -1 to -1"),
        ([(-1, 5, 4)], 6, None, "has value -1, bounds 5 to 4"),
        ([(1, 0, -1)] * 17, 6, None, "has rank 17; at most 16 is supported"),
        ([(1, 0, -1)], 30, None, "has scalar_type 30, which is not one"),
        ([(1, 0, -1)] * 2, 6, [1, 0], r"has dim_order \[1, 0\]; expected row-major"),
    ],
)
def test_impossible_metadata_is_refused(
    theirs: ModuleType, dims: list[tuple[int, int, int]], code: int, order: list[int] | None, wrong: str
) -> None:
    meta = theirs.TensorMeta(shape=[theirs.ShapeDim(*dim) for dim in dims], scalar_type=code, dim_order=order)
    changed = graph_of(theirs, [[], []])
    changed.tensor_meta[2] = meta
    with pytest.raises(PteError, match=rf"m\.pte: MLXGraph\.tensor_meta\[2\].*{wrong}"):
        parse_mlx_payload(written(changed), "m.pte")


def test_a_constant_with_two_names_is_refused(theirs: ModuleType) -> None:
    slots = [theirs.NamedSlot(name=name, slot=theirs.SlotVariant(idx=0)) for name in ("one", "two")]
    with pytest.raises(PteError, match="constant 0 is named both 'one' and 'two'"):
        parse_mlx_payload(written(graph_of(theirs, [[], []], named_slots=slots)))


@pytest.mark.parametrize(
    ("node", "wrong"),
    [
        (("ExpNode", {"x": 40, "out": 4}), "chain 0 instruction 1, ExpNode.x, refers to tensor 40; there are 40"),
        (("ItemIntNode", {"x": 1, "out": 9}), "ItemIntNode.out, refers to value 9; there are 9"),
        (
            ("ConcatenateNode", {"tensors": [1, 41], "out": 4, "axis": 0}),
            "ConcatenateNode.tensors, refers to tensor 41",
        ),
    ],
)
def test_an_id_outside_its_range_is_refused(theirs: ModuleType, node: tuple[str, dict[str, Any]], wrong: str) -> None:
    name, given = node
    kinds = {"out": theirs.Vid} if name == "ItemIntNode" else {}

    def wrap(field: str, idx: Any) -> Any:
        if field == "axis":
            return idx
        return [theirs.Tid(i) for i in idx] if isinstance(idx, list) else kinds.get(field, theirs.Tid)(idx)

    op = getattr(theirs, name)(**{field: wrap(field, idx) for field, idx in given.items()})
    with pytest.raises(PteError, match=wrong):
        parse_mlx_payload(written(graph_of(theirs, [[theirs.NoopNode(), op], []])))


@pytest.mark.parametrize(
    ("targets", "wrong"),
    [
        ([0, 1], "chain 0 runs itself, directly or through others"),
        ([1, 1], "chain 1 runs itself, directly or through others"),
        ([1, 0], "chain 0 runs itself, directly or through others"),
        ([2, None], "it runs chain 2; there are 2"),
    ],
)
def test_chains_that_reach_themselves_or_nothing_are_refused(
    theirs: ModuleType, targets: list[int | None], wrong: str
) -> None:
    chains = [
        []
        if target is None
        else [theirs.IfNode(cond=theirs.IntOrVid.from_literal(1), then_chain_idx=target, else_chain_idx=target)]
        for target in targets
    ]
    with pytest.raises(PteError, match=wrong):
        parse_mlx_payload(written(graph_of(theirs, chains)))


def test_a_selected_alternative_that_is_absent_is_refused(theirs: ModuleType) -> None:
    op = theirs.IfNode(cond=theirs.IntOrVid(literal=0, vid=None, is_vid=True), then_chain_idx=1, else_chain_idx=1)
    with pytest.raises(PteError, match=r"\.op\.cond selects its vid and holds none"):
        parse_mlx_payload(written(graph_of(theirs, [[op], []])))


@pytest.mark.parametrize(
    ("payload", "wrong"),
    [
        (b"", "bytes 4 to 8 of its 0 are b''; expected b'MLX0'"),
        (b"\0" * 23, "bytes 4 to 8 of its 23"),
        (b"\0\0\0\0MLX1" + bytes(16), "are b'MLX1'"),
        (b"\0\0\0\0MLX0" + struct.pack("<QQ", 24, 0) + bytes(99), "its graph ends at byte 24 of 123"),
        (b"\0\0\0\0MLX0" + struct.pack("<QQ", 999, 0) + bytes(99), "its graph ends at byte 999 of 123"),
    ],
)
def test_a_payload_with_a_bad_head_is_refused(payload: bytes, wrong: str) -> None:
    with pytest.raises(PteError, match=rf"^m\.pte: .*{wrong}"):
        parse_mlx_payload(memoryview(payload), "m.pte")
