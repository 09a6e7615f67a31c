"""Decodes FlatBuffers by a schema written in one line per table; believes nothing it reads.

Knows the wire format: tables and their vtables, scalars, structs, strings, vectors, unions.
Does not know any particular file. A schema names what to read, and every offset, length,
count and vtable is checked against the buffer before it is used, so damaged or hostile bytes
end in a ``PteError`` that says which table and field was wrong. Schemas cannot be recursive,
which bounds the depth. Everything that is made of the buffer is paid for out of a budget of
memory, which follows the size of the buffer up to ``MAX_MEMORY_BYTES`` and bounds the work
too: tables may be shared, so that a small file could unfold into a huge one.

A table is declared by its fields in vtable order, ``name:type`` separated by spaces::

    "name:str slot:SlotVariant idx:u32 axis:i32=-1 dims:[i32]? layer_id:i32=null payload:bytes?"

===================================  ==================================================
``u8 i8 i16 … u64 f32 f64 bool``      scalars; absent means ``=default``, else 0
``str``                              UTF-8 text
``bytes``                            a ``[ubyte]`` vector as a view, not copied
``blob``                             the same as ``bytes`` of its own, for what is small
``[X]`` ``[X?]``                     vector; ``?`` inside allows null entries
a table, struct or union name        a union takes two vtable slots and reads as
                                     ``(member name, value)``, or ``None`` for NONE
``?`` at the end                     may be absent, then ``None``; everything but
                                     scalars is required otherwise
``_``                                a slot we skip
===================================  ==================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from struct import Struct, unpack_from
from typing import Any, Protocol

from pipeline.errors import PteError

MAX_VECTOR_LENGTH = 1_000_000
MAX_MEMORY_BYTES = 1 << 27
MIN_MEMORY_BYTES = 1 << 20
MEMORY_PER_BYTE = 100
"""Of the buffer; files that executorch writes need up to 20."""

# What CPython takes for an object, rounded up: a view, a string or tuple without its items, a table's dict, a field.
_VIEW_BYTES = 200
_EMPTY_BYTES = 64
_TABLE_BYTES = 200
_FIELD_BYTES = 48
_NUMBER_BYTES = 32
# What it takes to learn how to read the tables of one vtable; builders make few. Time is paid for as well.
_PLAN_BYTES = 4096
# A character of any plane in a string takes four for all.
_CHARACTER_BYTES = 4

_U16 = Struct("<H").unpack_from
_U32 = Struct("<I").unpack_from
_I32 = Struct("<i").unpack_from

_SCALARS = {
    "bool": "?",
    "u8": "B",
    "i8": "b",
    "u16": "H",
    "i16": "h",
    "u32": "I",
    "i32": "i",
    "u64": "Q",
    "i64": "q",
    "f32": "f",
    "f64": "d",
}

Make = Callable[[Any], Any]


def quoted(text: str) -> str:
    """A string out of a file, fit for one line of a message: escaped, and cut when long."""
    return repr(text if len(text) <= 80 else f"{text[:80]}…")


def shown(text: str) -> str:
    """The same without quotes, where the text needs none to be read."""
    return text if text.isprintable() and 0 < len(text) <= 80 else quoted(text)


class Malformed(Exception):  # noqa: N818 - becomes a PteError before anyone sees it
    """What is wrong with a value, collecting the path to it on the way up. ``make`` may raise it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what
        self.path: list[str] = []


class Budget:
    """Memory that several buffers may take together: those of one file, say."""

    def __init__(self, num_bytes: int = MAX_MEMORY_BYTES) -> None:
        self.left = num_bytes


class _Cursor:
    """One buffer being decoded: its bytes, what may still be spent, what was seen before."""

    __slots__ = ("data", "left", "plans", "size", "strings")

    def __init__(self, data: memoryview, budget: Budget) -> None:
        self.data = data
        self.size = len(data)
        self.left = min(MEMORY_PER_BYTE * self.size + MIN_MEMORY_BYTES, budget.left)
        self.plans: dict[tuple[_Table, int], _Plan] = {}
        self.strings: dict[int, str] = {}

    def spend(self, num_bytes: int) -> None:
        self.left -= num_bytes
        if self.left < 0:
            raise Malformed(f"unfolds into more than a reader should hold of {self.size} bytes")

    def follow(self, pos: int) -> int:
        """The absolute position an offset at ``pos`` points to, with four readable bytes there."""
        offset: int = _U32(self.data, pos)[0]
        if offset == 0:
            raise Malformed("is a null offset")
        if pos + offset + 4 > self.size:
            raise Malformed(f"points to byte {pos + offset} of {self.size}")
        return pos + offset

    def vector(self, pos: int, item_size: int, limit: int = MAX_VECTOR_LENGTH) -> tuple[int, int]:
        """``(first item's position, count)`` of the vector an offset at ``pos`` points to."""
        start = self.follow(pos)
        count: int = _U32(self.data, start)[0]
        if count > limit:
            raise Malformed(f"has {count} entries, more than {limit}")
        if start + 4 + count * item_size > self.size:
            raise Malformed(f"has {count} entries of {item_size} bytes at byte {start} of {self.size}")
        return start + 4, count


class _Type(Protocol):
    """Something that can be read from ``size`` bytes already known to lie inside the buffer.

    ``cost`` is the memory of the value beside its place in a tuple; 0 where reading pays for it.
    """

    @property
    def size(self) -> int: ...
    @property
    def cost(self) -> int: ...
    def read(self, cur: _Cursor, pos: int) -> Any: ...


class _Scalar:
    def __init__(self, code: str) -> None:
        self.code = code
        layout = Struct("<" + code)
        self.size = layout.size
        # The numbers a byte can hold exist once in CPython.
        self.cost = _NUMBER_BYTES if layout.size > 1 else 0
        self._unpack = layout.unpack_from

    def read(self, cur: _Cursor, pos: int) -> Any:
        return self._unpack(cur.data, pos)[0]


class _Id:
    """A struct of a single u32."""

    size = 4
    cost = _FIELD_BYTES

    def __init__(self, make: Make) -> None:
        self._make = make

    def read(self, cur: _Cursor, pos: int) -> Any:
        return self._make(_U32(cur.data, pos)[0])


class _String:
    size = 4
    cost = 0

    def read(self, cur: _Cursor, pos: int) -> str:
        start, length = cur.vector(pos, 1, cur.size)
        known = cur.strings.get(start)
        if known is not None:
            return known
        cur.spend(2 * _EMPTY_BYTES + _CHARACTER_BYTES * length)
        try:
            text = str(cur.data[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise Malformed(f"is not UTF-8 ({error.reason} at byte {start + error.start})") from None
        cur.strings[start] = text
        return text


class _Bytes:
    size = 4
    cost = 0

    def read(self, cur: _Cursor, pos: int) -> memoryview:
        start, length = cur.vector(pos, 1, cur.size)
        cur.spend(_VIEW_BYTES)
        return cur.data[start : start + length]


class _Blob:
    size = 4
    cost = 0

    def read(self, cur: _Cursor, pos: int) -> bytes:
        start, length = cur.vector(pos, 1, cur.size)
        cur.spend(_EMPTY_BYTES + length)
        return bytes(cur.data[start : start + length])


class _ScalarVector:
    size = 4
    cost = 0

    def __init__(self, item: _Scalar) -> None:
        self._item = item

    def read(self, cur: _Cursor, pos: int) -> tuple[Any, ...]:
        start, count = cur.vector(pos, self._item.size)
        cur.spend(_EMPTY_BYTES + count * (8 + self._item.cost))
        return unpack_from(f"<{count}{self._item.code}", cur.data, start)


class _Vector:
    size = 4
    cost = 0

    def __init__(self, item: _Type, nullable: bool) -> None:
        self._item = item
        self._nullable = nullable

    def read(self, cur: _Cursor, pos: int) -> tuple[Any, ...]:
        item = self._item
        start, count = cur.vector(pos, item.size)
        cur.spend(_EMPTY_BYTES + count * (8 + item.cost))
        values: list[Any] = []
        at = start
        try:
            for at in range(start, start + count * item.size, item.size):
                if self._nullable and not _U32(cur.data, at)[0]:
                    values.append(None)
                else:
                    values.append(item.read(cur, at))
        except Malformed as wrong:
            wrong.path.append(f"[{(at - start) // item.size}]")
            raise
        return tuple(values)


_Plan = tuple[int, dict[str, Any], list[tuple[str, Callable[[_Cursor, int], Any], int]]]


class _Field:
    """One declared field: where it sits in the vtable and what its absence means."""

    def __init__(self, name: str, slot: int, kind: _Type | _Union, required: bool, default: Any) -> None:
        self.name = name
        self.slot = slot
        self.kind = kind
        self.required = required
        self.default = default


class _Table:
    size = 4
    cost = 0

    def __init__(self, name: str, fields: Sequence[_Field], make: Make | None) -> None:
        self.name = name
        self._fields = fields
        self._bytes = _TABLE_BYTES + _FIELD_BYTES * len(fields)
        self._make = make

    def read(self, cur: _Cursor, pos: int) -> Any:
        return self.read_at(cur, cur.follow(pos))

    def read_at(self, cur: _Cursor, at: int) -> Any:
        vtable = at - _I32(cur.data, at)[0]
        size, absent, present = cur.plans.get((self, vtable)) or self._plan(cur, vtable)
        if at + size > cur.size:
            raise Malformed(f"is a {self.name} of {size} bytes at byte {at} of {cur.size}")
        cur.spend(self._bytes)
        values = absent.copy()
        name = ""
        try:
            for name, read, offset in present:
                values[name] = read(cur, at + offset)
        except Malformed as wrong:
            wrong.path.append(f".{name}")
            raise
        return values if self._make is None else self._make(values)

    def _plan(self, cur: _Cursor, vtable: int) -> _Plan:
        """How to read tables that share this vtable; checked once, then kept."""
        if vtable < 0 or vtable + 4 > cur.size:
            raise Malformed(f"has its {self.name} vtable at byte {vtable} of {cur.size}")
        vtable_size, size = unpack_from("<HH", cur.data, vtable)
        if vtable_size < 4 or vtable_size % 2 or vtable + vtable_size > cur.size or size < 4:
            raise Malformed(f"has a {self.name} vtable of {vtable_size} bytes for a table of {size}")

        def offset_of(slot: int, width: int) -> int:
            at = 4 + 2 * slot
            offset: int = _U16(cur.data, vtable + at)[0] if at + 2 <= vtable_size else 0
            if offset and (offset < 4 or offset + width > size):
                raise Malformed(f"has {self.name} field {slot} at byte {offset} of a {size}-byte table")
            return offset

        cur.spend(_PLAN_BYTES)
        present: list[tuple[str, Callable[[_Cursor, int], Any], int]] = []
        for field in self._fields:
            if isinstance(field.kind, _Union):
                tag, offset = offset_of(field.slot, 1), offset_of(field.slot + 1, 4)
                present.append((field.name, partial(field.kind.read, tag, offset), 0))
            else:
                offset = offset_of(field.slot, field.kind.size)
                if offset:
                    present.append((field.name, field.kind.read, offset))
            if not offset and field.required:
                raise Malformed(f"is a {self.name} without its '{field.name}'")
        plan = (size, {field.name: field.default for field in self._fields}, present)
        cur.plans[self, vtable] = plan
        return plan


class _Union:
    """One of several tables, chosen by a tag: 0 is NONE, then the members in order.

    Members are compiled when first met: most files use few of them.
    """

    def __init__(self, name: str, members: Sequence[str], compiled: Callable[[str], _Type]) -> None:
        self._name = name
        self._members = members
        self._compiled = compiled

    def read(self, tag_offset: int, value_offset: int, cur: _Cursor, table: int) -> tuple[str, Any] | None:
        tag = cur.data[table + tag_offset] if tag_offset else 0
        if tag == 0:
            return None
        if tag > len(self._members):
            raise Malformed(f"has {self._name} type {tag}; the highest known is {len(self._members)}")
        member = self._members[tag - 1]
        if not value_offset:
            raise Malformed(f"says it is a {member} and holds nothing")
        return member, self._compiled(member).read(cur, table + value_offset)


class Schema:
    """Compiled table declarations; ``decode`` reads a root table with everything below it.

    ``ids`` names structs of a single u32 and gives what makes their value. ``make`` turns the
    ``dict`` of a table's fields into something better, by table name.
    """

    def __init__(
        self,
        tables: Mapping[str, str],
        *,
        unions: Mapping[str, Sequence[str]] | None = None,
        ids: Mapping[str, Make] | None = None,
        make: Mapping[str, Make] | None = None,
    ) -> None:
        self._sources = tables
        self._union_sources = unions or {}
        self._make = make or {}
        self._types: dict[str, _Type] = {name: _Scalar(code) for name, code in _SCALARS.items()}
        self._types |= {"str": _String(), "bytes": _Bytes(), "blob": _Blob()}
        self._types |= {name: _Id(made) for name, made in (ids or {}).items()}
        self._open: set[str] = set()

    def decode(self, root: str, data: memoryview, where: str, budget: Budget | None = None) -> Any:
        """The table ``root`` that ``data`` starts with, its fields as a ``dict`` in schema order.

        Raises ``PteError``, in the words of ``where``, on any byte that does not fit. ``budget`` is one that other
        buffers are paid for as well.
        """
        budget = budget or Budget()
        cur = _Cursor(data, budget)
        given = cur.left
        table = self._type(root)
        assert isinstance(table, _Table), f"{root} is not a table"
        try:
            if cur.size < 8:
                raise Malformed(f"has {cur.size} bytes, too few for a table")
            return table.read(cur, 0)
        except Malformed as wrong:
            path = root + "".join(reversed(wrong.path))
            raise PteError(f"{where}: {path} {wrong.what}. The file is damaged; build or copy it again.") from None
        finally:
            budget.left -= given - cur.left

    def _type(self, name: str) -> _Type:
        known = self._types.get(name)
        if known is None:
            known = self._types[name] = self._compile(name)
        return known

    def _compile(self, name: str) -> _Type:
        if name.startswith("["):
            nullable = name.endswith("?]")
            item = self._type(name[1:-2] if nullable else name[1:-1])
            return _ScalarVector(item) if isinstance(item, _Scalar) else _Vector(item, nullable)
        assert name not in self._open, f"{name} contains itself; schemas must not be recursive"
        self._open.add(name)
        fields = []
        slot = 0
        for source in self._sources[name].split():
            if source != "_":
                fields.append(self._field(source, slot))
            slot += 2 if source != "_" and isinstance(fields[-1].kind, _Union) else 1
        self._open.remove(name)
        return _Table(name, fields, self._make.get(name))

    def _field(self, source: str, slot: int) -> _Field:
        name, _, kind = source.partition(":")
        kind, _, text = kind.partition("=")
        optional = kind.endswith("?")
        kind = kind.removesuffix("?")
        if kind in self._union_sources:
            union = _Union(kind, self._union_sources[kind], self._type)
            return _Field(name, slot, union, not optional, None)
        compiled = self._type(kind)
        if isinstance(compiled, _Scalar):
            return _Field(name, slot, compiled, False, _default(kind, text))
        return _Field(name, slot, compiled, not optional, None)


def _default(kind: str, text: str) -> Any:
    if text == "null":
        return None
    if kind == "bool":
        return text == "true"
    return float(text or 0) if kind in ("f32", "f64") else int(text or 0)
