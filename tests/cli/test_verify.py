"""``pte verify`` says what it found in the form that was asked for, and its exit code says how bad it is."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pipeline.cli.formats import FORMATS
from pipeline.cli.main import main
from pipeline.verify import RULES

GOOD, BAD, CUT = "good.pte", "bad.pte", "cut.pte"


@pytest.fixture
def files(tiny_pte: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a file that holds, one that does not, and one that cannot be read."""
    monkeypatch.chdir(tmp_path)
    data = tiny_pte.path.read_bytes()
    Path(GOOD).write_bytes(data)
    Path(BAD).write_bytes(data.replace(b"get_windows", b"got_windows"))
    Path(CUT).write_bytes(data[:100])
    return tmp_path


def pte(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pipeline", "verify", *arguments]
    environment = {**os.environ, **environment}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def parse(name: str, text: str) -> Any:
    """A document of that format, if it is whole; GitHub's lines as they are."""
    if name in ("json", "sarif"):
        return json.loads(text)
    return ElementTree.fromstring(text) if name == "junit" else text.splitlines()


def test_a_good_file_gets_a_line_and_what_it_rests_on(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", GOOD]) == 0
    out, err = capsys.readouterr()
    head, *basis = out.splitlines()
    assert head == f"ok  {GOOD}  (2 caches, vocab 11, fp32, steps of 6 in 32 tokens, last logits)"
    assert re.fullmatch(r"    [\d.]+ kB, held to \S.*", basis[0])
    assert basis[1].startswith("    compared: published values; published, graph")
    assert all(line.startswith("    not compared: ") for line in basis[2:])
    assert err == ""


def test_findings_are_told_and_give_one(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", BAD]) == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"fail  {BAD}")
    (finding,) = [line for line in out.splitlines() if "get_windows is missing" in line]
    match = re.match(r"    error (PTE\d+) ", finding)
    assert match
    assert f"Why a rule is there: pte verify --explain {match[1]}\n" in out
    assert err == ""


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    ("paths", "fail_on", "code"),
    [
        ([GOOD], "error", 0),
        ([GOOD, BAD], "error", 1),
        ([BAD], "note", 1),
        ([BAD], "never", 0),
        ([CUT], "never", 3),
        ([CUT, BAD, GOOD], "error", 3),
        (["absent.pte"], "error", 3),
        (["."], "error", 3),
    ],
)
def test_the_exit_code_is_the_same_in_every_format(
    name: str, paths: list[str], fail_on: str, code: int, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *paths, "--format", name, "--fail-on", fail_on]) == code
    parse(name, capsys.readouterr().out)


def test_an_unreadable_file_does_not_stop_the_others(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "absent.pte", GOOD]) == 3
    out, err = capsys.readouterr()
    assert out.startswith(f"ok  {GOOD}  (")
    assert out.endswith("2 files: 1 passed, 1 cannot be read\n")
    assert err == "absent.pte: there is no such file; expected a .pte. Build it, or correct the path.\n"


def test_a_name_that_no_file_can_have_is_unreadable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "x" * 300]) == 3
    assert (
        capsys.readouterr().err
        == f"{'x' * 300}: cannot be read (File name too long); expected a .pte file. Check the path.\n"
    )


@pytest.mark.parametrize("name", ["json", "junit", "sarif", "github"])
def test_standard_output_is_the_document_and_nothing_else(
    name: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", CUT, BAD, GOOD, "--format", name]) == 3
    out, err = capsys.readouterr()
    found = parse(name, out)
    assert err.startswith(f"{CUT}: ")
    assert err.count("\n") == 1
    if name == "json":
        assert [file["status"] for file in found["files"]] == ["unreadable", "failed", "passed"]
    elif name == "junit":
        assert [suite.get("name") for suite in found] == [CUT, BAD, GOOD]
    elif name == "sarif":
        assert not found["runs"][0]["invocations"][0]["executionSuccessful"]
        assert found["runs"][0]["results"]
    else:
        assert found[0].startswith(f"::error file={CUT},title=cannot be read::")


def test_a_manifest_is_held_against_the_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("tiny.yaml").write_text(
        "version: 1\n"
        "name: tiny\n"
        "model: {id: a/b, source: {path: somewhere}}\n"
        "dtype: fp32\n"
        "max_seq_len: 6\n"
        "max_context_len: 64\n"
        "backend: mlx\n"
        "smoke: {prompts: [{name: hello, user: Hello, expect: world, max_new_tokens: 4}]}\n",
        encoding="utf-8",
    )
    assert main(["verify", GOOD, "--manifest", "tiny.yaml"]) == 1
    out = capsys.readouterr().out
    assert "get_max_context_len says 32 but the manifest asks for 64. Rebuild the artifact.\n" in out
    assert "compared: published values; published, graph; published, manifest; graph, manifest" in out


def test_a_bundle_is_its_model_and_a_directory_all_that_is_in_it(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bundles/tiny").mkdir(parents=True)
    Path(GOOD).rename("bundles/tiny/model.pte")
    for path in ("bundles/tiny", "bundles", "bundles/*/model.pte", "bund*/**"):
        assert main(["verify", path]) == 0
        assert capsys.readouterr().out.startswith("ok  bundles/tiny/model.pte  (")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["*.ptd"], "*.ptd: nothing matches; expected artifacts. Build them, or correct the path.\n"),
        ([GOOD, "--manifest", "no.yaml"], "no.yaml: cannot be read (No such file or directory); expected a YAML file."),
        ([GOOD, "--contract", "nonesuch"], "contract 'nonesuch': there is no such contract; expected one of "),
        (
            [GOOD, "--contract", "no.json"],
            "no.json: there is no such file; expected a JSON schema. Correct the path.\n",
        ),
        (
            [GOOD, "--tokenizer", "nowhere"],
            "--tokenizer: there is no nowhere; expected a tokenizer's directory or file.\n",
        ),
    ],
)
@pytest.mark.parametrize("name", FORMATS)
def test_what_is_asked_for_and_is_not_there_gives_two_before_anything_is_read(
    name: str, arguments: list[str], message: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", CUT, *arguments, "--format", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: PATH"),
        (["x.pte", "--jobs", "0"], "argument --jobs: '0' is no number of processes; expected 1 or more"),
        (["x.pte", "--jobs", "many"], "argument --jobs: 'many' is no number of processes; expected 1 or more"),
        (["x.pte", "--format", "html"], "argument --format: invalid choice: 'html'"),
        (["x.pte", "--fail-on", "info"], "argument --fail-on: invalid choice: 'info'"),
        (["--explain", "PTE999"], "argument --explain: 'PTE999' is no rule; expected one of PTE1"),
    ],
)
def test_a_wrong_command_line_gives_two(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["verify", *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_explained(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(["verify", "--explain", rule.lower()])
    assert exit_.value.code == 0
    assert rule in capsys.readouterr().out.splitlines()[0]


@pytest.mark.parametrize("name", FORMATS)
def test_a_report_goes_to_a_file_and_the_text_to_people(
    name: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", GOOD, BAD, CUT, "--format", name]) == 3
    document = capsys.readouterr().out
    assert main(["verify", GOOD, BAD, CUT]) == 3
    for_people = capsys.readouterr()
    assert main(["verify", GOOD, BAD, CUT, "--format", name, "--output", "report"]) == 3
    assert capsys.readouterr() == for_people
    report = Path("report").read_text(encoding="utf-8")
    if name == "text":
        assert [line for line in report.splitlines() if not line.startswith(CUT)] == document.splitlines()
        assert for_people.err in report
    else:
        assert report == document


@pytest.mark.parametrize(("path", "code"), [(GOOD, 1), (BAD, 1), (CUT, 3)])
@pytest.mark.parametrize(
    ("output", "reason"),
    [("/dev/full", "No space left on device"), ("no/where", "No such file or directory"), (".", "Is a directory")],
)
def test_a_report_that_cannot_be_written_is_a_failure(
    path: str, code: int, output: str, reason: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", path, "--format", "json", "--output", output]) == code
    assert capsys.readouterr().err.endswith(f"{output}: {reason}; the report could not be written.\n")


@pytest.mark.parametrize(
    ("name", "paths", "code"),
    [*((name, [GOOD], 0) for name in FORMATS), ("json", [GOOD, BAD], 1), ("junit", [BAD, CUT], 3)],
)
def test_whatever_becomes_of_the_output_the_exit_code_stays(
    name: str, paths: list[str], code: int, files: Path
) -> None:
    script = '"$@" | head -c 0; echo ${PIPESTATUS[0]}; "$@" >&- 2>&-; echo $?; "$@" >/dev/full; echo $?'
    command = [sys.executable, "-m", "pipeline", "verify", *paths, "--format", name]
    done = subprocess.run(["bash", "-c", script, "bash", *command], capture_output=True, text=True, check=False)
    # About a file without findings, GitHub's format has nothing to say that could be lost.
    full = code if name == "github" else code or 1
    assert done.stdout.split() == [str(code), str(code), str(full)]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("name", "encoding"), [*((name, "ascii") for name in FORMATS), ("text", "utf-8")])
def test_a_hostile_name_breaks_no_format(name: str, encoding: str, files: Path) -> None:
    hostile = b"-\n::error::x\r\x1b[31m\xff\xe2\x80\xae<&>\"',:%]].pte"
    names = [os.fsdecode(one.encode() + hostile) for one in "abc"]
    for one, name_ in zip((GOOD, BAD, CUT), names, strict=True):
        Path(one).rename(name_)
    done = pte(*names, "--format", name, PYTHONIOENCODING=encoding)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    assert all(line.isprintable() for line in (done.stdout + done.stderr).split("\n"))
    found = parse(name, done.stdout)
    if name == "json":
        assert [file["file"][1:] for file in found["files"]] == [hostile.decode("utf-8", "backslashreplace")] * 3
    if name == "github":
        assert all(line.startswith("::error file=") for line in found)


@pytest.mark.parametrize("name", FORMATS)
def test_several_processes_say_what_one_says(name: str, files: Path) -> None:
    for index in range(5):
        Path(f"good{index}.pte").symlink_to(GOOD)
    Path("empty").mkdir()
    alone, together, by_default = (
        pte("*.pte", "gone.pte", "--format", name, *jobs) for jobs in ((J, "1"), (J, "3"), ())
    )
    assert alone.returncode == together.returncode == 3
    assert alone.stdout == together.stdout == by_default.stdout
    assert alone.stderr == together.stderr == by_default.stderr
    assert alone.stdout.count("good4.pte") == alone.stdout.count("good0.pte")


J = "--jobs"


def test_a_process_that_dies_takes_no_file_s_outcome_with_it(files: Path) -> None:
    """As if the system had run out of memory on one of them."""
    script = (
        "import multiprocessing, os, sys, pipeline.verify as verify; from pipeline.cli.main import main\n"
        "multiprocessing.set_start_method('fork'); examine = verify.examine\n"
        "verify.examine = lambda path, question: os._exit(9) if path.name == 'bad.pte' else examine(path, question)\n"
        "sys.exit(main(['verify', *sys.argv[1:]]))"
    )
    command = [sys.executable, "-c", script, GOOD, BAD, "--jobs", "2", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    *_, dead = json.loads(done.stdout)["files"]
    assert dead == {
        "file": BAD,
        "status": "unreadable",
        "problem": "a process that examined it, or others beside it, was ended from outside. Use --jobs 1.",
    }


@pytest.mark.parametrize(
    ("environment", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_a_terminal_gets_colours_unless_they_are_refused(
    environment: dict[str, str], coloured: bool, files: Path
) -> None:
    ours, theirs = pty.openpty()
    environment = {"TERM": "xterm", "COLUMNS": "60"} | environment
    command = [sys.executable, "-m", "pipeline", "verify", BAD]
    kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    done = subprocess.run(command, stdout=theirs, env=kept | environment, check=False, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert done.returncode == 1
    assert ("\x1b[31mfail\x1b[0m  bad.pte" in shown) is coloured
    lines = re.sub(r"\x1b\[\d+m", "", shown).split("\r\n")
    assert max(map(len, lines[1:])) <= 60


def test_a_cold_process_is_quick_and_imports_no_more_than_it_needs(files: Path) -> None:
    """The bound is generous for a busy machine; torch alone would take longer."""
    script = (
        "import sys; from pipeline.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'executorch', 'numpy', 'transformers', 'mlx', 'yaml', 'jsonschema', 'xml', "
        "'multiprocessing', 'concurrent', 'importlib.metadata', 'textwrap'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script, "verify", GOOD], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert time.perf_counter() - start < 2
