"""Reductions, running sums and order, against numpy and torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.ops import OPERATORS

CUBE = np.random.default_rng(1).normal(size=(2, 3, 4)).astype(np.float32)

REDUCTIONS: dict[str, Callable[..., Any]] = {
    "AllNode": np.all,
    "AnyNode": np.any,
    "MaxNode": np.max,
    "MeanNode": np.mean,
    "MedianNode": np.median,
    "MinNode": np.min,
    "ProdNode": np.prod,
    "StdNode": np.std,
    "SumNode": np.sum,
    "VarNode": np.var,
}


def op(name: str, x: np.ndarray, **fields: Any) -> np.ndarray:
    return np.array(OPERATORS[name](x=mx.array(x), **fields))


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axes", [None, (), (0,), (-1, 0), (1,)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_a_reduction_without_axes_is_over_all_of_them(name: str, axes: tuple[int, ...] | None, keepdims: bool) -> None:
    values = CUBE > 0.3 if name in ("AllNode", "AnyNode") else CUBE
    ddof = {"ddof": 1} if name in ("StdNode", "VarNode") else {}
    found = op(name, values, axes=axes, keepdims=keepdims, **ddof)
    expected = REDUCTIONS[name](values, axis=axes or None, keepdims=keepdims, **ddof)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_sums_of_integers_keep_their_width_and_of_bools_count() -> None:
    for dtype, expected in ((mx.int64, mx.int64), (mx.int32, mx.int32), (mx.bool_, mx.int32), (mx.float16, mx.float16)):
        found = OPERATORS["SumNode"](x=mx.ones((2, 3), dtype), axes=(), keepdims=False)
        assert (found.dtype, found.item()) == (expected, 6)


def test_too_few_values_for_their_freedom_have_no_variance() -> None:
    assert np.isnan(op("VarNode", np.ones(1, np.float32), axes=(), keepdims=False, ddof=1))


@pytest.mark.parametrize("keepdims", [True, False])
def test_a_log_of_a_sum_of_exponentials_is_stable(keepdims: bool) -> None:
    expected = torch.logsumexp(torch.from_numpy(CUBE), (0, 2), keepdim=keepdims).numpy() + 1000
    found = op("LogSumExpNode", CUBE + 1000, axes=(0, -1), keepdims=keepdims)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_log_sum_exp_over_no_axes_is_the_array_itself() -> None:
    for axes in (None, ()):
        np.testing.assert_allclose(op("LogSumExpNode", CUBE, axes=axes, keepdims=False), CUBE, rtol=1e-6)


@pytest.mark.parametrize("keepdims", [True, False])
@pytest.mark.parametrize("axis", [0, -1])
def test_the_first_of_equals_is_the_extreme(axis: int, keepdims: bool) -> None:
    values = np.array([[3, 1, 3], [0, 1, 0]])
    for name, reference in (("ArgmaxNode", np.argmax), ("ArgminNode", np.argmin)):
        found = op(name, values, axis=axis, keepdims=keepdims)
        assert found.dtype == np.uint32
        np.testing.assert_array_equal(found, reference(values, axis=axis, keepdims=keepdims))


@pytest.mark.parametrize("precise", [True, False])
@pytest.mark.parametrize("axis", [0, -1])
def test_softmax_agrees_with_torch_far_from_zero_too(axis: int, precise: bool) -> None:
    found = op("SoftmaxNode", CUBE + 1000.0, axis=axis, precise=precise)
    np.testing.assert_allclose(found, torch.softmax(torch.from_numpy(CUBE), axis).numpy(), rtol=1e-3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(mx.float16, 1e-3), (mx.bfloat16, 8e-3)], ids=str)
def test_long_sums_of_half_precision_do_not_stall(dtype: mx.Dtype, tolerance: float) -> None:
    """Added up in bfloat16, 1 + 1 + ... ends at 256."""
    x = mx.ones((2, 4096), dtype)
    probabilities = OPERATORS["SoftmaxNode"](x=x, axis=-1, precise=False)
    sums = OPERATORS["CumsumNode"](x=x, axis=-1, reverse=False, inclusive=True)
    assert probabilities.dtype == sums.dtype == dtype
    np.testing.assert_allclose(np.array(probabilities.astype(mx.float32)), 1 / 4096, rtol=tolerance)
    np.testing.assert_allclose(np.array(sums.astype(mx.float32))[0], np.arange(1, 4097), rtol=tolerance)


@pytest.mark.parametrize("inclusive", [True, False])
@pytest.mark.parametrize("reverse", [True, False])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_a_running_sum_goes_either_way_with_or_without_the_element(axis: int, reverse: bool, inclusive: bool) -> None:
    values = np.arange(24).reshape(2, 3, 4)
    forward = np.flip(values, axis) if reverse else values
    expected = np.cumsum(forward, axis) - (0 if inclusive else forward)
    found = op("CumsumNode", values, axis=axis, reverse=reverse, inclusive=inclusive)
    np.testing.assert_array_equal(found, np.flip(expected, axis) if reverse else expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorting_ascends_with_what_is_no_number_last(axis: int) -> None:
    values = CUBE.copy()
    values[0, 1, 2] = np.nan
    np.testing.assert_array_equal(op("SortNode", values, axis=axis), np.sort(values, axis))
    order = op("ArgsortNode", values, axis=axis)
    assert order.dtype == np.uint32
    np.testing.assert_array_equal(np.take_along_axis(values, order.astype(int), axis), np.sort(values, axis))


@pytest.mark.parametrize("kth", [0, 2, -1])
@pytest.mark.parametrize("axis", [1, -1])
def test_a_partition_has_its_kth_in_place_and_the_smaller_before(axis: int, kth: int) -> None:
    kth = kth if axis == -1 or kth < 0 else kth // 2
    found = np.moveaxis(op("PartitionNode", CUBE, kth=kth, axis=axis), axis, -1)
    order = op("ArgPartitionNode", CUBE, kth=kth, axis=axis)
    assert order.dtype == np.uint32
    by_order = np.moveaxis(np.take_along_axis(CUBE, order.astype(int), axis), axis, -1)
    expected = np.moveaxis(np.sort(CUBE, axis), axis, -1)
    for rows in (found, by_order):
        np.testing.assert_array_equal(rows[..., kth], expected[..., kth])
        np.testing.assert_array_equal(np.sort(rows[..., :kth], -1), expected[..., :kth])
