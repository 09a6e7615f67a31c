"""``pip install pte-pipeline`` is small, brings nothing heavy, and is enough for what CI asks."""

from __future__ import annotations

import re
import shutil
import tomllib
import zipfile
from pathlib import Path
from typing import Any

from tests.distributions import ROOT, BaseInstall, Distributions, build
from tests.test_architecture import HEAVY

LIMIT_BYTES = 30_000_000
"""Of the whole base install; an installation of the build extra takes two gigabytes."""


def content(wheel: Path) -> dict[str, bytes]:
    """A wheel's files of the package, by name."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def normal(name: str) -> str:
    """A distribution's name as PEP 503 compares it, without a version or extras."""
    return re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", name)[0]).lower()


def test_the_base_install_is_small_and_brings_nothing_of_the_build(base_install: BaseInstall) -> None:
    sizes = base_install.sizes_bytes()
    assert {"pte-pipeline", "jsonschema", "PyYAML"} <= set(sizes)
    assert sum(sizes.values()) < LIMIT_BYTES, sizes
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    unwanted = {normal(one) for extra in extras.values() for one in extra} | HEAVY
    # An extra may build on another.
    assert not {normal(name) for name in sizes} & (unwanted - {"pte-pipeline"})
    found = f"from importlib.util import find_spec; print([name for name in {sorted(HEAVY)} if find_spec(name)])"
    assert base_install.run(base_install.directory, "python", "-c", found).stdout == "[]\n"


def test_verify_runs_there_from_anywhere(base_install: BaseInstall, tiny_pte: Any, tmp_path: Path) -> None:
    content = tiny_pte.path.read_bytes()
    (tmp_path / "good.pte").write_bytes(content)
    (tmp_path / "bad.pte").write_bytes(content.replace(b"get_windows", b"got_windows"))
    held = base_install.run(tmp_path, "pte", "verify", "good.pte")
    assert (held.returncode, held.stderr) == (0, "")
    assert "good.pte" in held.stdout
    broken = base_install.run(tmp_path, "pte", "verify", "bad.pte", "good.pte")
    assert broken.returncode == 1
    assert "get_windows is missing" in broken.stdout + broken.stderr
    manifest = ROOT / "manifests" / "smollm2-135m.yaml"
    other = base_install.run(tmp_path, "pte", "verify", "good.pte", "--manifest", str(manifest))
    assert other.returncode == 1
    assert "get_max_context_len" in other.stdout + other.stderr
    assert base_install.run(tmp_path, "pte", "verify", "absent.pte").returncode == 3


def test_inspect_and_diff_run_there_from_anywhere(base_install: BaseInstall, tiny_pte: Any, tmp_path: Path) -> None:
    (tmp_path / "one.pte").write_bytes(tiny_pte.path.read_bytes())
    shown = base_install.run(tmp_path, "pte", "inspect", "one.pte")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "MLXBackend" in shown.stdout
    assert "<html" in base_install.run(tmp_path, "pte", "inspect", "one.pte", "--format", "html").stdout
    assert base_install.run(tmp_path, "pte", "diff", "one.pte", "one.pte").returncode == 0


def test_the_page_of_a_rule_is_there(base_install: BaseInstall, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "rules" / "PTE101.md").read_text()
    assert base_install.run(tmp_path, "pte", "verify", "--explain", "PTE101").stdout == page


def test_check_runs_there_from_anywhere(base_install: BaseInstall, tmp_path: Path) -> None:
    manifests = shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    good = base_install.run(tmp_path, "pte", "check")
    assert (good.returncode, good.stderr) == (0, "")
    with (manifests / "smollm2-135m.yaml").open("a") as file:
        file.write("backnd: mlx\n")
    bad = base_install.run(tmp_path, "pte", "check")
    assert bad.returncode == 1
    assert "unknown field 'backnd'. Did you mean 'backend'?" in bad.stderr


def test_it_knows_its_version(base_install: BaseInstall, tmp_path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert base_install.run(tmp_path, "pte", "--version").stdout == f"pte {version}\n"


def test_the_wheel_has_every_module_schema_and_page_about_a_rule_and_nothing_else(distributions: Distributions) -> None:
    expected = {}
    for shipped, where in (("pipeline", "."), ("schemas", "pipeline"), ("docs/rules", "pipeline")):
        for file in (ROOT / shipped).rglob("*"):
            if file.is_file() and file.suffix != ".pyc":
                expected[Path(where, file.relative_to(ROOT)).as_posix()] = file.read_bytes()
    assert content(distributions.wheel) == expected


def test_the_source_distribution_makes_the_same_wheel(
    source_tree: Path, distributions: Distributions, tmp_path: Path
) -> None:
    (wheel,) = build(source_tree, tmp_path, "--target", "wheel").iterdir()
    assert content(wheel) == content(distributions.wheel)


def test_the_source_distribution_has_what_is_used_from_a_checkout(source_tree: Path) -> None:
    for name in ("action.yml", "ci/gitlab.yml", ".pre-commit-hooks.yaml", "docs/ci.md", "Makefile", "dodo.py"):
        assert (source_tree / name).read_bytes() == (ROOT / name).read_bytes()
