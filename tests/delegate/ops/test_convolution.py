"""Convolutions against torch's, with channels moved last."""

from __future__ import annotations

import re
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.nn import functional

from pipeline.delegate.ops import OPERATORS
from pipeline.delegate.ops.convolution import SUFFIXES
from pipeline.errors import DelegateError

PLAIN: dict[int, Any] = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
TRANSPOSED: dict[int, Any] = {
    1: functional.conv_transpose1d,
    2: functional.conv_transpose2d,
    3: functional.conv_transpose3d,
}
BATCH, CHANNELS, OUT = 2, 4, 6
SIZES, KERNEL = (7, 8, 6), (3, 2, 4)

# One value for each axis that there is: stride, padding, dilation.
SETTINGS = {
    "plain": ((1, 1, 1), (0, 0, 0), (1, 1, 1)),
    "strided": ((2, 1, 3), (1, 2, 0), (1, 1, 1)),
    "dilated": ((1, 2, 1), (2, 0, 1), (2, 3, 1)),
    "even": ((2, 2, 2), (1, 1, 1), (1, 1, 1)),
}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def channels_last(tensor: torch.Tensor) -> mx.array:
    return mx.array(tensor.movedim(1, -1).contiguous().numpy())


def convolved(transposed: bool, num_axes: int, groups: int, setting: str, output_padding: int = 0) -> tuple[Any, Any]:
    stride, padding, dilation = (values[:num_axes] for values in SETTINGS[setting])
    x = drawn(BATCH, CHANNELS, *SIZES[:num_axes], seed=1)
    kernel = KERNEL[:num_axes]
    settings: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation}
    if transposed:
        settings["output_padding"] = (output_padding,) * num_axes
        w = drawn(CHANNELS, OUT // groups, *kernel, seed=2)
        # torch has (in, out / groups, kernel), the graph (out, kernel, in / groups).
        grouped = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
        given = channels_last(grouped)
    else:
        w = drawn(OUT, CHANNELS // groups, *kernel, seed=2)
        given = channels_last(w)
    fields = {
        name + suffix: value
        for name, values in settings.items()
        for suffix, value in zip(SUFFIXES[num_axes], values, strict=True)
    }
    name = f"Conv{'Transpose' if transposed else ''}{num_axes}DNode"
    found = OPERATORS[name](x=channels_last(x), w=given, groups=groups, **fields)
    expected = (TRANSPOSED if transposed else PLAIN)[num_axes](x, w, groups=groups, **settings)
    return np.array(found), expected.movedim(1, -1).numpy()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(("num_axes", "groups"), [(1, 1), (1, 2), (2, 1), (2, 2), (3, 1)])
def test_a_convolution_agrees_with_torch(num_axes: int, groups: int, setting: str) -> None:
    found, expected = convolved(False, num_axes, groups, setting)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("num_axes", "groups", "setting", "output_padding"),
    [
        *((num_axes, 1, setting, 0) for num_axes in (1, 2, 3) for setting in SETTINGS),
        (1, 2, "even", 0),
        (2, 2, "even", 0),
        (1, 1, "even", 1),
        (2, 1, "even", 1),
    ],
)
def test_a_transposed_convolution_agrees_with_torch(
    num_axes: int, groups: int, setting: str, output_padding: int
) -> None:
    found, expected = convolved(True, num_axes, groups, setting, output_padding)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"groups": 0}, "a convolution has 0 groups and weights [6, 3, 4]; expected some of both."),
        ({"w": mx.zeros((6, 0, 4))}, "a convolution has 1 groups and weights [6, 0, 4]; expected some of both."),
        ({"padding": -1}, "a convolution has a padding of -1; expected none below 0."),
    ],
)
def test_what_would_end_the_process_is_refused(fields: dict[str, Any], expected: str) -> None:
    whole = {"w": mx.zeros((6, 3, 4)), "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    with pytest.raises(DelegateError, match=f"^{re.escape(expected)}$"):
        OPERATORS["Conv1DNode"](x=mx.zeros((1, 5, 4)), **whole | fields)
