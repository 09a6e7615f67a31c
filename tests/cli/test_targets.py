"""A command line names files, bundles, directories and patterns; each artifact is looked at once, none goes missing."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.cli import targets
from pipeline.errors import UsageError


@pytest.fixture(autouse=True)
def _in_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in (
        "b.pte",
        "a.pte",
        "notes.txt",
        "build/one.pte",
        "build/deep/two.pte",
        "build/deep/log.txt",
        "build/.hidden/three.pte",
        "build/.four.pte",
        "bundles/x/model.pte",
        "bundles/x/tokenizer.json",
        "bundles/y/model.pte",
        "bundles/y/draft.pte",
    ):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).touch()
    Path("nothing/here").mkdir(parents=True)


def found(*arguments: str) -> list[str]:
    return list(map(str, targets.find(arguments)))


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("b.pte", ["b.pte"]),
        ("./build/../b.pte", ["build/../b.pte"]),
        ("notes.txt", ["notes.txt"]),
        ("absent.pte", ["absent.pte"]),
        ("bundles/x", ["bundles/x/model.pte"]),
        ("bundles/x/model.pte", ["bundles/x/model.pte"]),
        ("bundles/y", ["bundles/y/draft.pte", "bundles/y/model.pte"]),
        ("bundles", ["bundles/x/model.pte", "bundles/y/draft.pte", "bundles/y/model.pte"]),
        ("build", ["build/one.pte", "build/deep/two.pte"]),
        ("build/.hidden", ["build/.hidden/three.pte"]),
        ("*.pte", ["a.pte", "b.pte"]),
        ("[!a].pte", ["b.pte"]),
        ("?.pte", ["a.pte", "b.pte"]),
        ("build/*", ["build/deep/two.pte", "build/one.pte"]),
        ("build/.*.pte", ["build/.four.pte"]),
        ("bundles/*", ["bundles/x/model.pte", "bundles/y/draft.pte", "bundles/y/model.pte"]),
        ("bundles/*/model.pte", ["bundles/x/model.pte", "bundles/y/model.pte"]),
        ("build/**/*.pte", ["build/one.pte", "build/deep/two.pte"]),
        ("build/**/**/*.pte", ["build/one.pte", "build/deep/two.pte"]),
        ("build/**", ["build/one.pte", "build/deep/two.pte"]),
        ("**/two.pte", ["build/deep/two.pte"]),
        ("**/deep/*.txt", ["build/deep/log.txt"]),
    ],
)
def test_an_argument_names_its_artifacts_in_order(argument: str, expected: list[str]) -> None:
    assert found(argument) == expected


def test_a_pattern_may_be_absolute(tmp_path: Path) -> None:
    assert found(f"{tmp_path}/**/o*.pte") == [f"{tmp_path}/build/one.pte"]


def test_each_artifact_comes_once_under_the_name_it_had_first(tmp_path: Path) -> None:
    assert found("b.pte", "*.pte", "./b.pte", str(tmp_path / "a.pte")) == ["b.pte", "a.pte"]
    assert found("bundles/x/model.pte", "bundles/x") == ["bundles/x/model.pte"]
    Path("link").symlink_to("build", target_is_directory=True)
    assert found("build/one.pte", "link/one.pte", "link/../b.pte", "b.pte") == ["build/one.pte", "link/../b.pte"]


def test_two_names_of_one_file_are_two_artifacts_but_a_link_to_a_directory_is_a_route() -> None:
    Path("latest.pte").symlink_to("a.pte")
    Path("bundles/newest").symlink_to("x", target_is_directory=True)
    Path("bundles/z").symlink_to("../build", target_is_directory=True)
    assert found("*.pte") == ["a.pte", "b.pte", "latest.pte"]
    assert found("bundles") == ["bundles/newest/model.pte", "bundles/y/draft.pte", "bundles/y/model.pte"]
    assert found("bundles/z") == ["bundles/z/one.pte", "bundles/z/deep/two.pte"]


def test_a_path_through_a_link_and_back_is_where_the_system_says() -> None:
    Path("elsewhere/inner").mkdir(parents=True)
    Path("elsewhere/b.pte").touch()
    Path("link").symlink_to("elsewhere/inner", target_is_directory=True)
    assert found("b.pte", "link/../b.pte") == ["b.pte", "link/../b.pte"]


def test_a_file_that_is_called_like_a_pattern_is_that_file() -> None:
    Path("[a].pte").touch()
    assert found("[a].pte") == ["[a].pte"]


def test_circles_and_broken_links_end() -> None:
    Path("build/up").symlink_to("..", target_is_directory=True)
    Path("build/self").symlink_to("self")
    Path("build/broken.pte").symlink_to("absent.pte")
    assert found("build") == found("build/**/*.pte") == ["build/broken.pte", "build/one.pte", "build/deep/two.pte"]


def test_directories_nest_deeper_than_python_recurses(tmp_path: Path) -> None:
    depth = sys.getrecursionlimit() + 100
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
    Path("x.pte").touch()
    os.chdir(tmp_path)
    try:
        assert found("d") == found("**/x.pte") == found("*/" * depth + "x.pte") == ["d/" * depth + "x.pte"]
    finally:
        os.chdir("d/" * depth)
        Path("x.pte").unlink()
        for _ in range(depth):
            os.chdir("..")
            Path("d").rmdir()


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("*.ptd", "*.ptd: nothing matches; expected artifacts. Build them, or correct the path."),
        ("nothing/**", "nothing/**: nothing matches; expected artifacts. Build them, or correct the path."),
        ("notes.txt/*", "notes.txt/*: nothing matches; expected artifacts. Build them, or correct the path."),
        ("a\n*", "'a\\n*': nothing matches; expected artifacts. Build them, or correct the path."),
        (
            "nothing",
            "nothing: it holds no .pte; expected a bundle, or a directory of artifacts. "
            "Build them, or correct the path.",
        ),
        ("", "'': an empty path; expected a .pte, a bundle, a directory or a pattern."),
    ],
)
def test_what_names_no_artifact_is_a_mistake_in_the_command_line(argument: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        found("a.pte", argument)
    assert str(error.value) == message


def test_a_working_directory_that_is_gone_is_told() -> None:
    Path("gone").mkdir()
    os.chdir("gone")
    Path("../gone").rmdir()
    with pytest.raises(UsageError) as error:
        found("a.pte")
    assert str(error.value) == ("the working directory: No such file or directory; expected one to find files from.")


@pytest.mark.parametrize("argument", ["build", "build/**/*.pte", "build/*/*.pte", "build/**"])
def test_a_directory_that_cannot_be_listed_is_not_passed_over(argument: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> Any:
        if path.name == "deep":
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    reason = "cannot be listed (Permission denied); expected a directory of artifacts."
    assert targets.Closed(Path("build/deep"), reason) in targets.find([argument])
