"""What several processes cost: against a bare DDP loop, for adapters, for metric syncs, over a slow link.

python benchmarks/scaling.py [--part ddp|adapters|sync|link|processes ...] [--steps N]

`link` needs root: it emulates two machines with a 100 Mbit/s cable between them. With GPUs, `adapters` and `processes`
use NCCL on all of them; otherwise two gloo processes share the CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch

from benchmarks import traffic
from benchmarks.targets import Targets
from benchmarks.trainer_overhead import Bench, distributed
from modules.distributed import spawn
from modules.machine import find_free_port
from tests.hosts import skip_reason, two_hosts

RATE = "100mbit"
BUCKET_SPEEDUP, SYNC_SHARE, SENT_BYTES, HALVED, EFFICIENCY = 20, 0.005, 1.1, 1.5, 0.9  # the targets
ADAPTER_SIZES = (64, 320, 640, 1280)
MIB = 2**20


def main() -> None:
    arguments = parser().parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {_devices()}\n")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    targets = Targets()
    with tempfile.TemporaryDirectory(prefix="tandem-scaling-") as folder:
        for part in arguments.part or list(PARTS):
            PARTS[part](Path(folder), arguments.steps, targets)
            print(flush=True)
    targets.end()


def ddp(folder: Path, steps: int, targets: Targets) -> None:
    """DistributedTrainer against a bare DDP loop (benchmarks/trainer_overhead.py --part distributed)."""
    bench = Bench(folder / "ddp", steps, threads=1)
    bench.targets = targets
    distributed(bench)


def adapters(folder: Path, steps: int, targets: Targets) -> None:
    """720 gradients of rank 4, one by one and in one bucket."""
    ranks = max(2, torch.cuda.device_count())
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    print(f"One reduction of 720 adapter gradients of rank 4, {ranks} {backend} processes (target {BUCKET_SPEEDUP} x)")
    print(f"{'layers of':<12}{'MiB':>8}{'one by one, ms':>16}{'one bucket, ms':>14}{'times':>8}")
    result = folder / "adapters.json"
    spawn(traffic.adapters, ranks, find_free_port(23000), (backend, ADAPTER_SIZES, max(5, steps // 4), result))
    for row in json.loads(result.read_text()):
        size, separate, bucketed = row["size"], row["one by one"], row["one bucket"]
        mib = 2 * traffic.LAYERS * traffic.RANK * size * 4 / MIB
        print(f"{size:<12}{mib:>8.1f}{separate * 1e3:>16.2f}{bucketed * 1e3:>14.2f}{separate / bucketed:>8.1f}")
        targets.at_least(
            f"adapters of layers of {size}: times faster in one bucket", separate / bucketed, BUCKET_SPEEDUP
        )


def sync(folder: Path, steps: int, targets: Targets) -> None:
    """What metric syncs take from steps of 50 ms."""
    step_ms = traffic.STEP_S * 1e3
    print(f"Metric syncs of 2 processes, as a share of steps of {step_ms:.0f} ms (target {SYNC_SHARE:.1%})")
    result = folder / "sync.json"
    spawn(traffic.sync, 2, find_free_port(23100), (2 * steps, result))
    found = json.loads(result.read_text())
    one, per_step = found["with"]["sync"], found["with"]["syncs"]
    print(f"one sync takes {one * 1e3:.3f} ms of the loop; there is one every {1 / per_step:.1f} steps")
    for label, seconds in (
        ("per step", one * per_step),
        ("CPU time, all threads", found["with"]["cpu"] - found["without"]["cpu"]),
    ):
        print(f"{label:<24}{seconds * 1e3:>9.3f} ms{seconds / traffic.STEP_S:>9.2%}")
    targets.at_most("metric syncs: share of a step", one * per_step / traffic.STEP_S, SYNC_SHARE)


def link(folder: Path, steps: int, targets: Targets) -> None:
    """Steps and bytes over a slow cable between two hosts; bytes as counted by the network card."""
    print(f"Two hosts, a cable of {RATE}/s each way; a network of 360 layers of 256 (23.7 M weights), batch 4")
    if reason := skip_reason():
        print(f"not run: {reason}")
        return
    with two_hosts(rate=RATE) as hosts:
        port = str(find_free_port(23200))
        processes = []
        for rank, host in enumerate(hosts):
            group = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": hosts[0].address}
            environment = {**os.environ, **group, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "cable"}
            argv = [sys.executable, "-W", "ignore", str(ROOT / "benchmarks" / "traffic.py"), str(folder / "link.json")]
            processes.append(host.start(argv, environment))
        for process in processes:
            output, _ = process.communicate()
            if process.returncode:
                sys.exit(output[-3000:])
    rows = json.loads((folder / "link.json").read_text())
    print(f"{'':<22}{'compression':<14}{'gradients, MiB':>15}{'sent per step, MiB':>18}{'steps/s':>9}{'faster':>8}")
    for row in rows:
        plain = next(r for r in rows if r["method"] == row["method"])
        line = f"{row['method']:<22}{row['compression']:<14}{row['gradients'] / MIB:>15.2f}{row['bytes'] / MIB:>18.2f}"
        print(f"{line}{1 / row['seconds']:>9.2f}{plain['seconds'] / row['seconds']:>7.1f}x")
        if row is plain:
            name = f"{row['method']} over {RATE}/s: bytes sent / bytes of the gradients"
            targets.at_most(name, row["bytes"] / row["gradients"], SENT_BYTES)
        elif row["compression"] in ("fp16", "bf16"):
            name = f"{row['method']} over {RATE}/s, {row['compression']}: times faster than uncompressed"
            targets.at_least(name, plain["seconds"] / row["seconds"], HALVED)


def processes(folder: Path, steps: int, targets: Targets) -> None:
    """The same work for each of 1, 2, 4 ... processes."""
    most = max(2, torch.cuda.device_count())
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    print(f"Full fine-tuning, equal work for every process, {backend}; 100 % is as fast as one alone")
    print(f"{'processes':<12}{'ms/step':>9}{'efficiency':>12}")
    alone = 0.0
    for ranks in sorted({1, most, *(2**n for n in range(1, 8) if 2**n < most)}):
        result = folder / "processes.json"
        spawn(traffic.steps, ranks, find_free_port(23300), (backend, 256, max(5, steps // 4), result))
        seconds = json.loads(result.read_text())["seconds"]
        alone = alone or seconds
        print(f"{ranks:<12}{seconds * 1e3:>9.1f}{alone / seconds:>12.1%}", flush=True)
        if backend == "nccl":  # processes that share one memory and its CPUs are no measure
            targets.at_least(f"{ranks} processes: efficiency", alone / seconds, EFFICIENCY)


PARTS: dict[str, Callable[[Path, int, Targets], None]] = {
    "ddp": ddp,
    "adapters": adapters,
    "sync": sync,
    "link": link,
    "processes": processes,
}


def _devices() -> str:
    count = torch.cuda.device_count()
    return f"{count} x {torch.cuda.get_device_name(0)}" if count else "no GPU"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--steps", type=int, default=100, help="steps that are measured; slow parts take fewer")
    return top


if __name__ == "__main__":
    main()
