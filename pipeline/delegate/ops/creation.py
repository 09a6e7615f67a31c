"""Arrays made from numbers: filled, counted, drawn at random."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import mlx.core as mx

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError

MAX_BYTES = 4 << 30


def check_allocation(node: str, shape: Sequence[int], dtype: mx.Dtype) -> None:
    """The runtime makes no array of no elements this way, nor one beyond 4 GiB."""
    if any(size < 1 for size in shape) or prod(shape) * dtype.size > MAX_BYTES:
        raise DelegateError(f"{node} makes {list(shape)} of {dtype}; expected sizes above 0 and at most 4 GiB.")


def arange(start: int, stop: int, step: int, scalar_type: int | None) -> mx.array:
    """From ``start`` by ``step``, before ``stop``; int32 unless said otherwise."""
    if step == 0:
        raise DelegateError("ARangeNode has step 0; expected any other.")
    dtype = mx.int32 if scalar_type is None else dtypes.of_code(scalar_type)
    check_allocation("ARangeNode", [len(range(start, stop, step))], dtype)
    return mx.arange(start, stop, step, dtype=dtype)


def full(shape: tuple[int, ...], v: float, scalar_type: int) -> mx.array:
    """The value passes through float32 on its way to any dtype."""
    dtype = dtypes.of_code(scalar_type)
    check_allocation("FullNode", shape, dtype)
    return _filled(shape, v, dtype)


def full_like(x: mx.array, v: float, scalar_type: int | None) -> mx.array:
    """As ``full``, in the shape of x and, unless said otherwise, its dtype."""
    return _filled(x.shape, v, x.dtype if scalar_type is None else dtypes.of_code(scalar_type))


def _filled(shape: tuple[int, ...], v: float, dtype: mx.Dtype) -> mx.array:
    # mx.full would ignore an integer dtype.
    return mx.broadcast_to(mx.array(v, mx.float32).astype(dtype), shape)


def tri(n: int, m: int, k: int, scalar_type: int) -> mx.array:
    """n rows and m columns, 1 where column - row <= k."""
    dtype = dtypes.of_code(scalar_type)
    check_allocation("TriNode", (n, m), dtype)
    return mx.tri(n, m, k, dtype)


def random_bits(shape: tuple[int, ...], seed: int | None, width: int) -> mx.array:
    """Unsigned integers of ``width`` bytes, the same for the same seed everywhere, as ``mlx::random::bits`` has them.

    The words are those of Threefry-2x32 by a key of the seed's 64 bits, counting the first half of the words against
    the second. Without a seed they come from MLX's own generator, which ``mx.random.seed`` seeds.
    """
    kinds = {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}
    if width not in kinds:
        raise DelegateError(f"RandomBitsNode has width {width}; expected 1, 2 or 4 bytes.")
    check_allocation("RandomBitsNode", shape, mx.uint32)
    num_words = -(-prod(shape) * width // 4)
    half, odd = divmod(num_words, 2)
    first, second = mx.arange(half + odd, dtype=mx.uint32), mx.arange(half + odd, num_words, dtype=mx.uint32)
    if odd:
        second = mx.concatenate([second, mx.zeros(1, mx.uint32)])
    key = mx.random.key(seed % 2**64) if seed is not None else mx.random.randint(0, 2**31 - 1, (2,)).astype(mx.uint32)
    left, right = _threefry(key[0], key[1], first, second)
    words = mx.concatenate([left, right[:half]])
    return words.view(kinds[width])[: prod(shape)].reshape(shape)


def _threefry(k0: mx.array, k1: mx.array, x0: mx.array, x1: mx.array) -> tuple[mx.array, mx.array]:
    """Threefry-2x32 of 20 rounds (Salmon et al., 2011); all are uint32."""
    keys = (k0, k1, k0 ^ k1 ^ mx.array(0x1BD11BDA, mx.uint32))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for block in range(5):
        for distance in rotations[block % 2]:
            x0 = x0 + x1
            x1 = x0 ^ ((x1 << distance) | (x1 >> (32 - distance)))
        x0 = x0 + keys[(block + 1) % 3]
        x1 = x1 + keys[(block + 2) % 3] + mx.array(block + 1, mx.uint32)
    return x0, x1


OPERATORS: dict[str, Callable[..., Any]] = {
    "ARangeNode": arange,
    "FullLikeNode": full_like,
    "FullNode": full,
    "RandomBitsNode": random_bits,
    "TriNode": tri,
}
