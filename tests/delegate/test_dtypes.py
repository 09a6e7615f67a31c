"""ExecuTorch's scalar types in MLX: the same elements, bit for bit."""

from __future__ import annotations

import re

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError
from pipeline.pte import dtypes as container_dtypes


@pytest.mark.parametrize("code", dtypes.BY_CODE)
def test_a_code_and_its_name_mean_the_same_dtype(code: int) -> None:
    name = container_dtypes.BY_CODE[code].name
    assert dtypes.of_code(code) == dtypes.of_name(name, "x")
    assert dtypes.of_code(code).size == container_dtypes.BY_CODE[code].size_bytes


def test_an_unknown_code_is_refused_with_the_known_ones() -> None:
    expected = "scalar type 7 is none that the MLX delegate knows (0, 1, 2, 3, 4, 5, 6, 11, 15, 28)."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        dtypes.of_code(7)


def test_an_unknown_name_is_refused_with_the_tensor_it_belongs_to() -> None:
    expected = (
        "constant 'w' has dtype float64; the MLX delegate knows uint8, int8, int16, int32, int64, float16, float32, "
        "bool, bfloat16, uint32."
    )
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        dtypes.of_name("float64", "constant 'w'")


@pytest.mark.parametrize("name", dtypes.BY_NAME)
@pytest.mark.parametrize("shape", [(2, 3), (6,), (), (0, 4), (1, 1, 1)], ids=str)
def test_bytes_become_the_array_torch_wrote(name: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.rand(shape) * 200 - (0 if name.startswith("u") else 100)).to(getattr(torch, name))
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    array = dtypes.array_from_bytes(memoryview(data), shape, name, "x")
    assert array.dtype == dtypes.BY_NAME[name]
    assert array.shape == shape
    assert array.tolist() == tensor.tolist()


def test_not_a_number_and_infinities_survive_in_bfloat16() -> None:
    tensor = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0]).to(torch.bfloat16)
    array = dtypes.array_from_bytes(memoryview(tensor.view(torch.uint8).numpy().tobytes()), (4,), "bfloat16", "x")
    np.testing.assert_array_equal(np.array(array.astype(mx.float32)), tensor.float().numpy())


def test_bytes_that_are_too_few_are_refused_and_more_are_left_alone() -> None:
    data = memoryview(bytes(range(16)))
    assert dtypes.array_from_bytes(data, (3,), "uint8", "x").tolist() == [0, 1, 2]
    expected = "x has 16 bytes; its shape [3, 2] of float32 needs 24. The file is damaged."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        dtypes.array_from_bytes(data, (3, 2), "float32", "x")


def test_a_shape_whose_size_no_machine_integer_holds_is_refused() -> None:
    """In 64 bits, this many elements are none."""
    expected = f"x has 16 bytes; its shape [65536, 65536, 65536, 65536] of int8 needs {2**64}. The file is damaged."
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        dtypes.array_from_bytes(memoryview(bytes(16)), (1 << 16,) * 4, "int8", "x")


def test_a_large_array_is_copied_in_pieces() -> None:
    count = 2 * dtypes.PIECE_BYTES // 4 + 5
    data = np.arange(count, dtype=np.int32)
    pieces: list[int] = []
    array = dtypes.array_from_bytes(memoryview(data.tobytes()), (count,), "int32", "x", pieces.append)
    assert pieces == [dtypes.PIECE_BYTES, dtypes.PIECE_BYTES, 20]
    assert np.array_equal(np.array(array), data)


def test_the_array_does_not_follow_later_changes_to_the_bytes() -> None:
    data = bytearray(4)
    array = dtypes.array_from_bytes(memoryview(data), (4,), "uint8", "x")
    data[0] = 9
    assert array.tolist() == [0, 0, 0, 0]
