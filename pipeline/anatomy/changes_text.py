"""A comparison for people: what changed, section by section; what is the same takes no room."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.anatomy import names
from pipeline.anatomy.changes import Change, Comparison, Part, Rewritten, TensorChanges
from pipeline.anatomy.drawing import Canvas, bytes_text, count_text, path_text
from pipeline.anatomy.text import constant_text
from pipeline.pte.flatbuffer import shown

MAX_LINES = 6
_VALUE = re.compile(r"%\d+")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|(?<=layer_id=)\d+")


def of_comparison(found: Comparison, canvas: Canvas, instructions: bool) -> Iterator[str]:
    """The lines; with ``instructions`` every place where instructions differ, else those alike told once."""
    if found.identical:
        yield f"{path_text(found.old)} and {path_text(found.new)} are identical"
        return
    yield f"--- {path_text(found.old)}"
    yield f"+++ {path_text(found.new)}"
    if found.same:
        yield "the same in all that is compared; their bytes are not: prefixes of names, padding, order"
    yield from _section("published values", found.metadata, canvas, _published)
    yield from _section("signature", found.signature, canvas)
    yield from _section("delegates", found.delegates, canvas)
    yield from _kinds(found, canvas)
    if found.instructions:
        yield "instructions"
        for rewritten in found.instructions:
            yield from _rewritten(rewritten, canvas, instructions)
    yield from _section("weights by format", found.quantization, canvas, count_text)
    if found.tensors is not None and found.tensors:
        yield from _tensors(found.tensors, canvas)
    yield from _section("other files", found.files, canvas)
    yield from _section("sizes", found.sizes, canvas, _size)


def _section(title: str, changes: Sequence[Change], canvas: Canvas, text_of: Any = str) -> Iterator[str]:
    if not changes:
        return
    yield title
    rows = [(shown(one.name), _turn(one.old, one.new, canvas, text_of)) for one in changes]
    yield from canvas.shown(rows, "changes", "<<")


def _turn(old: Any, new: Any, canvas: Canvas, text_of: Any = str) -> str:
    before, after = ("absent" if value is None else shown(_text(value, text_of, canvas)) for value in (old, new))
    return f"{before} {canvas.arrow} {after}"


def _text(value: Any, text_of: Any, canvas: Canvas) -> str:
    text: str = text_of(value, canvas) if text_of is _published else text_of(value)
    return text


def _published(value: Mapping[str, Any], canvas: Canvas) -> str:
    text = constant_text(value["value"], canvas, value.get("left_out", 0))
    return f"{text} (sha256 {value['sha256'][:8]})" if "sha256" in value else text


def _size(value: float) -> str:
    return bytes_text(value) if isinstance(value, int) else f"{value:.2f}"


def _kinds(found: Comparison, canvas: Canvas) -> Iterator[str]:
    if found.counts:
        yield "kinds of instructions"
        rows = [
            (shown(one.where), shown(one.name), f"{one.old} {canvas.arrow} {one.new}", f"{one.new - one.old:+d}")
            for one in found.counts
        ]
        yield from canvas.shown(rows, "kinds", "<<>>")


def _rewritten(one: Rewritten, canvas: Canvas, instructions: bool) -> Iterator[str]:
    removed, added = (sum(len(getattr(part, way)) for part in one.parts) for way in ("removed", "added"))
    yield (
        f"  {shown(one.title)}: {one.num_old} {canvas.arrow} {one.num_new}, {removed} went and {added} came "
        f"in {len(one.parts)} places"
    )
    if one.results:
        yield f"    given back from elsewhere: {', '.join(map(shown, one.results))}"
    if instructions:
        for part in one.parts:
            yield "    @@"
            yield from (f"    - {line}" for line in part.removed)
            yield from (f"    + {line}" for line in part.added)
        return
    alike = Counter(_pattern(part) for part in one.parts).most_common()
    limit = len(alike) if canvas.limit is None else MAX_LINES
    only = {_pattern(part): part for part in one.parts}
    for (gone, come), count in alike[:limit]:
        part = only[gone, come] if count == 1 else Part(removed=gone, added=come)
        yield f"    {canvas.times}{count}" if count > 1 else "    once"
        yield from _some("-", part.removed, canvas)
        yield from _some("+", part.added, canvas)
    if len(alike) > limit:
        yield f"    {canvas.ellipsis} and {len(alike) - limit} more kinds of places (--instructions lists every one)"


def _pattern(part: Part) -> tuple[tuple[str, ...], tuple[str, ...]]:
    def lines(found: Sequence[str]) -> tuple[str, ...]:
        return tuple(_NUMBER.sub("*", _VALUE.sub("%", line)) for line in found)

    return lines(part.removed), lines(part.added)


def _some(sign: str, lines: Sequence[str], canvas: Canvas) -> Iterator[str]:
    if canvas.limit is None:
        yield from (f"      {sign} {line}" for line in lines)
        return
    limit = MAX_LINES
    for line in lines[:limit]:
        text = f"      {sign} {line}"
        yield text if len(text) <= canvas.width else text[: canvas.width - len(canvas.ellipsis)] + canvas.ellipsis
    if len(lines) > limit:
        yield f"      {sign} {canvas.ellipsis} and {len(lines) - limit} more"


def _tensors(found: TensorChanges, canvas: Canvas) -> Iterator[str]:
    yield f"tensors: {found.num_same} the same"
    if found.contents:
        yield f"  other bytes: {len(found.contents)}"
        yield from canvas.shown(_patterns(dict.fromkeys(found.contents, ""), canvas), "names", "<<<")
    for title, tensors in (("added", found.added), ("removed", found.removed)):
        if tensors:
            yield f"  {title}: {len(tensors)}"
            yield from canvas.shown(_patterns(tensors, canvas), "kinds of tensors", "<<<")
    if found.changed:
        yield f"  changed: {len(found.changed)}"
        turns = {one.name: _turn(one.old, one.new, canvas) for one in found.changed}
        yield from canvas.shown(_patterns(turns, canvas), "kinds of tensors", "<<<")
    if found.renamed:
        yield f"  the same bytes under another name: {len(found.renamed)}"
        rows = [(f"  {shown(old)}", f"{canvas.arrow} {shown(new)}") for old, new in found.renamed.items()]
        yield from canvas.shown(rows, "names", "<<")


def _patterns(tensors: Mapping[str, str], canvas: Canvas) -> list[tuple[str, str, str]]:
    """Names of all layers together, where the same is said of them."""
    alike = Counter((names.pattern_of(name), text) for name, text in tensors.items())
    one_of = {(names.pattern_of(name), text): name for name, text in tensors.items()}
    return [
        (f"  {shown(pattern if count > 1 else one_of[pattern, text])}", shown(text) if text else "",
         f"{canvas.times}{count}" if count > 1 else "")
        for (pattern, text), count in alike.items()
    ]  # fmt: skip
