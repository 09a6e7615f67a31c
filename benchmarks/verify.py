"""``pte verify`` from a cold process, beside reading the same constant methods through ``executorch.runtime``.

    doit && python benchmarks/verify.py --runs 5

Also on a copy of the artifact padded to four times its size, since the cost must not depend on the weights.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

RUNTIME = """
import sys
from pathlib import Path
from executorch.runtime import Runtime
program = Runtime.get().load_program(Path(sys.argv[1]))
print({name: program.load_method(name).execute([]) for name in program.method_names if name != "forward"})
"""


def main() -> None:
    """Prints the median seconds of each, and the ratio."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--pte", type=Path, default=ROOT / "artifacts" / "bundles" / "smollm2-135m" / "model.pte")
    args = arguments.parse_args()
    if not args.pte.exists():
        sys.exit(f"{args.pte} does not exist; run: doit")
    with tempfile.TemporaryDirectory(dir=args.pte.parents[2]) as scratch:
        padded = Path(scratch) / "padded.pte"
        padded.write_bytes(args.pte.read_bytes())
        with padded.open("ab") as file:
            file.truncate(4 * args.pte.stat().st_size)
        ours = _median([sys.executable, "-m", "pipeline", "verify", str(args.pte)], args.runs)
        large = _median([sys.executable, "-m", "pipeline", "verify", str(padded)], args.runs)
        runtime = _median([sys.executable, "-c", RUNTIME, str(args.pte)], args.runs)
    size = args.pte.stat().st_size / 1e6
    print(f"pte verify, {size:.0f} MB             {ours:6.3f} s")
    print(f"pte verify, {4 * size:.0f} MB            {large:6.3f} s")
    print(f"executorch.runtime, {size:.0f} MB     {runtime:6.3f} s   {runtime / ours:.0f} x as long")


def _median(command: list[str], runs: int) -> float:
    seconds = []
    for _ in range(runs + 1):
        began = time.monotonic()
        subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.monotonic() - began)
    # The first run pays for reading files into the page cache.
    return statistics.median(seconds[1:])


if __name__ == "__main__":
    main()
