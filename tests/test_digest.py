"""The digest of bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.digest import sha256_of


def test_a_digest_is_the_sha256_of_the_bytes_in_lowercase_hex(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    # FIPS 180-2, appendix B.1.
    assert sha256_of(file) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_nothing_has_a_digest_too(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    assert sha256_of(file) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_a_file_that_is_absent_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sha256_of(tmp_path / "absent")
