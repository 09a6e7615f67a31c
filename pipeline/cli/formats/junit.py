"""JUnit XML, in the dialect that Jenkins' ``junit-10.xsd`` describes and GitLab reads.

A file is a suite and a pair is a test case, so that a dashboard sees the same cases from run to run: passed, failed,
or skipped where nothing was there to compare with. GitLab takes the first failure of a case and drops a second case of
the same ``classname`` and ``name``, hence one failure with all messages, and the file as the class.
"""

from __future__ import annotations

from collections.abc import Iterable
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from pipeline.cli.formats import Outcome, Run, Unreadable, fails, pairs
from pipeline.cli.plain import name, plain
from pipeline.verify.findings import Finding, Pair, Severity

_COUNTED = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def document(run: Run) -> str:
    """``testsuites`` of one ``testsuite`` for each file, in ASCII."""
    root = Element("testsuites", name="pte verify")
    for outcome in run.outcomes:
        root.append(_suite(outcome, run.fail_on))
    # The dialect counts what is skipped in each suite alone.
    _count(root, ("failures", "errors"))
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="us-ascii").decode("ascii")}\n'


def _suite(outcome: Outcome, fail_on: Severity | None) -> Element:
    file = name(outcome.file)
    suite = Element("testsuite", name=file)
    if isinstance(outcome, Unreadable):
        case = SubElement(suite, "testcase", classname=file, name=str(Pair.FILE))
        problem = plain(outcome.problem)
        SubElement(case, "error", type="unreadable", message=problem).text = f"{file}: {problem}"
    else:
        for pair, why_not, found in pairs(outcome):
            case = SubElement(suite, "testcase", classname=file, name=str(pair))
            _tell(case, why_not, found, fail_on)
    _count(suite, _COUNTED)
    return suite


def _tell(case: Element, why_not: str | None, found: list[Finding], fail_on: Severity | None) -> None:
    failing = [finding for finding in found if fails(finding, fail_on)]
    others = [finding for finding in found if not fails(finding, fail_on)]
    if failing:
        kinds = ", ".join(dict.fromkeys(finding.rule.id for finding in failing))
        message = _said(failing[0]) if len(failing) == 1 else f"{len(failing)} findings: {kinds}"
        SubElement(case, "failure", type=kinds, message=message).text = "\n".join(map(_said, failing))
    elif why_not is not None:
        SubElement(case, "skipped", message=plain(why_not))
    if others:
        SubElement(case, "system-out").text = "\n".join(
            f"{finding.rule.severity} {_said(finding)}" for finding in others
        )


def _said(finding: Finding) -> str:
    return f"{finding.rule.id} {finding.rule.name}: {plain(finding.message)}"


def _count(element: Element, counts: Iterable[str]) -> None:
    element.set("tests", str(sum(1 for _ in element.iter("testcase"))))
    for count in counts:
        element.set(count, str(sum(1 for _ in element.iter(_COUNTED[count]))))
