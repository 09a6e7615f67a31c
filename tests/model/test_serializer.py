"""The serializer modules are generated once, whole, outside site-packages, and again when they were damaged."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.errors import LowerError
from pipeline.model import serializer


@pytest.fixture
def shipped() -> Path:
    return serializer._shipped_package()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "pte-pipeline" / "mlx-serialization"


def files(directory: Path) -> dict[str, bytes]:
    found = (path for path in directory.rglob("*.py") if "__pycache__" not in path.parts)
    return {str(path.relative_to(directory)): path.read_bytes() for path in found}


def test_the_package_is_generated_once_and_found_again(shipped: Path, cache: Path) -> None:
    before = files(shipped)
    package = serializer._generated_package(shipped)
    assert package.parent == cache
    assert package.name.startswith("1.5.")
    stamp = (package / "mlx_graph_schema.py").stat().st_mtime_ns
    assert serializer._generated_package(shipped) == package
    assert (package / "mlx_graph_schema.py").stat().st_mtime_ns == stamp
    assert [entry.name for entry in cache.iterdir()] == [package.name]
    assert files(shipped) == before


@pytest.mark.parametrize("lost", ["__init__.py", "_generated", "mlx_graph_schema.py", "everything"])
def test_a_damaged_package_is_generated_again(shipped: Path, lost: str) -> None:
    package = serializer._generated_package(shipped)
    whole = files(package)
    for path in list(package.iterdir()) if lost == "everything" else [package / lost]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert files(serializer._generated_package(shipped)) == whole


def test_a_cache_that_cannot_be_written_is_named(shipped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nope")
    with pytest.raises(LowerError) as caught:
        serializer._generated_package(shipped)
    assert str(caught.value).startswith(
        "/proc/nope/pte-pipeline/mlx-serialization: the MLX backend's serializer modules cannot be kept there ("
    )
    assert str(caught.value).endswith("expected a writable directory. Set XDG_CACHE_HOME to one.")


def test_the_backend_imports_in_a_process_of_its_own() -> None:
    script = "from pipeline.model import serializer; serializer.provide(); import executorch.backends.mlx.serialization"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
