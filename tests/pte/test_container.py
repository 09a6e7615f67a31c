"""A file opens or is refused with a reason; hostile bytes never do anything else."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.errors import PteError
from pipeline.pte import PteFile, parse_mlx_payload
from pipeline.pte.mlx_shapes import Shapes

NUM_MUTATIONS = 2_000


@pytest.fixture(scope="module")
def tiny(tiny_pte: Any) -> bytes:
    data: bytes = tiny_pte.path.read_bytes()
    return data


def test_named_data_are_views_into_the_file(tiny: bytes, tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        names = [name.partition("/")[2] for name in pte.named_data]
        (key,) = (name for name in pte.named_data if name.endswith("/embed.weight"))
        assert "head.weight" in names
        assert len(pte.named_data[key]) == 11 * 16 * 4
        assert len(pte.named_data) == 7
        assert pte.size_bytes == len(tiny)
        with pytest.raises(KeyError):
            pte.named_data["nothing"]


def test_views_outlive_the_file(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        view = pte.segment(0)
        expected = bytes(view)
    assert bytes(view) == expected


def test_closing_twice_is_harmless(tiny_pte: Any) -> None:
    pte = PteFile.open(tiny_pte.path)
    pte.close()
    pte.close()


def test_bytes_read_like_the_file(tiny: bytes, tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        assert PteFile.from_bytes(tiny, "x").program.constants() == pte.program.constants()


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(PteError, match=r"no\.pte: there is no such file; expected a \.pte\."):
        PteFile.open(tmp_path / "no.pte")


def test_a_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PteError, match=r"cannot be read \(Is a directory\)"):
        PteFile.open(tmp_path)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.pte").touch()
    with pytest.raises(PteError, match=r"empty\.pte: the file is empty; expected a \.pte\."):
        PteFile.open(tmp_path / "empty.pte")


def test_another_kind_of_file_is_refused() -> None:
    with pytest.raises(PteError, match=r"x: bytes 4 to 8 are b'ion '; expected b'ET12', the mark of a \.pte\."):
        PteFile.from_bytes(b"version https://git-lfs.github.com/spec/v1", "x")


def changed(data: bytes, offset: int, layout: str, value: int) -> bytes:
    result = bytearray(data)
    struct.pack_into(layout, result, offset, value)
    return bytes(result)


@pytest.mark.parametrize(
    ("offset", "layout", "number", "wrong"),
    [
        (12, "<I", 23, "has an extended header of 23 bytes"),
        (12, "<I", 1 << 31, "has an extended header of 2147483648 bytes"),
        (16, "<Q", 1 << 40, "needs 1099511627776 bytes and has .*; it was cut short"),
        (24, "<Q", 1 << 40, "it was cut short"),
        (32, "<Q", 1 << 63, "it was cut short"),
        (24, "<Q", 0, "has segment 0 of .* outside"),
    ],
)
def test_a_header_that_contradicts_the_file_is_refused(
    tiny: bytes, offset: int, layout: str, number: int, wrong: str
) -> None:
    with pytest.raises(PteError, match=f"x.pte: .*{wrong}"):
        PteFile.from_bytes(changed(tiny, offset, layout, number), "x.pte")


def test_a_segment_that_does_not_exist_is_refused(tiny: bytes) -> None:
    pte = PteFile.from_bytes(tiny, "x.pte")
    for index in (-1, 10_000):
        with pytest.raises(PteError, match=f"x.pte: refers to segment {index} of 9"):
            pte.segment(index)


def test_a_file_cut_anywhere_is_refused(tiny: bytes) -> None:
    """At every byte of the head, around every segment's edges, and through the program."""
    program_size, base = struct.unpack_from("<QQ", tiny, 16)
    edges = [0, 4, 8, 12, 16, 24, 32, 40, 64, program_size, base, len(tiny)]
    edges += [edge for pair in PteFile.from_bytes(tiny, "x").segments for edge in pair]
    cuts = {edge + delta for edge in edges for delta in (-2, -1, 0, 1)} | set(range(0, len(tiny), 97))
    for cut in cuts:
        if 0 <= cut < len(tiny):
            with pytest.raises(PteError):
                PteFile.from_bytes(tiny[:cut], "x")


def mutated(rng: random.Random, data: bytes) -> bytes:
    result = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        result[rng.randrange(len(data))] = rng.choice([0, 1, 2, 4, 8, 127, 128, 255, rng.randrange(256)])
    return bytes(result)


def refusals(read: Callable[[bytes], object], data: bytes) -> list[str]:
    """Messages of the errors that ``NUM_MUTATIONS`` damaged copies meet; anything but a PteError escapes."""
    rng = random.Random(20261130)
    messages = []
    for _ in range(NUM_MUTATIONS):
        try:
            read(mutated(rng, data))
        except PteError as error:
            messages.append(str(error))
    return messages


def test_a_mutated_program_is_read_or_refused(tiny: bytes) -> None:
    (program_size,) = struct.unpack_from("<Q", tiny, 16)
    messages = refusals(
        lambda head: PteFile.from_bytes(head + tiny[program_size:], "x.pte").program.constants(), tiny[:program_size]
    )
    assert len(messages) > NUM_MUTATIONS // 4
    assert all(message.isprintable() for message in messages), "a message is one line without control characters"


def test_a_mutated_graph_is_read_or_refused(tiny: bytes) -> None:
    payload = bytes(PteFile.from_bytes(tiny, "x.pte").program.methods["forward"].delegates[0].payload)
    messages = refusals(lambda data: Shapes(parse_mlx_payload(memoryview(data))), payload)
    assert len(messages) > NUM_MUTATIONS // 4
    assert all(message.isprintable() for message in messages), "a message is one line without control characters"
