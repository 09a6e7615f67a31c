"""Arrays made from numbers, against numpy and MLX's own generator."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from pipeline.delegate.dtypes import BY_CODE
from pipeline.delegate.ops import OPERATORS
from pipeline.errors import DelegateError

LONG, FLOAT, BFLOAT16 = 4, 6, 15


def op(name: str, **fields: Any) -> mx.array:
    result: mx.array = OPERATORS[name](**fields)
    return result


def refused(name: str, **fields: Any) -> str:
    with pytest.raises(DelegateError) as caught:
        op(name, **fields)
    return str(caught.value)


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 5, 1), (3, 10, 3), (10, 0, -4), (-5, 6, 2)])
@pytest.mark.parametrize("code", [None, LONG, FLOAT])
def test_a_range_is_that_of_python_and_int32_by_itself(start: int, stop: int, step: int, code: int | None) -> None:
    found = op("ARangeNode", start=start, stop=stop, step=step, scalar_type=code)
    assert found.dtype == (mx.int32 if code is None else BY_CODE[code])
    assert found.tolist() == list(range(start, stop, step))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"step": 0}, "ARangeNode has step 0; expected any other."),
        ({"stop": 0}, "ARangeNode makes [0] of mlx.core.int64; expected sizes above 0 and at most 4 GiB."),
        ({"step": -1}, "ARangeNode makes [0] of mlx.core.int64; expected sizes above 0 and at most 4 GiB."),
        (
            {"stop": 2**31 - 1},
            "ARangeNode makes [2147483647] of mlx.core.int64; expected sizes above 0 and at most 4 GiB.",
        ),
    ],
)
def test_a_range_of_nothing_or_too_much_is_refused(fields: dict[str, int], expected: str) -> None:
    assert refused("ARangeNode", **{"start": 0, "stop": 5, "step": 1, "scalar_type": LONG, **fields}) == expected


@pytest.mark.parametrize("code", BY_CODE)
def test_a_value_fills_a_shape_in_any_dtype(code: int) -> None:
    found = op("FullNode", shape=(2, 3), v=2.75, scalar_type=code)
    assert found.dtype == BY_CODE[code]
    expected = True if BY_CODE[code] == mx.bool_ else 2.75 if mx.issubdtype(BY_CODE[code], mx.floating) else 2
    assert found.tolist() == [[expected] * 3] * 2


def test_a_value_passes_through_float32() -> None:
    assert op("FullNode", shape=(), v=2**24 + 1, scalar_type=LONG).item() == 2**24
    assert op("FullNode", shape=(1,), v=-np.inf, scalar_type=BFLOAT16).tolist() == [-np.inf]


def test_full_like_has_the_shape_of_another_and_its_dtype_unless_given() -> None:
    for shape in ((2, 0), (3,), ()):
        x = mx.zeros(shape, mx.float16)
        found = [op("FullLikeNode", x=x, v=7, scalar_type=code) for code in (None, LONG)]
        assert [array.dtype for array in found] == [mx.float16, mx.int64]
        assert all(np.array_equal(np.array(array), np.full(shape, 7)) for array in found)


@pytest.mark.parametrize("shape", [(2, 0), (-1,), (2**16, 2**15)], ids=str)
def test_a_shape_that_the_runtime_does_not_make_is_refused(shape: tuple[int, ...]) -> None:
    expected = f"{list(shape)} of mlx.core.float32; expected sizes above 0 and at most 4 GiB."
    assert refused("FullNode", shape=shape, v=1.0, scalar_type=FLOAT) == f"FullNode makes {expected}"
    assert refused("RandomBitsNode", shape=shape, seed=1, width=1) == (
        f"RandomBitsNode makes {expected}".replace("float32", "uint32")
    )


@pytest.mark.parametrize("k", [-1, 0, 2])
def test_a_triangle_has_ones_up_to_its_diagonal(k: int) -> None:
    found = op("TriNode", n=3, m=4, k=k, scalar_type=LONG)
    assert found.dtype == mx.int64
    np.testing.assert_array_equal(np.array(found), np.tri(3, 4, k))
    assert refused("TriNode", n=0, m=4, k=k, scalar_type=LONG).startswith("TriNode makes [0, 4] of mlx.core.int64;")


@pytest.mark.parametrize("seed", [0, 5, -3, 2**31 - 1])
@pytest.mark.parametrize("size", [1, 2, 5, 8, 1001])
def test_random_words_are_those_that_mlx_draws_for_the_seed(size: int, seed: int) -> None:
    """MLX has no bits in Python; its uniform is the words over the largest."""
    found = op("RandomBitsNode", shape=(size,), seed=seed, width=4)
    assert found.dtype == mx.uint32
    uniform = mx.random.uniform(shape=(size,), key=mx.random.key(seed % 2**64))
    np.testing.assert_allclose(np.array(found) / (2**32 - 1), np.array(uniform), atol=1e-7)
    if size % 2 == 0:
        pairs = mx.random.split(mx.random.key(seed % 2**64), size // 2)
        assert mx.array_equal(found, pairs.reshape(-1))


@pytest.mark.parametrize(("width", "dtype"), [(1, np.uint8), (2, np.uint16)])
def test_narrower_bits_are_the_bytes_of_the_words(width: int, dtype: type) -> None:
    words = np.array(op("RandomBitsNode", shape=(-(-7 * width // 4),), seed=9, width=4))
    found = np.array(op("RandomBitsNode", shape=(7, 1), seed=9, width=width))
    assert found.dtype == dtype
    assert found[:, 0].tolist() == words.view(dtype)[:7].tolist()


def test_without_a_seed_every_draw_is_another_and_mlx_seeds_them() -> None:
    def draw() -> list[int]:
        return op("RandomBitsNode", shape=(64,), seed=None, width=4).tolist()

    mx.random.seed(3)
    first, second = draw(), draw()
    mx.random.seed(3)
    assert first == draw() != second
    ones = np.unpackbits(np.array(op("RandomBitsNode", shape=(4096,), seed=None, width=1))).mean()
    assert ones == pytest.approx(0.5, abs=0.02)


def test_bits_of_another_width_are_refused() -> None:
    expected = "RandomBitsNode has width 8; expected 1, 2 or 4 bytes."
    assert re.fullmatch(re.escape(expected), refused("RandomBitsNode", shape=(1,), seed=0, width=8))
