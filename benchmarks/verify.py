"""``pte verify`` from a cold process, beside reading the same constant methods through ``executorch.runtime``.

    doit && python benchmarks/verify.py --runs 5

Also on the artifact alone, without the tokenizer that lies beside it in a bundle, and on a copy padded to four times
its size, since the cost must not depend on the weights. All of them take turns. Seconds are the median, memory is the
most of any run: resident, with the pages of the file that were read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

MAX_SECONDS, MAX_MB, MIN_RATIO = 0.2, 60, 25

RUNTIME = """
import sys
from pathlib import Path
from executorch.runtime import Runtime
program = Runtime.get().load_program(Path(sys.argv[1]))
print({name: program.load_method(name).execute([]) for name in program.method_names if name != "forward"})
"""


def main() -> None:
    """Prints seconds and memory of each, and the ratio of seconds beside what it should be."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--pte", type=Path, default=ROOT / "artifacts" / "bundles" / "smollm2-135m" / "model.pte")
    args = arguments.parse_args()
    if not args.pte.exists():
        sys.exit(f"{args.pte} does not exist; run: doit")
    size = args.pte.stat().st_size
    with tempfile.TemporaryDirectory(dir=args.pte.parents[2]) as scratch:
        alone, padded = Path(scratch) / "alone.pte", Path(scratch) / "padded.pte"
        alone.symlink_to(args.pte.resolve())
        shutil.copyfile(args.pte, padded)
        with padded.open("r+b") as file:
            file.truncate(4 * size)
        verify = [sys.executable, "-m", "pipeline", "verify"]
        commands = {
            f"pte verify, {size / 1e6:.0f} MB": [*verify, str(args.pte)],
            f"pte verify, {size / 1e6:.0f} MB, alone": [*verify, str(alone)],
            f"pte verify, {4 * size / 1e6:.0f} MB": [*verify, str(padded)],
            f"executorch.runtime, {size / 1e6:.0f} MB": [sys.executable, "-c", RUNTIME, str(args.pte)],
        }
        # As from an installed package, whatever the environment says of a checkout's byte code.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = str(Path(scratch) / "bytecode")
        runs: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
        for _ in range(args.runs + 1):
            for name, command in commands.items():
                runs[name].append(_run(command, environment))
    # The first run pays for reading files into the page cache, and for byte code.
    seconds = {name: statistics.median(second for second, _ in found[1:]) for name, found in runs.items()}
    for name, found in runs.items():
        print(f"{name:32}{seconds[name]:8.3f} s{max(peak for _, peak in found[1:]) / 1e6:8.0f} MB")
    ours, *_, theirs = seconds.values()
    print(f"{theirs / ours:.0f} x as long; at least {MIN_RATIO} x, {MAX_SECONDS} s and {MAX_MB} MB are wanted")


def _run(command: list[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds and peak bytes of a process. A peak is never below what this process holds itself, which is little."""
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.monotonic() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)} ended with {process.returncode}")
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


if __name__ == "__main__":
    main()
