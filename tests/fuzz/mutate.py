"""Damages files as someone might who knows what they are made of.

Knows FlatBuffers, and finds tables, vectors, offsets and vtables in any bytes without a schema: an offset is a word
that leads to what looks like one of them. So a ``.pte``, a ``.ptd`` and a delegate's payload inside a ``.pte`` are all
damaged in the same way. Does not know the reader.

A mutation is a function of the bytes and a random generator; what it does depends on nothing else.
"""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

INTERESTING = (0, 1, 2, 3, 4, 7, 8, 11, 15, 16, 17, 29, 30, 31, 32, 127, 128, 136, 137, 255, 256, 1_000_000, 1_000_001)
EDGES = ((1 << 15) - 1, 1 << 15, (1 << 16) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63)
NUMBERS = (*INTERESTING, *EDGES, (1 << 64) - 1)
HEADERS = (b"eh00", b"FH01", b"MLX0")
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class Places:
    """Positions: of offsets to tables and to vectors, of vectors' counts, of vtables, of headers' fields."""

    table_offsets: tuple[int, ...]
    vector_offsets: tuple[int, ...]
    counts: tuple[int, ...]
    vtables: tuple[int, ...]
    headers: tuple[int, ...]


NOWHERE = Places((), (), (), (), ())


def places(data: bytes) -> Places:
    """Where something in ``data`` looks like a part of a FlatBuffer."""
    size = len(data)
    tables, vectors, counts, vtables = [], [], set(), set()
    for at in range(0, size - 8, 4):
        (offset,) = struct.unpack_from("<I", data, at)
        target = at + offset
        if not 0 < offset < size or target + 8 > size:
            continue
        vtable = target - int(struct.unpack_from("<i", data, target)[0])
        if 0 <= vtable <= size - 4 and vtable != target and _is_vtable(data, vtable):
            tables.append(at)
            vtables.add(vtable)
        elif struct.unpack_from("<I", data, target)[0] <= size - target:
            vectors.append(at)
            counts.add(target)
    headers = [found + delta for mark in HEADERS for found in _all(data, mark) for delta in range(0, 40, 4)]
    return Places(tuple(tables), tuple(vectors), tuple(sorted(counts)), tuple(sorted(vtables)), tuple(headers))


def _is_vtable(data: bytes, at: int) -> bool:
    length, table = (int(number) for number in struct.unpack_from("<HH", data, at))
    return length % 2 == 0 and 4 <= length <= 64 and 4 <= table <= 256 and at + length <= len(data)


def _all(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


Mutation = Callable[[bytearray, Places, random.Random, Sequence[bytes]], bytearray]


def _somewhere(data: bytearray, found: Sequence[int], rng: random.Random, width: int) -> int:
    """A place found, or any other when there is none or it is no longer there."""
    last = max(len(data) - width, 0)
    return min(rng.choice(found), last) if found and rng.random() < 0.95 else rng.randint(0, last)


def _put(data: bytearray, at: int, layout: str, value: int) -> bytearray:
    width = struct.calcsize(layout)
    if 0 <= at <= len(data) - width:
        struct.pack_into(layout, data, at, value & ((1 << 8 * width) - 1))
    return data


def flip_bytes(data: bytearray, _: Places, rng: random.Random, __: Sequence[bytes]) -> bytearray:
    """One to four bytes become others."""
    for _time in range(rng.randint(1, 4)):
        data[rng.randrange(len(data))] = rng.choice((0, 1, 2, 4, 8, 127, 128, 255, rng.randrange(256)))
    return data


def set_number(data: bytearray, _: Places, rng: random.Random, __: Sequence[bytes]) -> bytearray:
    """A number of any width, anywhere, becomes one at the edge of something."""
    layout = rng.choice(("<B", "<H", "<I", "<Q"))
    width = struct.calcsize(layout)
    return _put(data, rng.randrange(0, max(len(data) - width, 1), width), layout, rng.choice(NUMBERS))


def set_header(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """A field of a header becomes an edge, or the file's own size and what is near it."""
    at = _somewhere(data, where.headers, rng, 8)
    number = rng.choice((*NUMBERS, len(data) + rng.randint(-2, 2), rng.randrange(len(data))))
    return _put(data, at, rng.choice(("<I", "<Q")), number)


def set_count(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """A vector's or string's length becomes another: by a little, to the end of the file, or beyond."""
    at = _somewhere(data, where.counts, rng, 4)
    old = int(struct.unpack_from("<I", data, at)[0])
    left = len(data) - at - 4
    return _put(data, at, "<I", rng.choice((old - 1, old + 1, 0, left, left // 4, left // 8, left + 1, *NUMBERS)))


def set_offset(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """An offset leads elsewhere: near where it led, to the end, to itself, to nothing."""
    at = _somewhere(data, where.table_offsets + where.vector_offsets, rng, 4)
    old = int(struct.unpack_from("<I", data, at)[0])
    left = len(data) - at
    return _put(data, at, "<I", rng.choice((old + rng.choice((-8, -4, -1, 1, 4, 8)), left - 4, left, 4, *NUMBERS)))


def share_target(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """Offsets lead to what others lead to: another kind of table, a vector where a table belongs, one thing twice."""
    offsets = where.table_offsets + where.vector_offsets
    for _time in range(rng.choice((1, 1, 2, 8))):
        at, other = _somewhere(data, offsets, rng, 4), _somewhere(data, offsets, rng, 4)
        target = other + int(struct.unpack_from("<I", data, other)[0])
        if target > at:
            _put(data, at, "<I", target - at)
    return data


def swap_offsets(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """Two offsets lead to each other's targets, as far as both lie ahead."""
    at, other = (_somewhere(data, where.table_offsets, rng, 4) for _ in range(2))
    first, second = (place + int(struct.unpack_from("<I", data, place)[0]) for place in (at, other))
    if second > at and first > other:
        _put(data, at, "<I", second - at)
        _put(data, other, "<I", first - other)
    return data


def set_vtable(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """A vtable says something else of a field, of its length or of its tables' size."""
    at = _somewhere(data, where.vtables, rng, 4)
    length = int(struct.unpack_from("<H", data, at)[0])
    slot = rng.randrange(0, max(min(length, 64), 2), 2)
    other = int(struct.unpack_from("<H", data, min(at + rng.randrange(0, 64, 2), len(data) - 2))[0])
    return _put(data, at + slot, "<H", rng.choice((0, 4, 8, 12, 64, 65_535, other, other + 4)))


def swap_vtables(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """A table is read by another's vtable."""
    at = _somewhere(data, where.table_offsets, rng, 4)
    table = at + int(struct.unpack_from("<I", data, at)[0])
    return _put(data, table, "<I", table - _somewhere(data, where.vtables, rng, 4))


def truncate(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """The file ends early: anywhere, or just before or after something begins."""
    end = rng.choice(where.counts + where.headers + (len(data),)) + rng.randint(-2, 4)
    return data[: max(1, end if rng.random() < 0.7 else rng.randint(1, len(data)))]


def extend(data: bytearray, _: Places, rng: random.Random, __: Sequence[bytes]) -> bytearray:
    """The file goes on with zeros, or with itself."""
    more = bytes(rng.choice((1, 4, 64, 4096))) if rng.random() < 0.5 else data[-rng.randint(1, len(data)) :]
    return data + more


def splice(data: bytearray, _: Places, rng: random.Random, others: Sequence[bytes]) -> bytearray:
    """A part of a file replaces as many bytes of this one."""
    other = rng.choice(others)
    length = 4 * rng.randint(1, 64)
    source, target = 4 * rng.randrange(len(other) // 4), 4 * rng.randrange(max(len(data) // 4, 1))
    piece = other[source : source + length][: len(data) - target]
    data[target : target + len(piece)] = piece
    return data


def remove(data: bytearray, _: Places, rng: random.Random, __: Sequence[bytes]) -> bytearray:
    """Words disappear, and what comes after moves up."""
    at = 4 * rng.randrange(max(len(data) // 4, 1))
    return data[:at] + data[at + 4 * rng.randint(1, 16) :]


def insert(data: bytearray, _: Places, rng: random.Random, __: Sequence[bytes]) -> bytearray:
    """Words appear, and what comes after moves down."""
    at, source = (4 * rng.randrange(max(len(data) // 4, 1)) for _ in range(2))
    return data[:at] + data[source : source + 4 * rng.randint(1, 16)] + data[at:]


def multiply(data: bytearray, where: Places, rng: random.Random, _: Sequence[bytes]) -> bytearray:
    """A vector becomes one of very many offsets to one table: a small file that would unfold into a huge one.

    Offsets lead ahead only, so that the whole file is repeated after the vector, and the vector leads into the copy.
    """
    if not where.table_offsets or not where.vector_offsets:
        return data
    at, leaf = _somewhere(data, where.vector_offsets, rng, 4), _somewhere(data, where.table_offsets, rng, 4)
    count = rng.choice((100, 1_000, 10_000, 50_000))
    original, start = bytes(data), len(data) + -len(data) % 4
    target = start + 4 + 4 * count + leaf + int(struct.unpack_from("<I", data, leaf)[0])
    offsets = [(target - place) & 0xFFFFFFFF for place in range(start + 4, start + 4 + 4 * count, 4)]
    data.extend(bytes(start - len(data)) + struct.pack("<I", count))
    data.extend(struct.pack(f"<{count}I", *offsets))
    data.extend(original)
    _put(data, at, "<I", start - at)
    # All of it belongs to the tables now.
    return _put(data, 16, "<Q", len(data)) if data[8:12] == b"eh00" else data


_SCALAR = re.compile(rb'-?\d+(?:\.\d+)?|"[^"]*"|true|false|null')

ODD_TEXT = (
    *(b"0", b"-1", b"1e999", b"NaN", b"-Infinity", b"0.5", b"true", b"null", b'""', b"[]", b"{}", b"[null]"),
    *(b"9" * 30, b"9" * 5_000, b'"\\ud800"', b'"\\u0000"', b'"\xff\xfe"', b'{"a": {"a": []}}', b"[" * 50_000),
    *(b'{"content": 1}', b'{"content": "<s>", "id": -1}', b'{"vocab": {"a": 0}}', b'"<s>"', b'"vocab": [["a", 0.5]]'),
)


def mutated_text(data: bytes, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """JSON in which a few values are others, or which is no JSON any more."""
    changed = bytearray(data)
    for _time in range(rng.choice((1, 1, 2, 3))):
        values = [found.span() for found in _SCALAR.finditer(bytes(changed))]
        if not values or rng.random() < 0.2:
            mutate = rng.choice((flip_bytes, truncate, extend, splice, remove, insert))
            changed = mutate(changed or bytearray(b"{}"), NOWHERE, rng, others)
            continue
        start, end = rng.choice(values)
        other, past = rng.choice(values)
        odd = rng.choice((*ODD_TEXT, bytes(changed[other:past]), bytes(changed[other : other + rng.randint(1, 200)])))
        changed[start:end] = odd
    return bytes(changed[:MAX_BYTES])


WEIGHTED: tuple[tuple[Mutation, int], ...] = (
    (flip_bytes, 20),
    (set_number, 20),
    (set_header, 5),
    (set_count, 15),
    (set_offset, 15),
    (share_target, 20),
    (swap_offsets, 10),
    (set_vtable, 15),
    (swap_vtables, 10),
    (truncate, 4),
    (extend, 3),
    (splice, 8),
    (remove, 3),
    (insert, 3),
    (multiply, 1),
)


def mutated(data: bytes, where: Places, rng: random.Random, others: Sequence[bytes]) -> bytes:
    """``data`` after one to four mutations."""
    mutations, weights = zip(*WEIGHTED, strict=True)
    changed = bytearray(data)
    for mutate in rng.choices(mutations, weights, k=rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if len(changed) < 16:
            break
        changed = mutate(changed, where, rng, others)
    return bytes(changed[:MAX_BYTES])
