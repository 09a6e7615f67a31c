"""The page is well formed, loads nothing, escapes everything, and its rectangles are the tensors' sizes."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import combinations

import pytest

from pipeline.anatomy import page
from tests.anatomy.reports import HOSTILE, layers, report, tensor

VOID = {"meta", "input", "br", "link", "img"}


class Parsed(HTMLParser):
    """Elements with their attributes and text; refuses tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], tuple[str, ...]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self._open)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs), tuple(self._open)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes, _ in self.elements if name == tag]


def test_the_page_is_well_formed_and_loads_nothing() -> None:
    text = page.of_report(report(layers(4)))
    parsed = Parsed(text)
    assert text.startswith("<!DOCTYPE html>")
    assert {tag for tag, _, _ in parsed.elements}.isdisjoint({"script", "link", "img", "iframe", "object"})
    attributes = {name for _, found, _ in parsed.elements for name in found}
    assert not {name for name in attributes if name.startswith("on") or name == "src"}
    assert all((link["href"] or "").startswith("#") for link in parsed.all("a"))
    assert "default-src 'none'" in str(parsed.all("meta"))
    assert not re.search(r"https?://|@import|url\(", text)


def test_ids_are_unique_and_every_link_leads_somewhere() -> None:
    parsed = Parsed(page.of_report(report(layers(4))))
    ids = [found["id"] for _, found, _ in parsed.elements if "id" in found]
    assert len(ids) == len(set(ids))
    targets = {link["href"] for link in parsed.all("a")} | {f"#{label['for']}" for label in parsed.all("label")}
    assert targets <= {f"#{one}" for one in ids}
    assert parsed.all("html") == [{"lang": "en"}]


def test_everything_out_of_the_file_is_escaped() -> None:
    hostile = [tensor(HOSTILE, 4000), tensor(f"{HOSTILE}.1.w", 4000, dtype=None, role="data", users={HOSTILE: 3})]
    text = page.of_report(report(hostile, name=HOSTILE, text=HOSTILE))
    parsed = Parsed(text)
    assert not parsed.all("script")
    assert "<script" not in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\u202a-\u202e]", text)
    assert r"\x1b[31m" in "".join(parsed.texts)


@pytest.mark.parametrize("grouping", [0, 1], ids=["by layer", "by dtype"])
def test_areas_are_the_tensors_sizes_inside_their_group_and_apart(grouping: int) -> None:
    tensors = layers(5)
    text = page.of_report(report(tensors))
    svg = re.findall(r"<svg.*?</svg>", text, re.DOTALL)[grouping]
    rects = [
        {key: float(value) for key, value in re.findall(r'(x|y|width|height)="([\d.]+)"', rect)} | {"title": title}
        for rect, title in re.findall(r"(<rect [^>]*fill=[^>]*>)<title>(.*?)</title>", svg)
    ]
    assert len(rects) == len(tensors)
    total = sum(one.size_bytes for one in tensors)
    by_name = {str(rect["title"]).partition(": ")[0]: rect for rect in rects}
    for one in tensors:
        rect = by_name[one.name]
        area = float(rect["width"]) * float(rect["height"])
        assert area == pytest.approx(one.size_bytes / total * page.WIDTH * page.HEIGHT, rel=2e-3)
        assert 0 <= float(rect["x"]) <= float(rect["x"]) + float(rect["width"]) <= page.WIDTH + 0.01
        assert 0 <= float(rect["y"]) <= float(rect["y"]) + float(rect["height"]) <= page.HEIGHT + 0.01
    for a, b in combinations(rects, 2):
        wide = min(a["x"] + a["width"], b["x"] + b["width"]) - max(a["x"], b["x"])  # type: ignore[operator, type-var]
        high = min(a["y"] + a["height"], b["y"] + b["height"]) - max(a["y"], b["y"])  # type: ignore[operator, type-var]
        assert min(wide, high) < 0.01


def test_beyond_a_number_of_tensors_the_smaller_ones_share_a_rectangle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_RECTS", 3)
    tensors = [tensor(f"m.{number}.w", 1000 - number) for number in range(9)]
    text = page.of_report(report(tensors))
    assert text.count("<title>6 smaller, 6.0 kB</title>") == 2
    assert len(re.findall(r"<rect [^>]*fill=", text)) == 2 * 4


def test_beyond_a_number_of_rows_a_word_says_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_ROWS", 4)
    monkeypatch.setattr(page, "MAX_LINES", 1)
    text = page.of_report(report([tensor(f"m.{number}.w", 1000) for number in range(9)]))
    assert "<p>… and 5 more tensors</p>" in text
    assert "%0 = Exp(x)\n… and 1 more</pre>" in text
    parsed = Parsed(text)
    assert {link["href"] for link in parsed.all("a")} == {f"#tensor-{number}" for number in range(4)}


def test_a_file_without_tensors_has_a_page_too() -> None:
    text = page.of_report(report())
    assert Parsed(text).all("svg") == []
    assert "<h2>Constant methods</h2>" in text


def test_hundreds_of_tensors_make_a_page_of_a_few_hundred_kilobytes() -> None:
    tensors = [tensor(f"model.layers.{number // 9}.self_attn.q_proj.{number}.weight", 660_000) for number in range(275)]
    assert len(page.of_report(report(tensors)).encode()) < 300_000
