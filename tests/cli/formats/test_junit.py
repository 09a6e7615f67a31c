"""JUnit XML within Jenkins' ``junit-10.xsd``, and within what GitLab reads of it."""

from __future__ import annotations

from xml.etree.ElementTree import Element, fromstring

import pytest

from pipeline.cli.formats import junit
from tests.cli.formats.runs import RUNS

# What the schema allows: element to attributes (those required first), and to the elements in it.
REQUIRED = {"testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
OPTIONAL = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url", "group"},
    "testcase": {"time", "classname", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
}
WITHIN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testsuite", "properties", "testcase", "system-out", "system-err"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err"},
}


def told(which: str) -> Element:
    return fromstring(junit.document(RUNS[which]))


def outcomes(root: Element) -> dict[str, list[tuple[str, str]]]:
    """Suite to cases, each with what became of it."""
    return {
        suite.attrib["name"]: [
            (case.attrib["name"], " ".join(child.tag for child in case) or "passed") for case in suite
        ]
        for suite in root
    }


@pytest.mark.parametrize("which", RUNS)
def test_every_run_is_within_the_schema(which: str) -> None:
    root = told(which)
    assert root.tag == "testsuites"
    for element in root.iter():
        assert {child.tag for child in element} <= WITHIN.get(element.tag, set())
        required = REQUIRED.get(element.tag, set())
        assert required <= set(element.attrib) <= required | OPTIONAL.get(element.tag, set())


@pytest.mark.parametrize("which", RUNS)
def test_the_counts_are_those_of_the_cases(which: str) -> None:
    root = told(which)
    for element in [root, *root.iter("testsuite")]:
        for name, tag in {"tests": "testcase", "failures": "failure", "errors": "error", "skipped": "skipped"}.items():
            if name != "skipped" or element.tag == "testsuite":
                assert element.attrib[name] == str(len(list(element.iter(tag))))


@pytest.mark.parametrize("which", RUNS)
def test_no_two_cases_share_a_key_of_gitlab_s_and_none_has_two_outcomes(which: str) -> None:
    cases = list(told(which).iter("testcase"))
    assert len({(case.attrib["classname"], case.attrib["name"]) for case in cases}) == len(cases)
    for case in cases:
        assert sum(child.tag in ("failure", "error", "skipped") for child in case) <= 1


def test_a_pair_is_a_case_that_passes_fails_or_is_skipped() -> None:
    assert outcomes(told("all")) == {
        "build/model.pte": [
            ("published values", "passed"),
            ("published, graph", "passed"),
            ("published, manifest", "skipped"),
            ("file", "passed"),
        ],
        "build/bad.pte": [
            ("published values", "failure"),
            ("published, graph", "failure"),
            ("published, manifest", "skipped"),
            ("file", "system-out"),
        ],
        "cut.pte": [("file", "error")],
    }


def test_a_failure_tells_the_rule_and_the_message() -> None:
    failure = told("bad").find(".//failure")
    assert failure is not None
    message = "PTE101 stop-ids: get_eos_ids is missing; expected one or more token ids. Rebuild the artifact."
    assert failure.attrib == {"type": "PTE101", "message": message}
    assert failure.text == message


def test_several_failures_of_a_pair_are_one_with_every_message() -> None:
    (failure,) = told("strict").iter("failure")
    assert failure.attrib == {"type": "PTE701", "message": OLD_SAID}
    (out,) = told("strict").iter("system-out")
    assert out.text == "note PTE702 alignment: 'w' begins at byte 3; expected a multiple of 16."


OLD_SAID = "PTE701 version: The file is of executorch 1.4; expected 1.5. Rebuild the artifact."


def test_what_does_not_fail_the_run_fails_no_case() -> None:
    for which in ("warned", "lenient"):
        root = told(which)
        assert root.attrib["failures"] == "0"
        assert root.find(".//failure") is None
    (out,) = told("warned").iter("system-out")
    assert out.text == f"warning {OLD_SAID}\nnote PTE702 alignment: 'w' begins at byte 3; expected a multiple of 16."


def test_an_unreadable_file_is_an_error() -> None:
    error = told("unreadable").find(".//error")
    assert error is not None
    problem = "it ends after 7 bytes; expected a .pte. Build it again."
    assert error.attrib == {"type": "unreadable", "message": problem}
    assert error.text == f"cut.pte: {problem}"


def test_a_name_that_xml_cannot_say_is_escaped() -> None:
    for suite in told("hostile"):
        assert suite.attrib["name"].startswith("'a\\n::error::b\\x1b[31m\\udcff\\x00\\ufffe,:%{0}[x](y)<&>\"")
