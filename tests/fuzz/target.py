"""What happens to a file that is not trusted: everything that ``pte verify`` and ``pte inspect`` do with it.

A ``model.pte`` is read with what lies beside it, and a file beside one with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from pipeline import anatomy
from pipeline.anatomy import document, page, text
from pipeline.anatomy.drawing import Canvas
from pipeline.cli.inspect import MAX_ROWS
from pipeline.verify import examine
from tests.fuzz.probe import MAX_MESSAGE


def verify(path: Path) -> None:
    """What is found, each thing fit for one line."""
    for finding in examine(path).findings:
        assert finding.message.isprintable(), repr(finding.message)
        assert len(finding.message) <= MAX_MESSAGE, finding.message[:MAX_MESSAGE]


def inspect(path: Path) -> None:
    """As text of one line each, with every instruction."""
    canvas = Canvas(width=100, unicode=True, limit=MAX_ROWS)
    for line in text.of_report(anatomy.inspect(path, []), canvas):
        assert line.isprintable(), repr(line)


def inspect_as_json(path: Path) -> None:
    document.of_report(anatomy.inspect(path), "pte-inspect")


def inspect_as_html(path: Path) -> None:
    page.of_report(anatomy.inspect(path))


COMMANDS: Mapping[str, Callable[[Path], None]] = MappingProxyType(
    {"verify": verify, "inspect": inspect, "inspect --format json": inspect_as_json, "--format html": inspect_as_html}
)


def read(path: Path) -> None:
    """All of it. Raises ``PteError`` if the file is refused; anything else that is raised is a bug."""
    if path.suffix == ".json":
        verify(path.parent)
        return
    if path.suffix != ".ptd":
        verify(path)
    report = anatomy.inspect(path, [])
    for line in text.of_report(report, Canvas(width=100, unicode=True, limit=None)):
        assert line.isprintable(), repr(line)
    document.of_report(report, "pte-inspect")
    page.of_report(report)
