"""The cursor reads what flatbuffers' own builder wrote, and refuses everything else with a reason."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import flatbuffers
import pytest

from pipeline.errors import PteError
from pipeline.pte.flatbuffer import MAX_VECTOR_LENGTH, MEMORY_PER_BYTE, MIN_MEMORY_BYTES, Budget, Schema, quoted

SCHEMA = Schema(
    {
        "Root": "a:i32=-7 b:bool=true c:f64=null text:str? raw:bytes? numbers:[i64]? leaf:Leaf? leaves:[Leaf?]? "
        "id:Id? ids:[Id]? either:Either? skipped:u8 texts:[str]? kept:blob?",
        "Leaf": "value:u16 name:str?",
        "Other": "leaf:Leaf",
    },
    unions={"Either": ["Leaf", "Other"]},
    ids={"Id": lambda idx: ("id", idx)},
)


def decode(data: bytes | bytearray) -> dict[str, Any]:
    decoded: dict[str, Any] = SCHEMA.decode("Root", memoryview(data), "x.pte")
    return decoded


def build(fill: Callable[[flatbuffers.Builder], dict[int, Callable[[], None]]]) -> bytearray:
    """A Root whose fields are added in slot order by ``fill``'s functions."""
    builder = flatbuffers.Builder(64)
    fields = fill(builder)
    builder.StartObject(15)
    for add in fields.values():
        add()
    builder.Finish(builder.EndObject())
    return bytearray(builder.Output())


def leaf(b: flatbuffers.Builder, value: int, name: str | None = None) -> int:
    text = b.CreateString(name) if name is not None else 0
    b.StartObject(2)
    b.PrependUint16Slot(0, value, 0)
    if text:
        b.PrependUOffsetTRelativeSlot(1, text, 0)
    return b.EndObject()


def full(b: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
    text = b.CreateString("żółw")
    raw = b.CreateByteVector(b"\x01\x02\x03")
    b.StartVector(8, 3, 8)
    for number in (3, -2, 1 << 40):
        b.PrependInt64(number)
    numbers = b.EndVector()
    one, two = leaf(b, 1, "one"), leaf(b, 2)
    b.StartVector(4, 3, 4)
    b.PrependUOffsetTRelative(two)
    b.PrependUint32(0)
    b.PrependUOffsetTRelative(one)
    leaves = b.EndVector()
    b.StartVector(4, 2, 4)
    b.PrependUint32(9)
    b.PrependUint32(8)
    ids = b.EndVector()
    b.StartObject(1)
    b.PrependUOffsetTRelativeSlot(0, one, 0)
    other = b.EndObject()

    def struct_id() -> None:
        b.Prep(4, 4)
        b.PrependUint32(5)
        b.PrependStructSlot(8, b.Offset(), 0)

    return {
        0: lambda: b.PrependInt32Slot(0, 42, -7),
        1: lambda: b.PrependBoolSlot(1, False, True),
        2: lambda: b.PrependFloat64Slot(2, 0.5, 0.0),
        3: lambda: b.PrependUOffsetTRelativeSlot(3, text, 0),
        4: lambda: b.PrependUOffsetTRelativeSlot(4, raw, 0),
        5: lambda: b.PrependUOffsetTRelativeSlot(5, numbers, 0),
        6: lambda: b.PrependUOffsetTRelativeSlot(6, two, 0),
        7: lambda: b.PrependUOffsetTRelativeSlot(7, leaves, 0),
        8: struct_id,
        9: lambda: b.PrependUOffsetTRelativeSlot(9, ids, 0),
        10: lambda: b.PrependUint8Slot(10, 2, 0),
        11: lambda: b.PrependUOffsetTRelativeSlot(11, other, 0),
        14: lambda: b.PrependUOffsetTRelativeSlot(14, raw, 0),
    }


def nothing(_: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
    return {}


def test_every_kind_reads_as_written() -> None:
    data = build(full)
    values = decode(data)
    raw, kept = values.pop("raw"), values.pop("kept")
    data[:] = bytes(len(data))
    assert (bytes(raw), type(kept), kept) == (bytes(3), bytes, b"\x01\x02\x03"), "a view, and bytes of their own"
    assert values == {
        "a": 42,
        "b": False,
        "c": 0.5,
        "text": "żółw",
        "numbers": (1 << 40, -2, 3),
        "leaf": {"value": 2, "name": None},
        "leaves": ({"value": 1, "name": "one"}, None, {"value": 2, "name": None}),
        "id": ("id", 5),
        "ids": (("id", 8), ("id", 9)),
        "either": ("Other", {"leaf": {"value": 1, "name": "one"}}),
        "skipped": 0,
        "texts": None,
    }


def test_absent_fields_take_their_defaults() -> None:
    values = decode(build(nothing))
    assert (values["a"], values["b"], values["c"]) == (-7, True, None)
    assert {name for name, value in values.items() if value is None} > {"text", "leaf", "either", "ids"}


def test_a_missing_required_field_is_named() -> None:
    def other_without_leaf(b: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
        b.StartObject(1)
        other = b.EndObject()
        return {0: lambda: b.PrependUint8Slot(10, 2, 0), 1: lambda: b.PrependUOffsetTRelativeSlot(11, other, 0)}

    with pytest.raises(PteError, match=r"^x\.pte: Root\.either is a Other without its 'leaf'\. The file is damaged"):
        decode(build(other_without_leaf))


def test_an_unknown_union_member_is_named_with_the_highest_known() -> None:
    def unknown(b: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
        some = leaf(b, 1)
        return {0: lambda: b.PrependUint8Slot(10, 9, 0), 1: lambda: b.PrependUOffsetTRelativeSlot(11, some, 0)}

    with pytest.raises(PteError, match=r"Root\.either has Either type 9; the highest known is 2\."):
        decode(build(unknown))


def test_a_union_tag_without_a_value_is_refused() -> None:
    with pytest.raises(PteError, match=r"Root\.either says it is a Leaf and holds nothing"):
        decode(build(lambda b: {0: lambda: b.PrependUint8Slot(10, 1, 0)}))


def one_text(b: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
    text = b.CreateString("abcd")
    return {0: lambda: b.PrependUOffsetTRelativeSlot(3, text, 0)}


def text_field(data: bytearray) -> int:
    """Where the text's offset lies."""
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    return root + int(struct.unpack_from("<H", data, vtable + 4 + 2 * 3)[0])


@pytest.mark.parametrize(
    ("offset", "wrong"),
    [(0, "is a null offset"), (1 << 20, r"points to byte \d+ of"), (0xFFFFFFFF, "points to byte")],
)
def test_an_offset_that_leads_nowhere_is_refused(offset: int, wrong: str) -> None:
    data = build(one_text)
    struct.pack_into("<I", data, text_field(data), offset)
    with pytest.raises(PteError, match=rf"Root\.text {wrong}"):
        decode(data)


@pytest.mark.parametrize("count", [1 << 10, 0xFFFFFFFF])
def test_a_length_beyond_the_buffer_is_refused_before_anything_is_allocated(count: int) -> None:
    data = build(one_text)
    at = text_field(data)
    struct.pack_into("<I", data, at + struct.unpack_from("<I", data, at)[0], count)
    with pytest.raises(PteError, match=rf"Root\.text has {count} entries"):
        decode(data)


def test_text_that_is_not_utf8_is_refused() -> None:
    data = build(one_text)
    data[data.index(b"abcd")] = 0xFF
    with pytest.raises(PteError, match=r"Root\.text is not UTF-8"):
        decode(data)


@pytest.mark.parametrize("vtable", [-1, 1 << 20, 1, 0])
def test_a_vtable_outside_the_buffer_or_malformed_is_refused(vtable: int) -> None:
    data = build(nothing)
    root = struct.unpack_from("<I", data, 0)[0]
    struct.pack_into("<i", data, root, root - vtable)
    with pytest.raises(PteError, match=r"x\.pte: Root has (its|a) Root vtable"):
        decode(data)


def test_a_field_outside_its_table_is_refused() -> None:
    data = build(one_text)
    root = struct.unpack_from("<I", data, 0)[0]
    vtable = root - struct.unpack_from("<i", data, root)[0]
    struct.pack_into("<H", data, vtable + 4 + 2 * 3, 200)
    with pytest.raises(PteError, match=r"Root has Root field 3 at byte 200 of a 8-byte table"):
        decode(data)


def test_a_small_file_that_unfolds_into_a_huge_one_is_refused() -> None:
    def bomb(b: flatbuffers.Builder) -> dict[int, Callable[[], None]]:
        shared = leaf(b, 1, "x" * 100)
        count = 100_000
        b.StartVector(4, count, 4)
        for _ in range(count):
            b.PrependUOffsetTRelative(shared)
        leaves = b.EndVector()
        return {0: lambda: b.PrependUOffsetTRelativeSlot(7, leaves, 0)}

    data = build(bomb)
    assert len(decode(data)["leaves"]) == 100_000  # sharing itself is legal
    wide = Schema({"Root": "_ _ _ _ _ _ _ leaves:[Wide]", "Wide": "_ numbers:[u8]"})
    with pytest.raises(PteError, match=r"unfolds into more than a reader should hold of \d+ bytes"):
        wide.decode("Root", memoryview(data), "x.pte")


def shared(count: int, schema: str, fill: Callable[[flatbuffers.Builder], int]) -> tuple[Schema, memoryview]:
    """A Root of ``count`` tables that are one, which ``fill`` makes and ``schema`` declares."""
    builder = flatbuffers.Builder(64)
    table = fill(builder)
    builder.StartVector(4, count, 4)
    for _ in range(count):
        builder.PrependUOffsetTRelative(table)
    vector = builder.EndVector()
    builder.StartObject(1)
    builder.PrependUOffsetTRelativeSlot(0, vector, 0)
    builder.Finish(builder.EndObject())
    return Schema({"Root": "shared:[Shared]", "Shared": schema}), memoryview(builder.Output())


@pytest.mark.parametrize("kind", ["[u8]", "[bool]", "blob"])
def test_whatever_is_made_again_and_again_is_paid_for(kind: str) -> None:
    def one(b: flatbuffers.Builder) -> int:
        held = b.CreateByteVector(b"x" * 1_000)
        b.StartObject(1)
        b.PrependUOffsetTRelativeSlot(0, held, 0)
        return int(b.EndObject())

    schema, data = shared(20_000, f"held:{kind}", one)
    tracemalloc.start()
    try:
        with pytest.raises(PteError, match=r"unfolds into more than a reader should hold of \d+ bytes"):
            schema.decode("Root", data, "x.pte")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MIN_MEMORY_BYTES + MEMORY_PER_BYTE * len(data)


def test_buffers_of_one_budget_share_it() -> None:
    schema, data = shared(10_000, "", lambda b: (b.StartObject(0), int(b.EndObject()))[1])
    budget = Budget(5_000_000)
    for _ in range(2):
        schema.decode("Root", data, "x.pte", budget)
    with pytest.raises(PteError, match=r"Root\.shared\[\d+\] unfolds"):
        schema.decode("Root", data, "x.pte", budget)
    schema.decode("Root", data, "x.pte")


def test_too_long_a_vector_is_refused() -> None:
    schema = Schema({"Root": "_ _ _ numbers:[u8]"})
    data = build(
        lambda b: (
            (raw := b.CreateByteVector(bytes(MAX_VECTOR_LENGTH + 1)))
            and {0: lambda: b.PrependUOffsetTRelativeSlot(3, raw, 0)}
        )
    )
    with pytest.raises(PteError, match="has 1000001 entries, more than 1000000"):
        schema.decode("Root", memoryview(data), "x.pte")


@pytest.mark.parametrize("size", range(8))
def test_a_buffer_too_small_for_a_table_is_refused(size: int) -> None:
    with pytest.raises(PteError, match=f"x.pte: Root has {size} bytes, too few for a table"):
        decode(bytes(size))


def test_strings_from_files_are_escaped_and_cut_in_messages() -> None:
    assert quoted("a\x1b[31m\n") == r"'a\x1b[31m\n'"
    assert len(quoted("x" * 1000)) < 100
