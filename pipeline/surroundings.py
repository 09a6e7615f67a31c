"""What the machine contributes to keys: library versions, the platform, and the source of each step.

Reads package metadata and source files; imports nothing that a step runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path

from pipeline import schema
from pipeline.errors import FetchError
from pipeline.plan import Surroundings
from pipeline.snapshot import local_files
from pipeline.store.digests import DigestMemo

PACKAGE = Path(__file__).resolve().parent

# Folders of schemas that a step reads besides the modules it imports.
SCHEMAS = {"verify": ("contracts",)}


def of_this_machine(memo: DigestMemo) -> Surroundings:
    """The surroundings of a build here; ``memo`` remembers digests of local model files."""

    def digests(path: Path) -> Mapping[str, str]:
        try:
            return {name: memo.sha256(file) for name, file in local_files(path).items()}
        except OSError as error:
            raise FetchError(
                f"{path}: model.source.path cannot be read ({error.strerror}); expected a directory or a .gguf file."
            ) from error

    return Surroundings(version=_version, platform=_platform(), source=source_digest, local_files=digests)


@cache
def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _platform() -> str:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"{platform.system()} {platform.machine()} python {python}"


@cache
def source_digest(step: str) -> str:
    """One digest of the step's module and every module of ours it imports, directly or not, in any place.

    Imports are read, not followed: they are absolute and by statement in this package, and a test holds them to it.
    """
    digest = hashlib.sha256()
    for module in sorted(_closure(f"pipeline.steps.{step}")):
        digest.update(module.encode() + b"\0" + _parsed(module)[0].encode() + b"\0")
    for folder in SCHEMAS.get(step, ()):
        for name in schema.names(folder):
            digest.update(name.encode() + json.dumps(schema.load(name), sort_keys=True).encode())
    return digest.hexdigest()


def _closure(entry: str) -> set[str]:
    found: set[str] = set()
    waiting = [entry]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += _parsed(module)[1]
    return found


@cache
def _parsed(module: str) -> tuple[str, tuple[str, ...]]:
    """The sha256 of a module's source, and the modules of ours that it imports."""
    file = _file(module)
    assert file is not None, f"{module} is no module of ours"
    source = file.read_bytes()
    imports: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            imports.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            imports.add(node.module)
            imports.update(f"{node.module}.{alias.name}" for alias in node.names)
    # Importing a module runs the packages that it lies in.
    imports.update(package for name in tuple(imports) for package in accumulate(name.split("."), "{}.{}".format))
    ours = tuple(name for name in imports if name.startswith("pipeline.") and _file(name) is not None)
    return hashlib.sha256(source).hexdigest(), ours


@cache
def _file(module: str) -> Path | None:
    path = PACKAGE.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None
