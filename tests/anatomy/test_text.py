"""The report for people says each thing once, bounded, and never lets the file speak to the terminal."""

from __future__ import annotations

import pytest

from pipeline.anatomy import text
from pipeline.anatomy.drawing import Canvas
from tests.anatomy.reports import HOSTILE, layers, report, tensor


def test_a_report_reads_top_to_bottom() -> None:
    lines = list(text.of_report(report(layers(3)), Canvas(width=80)))
    assert lines[:5] == [
        "forward.pte: .pte, 5.0 kB (5,000 bytes), program version 0",
        "  1 segments, 3 names of data",
        "  head and tables             100       2.0 %",
        "  named data                4,000  \u00d72  80.0 %",
        "  between them (alignment)    900      18.0 %",
    ]
    for line in (
        "  in  text: int64 [1, 1..512, 2..any]",
        "  in  int 7",
        "  out logits: bfloat16 [1, 1, 9]",
        "  instructions: delegate_call \u00d71, kernel_call \u00d73",
        "  planned memory: 1.1 kB",
        "  delegate 0: MLXBackend, 1,234 bytes",
        "    compile spec text: text",
        "  get_windows  int32 [6]: 0 \u00d73, 512, 0 \u00d72",
        "  get_eos_ids  [2, 7]",
        "  scale        nan",
        "  big          int8 [9]: 1, 2, … and 7 more",
        "  8192 weights (8,192) in 7.6 kB: 7.38 bits per weight",
        "  %0 = Exp(x)",
    ):
        assert line in lines, line


def test_layers_alike_are_one_row_each_and_with_all_every_tensor_is_one() -> None:
    tensors = layers(30, "model.layers.{}.proj.weight")
    found = "\n".join(text.of_report(report(tensors), Canvas(width=100)))
    assert "model.layers.*.proj.weight.scales" in found
    assert "model.layers.7.proj.weight.scales" not in found
    everything = "\n".join(text.of_report(report(tensors), Canvas(width=100, limit=None)))
    assert "model.layers.7.proj.weight.scales" in everything


def test_what_the_file_says_never_reaches_the_terminal_as_it_is() -> None:
    hostile = [tensor(HOSTILE, 4000), tensor(f"{HOSTILE}.1", 400, users={HOSTILE: 3})]
    for limit in (20, None):
        lines = list(text.of_report(report(hostile, name=HOSTILE, text=HOSTILE), Canvas(limit=limit)))
        assert all(line.isprintable() for line in lines)


def test_ascii_is_all_that_is_said_where_it_must_be() -> None:
    tensors = layers(30)
    lines = list(text.of_report(report(tensors), Canvas(unicode=False, limit=3)))
    assert all(line.isascii() for line in lines)
    assert any("#" in line for line in lines)
    assert any(line.endswith("(--all shows them)") for line in lines)


@pytest.mark.parametrize("width", [40, 80, 160])
def test_charts_are_as_wide_as_there_is_room(width: int) -> None:
    lines = list(text.of_report(report(layers(3)), Canvas(width=width)))
    charts = [line for line in lines if "█" in line]
    assert charts
    assert max(map(len, charts)) <= max(width, 60)
    assert len(charts[0]) > width - 25


def test_many_of_anything_are_counted_and_not_shown() -> None:
    many = report([tensor(f"name{number}x", 2) for number in range(500)])
    shown = list(text.of_report(many, Canvas(limit=5)))
    assert len(shown) < 90
    assert "  … and 495 more kinds of tensors (--all shows them)" in shown


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (None, "none"),
        (True, "true"),
        ([True, 1, 1.0], "[true, 1, 1.0]"),
        ([float("nan")] * 3, "[nan \u00d73]"),
        ("a\tb", r"'a\tb'"),
        ("x" * 61, "x" * 60 + "…"),
        ([], "[]"),
        ({"dtype": "float32", "sizes": [], "values": [3.5]}, "float32 []: 3.5"),
        ({"dtype": "float32", "sizes": [0, 3], "values": []}, "float32 [0, 3]"),
        (
            {"dtype": "int8", "sizes": [20], "values": list(range(20))},
            "int8 [20]: 0, 1, 2, 3, 4, 5, 6, 7, … and 12 more",
        ),
    ],
)
def test_a_published_value_is_told_in_a_line(value: object, told: str) -> None:
    assert text.constant_text(value, Canvas()) == told
