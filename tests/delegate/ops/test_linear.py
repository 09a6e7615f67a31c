"""Matrix products and normalization against torch."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.dtypes import BY_NAME
from pipeline.delegate.ops import OPERATORS

addmm, rms_norm = OPERATORS["AddmmNode"], OPERATORS["RMSNormNode"]

# float32 sums of 16 products; half precisions accumulate in float32 and round once.
ROUNDING = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


def pair(shape: tuple[int, ...], dtype: str, seed: int) -> tuple[mx.array, torch.Tensor]:
    tensor = torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).to(getattr(torch, dtype))
    return mx.array(tensor.float().numpy()).astype(BY_NAME[dtype]), tensor.double()


def check(result: mx.array, reference: torch.Tensor, dtype: str) -> None:
    assert result.dtype == BY_NAME[dtype]
    found = np.array(result.astype(mx.float32))
    np.testing.assert_allclose(found, reference.numpy(), rtol=ROUNDING[dtype], atol=ROUNDING[dtype])


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("shapes", [((3, 16), (16, 5)), ((2, 3, 16), (16, 5)), ((16,), (16, 5))], ids=str)
def test_without_a_bias_it_is_the_plain_product(shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    (a, a_tensor), (b, b_tensor) = pair(shapes[0], dtype, 1), pair(shapes[1], dtype, 2)
    check(addmm(mat1=a, mat2=b, bias=None, alpha=3.0, beta=5.0), a_tensor @ b_tensor, dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (2.0, -0.5), (0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize("bias_shape", [(5,), (3, 5), (1, 3, 1)], ids=str)
def test_with_a_bias_both_parts_are_scaled(bias_shape: tuple[int, ...], alpha: float, beta: float, dtype: str) -> None:
    (a, a_tensor), (b, b_tensor) = pair((2, 3, 16), dtype, 3), pair((16, 5), dtype, 4)
    bias, bias_tensor = pair(bias_shape, dtype, 5)
    reference = beta * bias_tensor + alpha * (a_tensor @ b_tensor)
    check(addmm(mat1=a, mat2=b, bias=bias, alpha=alpha, beta=beta), reference, dtype)


def test_a_wider_operand_widens_the_product() -> None:
    (a, a_tensor), (b, b_tensor) = pair((3, 16), "bfloat16", 6), pair((16, 5), "float32", 7)
    check(addmm(mat1=a, mat2=b, bias=None, alpha=1.0, beta=1.0), a_tensor @ b_tensor, "float32")


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("weighted", [True, False])
def test_rms_norm_divides_by_the_root_of_the_mean_square(dtype: str, eps: float, weighted: bool) -> None:
    x, tensor = pair((2, 3, 16), dtype, 8)
    weight, weight_tensor = pair((16,), dtype, 9)
    reference = tensor / (tensor.square().mean(-1, keepdim=True) + eps).sqrt()
    if weighted:
        reference = reference * weight_tensor
    check(rms_norm(x=x, weight=weight if weighted else None, eps=eps), reference, dtype)


def test_rms_norm_widens_to_its_weight() -> None:
    (x, tensor), (weight, weight_tensor) = pair((4, 16), "bfloat16", 10), pair((16,), "float32", 11)
    reference = weight_tensor * tensor / (tensor.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    check(rms_norm(x=x, weight=weight, eps=1e-5), reference, "float32")


def test_the_statistics_of_half_precision_do_not_overflow() -> None:
    """The squares of 300 exceed float16."""
    x = mx.full((1, 16), 300.0, mx.float16)
    check(rms_norm(x=x, weight=None, eps=1e-6), torch.ones(1, 16, dtype=torch.float64), "float16")


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("parts", ["weight and bias", "weight", "neither"])
def test_layer_norm_agrees_with_torch(parts: str, dtype: str) -> None:
    (x, x_tensor), (w, w_tensor), (b, b_tensor) = (
        pair((2, 3, 16), dtype, 1),
        pair((16,), dtype, 2),
        pair((16,), dtype, 3),
    )
    weight, bias = (w if "weight" in parts else None), (b if "bias" in parts else None)
    reference = torch.nn.functional.layer_norm(
        x_tensor, (16,), w_tensor if "weight" in parts else None, b_tensor if "bias" in parts else None, 1e-5
    )
    check(OPERATORS["LayerNormNode"](x=x, weight=weight, bias=bias, eps=1e-5), reference, dtype)


@pytest.mark.parametrize("flag", [None, 0])
@pytest.mark.parametrize("dtype", ROUNDING)
def test_a_gathered_product_chooses_both_matrices(dtype: str, flag: int | None) -> None:
    (a, a_tensor), (b, b_tensor) = pair((2, 3, 16), dtype, 12), pair((4, 16, 5), dtype, 13)
    hints = {"sorted_indices": True, "sorted_indices_flag": flag}
    left, right = [[0], [1]], [3, 0]
    found = OPERATORS["GatherMmNode"](a=a, b=b, lhs_indices=mx.array(left), rhs_indices=mx.array(right), **hints)
    check(found, torch.stack([torch.stack([a_tensor[row[0]] @ b_tensor[j] for j in right]) for row in left]), dtype)


def test_a_gathered_product_without_indices_is_the_plain_one() -> None:
    (a, a_tensor), (b, b_tensor) = pair((2, 3, 16), "float32", 12), pair((2, 16, 5), "float32", 13)
    hints = {"sorted_indices": False, "sorted_indices_flag": None}
    found = OPERATORS["GatherMmNode"](a=a, b=b, lhs_indices=None, rhs_indices=None, **hints)
    check(found, a_tensor @ b_tensor, "float32")
