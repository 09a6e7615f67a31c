"""The op table says what the installed executorch's schema says, node by node and field by field."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from pipeline.pte.mlx_ops import OPS

SHORT = {
    "Tid": "T", "Vid": "V", "IntOrVid": "I", "FloatOrVid": "F", "VidOrTid": "VT", "IntOrVidOrTid": "IVT",
    "string": "str", "int8": "i8", "int32": "i32", "uint32": "u32", "uint64": "u64", "float": "f32", "bool": "bool",
}  # fmt: skip
SCALARS = {"i8", "i32", "u32", "u64", "f32", "bool"}


@pytest.fixture(scope="module")
def schema() -> str:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(next(iter(spec.submodule_search_locations))) / "backends/mlx/serialization/schema.fbs"
    return re.sub(r"//.*", "", file.read_text(encoding="utf-8"))


def declared(schema: str, node: str) -> list[tuple[str, str, str]]:
    """(name, type, what absence means) of a table's fields, in our short names."""
    match = re.search(rf"table {node} {{(.*?)}}", schema, re.DOTALL)
    assert match, node
    fields = []
    for line in filter(None, map(str.strip, match[1].split(";"))):
        field = re.fullmatch(r"(\w+):\s*(\[?)(\w+)(\]?)\s*(?:=\s*(\S+))?\s*(\(required\))?", line)
        assert field, line
        name, opening, kind, closing, default, required = field.groups()
        kind = opening + SHORT[kind] + closing
        absent = normal(default or "0") if kind in SCALARS else "required" if required else "optional"
        fields.append((name, kind, absent))
    return fields


def ours(fields: str) -> list[tuple[str, str, str]]:
    result = []
    for word in fields.split():
        name, _, kind = word.partition(":")
        kind, _, default = kind.partition("=")
        bare = kind.removesuffix("?")
        absent = normal(default or "0") if bare in SCALARS else "optional" if kind.endswith("?") else "required"
        result.append((name, bare, absent))
    return result


def normal(default: str) -> str:
    return default if default == "null" else str(float({"true": 1, "false": 0}.get(default, default)))


def test_ids_are_the_unions_order(schema: str) -> None:
    union = re.search(r"union OpNode {(.*?)}", schema, re.DOTALL)
    assert union
    names = [name.strip() for name in union[1].split(",") if name.strip()]
    assert [(number, name) for number, name, _ in OPS] == list(enumerate(names, start=1))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op[1])
def test_fields_are_the_schemas(schema: str, op: tuple[int, str, str]) -> None:
    _, name, fields = op
    assert ours(fields) == declared(schema, name)
