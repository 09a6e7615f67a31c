"""executorch's runtime and its deserializer read the same as we do, of every artifact and of what no artifact has."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.pte import PteFile, dtypes
from pipeline.pte.program_tables import TABLES, UNIONS
from tests.pte.agreement import (
    assert_read_as_executorch_reads,
    assert_read_as_the_deserializer_does,
    assert_read_as_the_runtime_does,
)
from tests.tiny_models import library_warnings_ignored

with library_warnings_ignored():
    from tests.pte import written


# Importing executorch's Python side warns about torch internals it uses.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

SCALARS = {"uint": "u32", "uint32": "u32", "int": "i32", "long": "i64", "int64": "i64", "uint64": "u64"}
SCALARS |= {"bool": "bool", "double": "f64", "byte": "i8", "ubyte": "u8", "string": "str"}

NOT_READ = {
    "ExecutionPlan": {"container_meta_type", "non_const_buffer_device"},
    "Chain": {"inputs", "outputs", "stacktrace"},
    "Tensor": {"requires_grad", "layout"},
    "ExtraTensorInfo": {"device_type", "device_index"},
    "AllocationDetails": {"memory_id", "memory_offset_low", "memory_offset_high"},
}
"""How Python called the model, where it came from, and where a runtime puts what it has yet to compute."""


def fbs() -> str:
    spec = importlib.util.find_spec("executorch")
    assert spec is not None
    assert spec.submodule_search_locations
    file = Path(next(iter(spec.submodule_search_locations))) / "exir/_serialize/program.fbs"
    return re.sub(r"//.*", "", file.read_text(encoding="utf-8"))


def test_the_schema_is_executorchs_field_by_field() -> None:
    source = fbs()
    enums = set(re.findall(r"enum (\w+) : byte", source)) | {"ScalarType"}
    tables = {
        name: re.findall(r"(\w+)\s*:\s*([^;]+);", body)
        for name, body in re.findall(r"table (\w+) {(.*?)}", source, re.DOTALL)
    }
    assert set(tables) - set(TABLES) == {"ContainerMetadata", "Frame", "FrameList", "NonConstBufferDevice"}
    for name, text in TABLES.items():
        words, fields = text.split(), tables[name]
        assert len(words) == len(fields), name
        assert {field for word, (field, _) in zip(words, fields, strict=True) if word == "_"} == NOT_READ.get(
            name, set()
        )
        for word, (field, kind) in zip(words, fields, strict=True):
            kind = re.sub(r"\(.*\)| = .*", "", kind).strip()
            bare = kind.strip("[]")
            ours = kind.replace(bare, "i8" if bare in enums else SCALARS.get(bare, bare))
            read = {"bytes": "[u8]", "blob": "[u8]"}
            found, _, found_kind = word.partition(":")
            found_kind = found_kind.removesuffix("?")
            assert word == "_" or (found, read.get(found_kind, found_kind)) == (field, ours), f"{name}.{field}"


def test_the_unions_are_executorchs_in_order() -> None:
    source = fbs()
    for name, members in UNIONS.items():
        (listed,) = re.findall(rf"union {name} {{(.*?)}}", source, re.DOTALL)
        assert list(members) == re.findall(r"\w+", listed)


NOT_IN_THEIR_ENUM = range(18, 22)
"""Bits, which executorch's runtime knows and its Python schema does not."""


def test_constants_of_every_kind_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    path.write_bytes(written.in_segments(written.of_every_kind()))
    assert_read_as_executorch_reads(path)


def test_constants_of_every_type_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    path.write_bytes(written.in_segments(written.of_every_dtype()))
    with PteFile.open(path) as pte:
        assert {value.dtype for method in pte.program.methods.values() for value in method.outputs} == {*dtypes.BY_NAME}
        assert_read_as_the_runtime_does(path, pte)
    data = written.in_segments(
        written.of_every_dtype([code for code in dtypes.BY_CODE if code not in NOT_IN_THEIR_ENUM])
    )
    assert_read_as_the_deserializer_does(data, PteFile.from_bytes(data, "x.pte"))


def test_constants_that_are_inline_agree() -> None:
    """As they were written before segments; executorch's runtime does not load such a file any more."""
    codes = [code for code in dtypes.BY_CODE if code not in NOT_IN_THEIR_ENUM]
    for make in (written.of_every_kind, lambda: written.of_every_dtype(codes)):
        data = written.inline(make())
        pte, segmented = PteFile.from_bytes(data, "x.pte"), PteFile.from_bytes(written.in_segments(make()), "x.pte")
        assert_read_as_the_deserializer_does(data, pte)
        assert repr(pte.program.constants()) == repr(segmented.program.constants())
        assert (pte.segments, pte.program.constant_segment, segmented.program.constant_segment) == ((), None, 0)


def test_what_no_constant_method_has_agrees(tmp_path: Path) -> None:
    path = tmp_path / "x.pte"
    path.write_bytes(written.of_everything_else())
    assert_read_as_executorch_reads(path)


def test_segments_lie_where_their_alignment_asks(tmp_path: Path) -> None:
    data = written.of_everything_else()
    pte = PteFile.from_bytes(data, "x.pte")
    assert list(pte.named_data) == ["one", "two", "the same"]
    one, two, same = (pte.segments[pte.named_data.segment_of(name)] for name in pte.named_data)
    assert (one, one[1] - one[0], two[1] - two[0]) == (same, 40, 3)
    assert (one[0] % 256, two[0] % 128) == (0, 0)
    assert data[slice(*one)] == b"1" * 40
    assert pte.tables_bytes <= pte.segments[0][0]


def test_a_lowered_artifact_agrees(tiny_pte: Any) -> None:
    assert_read_as_executorch_reads(tiny_pte.path)
