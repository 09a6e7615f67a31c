"""Loads ``argv[1]`` in a process of its own and prints what that took, in bytes and seconds.

``pages`` counts what the process had in memory at most, mapped pages of files included, beyond what it had once mlx and
numpy were imported. CPU seconds are of this process alone, which other work on the machine hardly moves.
"""

import json
import sys
import time
from pathlib import Path

import mlx.core as mx
import numpy  # noqa: F401 - mlx's own dependency as far as arrays from outside go


def field(name: str) -> int:
    """Bytes of a line of /proc/self/status."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10


def main() -> None:
    mx.eval(mx.zeros(1) + 1)
    before, began = field("VmRSS"), time.process_time()
    from pipeline.delegate import Program

    with Program.load(sys.argv[1]) as program:
        constants = sum(len(blob) for blob in program.pte.named_data.values())
        methods = [program.method(fused=sys.argv[2] == "fused")]
        seconds = time.process_time() - began
        peak = field("VmHWM") - before
        methods.append(program.method(fused=sys.argv[2] == "fused"))
        both = field("VmHWM") - before
    json.dump({"constants": constants, "peak": peak, "both": both, "seconds": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
