"""A program's constants as MLX arrays, taken from the ``.pte`` and the ``.ptd`` files beside it.

MLX owns its memory, so every constant is copied once; the file's pages are let go of while that happens. Each is made
once: names that share bytes share the array, and so do methods and instances that are loaded from one ``Constants``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

import mlx.core as mx
import numpy as np

from pipeline.delegate import dtypes
from pipeline.errors import DelegateError
from pipeline.pte import MlxGraph, PtdFile, PteFile, SegmentedFile, Slot, TensorMeta
from pipeline.pte.flatbuffer import quoted

T = TypeVar("T")

FORGET_BYTES = 8 << 20
"""As many bytes are read through a mapping before its pages are let go of."""


class Constants:
    """The constants that the named data of a program's files hold.

    Raises DelegateError when two files have data of the same name, as ExecuTorch's runtime does.
    """

    def __init__(self, pte: PteFile, *data: PtdFile) -> None:
        self._files: tuple[SegmentedFile, ...] = (pte, *data)
        self._made: WeakValueDictionary[Hashable, mx.array] = WeakValueDictionary()
        self._kept: dict[Hashable, Any] = {}
        self._num_read = 0
        self._home: dict[str, SegmentedFile] = {}
        for file in self._files:
            for key in file.named_data:
                other = self._home.setdefault(key, file)
                if other is not file:
                    raise DelegateError(
                        f"{file.path.name} and {other.path.name} both have data named {quoted(key)}; expected one. "
                        "Give the files that were exported together."
                    )

    def of(self, graph: MlxGraph, where: str) -> list[mx.array]:
        """One array per constant of the graph, row-major, of the dtype and shape that the graph says, evaluated.

        Raises DelegateError, opening with ``where``, for a constant that no file has or that does not fit its bytes.
        """
        arrays = []
        for tid in graph.constant_tids:
            key, meta = graph.names.get(Slot("tensor", tid)), graph.meta(tid)
            if key is None or meta is None:
                raise DelegateError(f"{where}: constant {tid} has no name or no shape. The file is damaged.")
            arrays.append(self._array(key, meta, f"{where}: constant {quoted(key)}"))
        self._forget_pages()
        return arrays

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returned when it was first asked for: instances have it in common."""
        if key not in self._kept:
            self._kept[key] = make()
        return cast(T, self._kept[key])

    def _array(self, key: str, meta: TensorMeta, what: str) -> mx.array:
        file = self._home.get(key)
        if file is None:
            first, *others = (file.path.name for file in self._files)
            raise DelegateError(
                f"{what} is not in {' or '.join([first, *others])}. If the program was exported with external data, "
                "give the .ptd that belongs to it; if it was not, the file is damaged."
            )
        shape = tuple(dim.value for dim in meta.shape if dim.value is not None)
        if len(shape) < len(meta.shape):
            raise DelegateError(f"{what} has a dynamic shape; a constant's is static. The file is damaged.")
        if isinstance(file, PtdFile):
            _check_layout(file, key, meta.dtype, shape, what)
        data = file.named_data[key]
        # Where the bytes are, whatever they are called.
        place = np.frombuffer(data, np.uint8).ctypes.data if len(data) else None
        known = self._made.get((place, shape, meta.dtype))
        if known is None:
            known = dtypes.array_from_bytes(data, shape, meta.dtype, what, self._read)
            self._made[place, shape, meta.dtype] = known
        return known

    def _read(self, num_bytes: int) -> None:
        self._num_read += num_bytes
        if self._num_read >= FORGET_BYTES:
            self._forget_pages()

    def _forget_pages(self) -> None:
        self._num_read = 0
        for file in self._files:
            file.forget_pages()


def _check_layout(file: PtdFile, key: str, dtype: str, shape: tuple[int, ...], what: str) -> None:
    """Data of the right name and another program is told by its dtype and sizes, where the file says them."""
    layout = file.layouts.get(key)
    if layout is not None and (layout.dtype, layout.sizes, layout.row_major) != (dtype, shape, True):
        order = "" if layout.row_major else ", not row-major"
        raise DelegateError(
            f"{what} is {list(layout.sizes)} of {layout.dtype}{order} in {file.path.name}; expected {list(shape)} of "
            f"{dtype}, row-major. Give the .ptd that was exported with the program."
        )
