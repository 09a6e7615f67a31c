"""Packed weights against codes packed here bit by bit, and small floats against torch's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate.dtypes import BY_NAME
from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

ROWS, COLUMNS = 5, 256

# Of the largest value of the result, which is rounded once from float32.
ROUNDING = {"float32": 3e-6, "float16": 5e-4, "bfloat16": 4e-3}
CODE = {"float32": 6, "float16": 5, "bfloat16": 15}

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The sixteen values of a four-bit float."""

SMALL_FLOATS = {"nvfp4": (16, 4), "mxfp4": (32, 4), "mxfp8": (32, 8)}


@dataclass
class Packed:
    """A weight as the node takes it, and what it stands for in float64."""

    fields: dict[str, Any]
    values: np.ndarray


def pack(codes: np.ndarray, bits: int) -> mx.array:
    """Each row one stream of bits, the least significant first, in words of 32."""
    stream = (codes[..., None] >> np.arange(bits)) & 1
    octets = np.packbits(stream.reshape(*codes.shape[:-1], -1).astype(np.uint8), axis=-1, bitorder="little")
    return mx.array(np.ascontiguousarray(octets).view("<u4"))


def affine(bits: int, group_size: int, dtype: str = "float32", batch: tuple[int, ...] = ()) -> Packed:
    make = np.random.default_rng(bits)
    codes = make.integers(0, 2**bits, (*batch, ROWS, COLUMNS))
    groups = (*batch, ROWS, COLUMNS // group_size)
    drawn = [torch.from_numpy(make.normal(size=groups) / 2**bits) for _ in "sb"]
    scale, bias = (part.to(getattr(torch, dtype)).double().numpy() for part in drawn)
    values = codes * scale.repeat(group_size, -1) + bias.repeat(group_size, -1)
    scales, biases = (mx.array(part.astype(np.float32)).astype(BY_NAME[dtype]) for part in (scale, bias))
    fields = {"w": pack(codes, bits), "scales": scales, "biases": biases}
    return Packed({**fields, "group_size": group_size, "bits": bits, "mode": "affine"}, values)


def small_floats(mode: str, batch: tuple[int, ...] = ()) -> Packed:
    make = np.random.default_rng(0)
    group_size, bits = SMALL_FLOATS[mode]
    groups = (*batch, ROWS, COLUMNS // group_size)
    if mode == "mxfp8":
        codes = torch.randn(*batch, ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
        values, codes = codes.double().numpy(), codes.view(torch.uint8).numpy().astype(np.int64)
    else:
        codes = make.integers(0, 16, (*batch, ROWS, COLUMNS))
        values = E2M1[codes]
    if mode == "nvfp4":
        exact = torch.from_numpy(make.uniform(0.02, 0.3, groups)).to(torch.float8_e4m3fn)
        scales, scale = exact.view(torch.uint8).numpy(), exact.double().numpy()
    else:
        scales = make.integers(122, 128, groups).astype(np.uint8)
        scale = 2.0 ** (scales.astype(np.int64) - 127)
    fields = {"w": pack(codes, bits), "scales": mx.array(scales), "biases": None}
    return Packed(
        {**fields, "group_size": group_size, "bits": bits, "mode": mode}, values * scale.repeat(group_size, -1)
    )


def drawn(shape: tuple[int, ...], dtype: str) -> tuple[mx.array, np.ndarray]:
    tensor = torch.from_numpy(np.random.default_rng(9).normal(size=shape)).to(getattr(torch, dtype))
    return mx.array(tensor.float().numpy()).astype(BY_NAME[dtype]), tensor.double().numpy()


def check(found: mx.array, expected: np.ndarray, dtype: str) -> None:
    assert found.dtype == BY_NAME[dtype]
    tolerance = ROUNDING[dtype] * np.abs(expected).max()
    np.testing.assert_allclose(np.array(found.astype(mx.float32)), expected, rtol=0, atol=tolerance)


def multiplied(x: mx.array, packed: Packed, transpose: bool = True, **others: Any) -> mx.array:
    result: mx.array = OPERATORS["QuantizedMatmulNode"](x=x, transpose=transpose, **packed.fields | others)
    return result


def unpacked(packed: Packed, dtype: int | None = None, **others: Any) -> mx.array:
    fields = {"global_scale": None, "dtype": dtype, **packed.fields, **others}
    result: mx.array = OPERATORS["DequantizeNode"](**fields)
    return result


def gathered(x: mx.array, packed: Packed, **others: Any) -> mx.array:
    hints = {"sorted_indices": False, "sorted_indices_flag": None, "transpose": True}
    result: mx.array = OPERATORS["GatherQmmNode"](x=x, **packed.fields, **hints | others)
    return result


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_an_affine_product_is_exact_but_for_one_rounding(bits: int, group_size: int, dtype: str) -> None:
    packed = affine(bits, group_size, dtype)
    for shape in ((3, COLUMNS), (1, 2, COLUMNS), (COLUMNS,)):
        x, values = drawn(shape, dtype)
        check(multiplied(x, packed), values @ packed.values.T, dtype)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("mode", SMALL_FLOATS)
def test_a_product_with_small_floats_is_exact_but_for_one_rounding(mode: str, dtype: str) -> None:
    packed = small_floats(mode)
    for shape in ((3, COLUMNS), (1, 2, COLUMNS)):
        x, values = drawn(shape, dtype)
        check(multiplied(x, packed), values @ packed.values.T, dtype)


@pytest.mark.parametrize("packed", [affine(4, 32), small_floats("nvfp4")], ids=["affine", "nvfp4"])
def test_without_a_transpose_columns_are_made(packed: Packed) -> None:
    x, values = drawn((2, 3, ROWS), "float32")
    check(multiplied(x, packed, transpose=False), values @ packed.values, "float32")


@pytest.mark.parametrize(
    ("x", "scales", "expected"),
    [("bfloat16", "float32", "float32"), ("float16", "bfloat16", "float32"), ("float32", "bfloat16", "float32")],
)
def test_affine_scales_widen_the_product(x: str, scales: str, expected: str) -> None:
    packed = affine(4, 32, scales)
    given, values = drawn((3, COLUMNS), x)
    check(multiplied(given, packed), values @ packed.values.T, expected)


@pytest.mark.parametrize("mode", ["affine", *SMALL_FLOATS])
@pytest.mark.parametrize("shape", [(0, COLUMNS), (1, 0, COLUMNS)], ids=str)
def test_no_rows_make_no_rows(shape: tuple[int, ...], mode: str) -> None:
    packed = affine(4, 64) if mode == "affine" else small_floats(mode)
    found = multiplied(mx.zeros(shape), packed)
    assert found.shape == (*shape[:-1], ROWS)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("group_size", [16, 32, 64, 128])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_an_affine_weight_is_unpacked_with_one_rounding(bits: int, group_size: int, dtype: str) -> None:
    packed = affine(bits, group_size, dtype, batch=(2,))
    for code in (None, CODE[dtype]):
        found = np.array(unpacked(packed, code).astype(mx.float32))
        exact = torch.from_numpy(packed.values.astype(np.float32)).to(getattr(torch, dtype))
        np.testing.assert_allclose(found, exact.float().numpy(), rtol=1e-6, atol=1e-7)
    assert unpacked(packed, 6).dtype == mx.float32


@pytest.mark.parametrize("mode", SMALL_FLOATS)
def test_small_floats_are_unpacked_exactly(mode: str) -> None:
    packed = small_floats(mode, batch=(1, 2))
    assert unpacked(packed).dtype == mx.bfloat16
    found = unpacked(packed, 6)
    assert found.dtype == mx.float32
    np.testing.assert_array_equal(np.array(found), packed.values)


def test_a_global_scale_is_the_share_of_the_largest_product() -> None:
    packed = small_floats("nvfp4")
    found = unpacked(packed, 6, global_scale=mx.array([3.0]))
    np.testing.assert_allclose(np.array(found), packed.values * 3.0 / (448 * 6), rtol=1e-6)


def test_no_rows_are_unpacked_to_none() -> None:
    packed = affine(4, 32)
    none = {name: packed.fields[name][:0] for name in ("w", "scales", "biases")}
    assert unpacked(packed, 15, **none).shape == (0, COLUMNS)
    assert unpacked(packed, 15, **none).dtype == mx.bfloat16


@pytest.mark.parametrize("flag", [None, 0])
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("mode", ["affine", *SMALL_FLOATS])
def test_a_gathered_product_chooses_both_matrices(mode: str, dtype: str, flag: int | None) -> None:
    packed = affine(4, 32, dtype, batch=(3,)) if mode == "affine" else small_floats(mode, batch=(3,))
    x, values = drawn((2, 4, COLUMNS), dtype)
    left, right = [[0], [1]], [2, 0]
    found = gathered(
        x,
        packed,
        lhs_indices=mx.array(left),
        rhs_indices=mx.array(right),
        sorted_indices_flag=flag,
        sorted_indices=True,
    )
    expected = np.stack([np.stack([values[row[0]] @ packed.values[j].T for j in right]) for row in left])
    check(found, expected, dtype)


def test_a_gathered_product_without_indices_is_a_plain_one() -> None:
    packed = affine(4, 32)
    x, values = drawn((3, COLUMNS), "float32")
    check(gathered(x, packed, lhs_indices=None, rhs_indices=None), values @ packed.values.T, "float32")


def test_a_gathered_product_of_nothing_is_refused() -> None:
    packed = affine(4, 32, batch=(3,))
    with pytest.raises(DelegateError, match=r"^GatherQmmNode has x \[1, 0, 256\] and w \[3, 5, 32\]; expected some"):
        gathered(mx.zeros((1, 0, COLUMNS)), packed, lhs_indices=None, rhs_indices=mx.array([1]))


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "scales missing": (
        {"scales": mx.zeros((4, 8)), "biases": mx.zeros((4, 8))},
        "a packed weight, its scales and biases have shapes [5, 32], [4, 8], [4, 8]; expected the same rows.",
    ),
    "biases missing": (
        {"biases": mx.zeros((5, 4))},
        "a packed weight, its scales and biases have shapes [5, 32], [5, 8], [5, 4]; expected the same rows.",
    ),
    "no bits": ({"bits": 0}, "a packed weight has groups of 32 and 0 bits; expected both to be positive."),
    "no groups": ({"group_size": 0}, "a packed weight has groups of 0 and 4 bits; expected both to be positive."),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_mlx_would_read_beyond_or_end_the_process_over_is_refused(case: str) -> None:
    changes, expected = DAMAGED[case]
    packed = affine(4, 32)
    for action in (
        lambda: multiplied(mx.zeros((1, COLUMNS)), packed, **changes),
        lambda: unpacked(packed, **changes),
    ):
        with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
            action()


@pytest.mark.parametrize("changes", [{"mode": "int4"}, {"biases": None}, {"bits": 7}, {"group_size": 16}], ids=str)
def test_a_mode_that_mlx_does_not_have_is_its_error(changes: dict[str, Any]) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        mx.eval(multiplied(mx.zeros((1, COLUMNS)), affine(4, 32), **changes))
