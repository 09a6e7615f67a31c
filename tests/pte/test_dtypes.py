"""Elements read as torch reads them, bit pattern by bit pattern."""

from __future__ import annotations

import pytest
import torch

from pipeline.pte import dtypes


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"])
def test_every_8_bit_float_equals_torchs(name: str) -> None:
    data = bytes(range(256))
    ours = dtypes.numbers(dtypes.BY_NAME[name], memoryview(data))
    theirs = torch.frombuffer(bytearray(data), dtype=getattr(torch, name)).to(torch.float64)
    assert torch.equal(torch.tensor(ours, dtype=torch.float64).nan_to_num(1234.5), theirs.nan_to_num(1234.5))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int16", "uint16"])
def test_every_16_bit_pattern_equals_torchs(name: str) -> None:
    bits = torch.arange(1 << 16).to(torch.uint16)
    ours = dtypes.numbers(dtypes.BY_NAME[name], memoryview(bits.numpy().tobytes()))
    theirs = bits.view(getattr(torch, name)).to(torch.float64)
    assert torch.equal(torch.tensor(ours, dtype=torch.float64).nan_to_num(1234.5), theirs.nan_to_num(1234.5))


def test_types_without_plain_numbers_give_none() -> None:
    assert dtypes.numbers(dtypes.BY_NAME["complex64"], memoryview(bytes(8))) is None
    assert dtypes.numbers(dtypes.BY_NAME["quint4x2"], memoryview(bytes(8))) is None


def test_names_and_sizes_are_torchs() -> None:
    for dtype in dtypes.BY_CODE.values():
        if hasattr(torch, dtype.name) and dtype.size_bytes and not dtype.name.startswith(("bits", "q")):
            assert dtype.size_bytes == getattr(torch, dtype.name).itemsize, dtype.name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_codes_are_executorchs() -> None:
    from executorch.exir.scalar_type import ScalarType

    assert {code: dtype.name for code, dtype in dtypes.BY_CODE.items() if code in (3, 4, 5, 6, 11, 15, 28)} == {
        ScalarType.INT: "int32",
        ScalarType.LONG: "int64",
        ScalarType.HALF: "float16",
        ScalarType.FLOAT: "float32",
        ScalarType.BOOL: "bool",
        ScalarType.BFLOAT16: "bfloat16",
        ScalarType.UINT32: "uint32",
    }
