"""Who may import whom, read from the imports themselves; and what must never be loaded to do nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pipeline"

HEAVY = {"torch", "torchao", "executorch", "transformers", "numpy", "mlx", "safetensors", "gguf", "huggingface_hub"}

LIGHT = ("errors", "manifest", "yaml_source", "schema", "schema_problems", "spec", "contract", "snapshot", "plan")
LIGHT += ("store", "pte", "verify", "evidence", "digest", "surroundings", "workspace", "tasks", "progress", "cli")
LIGHT += ("anatomy", "text")

# Each module or package of ours, and those of ours that it may name: at the top what a user starts, at the bottom what
# everything may use. Whoever needs a new arrow writes it here.
GROUND = {"errors", "spec", "schema", "digest"}
ARROWS: dict[str, set[str]] = {
    "errors": set(),
    "spec": set(),
    "digest": set(),
    "schema": {"errors"},
    "yaml_source": {"errors"},
    "schema_problems": {"schema", "yaml_source"},
    "manifest": {*GROUND, "schema_problems", "yaml_source"},
    "contract": {"errors"},
    "snapshot": {"errors"},
    "pte": {"errors"},
    "store": {"errors", "digest"},
    "plan": {"manifest", "spec"},
    "anatomy": {*GROUND, "pte"},
    "verify": {*GROUND, "contract", "pte", "evidence"},
    "evidence": {*GROUND, "contract", "pte"},
    "model": {*GROUND, "contract", "pte"},
    "delegate": {*GROUND, "contract", "pte"},
    "runtime": {*GROUND, "contract", "pte", "delegate"},
    "text": {"errors"},
    "session": {*GROUND, "contract", "pte", "delegate", "runtime", "text"},
    "serving": {"errors", "runtime", "session", "text"},
    "steps": {*GROUND, "contract", "snapshot", "pte", "verify", "evidence", "model", "delegate", "runtime"},
    "surroundings": {*GROUND, "plan", "snapshot", "store"},
    "workspace": {*GROUND, "plan", "snapshot", "store", "steps", "surroundings", "manifest"},
    "progress": set(),
    "tasks": {*GROUND, "manifest", "plan", "progress", "workspace"},
    "cli": {
        *GROUND,
        "contract",
        "manifest",
        "plan",
        "pte",
        "verify",
        "evidence",
        "store",
        "workspace",
        "runtime",
        "session",
        "serving",
        "text",
        "anatomy",
    },
    "__main__": {"cli"},
}


def modules() -> list[str]:
    names = (file.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for file in PACKAGE.rglob("*.py"))
    return sorted(name.removesuffix(".__init__") for name in names)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@cache
def tree(module: str) -> ast.Module:
    path = ROOT.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_bytes())


def is_for_type_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def statements(body: list[ast.stmt], inside_functions: bool) -> Iterator[ast.stmt]:
    for node in body:
        if is_for_type_checkers(node) or (isinstance(node, ast.FunctionDef) and not inside_functions):
            continue
        yield node
        for inner in ("body", "orelse", "finalbody"):
            yield from statements(getattr(node, inner, []), inside_functions)
        for handler in getattr(node, "handlers", []):
            yield from statements(handler.body, inside_functions)


def imports(module: str, inside_functions: bool) -> set[str]:
    """The full names that a module imports: when it is imported, or at any time."""
    found: set[str] = set()
    for node in statements(tree(module).body, inside_functions):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & set(modules())
            found |= submodules or {node.module}
            found.add(node.module)
    return found


def reached(module: str) -> set[str]:
    """All that is loaded by importing the module."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            if name.split(".")[0] == "pipeline" and name in modules():
                waiting += imports(name, inside_functions=False)
    return found


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_a_light_room_loads_no_heavy_library_however_indirectly(name: str) -> None:
    for module in modules():
        if room(module) == name:
            loaded = {other.split(".")[0] for other in reached(module)}
            assert not loaded & HEAVY, f"{module} loads {', '.join(loaded & HEAVY)}"


@pytest.mark.parametrize("name", sorted({room(module) for module in modules()} - {""}))
def test_a_room_names_only_those_below_it(name: str) -> None:
    allowed = ARROWS[name] | {name}
    for module in modules():
        if room(module) == name:
            ours = {other for other in imports(module, inside_functions=True) if other.startswith("pipeline.")}
            assert {room(other) for other in ours} <= allowed, module


def test_the_arrows_have_no_cycle_and_no_room_that_is_gone() -> None:
    assert set(ARROWS) == {room(module) for module in modules()} - {""}
    left = {name: set(below) for name, below in ARROWS.items()}
    while left:
        grounded = {name for name, below in left.items() if not below & set(left)}
        assert grounded, f"these name each other: {', '.join(sorted(left))}"
        left = {name: below for name, below in left.items() if name not in grounded}


def test_the_tasks_alone_know_doit() -> None:
    assert [m for m in modules() if any(n.split(".")[0] == "doit" for n in imports(m, True))] == ["pipeline.tasks"]


def test_no_module_is_named_after_having_no_name() -> None:
    refused = {"utils", "util", "common", "helpers", "manager", "base", "misc"}
    assert not [module for module in modules() if refused & set(module.split("."))]


def test_only_the_command_prints_or_exits() -> None:
    # The process of a step prints into its log and ends itself; the tasks end doit when it is interrupted.
    for module in modules():
        calls = {ast.unparse(node.func) for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}
        if room(module) not in ("cli", "__main__"):
            assert "print" not in calls, module
        if module not in ("pipeline.steps.process", "pipeline.__main__") and room(module) != "cli":
            assert not calls & {"exit", "quit", "sys.exit", "os._exit"}, module


@pytest.mark.parametrize("module", ["pipeline.steps.fetch", "pipeline.steps.verify", "pipeline.steps.bundle", "dodo"])
def test_importing_loads_no_heavy_library_as_python_sees_it(module: str) -> None:
    script = f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}} & set(sys.argv[1:])))"
    done = subprocess.run([sys.executable, "-c", script, *HEAVY], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "", "")


def test_importing_a_module_shows_nothing() -> None:
    light = [module for module in modules() if room(module) in {*LIGHT, ""} and not module.endswith("__main__")]
    script = f"import {', '.join(light)}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
