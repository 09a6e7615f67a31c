"""A ``.ptd`` that executorch's own serializer wrote opens; hostile bytes never do anything but be refused."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

from pipeline.errors import PteError
from pipeline.pte import PtdFile, PteFile
from pipeline.pte.flat_tensor import Layout
from tests.tiny_models import library_warnings_ignored

FLATBUFFER_OFFSET, FLATBUFFER_SIZE, BASE, DATA_SIZE = 16, 24, 32, 40


@pytest.fixture(scope="module")
def ptd() -> bytes:
    with library_warnings_ignored():
        from tests.pte import written

        return written.flat_tensor()


def changed(data: bytes, offset: int, layout: str, value: int) -> bytes:
    result = bytearray(data)
    struct.pack_into(layout, result, offset, value)
    return bytes(result)


def test_data_and_layouts_are_those_that_were_written(ptd: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.ptd"
    path.write_bytes(ptd)
    with PtdFile.open(path) as opened:
        assert {name: len(data) for name, data in opened.named_data.items()} == {
            "weight": 24,
            "tied": 24,
            "turned": 16,
            "blob": 8,
        }
        assert struct.unpack("<6f", opened.named_data["tied"]) == (0, 1, 2, 3, 4, 5)
        assert bytes(opened.named_data["blob"]) == b"anything"
        assert opened.layouts == {
            "weight": Layout("float32", (2, 3), True),
            "tied": Layout("float32", (2, 3), True),
            "turned": Layout("bfloat16", (1, 2, 4), False),
        }


def test_pages_that_are_forgotten_are_there_when_looked_at_again(ptd: bytes, tmp_path: Path) -> None:
    path = tmp_path / "weights.ptd"
    path.write_bytes(ptd)
    with PtdFile.open(path) as opened:
        view = opened.named_data["blob"]
        opened.forget_pages()
        assert bytes(view) == b"anything"
    opened.forget_pages()
    PtdFile.from_bytes(ptd, "x").forget_pages()


def test_each_kind_of_file_is_refused_as_the_other(ptd: bytes) -> None:
    with pytest.raises(PteError, match=r"^x: bytes 4 to 8 are b'FT01'; expected b'ET12', the mark of a \.pte\."):
        PteFile.from_bytes(ptd, "x")
    with pytest.raises(PteError, match=r"^x: bytes 4 to 8 are b'ET12'; expected b'FT01', the mark of a \.ptd\."):
        PtdFile.from_bytes(ptd[:4] + b"ET12" + ptd[8:], "x")
    with pytest.raises(PteError, match=r"no\.ptd: there is no such file; expected a \.ptd\."):
        PtdFile.open("no.ptd")


HEADERS = {
    "another magic": (8, "<I", 0, "has b'.*' at byte 8 of .*; expected b'FH01' and a header"),
    "a short header": (12, "<I", 39, "has a header of 39 bytes; expected at least 40"),
    "tables elsewhere": (FLATBUFFER_OFFSET, "<Q", 1 << 40, "needs .* bytes and has .*; it was cut short"),
    "tables too long": (FLATBUFFER_SIZE, "<Q", (1 << 64) - 1, "needs .* bytes and has .*; it was cut short"),
    "segments elsewhere": (BASE, "<Q", 1 << 40, "needs .* bytes and has .*; it was cut short"),
    "no segments": (BASE, "<Q", 0, "has segment 0 of 24 bytes at byte 0, outside 0 to"),
    "segments too long": (DATA_SIZE, "<Q", 1 << 63, "needs .* bytes and has .*; it was cut short"),
    "segments too short": (DATA_SIZE, "<Q", 30, "has segment 1 of 16 bytes at byte .*, outside"),
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_contradicts_the_file_is_refused(ptd: bytes, case: str) -> None:
    offset, layout, value, wrong = HEADERS[case]
    with pytest.raises(PteError, match=rf"^x\.ptd: {wrong}"):
        PtdFile.from_bytes(changed(ptd, offset, layout, value), "x.ptd")


def test_a_newer_version_is_refused() -> None:
    with library_warnings_ignored(), pytest.MonkeyPatch.context() as patch:
        from executorch.exir._serialize.data_serializer import DataPayload
        from executorch.extension.flat_tensor.serialize import serialize

        patch.setattr(serialize, "_FLAT_TENSOR_VERSION", 1)
        newer = bytes(serialize.FlatTensorSerializer().serialize(DataPayload([], {})))
    with pytest.raises(PteError, match=r"^x\.ptd: is of version 1; expected at most 0\. Update this tool\.$"):
        PtdFile.from_bytes(newer, "x.ptd")


def test_a_file_cut_anywhere_is_refused(ptd: bytes) -> None:
    for cut in range(len(ptd)):
        with pytest.raises(PteError):
            PtdFile.from_bytes(ptd[:cut], "x.ptd")


def test_a_mutated_file_is_read_or_refused(ptd: bytes) -> None:
    rng = random.Random(20261130)
    (base,) = struct.unpack_from("<Q", ptd, BASE)
    messages = []
    for _ in range(2_000):
        data = bytearray(ptd)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(base)] = rng.choice([0, 1, 2, 4, 8, 127, 128, 255, rng.randrange(256)])
        try:
            opened = PtdFile.from_bytes(bytes(data), "x.ptd")
            assert all(len(blob) <= len(ptd) for blob in opened.named_data.values())
        except PteError as error:
            messages.append(str(error))
    assert len(messages) > 500
    assert all(message.isprintable() for message in messages), "a message is one line without control characters"
