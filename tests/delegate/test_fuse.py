"""The fused graph computes what the graph says, in fewer steps; what a rule does not quite fit is left alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.contract import Contract
from pipeline.delegate import fold
from pipeline.delegate.body import Body, Step
from pipeline.delegate.executor import MlxMethod
from pipeline.delegate.fuse import fused, joined, rotated_together, row_by_row
from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.ops.fused import OPERATORS as FUSED
from pipeline.delegate.ops.fused import UNPACKED_ROWS
from pipeline.delegate.replay import Replayed
from pipeline.delegate.straight import StraightLine
from pipeline.errors import CacheError, DelegateError
from pipeline.model.checkpoint import load_model
from pipeline.pte import PteFile, Tid, Vid
from pipeline.runtime.kv_cache import KVCache
from pipeline.steps.smoke import distances
from tests.delegate.compared import assert_fused_is_plain, gpu_rules
from tests.tiny_models import ARTIFACTS, VOCAB_SIZE, Artifact

END = 2**31 - 1

ROTATIONS = {
    "llama": 4,
    "llama-bf16": 4,
    "sliding": 4,
    "mixed": 4,
    "query-key-norms": 4,
    "two-tables": 12,
    "rotated-in-part": 4,
    "split-heads": 4,
    "scaled-tables": 4,
    "shared-caches": 0,
    "long": 4,
    "talk": 4,
    "full": 4,
    "selected": 4,
}
"""Rotations of queries and keys in each artifact; those of gemma3n put heads behind positions."""

TOGETHER = {"llama", "llama-bf16", "sliding", "scaled-tables"}
"""Those whose queries and keys, products of one array without a bias, a GPU rotates together."""


def bound_of(built: Artifact) -> float:
    """How far apart, relative, rows may be where one is rounded otherwise: on a GPU, angles by a relative 1e-7, of up
    to 60 here, and bfloat16 once instead of three times. Wrong positions move them by 1e-1 and more.

    Two bfloat16 computations of one model may each be as far from the exact one as Transformers' own is.
    """
    if built.spec.dtype == "fp32":
        return 1e-4
    text = torch.randint(4, VOCAB_SIZE, (1, 24), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        rounded, exact = (
            load_model(built.snapshot, dtype)(input_ids=text, use_cache=False).logits[0].float().numpy()
            for dtype in (built.spec.dtype, "fp32")
        )
    return float(2 * distances(rounded, exact).max())


def names(method: MlxMethod) -> Counter[str]:
    assert isinstance(method._run, StraightLine | Replayed)
    return names_of(method._run.body)


def names_of(found: Body) -> Counter[str]:
    return Counter(step.name for step in found.steps)


@pytest.mark.parametrize("name", ARTIFACTS)
def test_every_artifact_gives_the_numbers_of_its_plain_graph(artifact: Callable[[str], Artifact], name: str) -> None:
    """The very same on a CPU, and within rounding by a GPU's rules."""
    built = artifact(name)
    fused, on_gpu = (decoder._forward for decoder in assert_fused_is_plain(built.pte, bound_of(built)))
    assert names(fused)["RotateNode"] == ROTATIONS[name]
    assert not ROTATIONS[name] or not names(fused)["NegNode"]
    assert names(on_gpu)["RopeByTablesNode"] == ROTATIONS[name] // (1 + (name in TOGETHER))
    assert not {"CosNode", "SinNode", "SiluNode"} & set(names(on_gpu)) or not ROTATIONS[name]
    assert isinstance(on_gpu._run, Replayed)
    layers, left = names(on_gpu)["UpdateAndAttendNode"], names_of(on_gpu._run._replayed.body)
    assert left["UpdateAndAttendNode"] == layers
    # Between attention and attention nothing is left to record step by step, but for what gemma3n does there; rows are
    # taken out of what comes before the logits.
    other = 8 if built.spec.logits == "selected" else 5
    assert sum(left.values()) <= 2 * layers + other or not ROTATIONS[name]


def test_a_model_that_is_no_transformers_gives_them_too(tiny_pte: Any) -> None:
    assert_fused_is_plain(tiny_pte.path, 1e-4, num_prefill=2)


def test_positions_that_are_no_run_are_refused_by_the_cache_of_one_sequence(
    artifact: Callable[[str], Artifact],
) -> None:
    with PteFile.open(artifact("llama-bf16").pte) as pte, gpu_rules():
        contract = Contract.read(pte.program.constants(), pte.path.name)
        cache = KVCache(contract.caches, capacity=64, max_write=8, dtype=mx.bfloat16)
        method = MlxMethod(pte, cache=cache)
        with pytest.raises(CacheError, match=r"^the step's positions \[0, 2\] are not contiguous; one sequence needs"):
            method(mx.array([[1, 2]], mx.int64), mx.array([0, 2], mx.int64))


def test_only_calls_whose_sizes_are_all_1_are_replayed_each_with_its_own_numbers() -> None:
    size, shape = Vid(9), (Vid(9), 2)
    graph = body(
        step("SymSizeNode", size, a=X, dim=0),
        step("AbsNode", Tid(10), x=X),
        step("ReshapeNode", Tid(11), x=Tid(10), shape=shape),
        step("AddNode", Tid(12), a=Tid(11), b=COS),
        step("ReshapeNode", Tid(13), x=Tid(12), shape=shape),
        step("ItemIntNode", Vid(14), x=SIN),
        step("MultiplyNode", OUT, a=Tid(13), b=Tid(12)),
        constants={COS: mx.array([1.0, 2.0])},
        inputs=(X, SIN),
        shapes={X: (None, 2), SIN: ()},
    )
    line, plain = Replayed(graph, {**OPERATORS, **FUSED}), StraightLine(graph, OPERATORS)
    assert [each.name for each in line._replayed.body.steps] == ["Replay0", "ItemIntNode", "MultiplyNode"]
    for seed, rows in enumerate((1, 3, 1, 2)):
        x = mx.random.normal((rows, 2), key=mx.random.key(seed))
        (got,), (expected,) = line(x, mx.array(5)), plain(x, mx.array(5))
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    unshaped = Replayed(replace(graph, shapes={}), {**OPERATORS, **FUSED})
    assert unshaped._replayed is unshaped._stepwise


def test_a_step_that_mlx_refuses_is_named_when_it_is_replayed_too() -> None:
    chain = [step("AbsNode", Tid(10 + i), x=Tid(9 + i) if i else X) for i in range(4)]
    graph = body(*chain, step("AddNode", OUT, a=Tid(13), b=COS), constants={COS: mx.ones(3)})
    line = Replayed(replace(graph, shapes={X: (None, 2)}), {**OPERATORS, **FUSED})
    with pytest.raises(DelegateError, match=r"^instruction 1 failed: .*broadcast"):
        line(mx.ones((1, 2)))


@pytest.mark.parametrize("positions", [[7], [4, 5, 6], [9, 0, 1, 9]], ids=str)
def test_every_token_is_rotated_by_its_own_position_be_they_a_run_or_not(positions: list[int]) -> None:
    x = np.random.default_rng(5).normal(size=(1, 3, len(positions), 4)).astype(np.float32)
    divisors = np.array([1.0, 30.0])
    angles = np.array(positions)[:, None] / divisors
    turned = (x[..., :2] + 1j * x[..., 2:]) * np.exp(1j * angles)
    start = FUSED["StartNode"](mx.array(positions, mx.int64))
    found = FUSED["RopeByTablesNode"](mx.array(x), start, mx.array(divisors, mx.float32), 2.0, None)
    np.testing.assert_allclose(np.array(found), 2 * np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


X, OUT = Tid(0), Tid(1)
COS, SIN = Tid(2), Tid(3)
TABLES: dict[Tid | Vid, Any] = {
    COS: mx.random.normal((1, 1, 3, 8), key=mx.random.key(1)),
    SIN: mx.random.normal((1, 1, 3, 8), key=mx.random.key(2)),
}
GIVEN = mx.random.normal((1, 2, 3, 8), key=mx.random.key(3))


def body(*steps: Step, constants: dict[Tid | Vid, Any] | None = None, **others: Any) -> Body:
    given: dict[str, Any] = {"inputs": (X,), "results": (OUT,), "shapes": {X: (1, 2, None, 8)}}
    return Body(steps=steps, constants=TABLES if constants is None else constants, **given | others)


def step(name: str, out: Tid | Vid, **fields: Any) -> Step:
    return Step(name, fields, (out,), f"instruction {out.idx}")


def rotation(**changes: dict[str, Any]) -> list[Step]:
    """``x * cos + concat(-x[4:], x[:4]) * sin``, with fields of some steps changed."""
    first, second, turned, swapped, a, b = map(Tid, range(10, 16))
    steps = {
        "first": step("SliceNode", first, x=X, axis=3, start=0, stop=4, step=1),
        "second": step("SliceNode", second, x=X, axis=3, start=4, stop=END, step=1),
        "neg": step("NegNode", turned, x=second),
        "join": step("ConcatenateNode", swapped, tensors=(turned, first), axis=-1),
        "kept": step("MultiplyNode", a, a=X, b=COS),
        "turned": step("MultiplyNode", b, a=swapped, b=SIN),
        "sum": step("AddNode", OUT, a=a, b=b),
    }
    return [Step(s.name, s.fields | changes.get(key, {}), s.outs, s.place) for key, s in steps.items()]


def computed(graph: Body, *arrays: mx.array) -> np.ndarray:
    (result,) = StraightLine(graph, {**OPERATORS, **FUSED})(*arrays)
    return np.array(result)


def test_a_rotation_of_halves_is_one_step() -> None:
    found = fused(body(*rotation()), OPERATORS, on_gpu=False)
    assert [each.name for each in found.steps] == ["RotateNode"]
    np.testing.assert_array_equal(computed(found, GIVEN), computed(body(*rotation()), GIVEN))


NO_ROTATIONS: dict[str, dict[str, dict[str, Any]]] = {
    "the other half is negated": {"neg": {"x": Tid(10)}, "join": {"tensors": (Tid(11), Tid(12))}},
    "the halves are not swapped": {"join": {"tensors": (Tid(10), Tid(12))}},
    "joined on another axis": {"join": {"axis": 1}, "kept": {"a": COS}},
    "the cut is not in the middle": {"first": {"stop": 3}, "second": {"start": 3}},
    "a gap between the halves": {"second": {"start": 5}, "first": {"stop": 5}},
    "something else is turned": {"first": {"x": COS}, "second": {"x": COS}},
    "every second feature": {"first": {"step": 2, "stop": 8}, "second": {"step": 2, "start": 0}},
}


@pytest.mark.parametrize("case", NO_ROTATIONS)
@pytest.mark.parametrize("on_gpu", [False, True])
def test_what_is_not_quite_a_rotation_is_left_alone(case: str, on_gpu: bool) -> None:
    graph = body(*rotation(**NO_ROTATIONS[case]))
    found = fused(graph, OPERATORS, on_gpu=on_gpu)
    assert not {"RotateNode", "RopeByTablesNode"} & {each.name for each in found.steps}


def test_a_table_of_one_column_is_no_rotation() -> None:
    narrow = {**TABLES, SIN: mx.ones((1, 1, 3, 1))}
    found = fused(body(*rotation(), constants=narrow), OPERATORS, on_gpu=False)
    assert "RotateNode" not in {each.name for each in found.steps}
    np.testing.assert_array_equal(computed(found, GIVEN), computed(body(*rotation(), constants=narrow), GIVEN))


def test_what_constants_alone_decide_is_computed_once() -> None:
    transposed, product, twice = map(Tid, range(10, 13))
    weight: dict[Tid | Vid, Any] = {COS: mx.arange(24.0).reshape(3, 8)}
    graph = body(
        step("TransposeNode", transposed, x=COS, perm=(1, 0)),
        step("AddNode", twice, a=transposed, b=transposed),
        step("AddmmNode", product, mat1=X, mat2=twice, bias=None, alpha=1.0, beta=1.0),
        step("NegNode", OUT, x=product),
        constants=weight,
    )
    found = fused(graph, OPERATORS, on_gpu=False)
    assert [each.name for each in found.steps] == ["AddmmNode", "NegNode"]
    assert set(found.constants) == {twice}, "what no step reads any more is let go"
    np.testing.assert_array_equal(computed(found, GIVEN), computed(graph, GIVEN))


def test_a_large_result_that_is_no_view_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_BYTES", 8)
    graph = body(step("NegNode", Tid(10), x=COS), step("AddNode", OUT, a=X, b=Tid(10)))
    assert len(fused(graph, OPERATORS, on_gpu=False).steps) == 2


def test_a_constant_step_that_fails_does_so_when_it_is_called() -> None:
    graph = body(step("ReshapeNode", Tid(10), x=COS, shape=(7,)), step("AddNode", OUT, a=X, b=Tid(10)))
    found = fused(graph, OPERATORS, on_gpu=False)
    with pytest.raises(DelegateError, match=r"^instruction 10 failed: .*reshape"):
        computed(found, GIVEN)


def test_a_number_that_a_call_may_refuse_is_computed_though_nobody_reads_it() -> None:
    graph = body(
        step("ItemIntNode", Vid(10), x=X), step("ModIntNode", Vid(11), a=5, b=Vid(10)), step("IdCopyNode", OUT, x=X)
    )
    found = fused(graph, OPERATORS, on_gpu=False)
    computed(found, mx.array([2]))
    with pytest.raises(DelegateError, match=r"^an integer is divided by 0"):
        computed(found, mx.array([0]))


def test_equal_steps_are_computed_once_and_unequal_literals_are_not_equal() -> None:
    a, b, c = map(Tid, range(10, 13))
    graph = body(
        step("SumNode", a, x=X, axes=(0,), keepdims=True),
        step("SumNode", b, x=X, axes=(0,), keepdims=True),
        step("SumNode", c, x=X, axes=(1,), keepdims=True),
        step("ConcatenateNode", OUT, tensors=(a, b, c), axis=-1),
    )
    found = fused(graph, OPERATORS, on_gpu=False)
    assert [each.name for each in found.steps] == ["SumNode", "SumNode", "ConcatenateNode"]


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_a_packed_weights_scales_are_widened_once_on_a_cpu(dtype: mx.Dtype) -> None:
    w, scales, biases = mx.quantize(mx.random.normal((64, 64), key=mx.random.key(4)).astype(dtype), 32, 4)
    packed: dict[Tid | Vid, Any] = dict(zip(map(Tid, (20, 21, 22)), (w, scales, biases), strict=True))
    fields = {"group_size": 32, "bits": 4, "mode": "affine", "transpose": True}
    product = step("QuantizedMatmulNode", OUT, x=X, w=Tid(20), scales=Tid(21), biases=Tid(22), **fields)
    graph = body(product, constants=packed)
    found = fused(graph, OPERATORS, on_gpu=False)
    assert [each.name for each in found.steps] == ["WidenedMatmulNode"]
    damaged = fused(
        replace(graph, constants={**packed, Tid(21): scales[1:], Tid(22): biases[1:]}), OPERATORS, on_gpu=False
    )
    with pytest.raises(DelegateError, match=r"packed weight, its scales and biases have shapes"):
        StraightLine(damaged, {**OPERATORS, **FUSED})(mx.ones((1, 64), dtype))
    for x_dtype in (mx.bfloat16, mx.float32):
        for rows in (0, 1, 3):
            x = mx.random.normal((rows, 64), key=mx.random.key(5)).astype(x_dtype)
            (got,), (expected,) = (StraightLine(each, {**OPERATORS, **FUSED})(x) for each in (found, graph))
            assert got.dtype == expected.dtype
            assert mx.array_equal(got, expected)


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_many_rows_by_a_packed_weight_are_a_product_with_what_it_unpacks_to(dtype: mx.Dtype) -> None:
    w, scales, biases = mx.quantize(mx.random.normal((96, 64), key=mx.random.key(4)).astype(dtype), 32, 4)
    x = mx.random.normal((2, UNPACKED_ROWS, 64), key=mx.random.key(5)).astype(dtype)
    wide = scales.astype(mx.float32), biases.astype(mx.float32)
    got = FUSED["WidenedMatmulNode"](x, w, *wide, 32, 4, "affine", True, dtype)
    matrix = np.array(mx.dequantize(w, *wide, 32, 4), np.float64)
    expected = np.array(x.astype(mx.float32), np.float64) @ matrix.T
    assert got.dtype == dtype
    # Of 64 products, summed in float32; bfloat16 rounds the sum by 2**-9 of itself.
    tolerance = {"rtol": 2**-8, "atol": 1e-5} if dtype == mx.bfloat16 else {"rtol": 0, "atol": 1e-5}
    np.testing.assert_allclose(np.array(got.astype(mx.float32)), expected, **tolerance)


@pytest.mark.parametrize("activation", ["SiluNode", "GeluNode"])
def test_an_activation_and_its_product_are_one_step_on_a_gpu(activation: str) -> None:
    fields = {"approximate": "tanh"} if activation == "GeluNode" else {}
    graph = body(step(activation, Tid(10), x=X, **fields), step("MultiplyNode", OUT, a=X, b=Tid(10)))
    found = fused(graph, OPERATORS, on_gpu=True)
    assert [each.name for each in found.steps] == ["ActivatedProductNode"]
    np.testing.assert_allclose(computed(found, GIVEN), computed(graph, GIVEN), atol=1e-6)


def test_float32_matrices_lie_row_by_row_on_a_plain_blas_unless_their_rows_are_looked_up_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    plain, narrow, table = (mx.random.normal((rows, 4), key=mx.random.key(rows)) for rows in (5, 6, 7))
    constants: dict[Tid | Vid, Any] = {
        Tid(20): plain.T,
        Tid(21): narrow.astype(mx.bfloat16).T,
        Tid(22): table.T,
        Tid(23): table,
    }
    product = {"bias": None, "alpha": 1.0, "beta": 1.0}
    steps = [step("AddmmNode", Tid(10 + n), mat1=X, mat2=Tid(20 + n), **product) for n in range(3)]
    lookup = step("TakeNode", Tid(13), x=Tid(23), index=0, axis=0)
    outs = tuple(each.out for each in (*steps, lookup))
    graph = body(*steps, lookup, constants=constants, results=outs)
    laid = row_by_row(replace(graph, constants=dict(constants)))
    assert {ref.idx for ref in constants if laid.constants[ref] is not constants[ref]} == {20}
    assert memoryview(laid.constants[Tid(20)]).c_contiguous
    assert not memoryview(constants[Tid(20)]).c_contiguous
    x = mx.random.normal((3, 4), key=mx.random.key(9))
    for got, expected in zip(*(StraightLine(each, OPERATORS)(x) for each in (laid, graph)), strict=True):
        np.testing.assert_allclose(
            np.array(got.astype(mx.float32)), np.array(expected.astype(mx.float32)), rtol=0, atol=1e-6
        )


def test_products_of_one_array_are_one_product_on_a_gpu_with_every_column_where_it_was() -> None:
    weights: dict[Tid | Vid, Any] = {
        Tid(20 + n): mx.random.normal((columns, 8), key=mx.random.key(n)).T for n, columns in enumerate((6, 2, 4))
    }
    outs = [Tid(10), Tid(11), Tid(12)]
    product = {"bias": None, "alpha": 1.0, "beta": 1.0}
    steps = [step("AddmmNode", out, mat1=X, mat2=w, **product) for out, w in zip(outs, weights, strict=True)]
    alone = step("AddmmNode", OUT, mat1=Tid(11), mat2=Tid(23), **product)
    weights[Tid(23)] = mx.ones((2, 3))
    graph = body(*steps, alone, constants=weights, results=(*outs, OUT))
    found = joined(replace(graph, constants=dict(weights)))
    assert [each.name for each in found.steps] == ["AddmmNode", "SplitNode", "AddmmNode"]
    assert len(found.constants) == 2, "the matrices that were joined are let go"
    for got, expected in zip(
        *(StraightLine(each, {**OPERATORS, **FUSED})(GIVEN) for each in (found, graph)), strict=True
    ):
        np.testing.assert_allclose(np.array(got), np.array(expected), atol=1e-6)


HEADS: dict[str, tuple[tuple[int, int], int, dict[str, Any]]] = {
    "queries and keys": ((6, 2), 1, {}),
    "of unlike positions": ((6, 2), 2, {"start": Tid(42)}),
    "of unlike factors": ((6, 2), 2, {"factor": 2.0}),
}


@pytest.mark.parametrize("case", HEADS)
def test_rotations_by_the_same_tables_of_neighbouring_heads_are_one(case: str) -> None:
    heads, expected, changes = HEADS[case]
    product, divisors = Tid(10), Tid(40)
    steps = [step("NegNode", product, x=X)]
    parts = tuple(Tid(11 + n) for n in range(3))
    sizes = tuple(4 * n for n in (*heads, 2))
    steps.append(Step("SplitNode", {"x": product, "sizes": sizes, "axis": -1}, parts, "split", True))
    results = []
    for n, part in enumerate(parts[:2]):
        split, turned, rotated = (Tid(20 + 3 * n + m) for m in range(3))
        tables = {"start": Tid(41), "divisors": divisors, "factor": 1.0, "table_type": None} | (changes if n else {})
        steps.append(step("ReshapeNode", split, x=part, shape=(1, 5, -1, 4)))
        steps.append(step("TransposeNode", turned, x=split, perm=(0, 2, 1, 3)))
        steps.append(step("RopeByTablesNode", rotated, x=turned, **tables))
        results.append(rotated)
    given = mx.random.normal((1, 5, sum(sizes)), key=mx.random.key(6))
    starts = {Tid(41): mx.array(3, mx.int32), Tid(42): mx.array(5, mx.int32)}
    constants: dict[Tid | Vid, Any] = {divisors: mx.array([1.0, 30.0]), **starts}
    graph = body(*steps, constants=constants, results=(*results, parts[2]), shapes={})
    found = rotated_together(graph)
    assert Counter(each.name for each in found.steps)["RopeByTablesNode"] == expected
    for got, wanted in zip(
        *(StraightLine(each, {**OPERATORS, **FUSED})(given) for each in (found, graph)), strict=True
    ):
        np.testing.assert_array_equal(np.array(got), np.array(wanted))
