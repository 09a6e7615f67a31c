"""Convolutions over one, two or three axes.

Channels come last: x is [N, spatial..., C], w [O, kernel..., C / groups], also where it is transposed. Zeros pad both
sides; there is no bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from pipeline.errors import DelegateError

SUFFIXES = {1: ("",), 2: ("_h", "_w"), 3: ("_d", "_h", "_w")}
"""How a node of so many axes names what it has for each of them."""


def _convolution(num_axes: int, function: Callable[..., mx.array], *names: str) -> Callable[..., Any]:
    """An operator that hands over what is ``names`` for each axis."""

    def convolve(x: mx.array, w: mx.array, groups: int, **fields: int) -> mx.array:
        if groups < 1 or not w.size:
            # MLX would end the whole process with a division by zero.
            raise DelegateError(
                f"a convolution has {groups} groups and weights {list(w.shape)}; expected some of both."
            )
        sizes = {name: tuple(fields[name + suffix] for suffix in SUFFIXES[num_axes]) for name in names}
        lowest = min((*sizes["padding"], *sizes.get("output_padding", ())))
        if lowest < 0:
            raise DelegateError(f"a convolution has a padding of {lowest}; expected none below 0.")
        options = {name: size[0] if num_axes == 1 else size for name, size in sizes.items()}
        return function(x, w, groups=groups, **options)

    return convolve


_PLAIN = ("stride", "padding", "dilation")
_TRANSPOSED = (*_PLAIN, "output_padding")

OPERATORS: dict[str, Callable[..., Any]] = {
    "Conv1DNode": _convolution(1, mx.conv1d, *_PLAIN),
    "Conv2DNode": _convolution(2, mx.conv2d, *_PLAIN),
    "Conv3DNode": _convolution(3, mx.conv3d, *_PLAIN),
    "ConvTranspose1DNode": _convolution(1, mx.conv_transpose1d, *_TRANSPOSED),
    "ConvTranspose2DNode": _convolution(2, mx.conv_transpose2d, *_TRANSPOSED),
    "ConvTranspose3DNode": _convolution(3, mx.conv_transpose3d, *_TRANSPOSED),
}
