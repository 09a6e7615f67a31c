"""A report as one HTML page: nothing is loaded, nothing runs, and everything out of the file is escaped.

The treemap is drawn twice, grouped by layer and by dtype; which one shows is a choice of the page's style sheet, so the
page needs no script, and forbids any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape

from pipeline.anatomy.accounting import layer_of
from pipeline.anatomy.drawing import Canvas, bytes_text, count_text, path_text, percent_text
from pipeline.anatomy.facts import DelegatePart, MethodPart, Report, Tensor
from pipeline.anatomy.text import argument_text, constant_text, shape_text
from pipeline.anatomy.treemap import Rect, squarified
from pipeline.pte.flatbuffer import shown

WIDTH, HEIGHT = 1000.0, 520.0
MAX_RECTS = 500
MAX_ROWS = 2000
MAX_PARTS = 50
MAX_LINES = 20_000
TAB_STOPS = 24
LABEL_HEIGHT = 15.0
CHARACTER_WIDTH = 6.6
_COLOURS = ("#8fbce6", "#f2b880", "#a5d49a", "#d5a6d9", "#f0d774", "#e99a9a", "#9fd6d2", "#c7bda6")
_CANVAS = Canvas(limit=20)
_NO_STOP = ' tabindex="-1"'

_STYLE = """
:root{color-scheme:light dark;--ink:#1b1b1b;--paper:#fff;--line:#d4d4d4;--soft:#f3f3f3;--mark:#fff3c4;--link:#0b57a4}
@media(prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#161616;--line:#444;--soft:#232323;--mark:#4d4318;
--link:#8ab8ea}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:64rem;margin:1.5rem auto;
padding:0 1rem}
h1{font-size:1.35rem;margin:0 0 .3rem;overflow-wrap:anywhere}h2{font-size:1.1rem;margin:1.8rem 0 .4rem}
h3{font-size:1rem;margin:1rem 0 .3rem}
a{color:var(--link)}table{border-collapse:collapse;width:100%;font-size:.88rem}
th,td{text-align:left;padding:.15rem .6rem .15rem 0;border-bottom:1px solid var(--line);vertical-align:top;
overflow-wrap:anywhere}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
tr:target td{background:var(--mark)}.wide{overflow-x:auto}
.bar{display:block;height:.75rem;background:#8fbce6;border-radius:2px;min-width:1px}.bars td:last-child{width:45%}
svg{width:100%;height:auto;display:block;background:var(--soft);border:1px solid var(--line)}
svg text{font-family:system-ui,sans-serif;font-size:11px;fill:#111;pointer-events:none}
svg .name{font-weight:bold;paint-order:stroke;stroke:#fff;stroke-width:2px}
svg rect{stroke:#fff;stroke-width:.5}svg .group{fill:none;stroke:#222;stroke-width:1.6;pointer-events:none}
svg a:hover rect,svg a:focus rect{stroke:#000;stroke-width:2.5}svg a:focus{outline:none}
.choice input{margin:0 .3rem 0 0}.choice label{margin-right:1.2rem}
.by-layer,.by-dtype{display:none}
#choose-layer:checked~.by-layer,#choose-dtype:checked~.by-dtype{display:block}
.key{display:inline-block;width:.8rem;height:.8rem;border:1px solid #666;margin-right:.35rem}
.keys span{margin-right:1.1rem;white-space:nowrap}pre{overflow-x:auto;background:var(--soft);padding:.6rem;
font-size:.8rem;line-height:1.35}
"""


def of_report(report: Report) -> str:
    """The page."""
    name = escape(path_text(report.path.rpartition("/")[2] or report.path))
    body = "\n".join(_body(report))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{name}</title><style>{_STYLE}</style></head>\n<body>\n<main>\n{body}\n</main>\n</body></html>\n"
    )


def _more(number: int, what: str) -> Iterator[str]:
    if number > 0:
        yield f"<p>… and {number:,} more {what}</p>"


def _text(text: str) -> str:
    return escape(shown(text))


def _body(report: Report) -> Iterator[str]:
    weights = report.weights
    yield f"<h1>{escape(path_text(report.path))}</h1>"
    told = f"{bytes_text(report.size_bytes)} ({report.size_bytes:,} bytes)"
    if weights.bits_per_weight is not None:
        told += f", {count_text(weights.num_weights)} weights, {weights.bits_per_weight:.2f} bits per weight"
    yield f"<p>{told}</p>"
    colours = _colours(report)
    if any(tensor.size_bytes for tensor in report.tensors):
        yield from _treemaps(report, colours)
    yield from _files(report)
    for number, method in enumerate(report.methods[:MAX_PARTS]):
        yield from _method(number, method)
    yield from _more(len(report.methods) - MAX_PARTS, "methods")
    if report.constants:
        rows = [
            (_text(one.name), escape(constant_text(one.value, _CANVAS, one.left_out)))
            for one in report.constants[:MAX_ROWS]
        ]
        yield "<h2>Constant methods</h2>"
        yield _table(("method", "value"), rows)
        yield from _more(len(report.constants) - MAX_ROWS, "constant methods")
    yield from _tensors(report)
    for listing in report.listings:
        lines = [escape(line) for line in listing.lines[:MAX_LINES]]
        more = len(listing.lines) - len(lines)
        text = "\n".join(lines) + (f"\n… and {more} more" if more else "")
        yield f"<details><summary>{escape(listing.title)}</summary><pre>{text}</pre></details>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = (), style: str = "") -> str:
    """Cells are HTML. ``numbers`` are the columns that stand to the right."""

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if column in numbers else ''}>{cell}</{tag}>" for column, cell in enumerate(row)
        )

    head = f"<thead><tr>{cells(heads, 'th')}</tr></thead>"
    body = "\n".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f'<div class="wide"><table class="{style}">{head}<tbody>\n{body}\n</tbody></table></div>'


def _colours(report: Report) -> dict[str, str]:
    """By what tensors are: the eight that take most have a colour each, the others share the last."""
    return {share.label: _COLOURS[min(rank, len(_COLOURS) - 1)] for rank, share in enumerate(report.by_dtype)}


def _treemaps(report: Report, colours: Mapping[str, str]) -> Iterator[str]:
    yield '<h2 id="sizes">Where the bytes are</h2><div class="choice">'
    yield '<input type="radio" name="choose" id="choose-layer" checked><label for="choose-layer">by layer</label>'
    yield '<input type="radio" name="choose" id="choose-dtype"><label for="choose-dtype">by dtype</label>'
    yield f'<div class="by-layer">{_treemap(report, layer_of, colours, "layer")}</div>'
    yield f'<div class="by-dtype">{_treemap(report, lambda one: one.label, colours, "dtype")}</div></div>'
    keys = [
        f'<span><i class="key" style="background:{colours[share.label]}"></i>{_text(share.label)} '
        f"{bytes_text(share.size_bytes)}</span>"
        for share in report.by_dtype[: len(_COLOURS)]
    ]
    yield f'<p class="keys">{" ".join(keys)}</p>'


def _treemap(report: Report, group_of: Callable[[Tensor], str], colours: Mapping[str, str], what: str) -> str:
    total = sum(tensor.size_bytes for tensor in report.tensors)
    numbered = sorted(enumerate(report.tensors), key=lambda item: -item[1].size_bytes)
    drawn = [item for item in numbered[:MAX_RECTS] if item[1].size_bytes]
    rest = total - sum(tensor.size_bytes for _, tensor in drawn)
    groups: dict[str, list[tuple[int, Tensor]]] = {}
    for item in drawn:
        groups.setdefault(group_of(item[1]), []).append(item)
    sizes = {name: sum(tensor.size_bytes for _, tensor in items) for name, items in groups.items()}
    order = sorted(groups, key=lambda name: -sizes[name])
    rooms = squarified([*(sizes[name] for name in order), *([rest] if rest else [])], Rect(0, 0, WIDTH, HEIGHT))
    stops = {number for number, _ in drawn[:TAB_STOPS]}
    parts = [f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="group" aria-label="Tensors by size, grouped by {what}">']
    for name, room in zip(order, rooms, strict=False):
        inner = squarified([tensor.size_bytes for _, tensor in groups[name]], room)
        for (number, tensor), rect in zip(groups[name], inner, strict=True):
            # The group's own name stands in its lower left corner.
            is_free = (
                rect.x > room.x or rect.y + rect.height < room.y + room.height - 1 or rect.height > 2 * LABEL_HEIGHT
            )
            label = _label(tensor.name.removesuffix(".weight"), rect.y + 12, rect) if is_free else ""
            tile = _tile(tensor, rect, total, colours[tensor.label]) + label
            parts.append(_linked(tile, number, number in stops))
        parts.append(f'<rect class="group" {_place(room)}/>{_label(name, room.y + room.height - 5, room, 3)}')
    if rest:
        hidden = len(report.tensors) - len(drawn)
        parts.append(
            f'<rect {_place(rooms[-1])} fill="#ccc"><title>{hidden} smaller, {bytes_text(rest)}</title></rect>'
        )
    return "\n".join([*parts, "</svg>"])


def _place(rect: Rect) -> str:
    return f'x="{rect.x:.3f}" y="{rect.y:.3f}" width="{rect.width:.3f}" height="{rect.height:.3f}"'


def _tile(tensor: Tensor, rect: Rect, total: int, colour: str) -> str:
    told = f"{shown(tensor.name)}: {shown(tensor.label)} {shape_text(tensor.weight_shape)}, "
    told += f"{bytes_text(tensor.size_bytes)}, {percent_text(tensor.size_bytes, total)}"
    return f'<rect {_place(rect)} fill="{colour}"><title>{escape(told)}</title></rect>'


def _label(name: str, y: float, room: Rect, num_lines: int = 1) -> str:
    """As much of the name's end as fits, at the left of ``room``, if that has the height of so many lines."""
    width = int((room.width - 6) / CHARACTER_WIDTH)
    parts = shown(name).split(".")
    while len(parts) > 1 and len(".".join(parts)) > width:
        del parts[0]
    text = ".".join(parts)
    if len(text) > width or room.height < LABEL_HEIGHT * num_lines:
        return ""
    style = ' class="name"' if num_lines > 1 else ""
    return f'<text x="{room.x + 3:.1f}" y="{y:.1f}"{style}>{escape(text)}</text>'


def _linked(tile: str, number: int, is_stop: bool) -> str:
    """A tile leads to its row in the table; the largest can be reached with the keyboard."""
    if number >= MAX_ROWS:
        return tile
    return f'<a href="#tensor-{number}"{"" if is_stop else _NO_STOP}>{tile}</a>'


def _files(report: Report) -> Iterator[str]:
    yield "<h2>File</h2>"
    for file in report.files:
        version = "" if file.version is None else f", program version {file.version}"
        told = f"{path_text(file.path)}: {file.kind}{version}, {len(file.segments)} segments, {file.num_keys} names"
        yield f"<p>{escape(told)}</p>"
        rows = [
            (escape(part.label), str(part.num_tensors or ""), f"{part.size_bytes:,}",
             percent_text(part.size_bytes, file.size_bytes))
            for part in file.parts
        ]  # fmt: skip
        yield _table(("part", "segments", "bytes", "share"), rows, (1, 2, 3))
    if report.others:
        beside = [(_text(name), f"{size:,}") for name, size in report.others.items()]
        yield "<h3>Beside it</h3>"
        yield _table(("file", "bytes"), beside, (1,))


def _method(number: int, method: MethodPart) -> Iterator[str]:
    yield f'<h2 id="method-{number}">Method {_text(method.name)}</h2>'
    rows = [
        (way, _text(argument.name or ""), escape(argument_text(argument)))
        for way, arguments in (("input", method.inputs), ("output", method.outputs))
        for argument in arguments[:MAX_ROWS]
    ]
    yield _table(("", "name", "what"), rows)
    yield from _histogram("Instructions", method.instructions)
    yield from _histogram("Operators", method.operators)
    for index, delegate in enumerate(method.delegates[:MAX_PARTS]):
        yield from _delegate(index, delegate)
    yield from _more(len(method.delegates) - MAX_PARTS, "delegates")


def _delegate(index: int, delegate: DelegatePart) -> Iterator[str]:
    yield f"<h3>Delegate {index}: {_text(delegate.backend)}, {delegate.size_bytes:,} bytes</h3>"
    if delegate.unreadable is not None:
        yield f"<p>{_text(delegate.unreadable)}</p>"
    if delegate.compile_specs:
        rows = [
            (_text(spec.key), _text(spec.text or spec.hex or ""), str(spec.size_bytes))
            for spec in delegate.compile_specs[:MAX_ROWS]
        ]
        yield _table(("compile spec", "value", "bytes"), rows, (2,))
    if delegate.graph is not None:
        yield from _histogram("MLX graph", delegate.graph.nodes)
        yield from _histogram("Run once, when loaded", delegate.graph.init_nodes)


def _histogram(title: str, counts: Mapping[str, int]) -> Iterator[str]:
    if not counts:
        return
    most = max(counts.values())
    rows = [
        (_text(name), str(count), f'<span class="bar" style="width:{100 * count / most:.1f}%"></span>')
        for name, count in list(counts.items())[:MAX_ROWS]
    ]
    yield f"<h3>{title}: {sum(counts.values()):,}</h3>"
    yield _table(("kind", "count", ""), rows, (1,), "bars")


def _tensors(report: Report) -> Iterator[str]:
    if not report.tensors:
        return
    yield f"<h2>Tensors: {len(report.tensors):,}</h2>"
    heads = "".join(
        f"<th{' class=n' if head == 'bytes' else ''}>{head}</th>"
        for head in ("name", "what", "shape", "bytes", "read by")
    )
    yield f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>'
    for number, tensor in enumerate(report.tensors[:MAX_ROWS]):
        also = f" and {len(tensor.keys) - 1} more names" if len(tensor.keys) > 1 else ""
        users = ", ".join(f"{shown(name)} {_CANVAS.times}{count}" for name, count in list(tensor.users.items())[:8])
        yield (
            f'<tr id="tensor-{number}"><td>{_text(tensor.name)}{also}</td><td>{_text(tensor.label)}</td>'
            f"<td>{shape_text(tensor.weight_shape)}</td><td class=n>{tensor.size_bytes:,}</td>"
            f"<td>{escape(users)}</td></tr>"
        )
    yield "</tbody></table></div>"
    yield from _more(len(report.tensors) - MAX_ROWS, "tensors")
