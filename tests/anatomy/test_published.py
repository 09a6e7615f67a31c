"""What constant methods publish is told as it is read elsewhere, but for what is too long."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest

from pipeline.anatomy import published
from pipeline.anatomy.facts import Published
from pipeline.pte import PteFile
from pipeline.pte.program import (
    BoolValue,
    DoubleValue,
    IntValue,
    ListValue,
    Method,
    NoneValue,
    Program,
    StringValue,
    TensorValue,
    Value,
)


def method(*outputs: Value) -> Method:
    return Method("get_x", outputs, (), tuple(range(len(outputs))), (), ())


def test_every_constant_of_a_real_file_is_told_whole(tiny_pte: Any) -> None:
    with PteFile.open(tiny_pte.path) as pte:
        found = published.of_program(pte.program)
        assert {one.name: one.value for one in found} == pte.program.constants()
    assert {one.left_out for one in found} == {0}


@pytest.mark.parametrize(
    ("outputs", "value"),
    [
        ([IntValue(-5)], -5),
        ([BoolValue(True)], True),
        ([DoubleValue(0.1)], 0.1),
        ([StringValue("é\n")], "é\n"),
        ([NoneValue()], None),
        ([], []),
        ([IntValue(1), StringValue("a")], [1, "a"]),
        (
            [TensorValue("int16", (2,), False, memoryview(struct.pack("<2h", 1, -2)))],
            {"dtype": "int16", "sizes": [2], "values": [1, -2]},
        ),
    ],
)
def test_a_value_is_plain(outputs: list[Value], value: Any) -> None:
    assert published.of_method(method(*outputs)) == Published(name="get_x", value=value)


def test_of_a_long_tensor_the_first_elements_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_ELEMENTS", 5)
    long = TensorValue("int16", (9,), False, memoryview(struct.pack("<9h", *range(9))))
    found = published.of_method(method(long))
    assert found == Published(
        name="get_x", value={"dtype": "int16", "sizes": [9], "values": [0, 1, 2, 3, 4]}, left_out=4
    )
    both = published.of_method(method(long, long))
    assert ([len(one["values"]) for one in both.value], both.left_out) == ([5, 0], 13)
    assert published.of_method(method(*[IntValue(3)] * 7)) == Published(name="get_x", value=[3] * 5, left_out=2)


def test_an_order_of_its_own_is_told_in_that_of_the_sizes_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = TensorValue("int8", (2, 4), False, memoryview(bytes(range(8))), (1, 0))
    values = [0, 2, 4, 6, 1, 3, 5, 7]
    assert published.of_method(method(turned)).value == {"dtype": "int8", "sizes": [2, 4], "values": values}
    monkeypatch.setattr(published, "MAX_ELEMENTS", 5)
    found = published.of_method(method(turned))
    assert (found.value["values"], found.left_out) == ([], 8)


def test_many_methods_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "MAX_TOTAL", 10)
    tensor = TensorValue("int8", (4,), False, memoryview(bytes(4)))
    methods = {f"m{number}": replace(method(tensor), name=f"m{number}") for number in range(5)}
    found = published.of_program(Program(0, methods))
    assert [(len(one.value["values"]), one.left_out) for one in found] == [(4, 0), (4, 0), (2, 2), (0, 4), (0, 4)]


def test_lists_of_values_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = Method("get_x", (ListValue("int", (1, 1, -1)), IntValue(7)), (), (0,), (), ())
    assert published.of_method(listed).value == [7, 7, None]
    monkeypatch.setattr(published, "MAX_ELEMENTS", 2)
    assert published.of_method(listed) == Published(name="get_x", value=[], left_out=3)
