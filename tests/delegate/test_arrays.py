"""Callers' arrays keep their numbers and dtypes, or are refused."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
import torch

from pipeline.delegate import dtypes
from pipeline.delegate.arrays import to_mlx
from pipeline.errors import DelegateError

TORCH = [name for name in dtypes.BY_NAME if hasattr(torch, name)]
NUMPY = [name for name in dtypes.BY_NAME if name != "bfloat16"]


@pytest.mark.parametrize("name", TORCH)
def test_torch_tensors_of_every_dtype(name: str) -> None:
    given = torch.tensor([[0, 1, 100], [2, 3, 77]]).to(getattr(torch, name)).T
    array = to_mlx(given, "x")
    assert array.dtype == dtypes.BY_NAME[name]
    assert array.tolist() == given.tolist()


@pytest.mark.parametrize("name", NUMPY)
def test_numpy_arrays_of_every_dtype(name: str) -> None:
    given = np.array([[0, 1, 100], [2, 3, 77]]).astype(name).T
    array = to_mlx(given, "x")
    assert array.dtype == dtypes.BY_NAME[name]
    assert array.tolist() == given.tolist()


def test_large_integers_and_scalars_stay_what_they_are() -> None:
    assert to_mlx(torch.tensor([2**40, -1]), "x").tolist() == [2**40, -1]
    assert to_mlx(np.array([2**40, -1]), "x").tolist() == [2**40, -1]
    assert to_mlx(np.int64(7), "x").shape == ()
    assert to_mlx(torch.tensor(1.5, dtype=torch.bfloat16), "x").item() == 1.5


def test_what_torch_keeps_beside_the_numbers_is_left() -> None:
    assert to_mlx(torch.ones(2, requires_grad=True), "x").tolist() == [1.0, 1.0]
    assert to_mlx(torch._neg_view(torch.ones(2)), "x").tolist() == [-1.0, -1.0]


def test_an_mlx_array_is_itself_and_others_are_copies() -> None:
    array = mx.zeros(3)
    assert to_mlx(array, "x") is array
    given = np.zeros(3, np.float32)
    copy = to_mlx(given, "x")
    given[:] = 1
    assert copy.tolist() == [0.0] * 3


REFUSED = {
    "float64": (np.zeros(2), "x has dtype float64; the MLX delegate knows uint8,"),
    "torch's float64": (torch.zeros(2, dtype=torch.float64), "x has dtype float64; the MLX delegate knows uint8,"),
    "text": (np.array(["a"]), "x has dtype str32; the MLX delegate knows"),
    "a list": ([1, 2], "x is a list; expected an array of MLX, numpy or torch."),
    "a number": (1.5, "x is a float; expected an array of MLX, numpy or torch."),
    "the other byte order": (
        np.zeros(2, ">f4"),
        "x is in the byte order of another machine (>f4). Convert it to native.",
    ),
    "sparse": (torch.eye(2).to_sparse(), "x cannot be read from torch ("),
    "no data": (torch.empty(2, device="meta"), "x cannot be read from torch ("),
}


@pytest.mark.parametrize("case", REFUSED)
def test_anything_else_is_refused(case: str) -> None:
    given, expected = REFUSED[case]
    with pytest.raises(DelegateError) as caught:
        to_mlx(given, "x")  # type: ignore[arg-type]
    assert str(caught.value).startswith(expected)
