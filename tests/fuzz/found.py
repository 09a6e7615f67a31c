"""Files that once took too long or too much memory or ended in a traceback, or were thought of before they could.

Each is a recipe: a function that makes the bytes, and says what is wrong with them. What a round finds and does not
need a recipe is kept as bytes in ``corpus``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import flatbuffers

Add = Callable[[flatbuffers.Builder, int], None]


def number(layout: str, value: int) -> Add:
    """A scalar field; ``layout`` is Uint8, Int32, and so on."""
    return lambda b, slot: getattr(b, f"Prepend{layout}Slot")(slot, value, None)


def to(offset: int) -> Add:
    """A field that leads to a table, vector or string."""
    return lambda b, slot: b.PrependUOffsetTRelativeSlot(slot, offset, 0)


def table(b: flatbuffers.Builder, **slots: Add) -> Any:
    """A table with the fields ``s0``, ``s1`` and so on."""
    b.StartObject(16)
    for name, add in slots.items():
        add(b, int(name[1:]))
    return b.EndObject()


def vector(b: flatbuffers.Builder, offsets: Sequence[int]) -> Any:
    b.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        b.PrependUOffsetTRelative(offset)
    return b.EndVector()


def numbers(b: flatbuffers.Builder, layout: str, values: Sequence[int]) -> Any:
    data = struct.pack(f"<{len(values)}{layout}", *values)
    b.StartVector(struct.calcsize(layout), len(values), 8)
    b.head = b.Head() - len(data)
    b.Bytes[b.Head() : b.Head() + len(data)] = data
    return b.EndVector()


def finished(b: flatbuffers.Builder, root: int) -> bytes:
    b.Finish(root, file_identifier=b"ET12")
    return bytes(b.Output())


def value(b: flatbuffers.Builder, kind: int, held: int) -> Any:
    return table(b, s0=number("Uint8", kind), s1=to(held))


def program(b: flatbuffers.Builder, plans: Sequence[int], buffers: Sequence[int] = (), **more: Add) -> bytes:
    fields = {"s1": to(vector(b, plans))} | ({"s2": to(vector(b, buffers))} if buffers else {})
    return finished(b, table(b, **fields | more))


def outputs_that_are_one_tensor() -> bytes:
    """A constant method with 400,000 outputs, all of them one tensor of 8,000 elements: 3.2 billion numbers."""
    b = flatbuffers.Builder(1 << 22)
    buffers = [table(b), table(b, s0=to(b.CreateByteVector(bytes(8_000))))]
    tensor = table(b, s2=to(numbers(b, "i", [8_000])), s5=number("Uint32", 1))
    values = vector(b, [value(b, 5, tensor)])
    outputs = numbers(b, "i", [0] * 400_000)
    plan = table(b, s0=to(b.CreateString("get_all")), s2=to(values), s4=to(outputs))
    return program(b, [plan], buffers)


def outputs_that_are_one_list() -> bytes:
    """A constant method with 200,000 outputs, all of them one list of 200,000 numbers."""
    b = flatbuffers.Builder(1 << 22)
    listed = table(b, s0=to(numbers(b, "d", [0] * 200_000)))
    values = vector(b, [value(b, 8, listed)])
    outputs = numbers(b, "i", [0] * 200_000)
    return program(b, [table(b, s0=to(b.CreateString("get_all")), s2=to(values), s4=to(outputs))])


def compile_specs_that_are_one() -> bytes:
    """100,000 compile specs that share a value of 100 KB: 10 GB if each had its own."""
    b = flatbuffers.Builder(1 << 20)
    blob = table(b, s0=to(b.CreateByteVector(bytes(100))))
    spec = table(b, s0=to(b.CreateString("key")), s1=to(b.CreateByteVector(bytes(100_000))))
    specs = vector(b, [spec] * 100_000)
    place = table(b, s1=number("Uint32", 0))
    delegate = table(b, s0=to(b.CreateString("Any")), s1=to(place), s2=to(specs))
    plan = table(b, s0=to(b.CreateString("forward")), s7=to(vector(b, [delegate])))
    return program(b, [plan], s3=to(vector(b, [blob])))


def values_that_are_one() -> bytes:
    """A method of 150,000 values, all of them one tensor's table: a dictionary and an object for each."""
    b = flatbuffers.Builder(1 << 22)
    held = value(b, 5, table(b, s2=to(numbers(b, "i", [1, 2, 3, 4]))))
    return program(b, [table(b, s0=to(b.CreateString("forward")), s2=to(vector(b, [held] * 150_000)))])


def dimension_orders_that_are_one() -> bytes:
    """1,000 tensors that share a list of dimensions of a million entries."""
    b = flatbuffers.Builder(1 << 21)
    held = value(b, 5, table(b, s3=to(b.CreateByteVector(bytes(1_000_000)))))
    return program(b, [table(b, s0=to(b.CreateString("forward")), s2=to(vector(b, [held] * 1_000)))])


def texts_within_each_other() -> bytes:
    """100,000 operators whose names begin four bytes after one another and overlap, 100 KB each: 10 GB of text."""
    b = flatbuffers.Builder(1 << 22)
    # Any word of it is a length, and any byte of it is text.
    b.CreateByteVector(struct.pack("<I", 0x00010101) * 130_000)
    text = b.Offset()
    operators = vector(b, [table(b, s0=to(text - 8 - 4 * index)) for index in range(100_000)])
    return program(b, [table(b, s0=to(b.CreateString("forward")), s6=to(operators))])


def vtables_of_their_own() -> bytes:
    """30,000 tables, each with a vtable that no other has: a plan to read by for each."""
    count = 30_000
    # Root and plan, then the vector, then pairs of a vtable and its table, then a Null that all of them hold.
    head = struct.pack("<I4s", 16, b"ET12") + struct.pack("<HHHH", 8, 8, 0, 4)
    head += struct.pack("<iI", 8, 4)  # Program: its vtable is 8 before; execution_plan is 4 ahead
    head += struct.pack("<II", 1, 16)  # one plan
    head += struct.pack("<HHHHHH", 10, 12, 4, 0, 8, 0)  # a plan's vtable: name, -, values
    head += struct.pack("<iII", 12, 8, 16)
    head += struct.pack("<I8s", 7, b"forward\0")
    body, places = bytearray(), []
    for index in range(count):
        # The same vtable again; a builder would have shared it.
        body += struct.pack("<HHHH", 8, 12, 11, 4)
        places.append(len(body))
        body += struct.pack("<iI3xB", 8, 16 + 20 * (count - 1 - index), 1)
    offsets = [4 * (count - index) + place for index, place in enumerate(places)]
    null = struct.pack("<HHi", 4, 4, 4)
    return head + struct.pack(f"<I{count}I", count, *offsets) + body + bytes(4) + null


def payload(graph: bytes) -> bytes:
    return struct.pack("<I4sQQ", 0, b"MLX0", 24 + len(graph), 0) + graph


def delegated(b: flatbuffers.Builder, blob: bytes, count: int = 1) -> bytes:
    """A ``forward`` with ``count`` delegates of one payload."""
    data = table(b, s0=to(b.CreateByteVector(blob)))
    place = table(b, s1=number("Uint32", 0))
    delegate = table(b, s0=to(b.CreateString("MLXBackend")), s1=to(place))
    call = table(b, s0=number("Int32", 0))
    chain = table(b, s2=to(vector(b, [table(b, s0=number("Uint8", 2), s1=to(call))])))
    name = b.CreateString("forward")
    plan = table(b, s0=to(name), s5=to(vector(b, [chain])), s7=to(vector(b, [delegate] * count)))
    return program(b, [plan], s3=to(vector(b, [data])))


def graph(fill: Callable[[flatbuffers.Builder], dict[str, Add]], size: int = 1 << 20) -> bytes:
    """A graph of one empty chain, and whatever else."""
    b = flatbuffers.Builder(size)
    more = fill(b)
    chain = table(b, s0=to(vector(b, [])))
    fields: dict[str, Add] = {"s7": to(vector(b, [chain]))}
    b.Finish(table(b, **fields | more))
    return bytes(b.Output())


def a_million_inputs() -> bytes:
    """A graph of 100 bytes that says it has a million inputs."""
    return delegated(flatbuffers.Builder(1 << 10), payload(graph(lambda b: {"s2": number("Uint32", 1_000_000)})))


def delegates_that_are_one() -> bytes:
    """5,000 delegates with one graph, of 2,000 instructions."""

    def fill(b: flatbuffers.Builder) -> dict[str, Add]:
        noop = table(b, s0=number("Uint8", 1), s1=to(table(b)))
        return {"s7": to(vector(b, [table(b, s0=to(vector(b, [noop] * 2_000)))]))}

    return delegated(flatbuffers.Builder(1 << 20), payload(graph(fill)), 5_000)


def shapes_that_are_one() -> bytes:
    """1,000 instructions that make a tensor of one shape, of 150,000 dimensions."""

    def fill(b: flatbuffers.Builder) -> dict[str, Add]:
        dim = table(b, s0=number("Int64", 1))
        shape = vector(b, [dim] * 150_000)

        def out(builder: flatbuffers.Builder, slot: int) -> None:
            builder.Prep(4, 4)
            builder.PrependUint32(0)
            builder.PrependStructSlot(slot, builder.Offset(), 0)

        held = table(b, s0=number("Float64", 0))
        full = table(b, s0=out, s1=to(shape), s2=to(held))
        node = table(b, s0=number("Uint8", 48), s1=to(full))
        chains = vector(b, [table(b, s0=to(vector(b, [node] * 1_000)))])
        return {"s5": number("Uint32", 1), "s7": to(chains)}

    return delegated(flatbuffers.Builder(1 << 22), payload(graph(fill, 1 << 22)))


def names_that_are_one() -> bytes:
    """A ``.ptd`` of 150,000 entries that are one."""
    b = flatbuffers.Builder(1 << 22)
    entry = table(b, s0=to(b.CreateString("weight")))
    b.Finish(table(b, s2=to(vector(b, [entry] * 150_000))), file_identifier=b"FT01")
    tables = bytes(b.Output())
    (root,) = struct.unpack_from("<I", tables)
    header = struct.pack("<4sIQQQQ", b"FH01", 40, 0, 40 + len(tables), 0, 0)
    return struct.pack("<I4s", root + 40, b"FT01") + header + tables[8:]


CONTRACT = {
    "get_max_seq_len": 8,
    "get_max_context_len": 64,
    "get_max_ctx_len": 64,
    "get_prefill_chunk_size": 8,
    "get_vocab_size": 11,
    "get_activation_dtype": 6,
    "get_logits_to_keep_mode": 1,
    "get_bos_id": 1,
    "get_n_caches": 2,
}
LISTS = ("get_kv_heads", "get_head_dims", "get_windows")


def published(b: flatbuffers.Builder, name: str, held: int, times: int = 1) -> Any:
    """A constant method that returns ``times`` times one value."""
    text = b.CreateString(name)
    values = vector(b, [held])
    return table(b, s0=to(text), s2=to(values), s4=to(numbers(b, "i", [0] * times)))


def integer(b: flatbuffers.Builder, value_: int) -> Any:
    return value(b, 2, table(b, s0=number("Int64", value_)))


def contract(lists: int, stops: int, entry: int = 2, stop: int = 5_000, **changes: int) -> bytes:
    """A program without a forward that publishes what a runner reads, with lists of any length."""
    b = flatbuffers.Builder(1 << 22)
    plans = [published(b, name, integer(b, number_)) for name, number_ in (CONTRACT | changes).items()]
    buffers = [table(b), table(b, s0=to(b.CreateByteVector(struct.pack("<i", entry) * lists)))]
    tensor = value(b, 5, table(b, s0=number("Int8", 3), s2=to(numbers(b, "i", [lists])), s5=number("Uint32", 1)))
    plans += [published(b, name, tensor) for name in LISTS]
    plans.append(published(b, "get_eos_ids", integer(b, stop), stops))
    return program(b, plans, buffers)


def lists_of_caches_as_long_as_may_be() -> bytes:
    """Three lists about caches, of 20,000 entries each, and as many caches."""
    return contract(20_000, 1, get_n_caches=20_000)


def as_many_stop_ids_as_may_be() -> bytes:
    """30,000 ids that end a text, none of which the vocabulary has."""
    return contract(2, 30_000)


def entries_that_are_all_wrong() -> bytes:
    """Lists as long as may be, of which every entry breaks a contract."""
    return contract(10_000, 30_000, entry=-1, stop=-1)


def more_caches_than_can_be_counted() -> bytes:
    """As many caches as an int64 holds, and as many tokens."""
    huge = 2**63 - 1
    return contract(2, 1, get_n_caches=huge, get_vocab_size=huge, get_max_context_len=huge, get_max_seq_len=huge)


def methods_without_end() -> bytes:
    """10,000 methods, each with a name of its own that is a line of text."""
    b = flatbuffers.Builder(1 << 22)
    null = value(b, 1, table(b))
    return program(b, [published(b, f"get_{'x' * 80}_{index}", null) for index in range(10_000)])


def operators_without_end() -> bytes:
    """A forward of 8,000 kernels, each with a name of its own, between as many delegates' calls."""
    b = flatbuffers.Builder(1 << 22)
    operators, steps = [], []
    for index in range(8_000):
        operators.append(table(b, s0=to(b.CreateString(f"aten::{'x' * 60}_{index}"))))
        call = table(b, s0=number("Int32", index))
        steps.append(table(b, s0=number("Uint8", 1), s1=to(call)))
    data = table(b, s0=to(b.CreateByteVector(b"")))
    place = table(b, s1=number("Uint32", 0))
    delegate = table(b, s0=to(b.CreateString("Backend " * 9)), s1=to(place))
    steps += [table(b, s0=number("Uint8", 2), s1=to(table(b)))] * 8_000
    chain = table(b, s2=to(vector(b, steps)))
    name = b.CreateString("forward")
    parts = {"s5": vector(b, [chain]), "s6": vector(b, operators), "s7": vector(b, [delegate])}
    return program(
        b, [table(b, s0=to(name), **{slot: to(part) for slot, part in parts.items()})], s3=to(vector(b, [data]))
    )


def constants_without_end() -> bytes:
    """A graph of 15,000 constants, none of which has a name or data."""

    def fill(b: flatbuffers.Builder) -> dict[str, Add]:
        meta = table(b, s0=to(vector(b, [])), s1=number("Int8", 6))
        return {"s1": number("Uint32", 15_000), "s14": to(vector(b, [meta] * 15_000))}

    return delegated(flatbuffers.Builder(1 << 20), payload(graph(fill)))


def caches_without_end() -> bytes:
    """A graph of 8,000 calls of as many caches."""

    def fill(b: flatbuffers.Builder) -> dict[str, Add]:
        def tid(builder: flatbuffers.Builder, slot: int) -> None:
            builder.Prep(4, 4)
            builder.PrependUint32(0)
            builder.PrependStructSlot(slot, builder.Offset(), 0)

        nodes = []
        for layer in range(8_000):
            call = table(b, s0=tid, s1=tid, s2=tid, s3=tid, s4=tid, s5=number("Int32", layer))
            nodes.append(table(b, s0=number("Uint8", 134), s1=to(call)))
        return {"s5": number("Uint32", 1), "s7": to(vector(b, [table(b, s0=to(vector(b, nodes)))]))}

    return delegated(flatbuffers.Builder(1 << 20), payload(graph(fill)))


RECIPES: dict[str, Callable[[], bytes]] = {
    f"{recipe.__name__.replace('_', '-')}{'.ptd' if recipe is names_that_are_one else '.pte'}": recipe
    for recipe in (
        outputs_that_are_one_tensor,
        outputs_that_are_one_list,
        compile_specs_that_are_one,
        values_that_are_one,
        dimension_orders_that_are_one,
        texts_within_each_other,
        vtables_of_their_own,
        a_million_inputs,
        delegates_that_are_one,
        shapes_that_are_one,
        lists_of_caches_as_long_as_may_be,
        as_many_stop_ids_as_may_be,
        entries_that_are_all_wrong,
        more_caches_than_can_be_counted,
        methods_without_end,
        operators_without_end,
        constants_without_end,
        caches_without_end,
        names_that_are_one,
    )
}
