"""A digest is remembered as long as its file looks the same, and no longer."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path

import pytest

from pipeline.store.digests import DigestMemo

LONG_AGO = 1_600_000_000 * 10**9


def write(file: Path, content: bytes, age: int = LONG_AGO) -> str:
    file.write_bytes(content)
    os.utime(file, ns=(age, age))
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def memo(tmp_path: Path) -> DigestMemo:
    return DigestMemo(tmp_path / "memo" / "digests.json")


def unreadable(file: Path) -> None:
    """Other bytes, and nothing else that shows: whoever still knows the old digest has not read them."""
    before = file.stat()
    file.write_bytes(bytes(before.st_size))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_that_looks_the_same_is_not_read_again_even_by_the_next_process(
    memo: DigestMemo, tmp_path: Path
) -> None:
    digest = write(tmp_path / "file", b"weights")
    assert memo.sha256(tmp_path / "file") == digest
    unreadable(tmp_path / "file")
    assert memo.sha256(tmp_path / "file") == digest
    assert DigestMemo(tmp_path / "memo" / "digests.json").sha256(tmp_path / "file") == digest


def test_an_edit_of_the_same_size_is_seen_by_its_date(memo: DigestMemo, tmp_path: Path) -> None:
    write(tmp_path / "file", b"weights")
    memo.sha256(tmp_path / "file")
    digest = write(tmp_path / "file", b"Weights", LONG_AGO + 1)
    assert memo.sha256(tmp_path / "file") == digest


def test_a_file_put_in_the_place_of_another_of_the_same_size_and_date_is_seen(memo: DigestMemo, tmp_path: Path) -> None:
    write(tmp_path / "file", b"weights")
    memo.sha256(tmp_path / "file")
    digest = write(tmp_path / "other", b"Weights")
    (tmp_path / "other").rename(tmp_path / "file")
    assert memo.sha256(tmp_path / "file") == digest


def test_a_file_younger_than_the_clock_is_fine_is_not_remembered(memo: DigestMemo, tmp_path: Path) -> None:
    now = time.time_ns()
    write(tmp_path / "file", b"weights", now)
    memo.sha256(tmp_path / "file")
    digest = write(tmp_path / "file", b"Weights", now)
    assert memo.sha256(tmp_path / "file") == digest


def test_a_link_is_remembered_as_the_file_it_leads_to(memo: DigestMemo, tmp_path: Path) -> None:
    write(tmp_path / "first", b"first")
    second = write(tmp_path / "second", b"other")
    (tmp_path / "link").symlink_to("first")
    memo.sha256(tmp_path / "link")
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("second")
    assert memo.sha256(tmp_path / "link") == second


@pytest.mark.parametrize("content", ["", "{", "[]", "7", "[" * 100_000, '{"FILE": 5}', '{"FILE": []}', '{"FILE": [1]}'])
def test_a_garbled_memo_costs_hashing_again_and_is_mended(content: str, tmp_path: Path) -> None:
    file, memo = tmp_path / "file", tmp_path / "digests.json"
    digest = write(file, b"weights")
    memo.write_text(content.replace("FILE", str(file)))
    assert DigestMemo(memo).sha256(file) == digest
    assert json.loads(memo.read_bytes())[str(file)][3] == digest


def test_a_memo_that_cannot_be_written_costs_hashing_again_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("a file")
    digest = write(tmp_path / "file", b"weights")
    assert DigestMemo(tmp_path / "in the way" / "digests.json").sha256(tmp_path / "file") == digest
