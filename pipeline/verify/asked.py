"""What an artifact was to be: as a manifest asks for it, or as its bundle has it on record.

A copy of ``pipeline.spec``'s without its classes, which take longer to make than an artifact to read; a test holds the
one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pipeline.spec import BuildSpec, WeightFormat

NONE = "none"

IN_MLX = {"4w": ("affine", 4), "8w": ("affine", 8), "nvfp4": ("nvfp4", 4), "mxfp8": ("mxfp8", 8)}
"""What MLX makes of each scheme: its mode, and bits a weight."""


class Weights(NamedTuple):
    """How the weights of one kind of layer are stored; groups of 0 are whole rows."""

    scheme: str
    group_size: int

    @property
    def quantized(self) -> bool:
        return self.scheme != NONE

    def __str__(self) -> str:
        if not self.quantized:
            return "not quantized"
        return f"{self.scheme} in groups of {self.group_size}" if self.group_size else f"{self.scheme} by rows"


class Asked(NamedTuple):
    """The fields of a ``BuildSpec``."""

    dtype: str
    linear: Weights
    embedding: Weights
    max_seq_len: int
    max_context_len: int
    placement: str
    backend: str
    logits: str

    @classmethod
    def of(cls, spec: BuildSpec) -> Asked:
        """What a manifest asks for."""

        def weights(form: WeightFormat) -> Weights:
            return Weights(form.scheme, form.group_size)

        return cls(
            dtype=spec.dtype,
            linear=weights(spec.linear),
            embedding=weights(spec.embedding),
            max_seq_len=spec.max_seq_len,
            max_context_len=spec.max_context_len,
            placement=spec.placement,
            backend=spec.backend,
            logits=spec.logits,
        )

    @classmethod
    def recorded(cls, fields: Mapping[str, Any]) -> Asked:
        """What a record says. Raises KeyError, TypeError or ValueError where it is none that a build writes."""
        kinds = {"max_seq_len": int, "max_context_len": int}
        for field in cls._fields:
            if field not in ("linear", "embedding") and type(fields[field]) is not kinds.get(field, str):
                raise TypeError(field)
            if field not in ("linear", "embedding", *kinds) and not fields[field].isidentifier():
                raise ValueError(field)
        weights = {kind: _weights(fields[kind]) for kind in ("linear", "embedding")}
        return cls(**{field: fields[field] for field in cls._fields} | weights)


def _weights(recorded: Any) -> Weights:
    if recorded == NONE:
        return Weights(NONE, 0)
    form = Weights(**recorded)
    if form.scheme not in (NONE, *IN_MLX) or type(form.group_size) is not int:
        raise ValueError(form)
    return form
