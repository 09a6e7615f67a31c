"""ExecuTorch's scalar types in MLX.

The table is that of the MLX backend's runtime (``backends/mlx/runtime``): float64, the wider unsigned integers, complex
and quantized types have no place in an MLX graph.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, cast

import mlx.core as mx
import numpy as np

from pipeline.errors import DelegateError

if TYPE_CHECKING:
    from typing_extensions import Buffer

BY_NAME: dict[str, mx.Dtype] = {
    "uint8": mx.uint8,
    "int8": mx.int8,
    "int16": mx.int16,
    "int32": mx.int32,
    "int64": mx.int64,
    "float16": mx.float16,
    "float32": mx.float32,
    "bool": mx.bool_,
    "bfloat16": mx.bfloat16,
    "uint32": mx.uint32,
}

PIECE_BYTES = 4 << 20

BY_CODE: dict[int, mx.Dtype] = {
    0: mx.uint8,
    1: mx.int8,
    2: mx.int16,
    3: mx.int32,
    4: mx.int64,
    5: mx.float16,
    6: mx.float32,
    11: mx.bool_,
    15: mx.bfloat16,
    28: mx.uint32,
}


def of_name(name: str, what: str) -> mx.Dtype:
    """The MLX dtype of a scalar type's name; ``what`` names the tensor in the error."""
    if name not in BY_NAME:
        raise DelegateError(f"{what} has dtype {name}; the MLX delegate knows {', '.join(BY_NAME)}.")
    return BY_NAME[name]


def of_code(code: int) -> mx.Dtype:
    """The MLX dtype of a ScalarType code in an instruction."""
    if code not in BY_CODE:
        raise DelegateError(f"scalar type {code} is none that the MLX delegate knows ({', '.join(map(str, BY_CODE))}).")
    return BY_CODE[code]


def array_from_bytes(
    data: memoryview, shape: tuple[int, ...], name: str, what: str, read: Callable[[int], None] = lambda _: None
) -> mx.array:
    """A row-major array of a copy of ``data``, which may be longer than needed, never shorter. Evaluated.

    ``read`` is told the number of bytes after every piece that has been copied, at most ``PIECE_BYTES`` long.
    """
    dtype = of_name(name, what)
    # Not in numpy's integers, which a damaged shape overflows.
    size_bytes = prod(shape) * dtype.size
    if len(data) < size_bytes:
        raise DelegateError(
            f"{what} has {len(data)} bytes; its shape {list(shape)} of {name} needs {size_bytes}. The file is damaged."
        )
    if 0 < size_bytes <= PIECE_BYTES:
        # numpy, which has no bfloat16, is not needed to know the dtype: bytes are bytes.
        copied = mx.array(np.frombuffer(data, np.uint8, size_bytes))
        array = copied.view(dtype, stream=mx.cpu).reshape(shape, stream=mx.cpu)
        mx.eval(array)
        read(size_bytes)
        return array
    # More than that is never looked at at once. Evaluated, the array has a buffer that nothing has read yet.
    array = mx.zeros(shape, dtype, stream=mx.cpu)
    mx.eval(array)
    if size_bytes:
        buffer = memoryview(cast("Buffer", array)).cast("B")
        for start in range(0, size_bytes, PIECE_BYTES):
            piece = data[start : min(start + PIECE_BYTES, size_bytes)]
            buffer[start : start + len(piece)] = piece
            read(len(piece))
    return array
