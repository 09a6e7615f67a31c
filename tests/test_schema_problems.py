"""Each way a manifest can differ from its schema is one sentence: found, expected, what to do."""

from __future__ import annotations

import pytest

from pipeline import schema_problems
from pipeline.yaml_source import parse

GOOD = """\
version: 1
name: tiny
model:
  id: org/tiny
  source:
    path: model
dtype: bf16
max_seq_len: 8
max_context_len: 64
backend: mlx
smoke:
  prompts:
    - name: capital
      user: What is the capital of France?
      expect: Paris
"""
NAME = "at most 64 of a-z, 0-9, '.', '_' and '-', with a letter or digit first and no '.' last"
COUNT = "an integer from 1 to 2147483647"
MANY = "9" * 5000
LATER_CACHE = "11: cache.placement is 'in_graph'; expected off_graph. A later version adds in_graph."


def problems(text: str) -> list[str]:
    document = parse(text.encode())
    assert document.problems == []
    return [f"{problem.line}: {problem.text}" for problem in schema_problems.find(document, "manifest")]


def test_a_good_document_has_no_problem() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("bf16", "bf15", "7: dtype is 'bf15'; expected fp32, fp16 or bf16. Did you mean 'bf16'?"),
        ("bf16", "FP16", "7: dtype is 'FP16'; expected fp32, fp16 or bf16. Did you mean 'fp16'?"),
        ("bf16", "int8", "7: dtype is 'int8'; expected fp32, fp16 or bf16."),
        ("bf16", "32", "7: dtype is 32; expected fp32, fp16 or bf16."),
        ("bf16", "", "7: dtype is empty; expected fp32, fp16 or bf16."),
        ("bf16", "[bf16]", "7: dtype is a list; expected fp32, fp16 or bf16."),
        ("bf16", r'"bf\e16"', r"7: dtype is 'bf\x1b16'; expected fp32, fp16 or bf16. Did you mean 'bf16'?"),
        ("mlx", "coreml", "10: backend is 'coreml'; expected mlx."),
        ("version: 1", "version: 2", "1: version is 2; expected 1."),
        ("version: 1", "version: true", "1: version is true, which YAML reads as a boolean; expected 1."),
        ("version: 1", "version: 1.0", "1: version is 1.0, which YAML reads as a number; expected 1."),
        ("name: tiny", "name: Tiny", f"2: name is 'Tiny'; expected {NAME}."),
        ("name: tiny", "name: tiny.", f"2: name is 'tiny.'; expected {NAME}."),
        ("name: tiny", "name: ../up", f"2: name is '../up'; expected {NAME}."),
        ("name: tiny", r'name: "tiny\n"', rf"2: name is 'tiny\n'; expected {NAME}."),
        ("name: tiny", f"name: {'a' * 65}", f"2: name is '{'a' * 65}'; expected {NAME}."),
        ("_len: 8", "_len: 0", f"8: max_seq_len is 0; expected {COUNT}."),
        ("_len: 8", "_len: '8'", f"8: max_seq_len is '8'; expected {COUNT}. Remove the quotes."),
        ("_len: 8", "_len: yes", f"8: max_seq_len is yes, which YAML reads as a boolean; expected {COUNT}."),
        ("_len: 8", "_len: 8.0", f"8: max_seq_len is 8.0, which YAML reads as a number; expected {COUNT}."),
        ("_len: 8", "_len: .inf", f"8: max_seq_len is .inf, which is not a finite decimal number; expected {COUNT}."),
        ("_len: 8", "_len: 3000000000", "8: max_seq_len is 3000000000; expected an integer of at most 2147483647."),
        (
            "_len: 8",
            f"_len: {MANY}",
            f"8: max_seq_len is {MANY[:120]}…, which is too large a number; expected {COUNT}.",
        ),
        ("org/tiny", "a model", "4: model.id is 'a model'; expected a name without spaces, such as 'org/name'."),
        ("backend: mlx", "backend: mlx\ncache: {placement: in_graph}", LATER_CACHE),
        ("backend: mlx", "backend: mlx\nlogits: all", "11: logits is 'all'; expected last, full or selected."),
        (
            "  prompts:",
            "  prompts: []\n  x:",
            "12: smoke.prompts is a list with nothing in it; expected a list of at least 1.",
        ),
    ],
)
def test_a_wrong_value_is_quoted_with_what_was_expected(old: str, new: str, expected: str) -> None:
    assert expected in problems(GOOD.replace(old, new, 1))


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("no", "no, which YAML reads as a boolean; expected text that is not blank. Quote it: 'no'."),
        (
            "1789-07-14",
            "1789-07-14, which YAML reads as a date; expected text that is not blank. Quote it: '1789-07-14'.",
        ),
        ("42", "42; expected text that is not blank. Quote it: '42'."),
        ("~", "~, which YAML reads as nothing; expected text that is not blank. Quote it: '~'."),
        ("*a", "*a, an alias, and aliases are not used here; expected text that is not blank. Quote it: '*a'."),
        ("!a", "!a, a value with a tag, and tags are not used here; expected text that is not blank. Quote it: '!a'."),
        ("", "empty; expected text that is not blank."),
        ("' '", "' '; expected text that is not blank."),
        ("{a: b}", "a mapping; expected text that is not blank."),
    ],
)
def test_what_is_not_text_to_yaml_is_quoted_where_that_helps(written: str, found: str) -> None:
    text = GOOD.replace("expect: Paris", f"expect: {written}")
    assert problems(text) == [f"15: smoke.prompts[0].expect is {found}"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{}", ["5: model.source is empty; expected exactly one of hub, path or wheel."]),
        (
            "{path: a, hub: {repo: o/n, revision: r}}",
            ["5: model.source has hub and path; expected exactly one of hub, path or wheel."],
        ),
        (
            "{hub: {repo: ../.., revision: ''}}",
            [
                "6: model.source.hub.repo is '../..'; expected a repository as 'org/name'.",
                "6: model.source.hub.revision is ''; expected a full commit hash (40 hexadecimal digits).",
            ],
        ),
        (
            "{wheel: {package: -p, version: 0.1, sha256: ABC, file: a.bin}}",
            [
                "6: model.source.wheel.package is '-p'; expected the name of a package.",
                "6: model.source.wheel.version is 0.1, which YAML reads as a number;"
                " expected one exact version, such as '0.1.2'. Quote it: '0.1'.",
                "6: model.source.wheel.sha256 is 'ABC'; expected 64 lowercase hexadecimal digits.",
                "6: model.source.wheel.file is 'a.bin'; expected the path of a .gguf file inside the wheel.",
            ],
        ),
    ],
)
def test_a_source_is_exactly_one_kind_fully_pinned(source: str, expected: list[str]) -> None:
    text = GOOD.replace("    path: model", f"    {source}")
    assert problems(text) == expected


@pytest.mark.parametrize("field", ["linear", "embedding"])
def test_the_schemes_of_quantization_are_listed(field: str) -> None:
    expected = f"16: quantization.{field} is '3w'; expected none, 4w, 8w, nvfp4 or mxfp8."
    assert problems(f"{GOOD}quantization: {{{field}: 3w}}\n") == [expected]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("dtype:", "dytpe:", "7: unknown field 'dytpe'. Did you mean 'dtype'?"),
        ("max_seq_len:", "max_seq_length:", "8: unknown field 'max_seq_length'. Did you mean 'max_seq_len'?"),
        ("  source:", "  sorce:", "5: unknown field 'model.sorce'. Did you mean 'source'?"),
        ("    path:", "    paths:", "6: unknown field 'model.source.paths'. Did you mean 'path'?"),
        ("expect:", "expects:", "15: unknown field 'smoke.prompts[0].expects'. Did you mean 'expect'?"),
    ],
)
def test_a_misspelt_key_is_answered_with_the_right_one_and_nothing_else(old: str, new: str, expected: str) -> None:
    assert problems(GOOD.replace(old, new, 1)) == [expected]


def test_a_key_like_no_other_is_answered_with_the_choices() -> None:
    assert problems(GOOD.replace("  id:", "  zzz: 1\n  id:", 1)) == [
        "4: unknown field 'model.zzz'; expected id or source."
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("max_seq_len: 8\n", "1: max_seq_len is missing; expected an integer from 1 to 2147483647."),
        ("dtype: bf16\n", "1: dtype is missing; expected fp32, fp16 or bf16."),
        ("version: 1\n", "1: version is missing; expected 1."),
        ("  id: org/tiny\n", "3: model.id is missing; expected a name without spaces, such as 'org/name'."),
        (GOOD[GOOD.index("smoke") :], "1: smoke is missing; expected a mapping with prompts."),
        (
            GOOD[GOOD.index("model") : GOOD.index("dtype")],
            "1: model is missing; expected a mapping with id and source.",
        ),
        ("      expect: Paris\n", "13: smoke.prompts[0].expect is missing; expected text that is not blank."),
    ],
)
def test_a_missing_field_is_reported_on_the_line_of_its_mapping(line: str, expected: str) -> None:
    assert problems(GOOD.replace(line, "", 1)) == [expected]


def test_a_long_value_is_cut_in_the_message() -> None:
    (problem,) = problems(GOOD.replace("bf16", "x" * 100_000))
    assert len(problem) < 200
