"""ExecuTorch's scalar types: code, name, and how one element's bytes become a number.

A flat table of facts. Names are torch's where torch has one.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, ldexp, nan
from struct import unpack
from typing import Any


@dataclass(frozen=True, slots=True)
class DType:
    """``size_bytes`` is what ExecuTorch counts for an element; ``code`` a ``struct`` code, of each half if complex."""

    name: str
    size_bytes: int
    code: str = ""


BY_CODE: dict[int, DType] = {
    0: DType("uint8", 1, "B"),
    1: DType("int8", 1, "b"),
    2: DType("int16", 2, "h"),
    3: DType("int32", 4, "i"),
    4: DType("int64", 8, "q"),
    5: DType("float16", 2, "e"),
    6: DType("float32", 4, "f"),
    7: DType("float64", 8, "d"),
    8: DType("complex32", 4, "e"),
    9: DType("complex64", 8, "f"),
    10: DType("complex128", 16, "d"),
    11: DType("bool", 1, "?"),
    12: DType("qint8", 1, "b"),
    13: DType("quint8", 1, "B"),
    14: DType("qint32", 4, "i"),
    15: DType("bfloat16", 2),
    16: DType("quint4x2", 1, "B"),
    17: DType("quint2x4", 1, "B"),
    18: DType("bits1x8", 1, "B"),
    19: DType("bits2x4", 1, "B"),
    20: DType("bits4x2", 1, "B"),
    21: DType("bits8", 1, "B"),
    22: DType("bits16", 2, "H"),
    23: DType("float8_e5m2", 1),
    24: DType("float8_e4m3fn", 1),
    25: DType("float8_e5m2fnuz", 1),
    26: DType("float8_e4m3fnuz", 1),
    27: DType("uint16", 2, "H"),
    28: DType("uint32", 4, "I"),
    29: DType("uint64", 8, "Q"),
}

BY_NAME: dict[str, DType] = {dtype.name: dtype for dtype in BY_CODE.values()}


def numbers(dtype: DType, data: memoryview) -> list[Any]:
    """The elements in ``data`` as Python numbers.

    A complex one is ``[real, imaginary]``; one of bits, or of several packed into a byte, is the unsigned number in its
    bytes; a quantized one is the stored integer.
    """
    count = len(data) // dtype.size_bytes
    if dtype.name.startswith("complex"):
        halves = unpack(f"<{2 * count}{dtype.code}", data)
        return [list(pair) for pair in zip(halves[0::2], halves[1::2], strict=True)]
    if dtype.code:
        return list(unpack(f"<{count}{dtype.code}", data))
    if dtype.name == "bfloat16":
        widened = bytearray(4 * count)
        widened[2::4] = data[0::2]
        widened[3::4] = data[1::2]
        return list(unpack(f"<{count}f", widened))
    return [_float8(byte, dtype.name) for byte in data]


def _float8(byte: int, name: str) -> float:
    """One 8-bit float. ``fn`` has no infinities; ``fnuz`` in addition keeps -0's code for its NaN."""
    mantissa_bits = 2 if "e5m2" in name else 3
    fnuz = name.endswith("fnuz")
    magnitude = byte & 0x7F
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, mantissa = magnitude >> mantissa_bits, magnitude & ((1 << mantissa_bits) - 1)
    if fnuz and byte == 0x80:
        return nan
    if name == "float8_e4m3fn" and magnitude == 0x7F:
        return nan
    if name == "float8_e5m2" and exponent == 31:
        return nan if mantissa else sign * inf
    bias = (1 << (6 - mantissa_bits)) - 1 + fnuz
    if exponent == 0:
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits)
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
