"""Arrays that callers have, in MLX: the same numbers in the same dtype, or an error. Torch need not be installed."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import mlx.core as mx
import numpy as np

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError

if TYPE_CHECKING:
    import torch

    Array: TypeAlias = mx.array | np.ndarray[Any, Any] | torch.Tensor
else:
    Array: TypeAlias = Any


def to_mlx(array: Array, what: str) -> mx.array:
    """An MLX array as it is; a copy of a numpy array, or of a torch tensor from wherever it is.

    Raises DelegateError, opening with ``what``, for anything else, and for dtypes that no MLX graph has: mlx.core would
    round float64 to float32 without a word.
    """
    if isinstance(array, mx.array):
        return array
    torch = sys.modules.get("torch")
    if isinstance(array, np.ndarray | np.generic):
        return _from_numpy(np.asarray(array), what)
    if torch is not None and isinstance(array, torch.Tensor):
        return _from_torch(array, what)
    raise DelegateError(f"{what} is a {type(array).__name__}; expected an array of MLX, numpy or torch.")


def _from_numpy(array: np.ndarray[Any, Any], what: str) -> mx.array:
    dtype = dtypes.of_name(array.dtype.name, what)
    if not array.dtype.isnative:
        raise DelegateError(
            f"{what} is in the byte order of another machine ({array.dtype.str}). Convert it to native."
        )
    if dtype == mx.bfloat16:
        # The type that ml_dtypes adds to numpy; MLX would not know it.
        return mx.array(np.ascontiguousarray(array).view(np.uint16)).view(dtype).reshape(array.shape)
    return mx.array(array)


def _from_torch(tensor: torch.Tensor, what: str) -> mx.array:
    name = str(tensor.dtype).removeprefix("torch.")
    dtype = dtypes.of_name(name, what)
    try:
        plain = tensor.detach().cpu().resolve_neg().contiguous()
        # numpy has no bfloat16: its two bytes travel as an integer.
        carried = plain.view(sys.modules["torch"].int16) if name == "bfloat16" else plain
        array = mx.array(carried.numpy())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise DelegateError(f"{what} cannot be read from torch ({error}). Give a dense tensor with data.") from error
    return array.view(dtype) if name == "bfloat16" else array
