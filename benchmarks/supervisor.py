"""What a supervisor costs: python benchmarks/supervisor.py [--hours N] [--ranks N] [--idle_s N]

- replay: a process appends the events of a run of that length (5 steps a second, a `ranks` event every 2 s), as fast as
  the disk takes them, and a real supervisor follows them. Its CPU time is related to the hours of the run.
- idle: the CPU time of a real supervisor ten times a second, with nothing to read.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.targets import Targets
from modules.run import RunFolder
from modules.run.supervise.supervisor import Supervisor

CORE, MEMORY_MIB = 0.01, 60  # the targets
STEPS_PER_S = 5
STEPS_PER_RANKS_EVENT = 10
WRITER = f"""
import json, sys
path, steps, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
gpu = dict(memory_used_mib=20000, memory_total_mib=81559, utilization_percent=97, temperature_c=61, power_w=402.5)
row = dict(host="alpha", step_s=0.2, data_s=0.01, own_s=0.15, samples=8, cpu_percent=31.5, ram_used_mib=90123, **gpu)
ranks = json.dumps(dict(v=1, t=1.0, type="ranks", ranks=[dict(rank=n, **row) for n in range(count)])) + "\\n"
step = json.dumps(dict(v=1, t=1.0, type="step", step=1, epoch=0, samples_seen=64, loss=0.1234, lr=1e-4,
    samples_per_s=40.1, grad_norm=0.5, eta_s=1e4)) + "\\n"
with open(path, "a") as file:
    for _ in range(steps // {STEPS_PER_RANKS_EVENT}):
        file.write(step * {STEPS_PER_RANKS_EVENT} + ranks)
    file.write(json.dumps(dict(v=1, t=1.0, type="finished", exit_code=0)) + "\\n")
"""


def main() -> None:
    """Print both parts; each runs in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--idle_s", type=int, default=20)
    parser.add_argument("--part", choices=["replay", "idle"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part is None:
        parts = [[sys.executable, __file__, *sys.argv[1:], f"--part={part}"] for part in ("replay", "idle")]
        sys.exit(max([subprocess.run(command, check=False).returncode for command in parts]))
    targets = Targets()
    with tempfile.TemporaryDirectory() as name:
        folder = RunFolder(Path(name) / "run")
        folder.log_dir.mkdir(parents=True)
        steps = round(options.hours * 3600 * STEPS_PER_S)
        replay = [sys.executable, "-c", WRITER, str(folder.events_file), str(steps), str(options.ranks)]
        idle = [sys.executable, "-c", f"import time; time.sleep({options.idle_s})"]
        before_mib, started = _peak_mib(), time.perf_counter()
        cpu_from = time.process_time()
        Supervisor(replay if options.part == "replay" else idle, folder, ranks=range(options.ranks)).run()
        cpu_s, wall_s = time.process_time() - cpu_from, time.perf_counter() - started
        if options.part == "idle":
            print(f"idle: {cpu_s / wall_s:.2%} of a core for {options.ranks} ranks")
            targets.at_most("idle: share of a core", cpu_s / wall_s, CORE)
            targets.end()
        size_mib = folder.events_file.stat().st_size / 2**20
        share = cpu_s / (options.hours * 3600)
        print(f"replay of {options.hours:g} h: {size_mib:.0f} MiB of events, {share:.3%} of a core")
        print(f"  resident memory {_peak_mib():.0f} MiB, {_peak_mib() - before_mib:.1f} MiB of it since the start")
        targets.at_most("replay: share of a core", share, CORE)
        targets.at_most("replay: resident memory, MiB", _peak_mib(), MEMORY_MIB)
        targets.end()


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
