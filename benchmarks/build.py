"""Export and lowering, side by side with executorch's own example exporter, on the default manifest's model.

    doit fetch && python benchmarks/build.py --runs 3

Both run as whole processes, in turn, from the same snapshot to a ``.pte`` of the same settings. The peer is
``executorch.backends.mlx.examples.llm.export_llm_hf --use-offgraph-cache``; the serializer modules it lacks on Linux
are supplied to it. Printed: wall and CPU seconds and peak memory of each run, and the ratio of the medians; then the
wall seconds of every step of the whole build, downloads left out, beside the peer's.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pipeline import manifest, plan
from pipeline.store import Object
from pipeline.workspace import Workspace

ROOT = Path(__file__).resolve().parents[1]

OURS = """
import sys
from pathlib import Path
from pipeline import manifest, plan
from pipeline.steps import build
spec = plan.steps_of(manifest.load(sys.argv[1]))["build"].spec
build.run(spec, Path(sys.argv[2]), Path(sys.argv[3]), stage=lambda name: None)
"""

PEER = """
import runpy, sys
from pipeline.model import serializer
serializer.provide()
runpy.run_module("executorch.backends.mlx.examples.llm.export_llm_hf", run_name="__main__", alter_sys=True)
"""


def main() -> None:
    """Runs both in turn and prints the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--manifest", type=Path, default=ROOT / "manifests" / "smollm2-135m.yaml")
    args = arguments.parse_args()
    asked = manifest.load(args.manifest)
    workspace = Workspace(ROOT / "artifacts")
    receipt = workspace.receipt(plan.steps_of(asked)[plan.FETCH])
    if receipt is None:
        sys.exit(f"{asked.name} has no current snapshot; run: doit fetch:{asked.name}")
    with tempfile.TemporaryDirectory(dir=ROOT / "artifacts") as scratch:
        snapshot = Path(scratch) / "snapshot"
        workspace.store.lay_out({name: Object(**item) for name, item in receipt.outputs.items()}, snapshot)
        ours = [sys.executable, "-c", OURS, str(args.manifest), str(snapshot), scratch]
        peer = [sys.executable, "-c", PEER, "--use-offgraph-cache", "--model-id", str(snapshot)]
        peer += ["--output", f"{scratch}/peer.pte", "--dtype", asked.dtype]
        peer += ["--max-ctx-len", str(asked.max_context_len), "--prefill-chunk-size", str(asked.max_seq_len)]
        rows: dict[str, list[tuple[float, float, float]]] = {"ours": [], "example exporter": []}
        for _ in range(args.runs):
            rows["ours"].append(_measured(ours))
            rows["example exporter"].append(_measured(peer))
    print(f"{'':18}{'wall s':>8}{'cpu s':>8}{'peak MB':>9}")
    for name, runs in rows.items():
        for wall, cpu, peak in runs:
            print(f"{name:18}{wall:8.1f}{cpu:8.1f}{peak:9.0f}")
    whole = _whole_build(asked)
    medians = [[statistics.median(column) for column in zip(*runs, strict=True)] for runs in rows.values()]
    print(f"{'ratio of medians':18}" + "".join(f"{a / b:{w}.2f}" for a, b, w in zip(*medians, (8, 8, 9), strict=True)))
    peer_wall = medians[1][0]
    for step, seconds in whole.items():
        print(f"{step:18}{seconds:8.1f}")
    total = sum(whole.values())
    print(f"{'whole build':18}{total:8.1f}  {total / peer_wall:.2f} x the example exporter")


def _whole_build(asked: manifest.Manifest) -> dict[str, float]:
    """Wall seconds of each step in an empty workspace, without the time spent downloading."""
    seconds = {}
    with tempfile.TemporaryDirectory(dir=ROOT / "artifacts") as scratch:
        workspace = Workspace(Path(scratch))
        for name, step in plan.steps_of(asked).items():
            began = [time.monotonic()]
            workspace.run(
                step, lambda stage, began=began: began.append(time.monotonic()) if stage == "converting" else None
            )
            # A download ends where the conversion begins.
            seconds[name] = time.monotonic() - began[-1]
    return seconds


def _measured(command: list[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak megabytes of one finished process."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.monotonic() - began
    if status != 0:
        sys.exit(f"exit status {status}: {' '.join(command[:2])} …")
    assert isinstance(usage, resource.struct_rusage)
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
