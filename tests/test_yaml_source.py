"""YAML as plain values with lines; what a configuration file has no use for is refused by line."""

from __future__ import annotations

import pytest
import yaml

from pipeline import yaml_source
from pipeline.yaml_source import MAX_DEPTH, MAX_VALUES, Place, Unreadable, parse


@pytest.fixture(autouse=True, params=["CSafeLoader", "SafeLoader"])
def _either_loader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_source, "_LOADER", getattr(yaml, request.param))


def problems(text: str | bytes) -> list[str]:
    data = text if isinstance(text, bytes) else text.encode()
    return [f"{problem.line}: {problem.text}" for problem in parse(data).problems]


def test_a_value_is_placed_on_the_line_of_its_key() -> None:
    document = parse(b"# comment\na: 1\nb:\n  c:\n    long\n  d:\n    - x\n    - y\n")
    assert document.problems == []
    assert document.value == {"a": 1, "b": {"c": "long", "d": ["x", "y"]}}
    assert document.places == {
        (): Place(2),
        ("a",): Place(2, "1"),
        ("b",): Place(3),
        ("b", "c"): Place(4, "long"),
        ("b", "d"): Place(6),
        ("b", "d", 0): Place(7, "x"),
        ("b", "d", 1): Place(8, "y"),
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("text", "text"),
        ("0.1.2", "0.1.2"),
        ("'1'", "1"),
        ("=", "="),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("12", 12),
        ("-3", -3),
        ("1.5", 1.5),
        ("no", False),
        ("On", True),
        ("~", None),
        ("", None),
        ("[]", []),
    ],
)
def test_plain_values_are_read_as_yaml_reads_them(text: str, value: object) -> None:
    document = parse(f"a: {text}".encode())
    assert document.value == {"a": value}
    assert document.value is not None
    assert type(document.value["a"]) is type(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("2024-01-01", "which YAML reads as a date"),
        ("0512", "which YAML reads as a number not written in plain decimal"),
        ("0x10", "which YAML reads as a number not written in plain decimal"),
        ("5:12", "which YAML reads as a number not written in plain decimal"),
        ("1_000", "which YAML reads as a number not written in plain decimal"),
        ("9" * 10_000, "which is too large a number"),
        (".nan", "which is not a finite decimal number"),
        ("-.inf", "which is not a finite decimal number"),
        ("1:30.5", "which is not a finite decimal number"),
        ("*x", "an alias, and aliases are not used here"),
        ("!!binary aGk=", "a value with a tag, and tags are not used here"),
        ("!!python/name:os.system x", "a value with a tag, and tags are not used here"),
        (r'"\0"', "which holds a NUL or half a surrogate pair"),
    ],
)
def test_a_scalar_without_a_plain_value_is_kept_as_written(text: str, why: str) -> None:
    document = parse(f"a: {text}".encode())
    assert document.value == {"a": Unreadable(why)}
    assert document.places["a",].written == (text if text[0] != '"' else "\0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb: 2\na: 3\n", "3: duplicate field 'a'; it is already on line 1. Keep one."),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "3: the merge key '<<' stands here; expected fields. Write them out."),
        ("a: 1\n2: b\n", "2: the field name '2' is not text to YAML; expected a name of letters."),
        ("a: 1\nno: b\n", "2: the field name 'no' is not text to YAML; expected a name of letters."),
        ("a: 1\n? [x]\n: b\n", "2: a mapping or a list stands as a field name; expected plain text."),
        ("a: &x b\n*x : 1\n", "2: an alias stands as a field name; expected plain text."),
        ("a: !!set {b}\n", "1: the tag '!!set' stands here; expected no tag. Remove it."),
        ("a: 1\n--- \nb: 1\n", "2: a second document starts here; expected one. Give it its own file."),
        ("", "1: the file is empty; expected a mapping of fields."),
        ("# only a comment\n", "1: the file is empty; expected a mapping of fields."),
        ("---\n...\n", "1: the file is empty; expected a mapping of fields."),
        ("- a\n- b\n", "1: the file holds a list; expected a mapping of fields."),
        ("\nhello\n", "2: the file holds a single value; expected a mapping of fields."),
        ("a: 1\nb: \x07\n", "2: the file holds the control character '\\x07'; expected printable text."),
    ],
)
def test_what_a_configuration_has_no_use_for_is_refused_by_line(text: str, expected: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(expected)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: 1\nb: [1, 2\n", 3, "invalid YAML at column 1: "),
        ("a: 1\nb: c: d\n", 2, "Quote a text that contains ': ', and check the indentation."),
        ("a:\n\tb: 1\n", 2, "Indent with spaces, not tabs"),
        ("a: 1\nb: @x\n", 2, "quote a text that starts with a special character."),
        ("a: 'x\n", 2, "invalid YAML at column 1: "),
        ("%YAML 2.0\n---\na: 1\n", 1, "invalid YAML at column 1: "),
    ],
)
def test_bad_syntax_is_reported_on_its_line(text: str, line: int, words: str) -> None:
    (problem,) = problems(text)
    assert problem.startswith(f"{line}: invalid YAML")
    assert words in problem


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ("a: 1".encode("utf-16"), "1: the file starts like UTF-16 or UTF-32"),
        ("a: 1".encode("utf-16-be"), "1: the file holds a NUL byte"),
        ("a: 1".encode("utf-32"), "1: the file starts like UTF-16 or UTF-32"),
        (b"a: 1\nb: \0", "2: the file holds a NUL byte"),
        ("a: 1\nb: café".encode("latin-1"), "2: byte 0xe9 is not UTF-8"),
        (b"\x7fELF\x02\x01\x01\x80", "1: byte 0x80 is not UTF-8"),
    ],
)
def test_any_encoding_but_utf_8_is_refused(data: bytes, found: str) -> None:
    assert problems(data) == [f"{found}; expected UTF-8 text. Save the file as UTF-8."]


def test_a_byte_order_mark_and_windows_line_ends_are_accepted() -> None:
    document = parse("\ufeffa: é\r\nb: 2\r\n".encode())
    assert document.problems == []
    assert document.value == {"a": "é", "b": 2}
    assert document.places["b",].line == 2


def test_every_refused_key_is_reported_and_the_first_value_kept() -> None:
    document = parse(b"a: 1\na: [1, {b: c}]\n<<: {d: e}\n? {f: g}\n: h\ni: 2\n")
    assert [problem.line for problem in document.problems] == [2, 3, 4]
    assert document.value == {"a": 1, "i": 2}


def test_the_billion_laughs_do_not_expand() -> None:
    lines = ["l0: &l0 [ha, ha]"] + [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 30)]
    document = parse("\n".join(lines).encode())
    assert document.value is not None
    assert document.value["l29"] == [Unreadable("an alias, and aliases are not used here")] * 9


def test_an_alias_to_itself_is_not_followed() -> None:
    document = parse(b"a: &a [*a]\n")
    assert document.value == {"a": [Unreadable("an alias, and aliases are not used here")]}


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_deep_nesting_is_refused(opening: str) -> None:
    expected = f"2: values are nested more than {MAX_DEPTH} deep; expected fewer levels."
    assert problems("a:\n  " + opening * 50) == [expected]


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? ", "[? ", "&a [*a, "])
def test_nesting_as_deep_as_a_stack_is_refused_and_not_recursed_into(opening: str) -> None:
    (problem,) = problems(opening * 5_000)
    assert problem.startswith("1: ")


def test_more_values_than_any_manifest_needs_are_refused() -> None:
    (problem,) = problems(f"a: [{'1,' * MAX_VALUES}]")
    assert problem == f"1: the file holds more than {MAX_VALUES} values; expected fewer."
