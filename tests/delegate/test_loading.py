"""Loading takes the memory of the constants, little time, and no damaged file for a sound one."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from pipeline.delegate import Program
from pipeline.delegate.replay import Replayed
from tests.delegate import exported
from tests.delegate.compared import gpu_rules

ROOT = Path(__file__).resolve().parents[2]

FUZZ = """
import random, resource, sys
from pathlib import Path
import mlx.core as mx
from pipeline.delegate import Program
from pipeline.delegate.dtypes import BY_NAME
from pipeline.errors import PipelineError
from pipeline.pte import PteFile
from tests.delegate.measured import field

sound = Path(sys.argv[1]).read_bytes()
file = PteFile.from_bytes(sound, "sound.pte")
parts = [range(len(file._head().tables))]
for method in file.program.methods.values():
    for delegate in method.delegates:
        start = sound.index(bytes(delegate.payload))
        parts.append(range(start, start + len(delegate.payload)))

def run(data):
    program = Program(PteFile.from_bytes(data, "damaged.pte"))
    for name in program.methods:
        for fused in (True, False):
            method = program.method(name, fused=fused)
            # How large an input is allowed to be says the file; how large it is, the caller.
            if all(max(spec.sizes, default=0) < 64 for spec in method.inputs):
                method(*(mx.ones(spec.sizes, BY_NAME[spec.dtype]) for spec in method.inputs))

run(sound)
resource.setrlimit(resource.RLIMIT_AS, (field("VmSize") + (1 << 30),) * 2)
before = field("VmHWM")
rng = random.Random(int(sys.argv[2]))
num_refused = 0
for _ in range(int(sys.argv[3])):
    damaged = bytearray(sound)
    for _ in range(rng.randint(1, 3)):
        damaged[rng.choice(rng.choice(parts))] = rng.choice([0, 1, 2, 4, 8, 127, 128, 255, rng.randrange(256)])
    try:
        run(bytes(damaged))
    except PipelineError as error:
        num_refused += 1
        assert str(error).isprintable(), error
print(num_refused, field("VmHWM") - before)
"""


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.pte"
    exported.write(path, {"forward": "wide"})
    return path


@pytest.mark.parametrize("mode", ["fused", "plain"])
def test_loading_takes_the_memory_of_the_constants_and_a_second_instance_none(wide: Path, mode: str) -> None:
    measured: dict[str, Any] = json.loads(python("-m", "tests.delegate.measured", str(wide), mode))
    assert measured["constants"] == 128 << 20
    assert measured["peak"] <= 1.15 * measured["constants"]
    assert measured["both"] <= 1.15 * measured["constants"]
    assert measured["seconds"] < 1.0


def test_joining_products_as_for_a_gpu_takes_the_memory_of_one_group_of_them(tmp_path: Path) -> None:
    path = tmp_path / "branches.pte"
    exported.write(path, {"forward": "branches"})
    with Program.load(path) as program, gpu_rules():
        constants = sum(len(blob) for blob in program.pte.named_data.values())
        gc.collect()
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        method = program.method()
        active, peak = mx.get_active_memory() - before, mx.get_peak_memory() - before
        assert isinstance(method._run, Replayed)
        assert Counter(step.name for step in method._run.body.steps)["AddmmNode"] == 12, "nothing was joined"
    # A group of three matrices is a twelfth of them.
    assert constants == 36 * 384 * 384 * 4
    assert constants <= active <= 1.05 * constants
    assert peak <= 1.15 * constants


@pytest.mark.parametrize("seed", [0, 1])
def test_a_damaged_program_is_loaded_or_refused_and_nothing_else(tmp_path: Path, seed: int) -> None:
    """In a process that may take a gigabyte at most, which it would not survive to ask for."""
    path = tmp_path / "small.pte"
    exported.write(path, {"forward": "counter", "lookup": "lookup"})
    num_refused, num_bytes = map(int, python("-c", FUZZ, str(path), str(seed), "500").split())
    assert 100 < num_refused < 500
    assert num_bytes < 64 << 20
