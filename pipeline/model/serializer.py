"""The MLX backend's generated serializer modules, which the Linux wheel of executorch lacks.

The wheel ships the schema (``schema.fbs``), the generator (``generate.py``) and ``flatc``, and not what they
produce, so ``import executorch.backends.mlx`` raises ImportError. ``provide()`` runs the wheel's own generator
into a cache directory of ours and lets the import system find the package ``executorch.backends.mlx.serialization``
there. site-packages is never written to.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from io import StringIO
from pathlib import Path
from types import ModuleType

from pipeline.errors import LowerError

PACKAGE = "executorch.backends.mlx.serialization"

# flatc's output and the two modules written by the generator's Python half; the C++ half needs templates
# that no wheel carries, and nothing here reads it.
GENERATED = ("_generated", "mlx_graph_schema.py", "_generated_serializers.py")


def provide() -> None:
    """Makes ``executorch.backends.mlx`` importable; does nothing where the wheel is complete.

    Raises LowerError when executorch is not installed or its generator fails.
    """
    if any(isinstance(finder, _SerializationFinder) for finder in sys.meta_path):
        return
    shipped = _shipped_package()
    if all((shipped / name).exists() for name in GENERATED):
        return
    sys.meta_path.insert(0, _SerializationFinder(_generated_package(shipped)))


def _shipped_package() -> Path:
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        raise LowerError(
            "executorch is not installed; lowering needs it. "
            "Install the build extra: pip install 'pte-pipeline[build]'."
        )
    for root in spec.submodule_search_locations:
        package = Path(root) / "backends" / "mlx" / "serialization"
        if (package / "schema.fbs").exists():
            return package
    raise LowerError(
        f"executorch {importlib.metadata.version('executorch')} has no MLX backend; expected "
        "backends/mlx/serialization/schema.fbs in the package. Install executorch 1.5 from the package index."
    )


def _generated_package(shipped: Path) -> Path:
    """The generated package's directory, made on first use and shared by all later processes."""
    version = importlib.metadata.version("executorch")
    identity = hashlib.sha256()
    for source in ("schema.fbs", "generate.py", "__init__.py", "mlx_graph_serialize.py"):
        identity.update((shipped / source).read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    package = cache / "pte-pipeline" / "mlx-serialization" / f"{version}-{identity.hexdigest()[:12]}"
    if _is_whole(package):
        return package
    try:
        package.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=package.parent, prefix=".partial-") as scratch:
            draft = Path(scratch) / "serialization"
            _generate(shipped, draft)
            # What stands in the way is damaged; or another process finished first, from the same bytes.
            if package.exists() and not _is_whole(package):
                package.rename(Path(scratch) / "damaged")
            with contextlib.suppress(FileExistsError, NotADirectoryError):
                draft.rename(package)
    except OSError as error:
        if not _is_whole(package):
            raise LowerError(
                f"{package.parent}: the MLX backend's serializer modules cannot be kept there ({error.strerror}); "
                "expected a writable directory. Set XDG_CACHE_HOME to one."
            ) from error
    return package


def _is_whole(package: Path) -> bool:
    return all((package / name).exists() for name in ("__init__.py", *GENERATED))


def _generate(shipped: Path, draft: Path) -> None:
    shutil.copytree(shipped, draft, ignore=shutil.ignore_patterns("__pycache__"))
    flatc = shipped.parents[2] / "data" / "bin" / "flatc"
    generator = _import_generator(draft / "generate.py")
    run = subprocess.run(
        [str(flatc), "--python", "-o", str(generator.GENERATED_DIR), str(generator.SCHEMA_FBS)],
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        raise LowerError(f"{flatc}: exited {run.returncode} on schema.fbs: {run.stderr.strip() or run.stdout.strip()}")
    schema = generator.parse_fbs(generator.SCHEMA_FBS)
    with redirect_stdout(StringIO()):
        generator._fixup_flatc_imports()
    generator.GENERATED_SCHEMA_PY.write_text(generator.generate_python_schema(schema))
    generator.GENERATED_SERIALIZERS.write_text(generator.generate_python_serializers(schema))
    missing = [name for name in GENERATED if not (draft / name).exists()]
    if missing:
        raise LowerError(f"executorch's serializer generator did not produce {', '.join(missing)}; expected all three.")


def _import_generator(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("_pte_pipeline_mlx_generator", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their defining module up in sys.modules while the body runs.
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[spec.name]
    return module


class _SerializationFinder(MetaPathFinder):
    """Answers for one package name only; everything below it is found through its search path."""

    def __init__(self, package: Path) -> None:
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != PACKAGE:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.package / "__init__.py", submodule_search_locations=[str(self.package)]
        )
