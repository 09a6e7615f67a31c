"""Names of tensors: without what an exporter put around them, and the layer that one is of.

Knows executorch's and torchao's habits. A name that follows none of them stays as it is.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"[0-9a-f]{4}/")
_PARAMETRIZED = re.compile(r"\.parametrizations\.(\w+)\.original\d*\w*$")
_PACKED = re.compile(r"_(?:to_packed|mx_packed)$")
_OWN = re.compile(r"_(?:lifted_tensor_constant|scalar_)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.)")


def without_prefix(key: str) -> str:
    """A key of named data without the four digits of a hash that the exporter puts before every name."""
    return _PREFIX.sub("", key, count=1) if _PREFIX.match(key) else key


def of_weight(name: str) -> str:
    """The name of the weight that a packed tensor stands for."""
    return _PACKED.sub("", _PARAMETRIZED.sub(r".\1", name))


def is_the_graphs_own(name: str) -> bool:
    """Whether an exporter made this up for a constant that no module has."""
    return _OWN.match(name) is not None


def layer_of(name: str) -> str:
    """``model.layers.3`` of what belongs to a numbered block, else the module that the tensor is in."""
    found = _NUMBER.search(name)
    return name[: found.end()] if found else name.rpartition(".")[0] or name


def pattern_of(name: str) -> str:
    """The name with every number in it as a star: what all layers have in common."""
    return _NUMBER.sub("*", name)
