"""Shapes follow from constants and inputs where they can, and are unknown where they cannot."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from pipeline.pte import Dim, MlxGraph, Node, PteFile, Slot, TensorMeta, Tid, Vid, parse_mlx_payload
from pipeline.pte.mlx_shapes import Shape, Shapes

A, B, C, OUT = Tid(0), Tid(1), Tid(2), Tid(3)


def meta(shape: tuple[int | None, ...]) -> TensorMeta:
    return TensorMeta(tuple(Dim(None, 1, 8) if size is None else Dim(size) for size in shape), "float32")


def graph(
    inputs: list[tuple[int | None, ...]],
    *chains: list[Node],
    outputs: int = 1,
    init_chain: int | None = None,
    constants: int = 0,
) -> MlxGraph:
    """``inputs`` are tensors 0, 1, …, the first of them constants; outputs follow from tensor 3 on."""
    shapes = [*inputs, (), (), ()][:3]
    return MlxGraph(
        version=1,
        num_constant_tensors=constants,
        num_input_tensors=3 - constants,
        num_output_tensors=outputs,
        num_mutable_buffer_tensors=0,
        num_temp_tensors=8,
        num_values=4,
        chains=tuple(tuple(chain) for chain in chains),
        main_chain=0,
        init_chain=init_chain,
        input_map=(),
        output_map=tuple(Slot("tensor", 3 + i) for i in range(outputs)),
        mutable_buffer_map=(),
        names={},
        tensor_meta=tuple(meta(shape) for shape in shapes),
    )


def shape_of(name: str, inputs: list[tuple[int | None, ...]], **fields: Any) -> Shape:
    return Shapes(graph(inputs, [Node(f"{name}Node", {**fields, "out": OUT})])).outputs[0]


def zeros(*shape: int) -> np.ndarray[Any, Any]:
    return np.zeros(shape)


X = zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("name", "inputs", "fields", "expected"),
    [
        ("Exp", [(2, 3)], {"x": A}, (2, 3)),
        ("Add", [(2, 1, 4), (3, 1)], {"a": A, "b": B}, (X[:, :1] + zeros(3, 1)).shape),
        ("Where", [(4,), (2, 1), (1, 1)], {"condition": A, "x": B, "y": C}, (2, 4)),
        ("Addmm", [(2, 3, 4), (4, 5)], {"mat1": A, "mat2": B, "bias": None}, (X @ zeros(4, 5)).shape),
        ("Take", [(2, 3, 4)], {"x": A, "index": 1, "axis": 1}, X[:, 1].shape),
        ("Take", [(2, 3, 4), (5, 6)], {"x": A, "index": B, "axis": -1}, np.take(X, zeros(5, 6).astype(int), -1).shape),
        ("ExpandDims", [(2, 3)], {"x": A, "axis": -1}, (2, 3, 1)),
        ("ExpandDims", [(2, 3)], {"x": A, "axis": 0}, (1, 2, 3)),
        ("Squeeze", [(1, 2, 1)], {"x": A, "dims": None}, (2,)),
        ("Squeeze", [(1, 2, 1)], {"x": A, "dims": (0, 1, 7)}, (2, 1)),
        ("Reshape", [(2, 3, 4)], {"x": A, "shape": (4, -1)}, X.reshape(4, -1).shape),
        ("Reshape", [(2, 3, 4)], {"x": A, "shape": ()}, ()),
        ("Transpose", [(2, 3, 4)], {"x": A, "perm": (1, -1, 0)}, X.transpose(1, -1, 0).shape),
        ("Slice", [(2, 3, 9)], {"x": A, "axis": -1, "start": -5, "stop": 2**63 - 1, "step": 2}, (2, 3, 3)),
        ("Slice", [(9,)], {"x": A, "axis": 0, "start": 5, "stop": 2, "step": 1}, (0,)),
        ("Concatenate", [(2, 3), (2, 5)], {"tensors": (A, B, A), "axis": -1}, (2, 11)),
        ("Stack", [(2, 3)], {"tensors": (A, A), "axis": -1}, (2, 3, 2)),
        ("BroadcastTo", [(3, 1)], {"x": A, "shape": (2, -1, 4)}, (2, 3, 4)),
        ("Repeat", [(2, 3)], {"x": A, "repeats": 4, "axis": -1}, np.repeat(X[..., 0], 4, -1).shape),
        ("Sum", [(2, 3, 4)], {"x": A, "axes": (-1, 0), "keepdims": False}, X.sum((-1, 0)).shape),
        ("Mean", [(2, 3, 4)], {"x": A, "axes": (1,), "keepdims": True}, X.mean(1, keepdims=True).shape),
        ("Max", [(2, 3, 4)], {"x": A, "axes": None, "keepdims": False}, ()),
        ("Full", [], {"shape": (2, 7)}, (2, 7)),
        ("Sdpa", [(1, 8, 5, 16), (1, 2, 9, 16), (1, 2, 9, 32)], {"q": A, "k": B, "v": C}, (1, 8, 5, 32)),
        ("SliceUpdate", [(2, 9)], {"dst": A}, (2, 9)),
        (
            "QuantizedMatmul",
            [(1, 5, 64), (96, 8), (96, 2)],
            {"x": A, "w": B, "scales": C, "transpose": True, "group_size": 32},
            (1, 5, 96),
        ),
        (
            "QuantizedMatmul",
            [(1, 5, 96), (96, 8), (96, 2)],
            {"x": A, "w": B, "scales": C, "transpose": False, "group_size": 32},
            (1, 5, 64),
        ),
        ("Dequantize", [(5, 8), (5, 2)], {"w": A, "scales": B, "group_size": 32}, (5, 64)),
    ],
)  # fmt: skip
def test_known_shapes_follow(
    name: str, inputs: list[tuple[int | None, ...]], fields: dict[str, Any], expected: tuple[int, ...]
) -> None:
    assert shape_of(name, inputs, **fields) == expected


@pytest.mark.parametrize(("sizes", "expected"), [((2,), (2, 2, 1)), ((1, 3, 99), (1, 3, 1))])
def test_the_last_piece_of_a_split_is_what_is_left(sizes: tuple[int, ...], expected: tuple[int, ...]) -> None:
    split = Node("SplitNode", {"x": A, "outs": (Tid(3), Tid(4), Tid(5)), "sizes": sizes, "axis": 1})
    shapes = Shapes(graph([(7, 5)], [split], outputs=3)).outputs
    assert shapes == [(7, size) for size in expected]


def test_run_time_sizes_cancel_when_reshaping() -> None:
    size = Node("SymSizeNode", {"a": A, "dim": 1, "out": Vid(0)})
    heads = Node("ReshapeNode", {"x": A, "shape": (1, Vid(0), -1, 64), "out": OUT})
    (shape,) = Shapes(graph([(1, None, 192)], [size, heads])).outputs
    assert shape == (1, "0.1", 3, 64)
    assert shape_of("Reshape", [(1, None, 1)], x=A, shape=(-1, 1)) == ("0.1", 1)


def test_sizes_known_to_be_equal_cancel_too() -> None:
    """A step's length may be read off the positions while the tokens are reshaped by it."""
    size = Node("SymSizeNode", {"a": B, "dim": 0, "out": Vid(0)})
    heads = Node("ReshapeNode", {"x": A, "shape": (1, Vid(0), -1, 64), "out": OUT})
    both = graph([(1, None, 192), (None,)], [size, heads])
    assert Shapes(both).outputs == [(1, "1.0", None, 64)]
    assert Shapes(both, equal=[(0, 1), (1, 0)]).outputs == [(1, "0.1", 3, 64)]


@pytest.mark.parametrize(
    ("name", "inputs", "fields", "expected"),
    [
        ("Add", [(1, None), (1, None)], {"a": A, "b": B}, (1, None)),
        ("Add", [(1, None), (1, 4)], {"a": A, "b": B}, (1, 4)),
        ("Reshape", [(1, None, 10)], {"x": A, "shape": (-1, 4)}, (None, 4)),
        ("Reshape", [(2, 3)], {"x": A, "shape": (Vid(3), 3)}, (None, 3)),
        ("Reshape", [(2, 3)], {"x": A, "shape": (-1, 0)}, (None, 0)),
        ("Squeeze", [(1, None)], {"x": A, "dims": None}, None),
        ("Slice", [(None,)], {"x": A, "axis": 0, "start": 0, "stop": 2, "step": 1}, (None,)),
        ("Slice", [(5,)], {"x": A, "axis": Vid(0), "start": 0, "stop": 2, "step": 1}, None),
        ("Transpose", [(2, 3)], {"x": A, "perm": (0, 5)}, None),
        ("Transpose", [(2, 3)], {"x": A, "perm": (0,)}, None),
        ("Take", [(2,)], {"x": A, "index": 0, "axis": 3}, None),
        ("Concatenate", [(2, 3), (3,)], {"tensors": (A, B), "axis": 0}, None),
        ("Addmm", [(3,), (3,)], {"mat1": A, "mat2": B, "bias": None}, None),
        ("Gather", [(2, 3)], {"x": A, "indices": (), "axes": (), "slice_sizes": ()}, None),
        ("Exp", [(2,)], {"x": Tid(9)}, None),
        ("Full", [], {"shape": (2**40, 2)}, (None, 2)),
        ("Full", [], {"shape": (2,) * 17}, None),
    ],
)  # fmt: skip
def test_what_does_not_follow_is_unknown(
    name: str, inputs: list[tuple[int | None, ...]], fields: dict[str, Any], expected: Shape
) -> None:
    assert shape_of(name, inputs, **fields) == expected


def test_a_cache_call_is_recorded_with_its_shapes() -> None:
    fields = {"q": A, "k": B, "v": C, "position": A, "layer_id": 3, "scale": 0.5, "out_dtype": 15, "out": OUT}
    shapes = Shapes(
        graph([(1, 8, None, 64), (1, 2, None, 64), (1, 2, None, 64)], [Node("UpdateAndAttendNode", fields)])
    )
    (attend,) = shapes.attends
    assert (attend.layer_id, attend.scale, attend.out_dtype) == (3, 0.5, 15)
    assert (attend.query, attend.key) == ((1, 8, "0.2", 64), (1, 2, "1.2", 64))
    assert shapes.outputs == [(1, 8, "0.2", 64)]


def test_the_init_chain_may_change_a_constants_shape() -> None:
    main = [Node("IdCopyNode", {"x": B, "out": OUT})]
    init = [Node("MultiplyNode", {"a": A, "b": B, "out": B})]
    assert Shapes(graph([(4, 2), ()], main, init, init_chain=1, constants=2)).outputs == [(4, 2)]


def test_nothing_is_known_after_a_nested_chain_but_its_cache_calls_count() -> None:
    fields = {"q": A, "k": B, "v": C, "position": A, "layer_id": 0, "scale": 0.5, "out_dtype": None, "out": OUT}
    main = [
        Node("ExpNode", {"x": A, "out": OUT}),
        Node("IfNode", {"cond": 1, "then_chain_idx": 1, "else_chain_idx": 1}),
    ]
    shapes = Shapes(graph([(1, 2, 3, 4)] * 3, main, [Node("UpdateAndAttendNode", fields)]))
    assert shapes.outputs == [None]
    assert [attend.key for attend in shapes.attends] == [None]


def test_deep_nesting_costs_no_more_than_its_size() -> None:
    """Each chain runs the next one twice: 2**500 runs, 500 chains."""
    chains = [
        [Node("IfNode", {"cond": 1, "then_chain_idx": i + 1, "else_chain_idx": i + 1}) for _ in range(2)]
        for i in range(500)
    ]
    start = time.perf_counter()
    Shapes(graph([()], *chains, []))
    assert time.perf_counter() - start < 1


def test_numbers_grow_no_further_than_32_bits() -> None:
    """Squaring a number over and over is quick, and ends in an unknown."""
    square = Node("MultiplyIntNode", {"a": Vid(0), "b": Vid(0), "out": Vid(0)})
    start = Node("AddIntNode", {"a": 2, "b": 3, "out": Vid(0)})
    full = Node("FullNode", {"shape": (Vid(0),), "out": OUT})
    assert Shapes(graph([], [start, square, full])).outputs == [(25,)]
    assert Shapes(graph([], [start, *[square] * 100, full])).outputs == [(None,)]


def test_a_lowered_graphs_shapes_are_its_models(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        shapes = Shapes(parse_mlx_payload(pte.program.methods["forward"].delegates[0].payload))
    assert [attend.layer_id for attend in shapes.attends] == [0, 1]
    for attend in shapes.attends:
        assert (attend.query, attend.key) == ((1, 4, "7.1", 8), (1, 2, "7.1", 8))
        assert attend.value == attend.key
    assert shapes.outputs == [(1, None, 11)]
