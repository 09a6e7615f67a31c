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
