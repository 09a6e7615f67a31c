"""Bytes are the same or not, whatever their length, and the memory for knowing it is bounded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.anatomy import contents
from pipeline.anatomy.contents import Reader, same_files
from pipeline.errors import PteError


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 64])
def test_one_other_byte_anywhere_is_found(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CHUNK_BYTES", 8)
    data = bytes(range(size))
    assert Reader().same(memoryview(data), memoryview(bytes(data)))
    assert Reader().digest(memoryview(data)) == Reader().digest(memoryview(bytes(data)))
    for place in range(size):
        other = bytearray(data)
        other[place] ^= 1
        assert not Reader().same(memoryview(data), memoryview(other))
        assert Reader().digest(memoryview(data)) != Reader().digest(memoryview(other))
    assert not Reader().same(memoryview(data), memoryview(data + b"x"))


def test_files_are_the_same_by_what_they_hold(tmp_path: Path) -> None:
    a, b, c, d = (tmp_path / name for name in "abcd")
    a.write_bytes(b"1" * 3_000_000)
    b.write_bytes(a.read_bytes())
    c.write_bytes(b"1" * 2_999_999 + b"2")
    d.symlink_to(a)
    assert same_files(a, b)
    assert same_files(a, d)
    assert not same_files(a, c)
    c.write_bytes(b"1")
    assert not same_files(a, c)


def test_parts_that_lie_on_each_other_end_in_a_word_about_it(tmp_path: Path) -> None:
    """A file of a megabyte whose thousand segments are each all of it."""

    class File:
        path = tmp_path / "x.pte"
        size_bytes = 1 << 20

        def forget_pages(self) -> None:
            """Nothing is mapped."""

    data = memoryview(bytes(1 << 20))
    reader = Reader(File())  # type: ignore[arg-type]
    with pytest.raises(
        PteError, match=r"x\.pte: its parts lie on each other, and comparing them has read all of it 32 t"
    ):
        list(map(reader.digest, [data] * 1000))


SCRIPT = """
import resource, sys
from pipeline.anatomy.contents import Reader
from pipeline.pte.segments import SegmentedFile
import mmap
class File:
    def __init__(self, path):
        self.file = open(path, 'rb')
        self.mapped = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ)
        self.data = memoryview(self.mapped)
        self.path, self.size_bytes = path, len(self.data)
    def forget_pages(self):
        self.mapped.madvise(mmap.MADV_DONTNEED)
a, b = File(sys.argv[1]), File(sys.argv[2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert Reader(a, b).same(a.data, b.data)
Reader(a, b).digest(a.data)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_comparing_large_files_holds_little_of_them(tmp_path: Path) -> None:
    for name in "ab":
        with (tmp_path / name).open("wb") as file:
            file.truncate(200 << 20)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a"), str(tmp_path / "b")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    unit = 1 if sys.platform == "darwin" else 1024
    assert int(done.stdout) * unit < 60 << 20
