"""ExecuTorch's scalar types in MLX.

The table is that of the MLX backend's runtime (``backends/mlx/runtime``): float64, the wider unsigned integers, complex
and quantized types have no place in an MLX graph.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from pipeline.errors import DelegateError

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


def array_from_bytes(data: memoryview, shape: tuple[int, ...], name: str, what: str) -> mx.array:
    """A row-major array over ``data``, which may be longer than needed, never shorter."""
    dtype = of_name(name, what)
    # numpy has no bfloat16: its two bytes travel as uint16.
    carrier = np.dtype(np.uint16 if name == "bfloat16" else name)
    count = int(np.prod(shape, dtype=np.int64))
    if len(data) < count * carrier.itemsize:
        raise DelegateError(
            f"{what} has {len(data)} bytes; its shape {list(shape)} of {name} needs {count * carrier.itemsize}. "
            "The file is damaged."
        )
    array = mx.array(np.frombuffer(data, dtype=carrier, count=count).reshape(shape))
    return array.view(dtype) if name == "bfloat16" else array
