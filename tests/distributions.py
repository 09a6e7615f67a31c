"""What others install: the two distributions of this checkout, and an environment with the base install alone.

A distribution is made of the files as they are here, committed or not, with or without a ``.git``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# The checkout's package must not be found in place of an installed one.
ELSEWHERE = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}

_SIZES = """
import json
from importlib.metadata import distributions
files = {one.name: [one.locate_file(file) for file in one.files] for one in distributions()}
print(json.dumps({name: sum(file.stat().st_size for file in found if file.is_file()) for name, found in files.items()}))
"""


@dataclass(frozen=True)
class Distributions:
    """The files that a package index would offer."""

    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class BaseInstall:
    """A virtual environment without pip, into which the wheel was installed with what it depends on."""

    directory: Path

    def run(self, cwd: Path, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a program of the environment."""
        program = self.directory / "bin" / command[0]
        return subprocess.run(
            [program, *command[1:]], cwd=cwd, env=ELSEWHERE, capture_output=True, text=True, check=False
        )

    def sizes_bytes(self) -> dict[str, int]:
        """Of every distribution in the environment, by its name."""
        sizes: dict[str, int] = json.loads(self.run(self.directory, "python", "-c", _SIZES).stdout)
        return sizes


def build(source: Path, directory: Path, *arguments: str) -> Path:
    """``directory``, into which a distribution of each kind asked for was built from ``source``."""
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(directory), *arguments]
    subprocess.run(command, cwd=source, env=ELSEWHERE, capture_output=True, check=True)
    return directory


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Built in half a second."""
    directory = build(ROOT, tmp_path_factory.mktemp("distributions"))
    (sdist,), (wheel,) = directory.glob("*.tar.gz"), directory.glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="session")
def source_tree(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, unpacked where a path has a space."""
    directory = tmp_path_factory.mktemp("source") / "with a space"
    shutil.unpack_archive(distributions.sdist, directory, filter="data")
    (tree,) = directory.iterdir()
    return tree


@pytest.fixture(scope="session")
def base_install(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    """Installed in a few seconds, from the package index."""
    directory = tmp_path_factory.mktemp("base") / "venv"
    python = str(directory / "bin" / "python")
    for command in (["venv", "--without-pip", directory], ["pip", "--python", python, "install", distributions.wheel]):
        subprocess.run([sys.executable, "-m", *map(str, command)], env=ELSEWHERE, capture_output=True, check=True)
    return BaseInstall(directory)
