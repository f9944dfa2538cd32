"""What several processes cost: metric syncs, slow links, each process more, and one of them that is slow.

python benchmarks/scaling.py [--part sync|link|local|processes|balance ...] [--steps N]

trainer_overhead.py compares two processes with a bare DDP loop. `link` needs root: it emulates two machines with a
100 Mbit/s cable between them, and `local`, with cables of several speeds and delays, for machines that average their
weights now and then (local_steps). With GPUs, `processes` uses NCCL on all of them; otherwise two gloo processes share
the CPU. In `balance` processes sleep for each sample, so that their speeds are known on any machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.targets import Targets
from modules.config import TrainConfig
from modules.data.loading.progress import Progress
from modules.distributed import (
    Group,
    LocalUpdates,
    Machines,
    RankEnv,
    register_compression_hook,
    resolve_backend,
    setup_distributed,
    spawn,
    wrap_ddp,
)
from modules.distributed.async_all_reduce import AsyncAllReduce
from modules.distributed.process_group import cleanup_distributed, process_group
from modules.machine import find_free_port
from modules.training.actions import ACTIONS
from modules.training.state.requests import STOP_REQUESTS
from modules.training.step.metrics import StepMetrics, metric_names
from tests.hosts import Host, skip_reason, two_hosts
from tests.runs import Job, group_settings, tiny_config, train_group

RATE = "100mbit"
SYNC_SHARE, SENT_BYTES, HALVED, EFFICIENCY, BALANCED, LOCAL = 0.005, 1.1, 1.5, 0.9, 0.93, 10.0  # the targets
FAST_S, SHARED = 0.1, 24  # seconds that the fast rank takes for a sample; samples of a step
MIB = 2**20
ADAPTERS, FULL = "adapters of rank 4", "full fine-tuning"
LAYERS, RANK = 360, 4  # two tensors per layer: 720
STEP_S, NORM = 0.05, torch.tensor(1.0)
SENT = Path("/sys/class/net/cable/statistics/tx_bytes")  # of a host in tests/hosts.py


def main() -> None:
    arguments = parser().parse_args()
    for rank, result in ((link_rank, arguments.link_rank), (local_rank, arguments.local_rank)):
        if result is not None:
            rank(result)
            return
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, {_devices()}\n")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    targets = Targets()
    with tempfile.TemporaryDirectory(prefix="tandem-scaling-") as folder:
        for part in arguments.part or list(PARTS):
            PARTS[part](Path(folder), arguments.steps, targets)
            print(flush=True)
    targets.end()


def sync(folder: Path, steps: int, targets: Targets) -> None:
    """What metric syncs take from steps of 50 ms."""
    step_ms = STEP_S * 1e3
    print(f"Metric syncs of 2 processes, as a share of steps of {step_ms:.0f} ms (target {SYNC_SHARE:.1%})")
    result = folder / "sync.json"
    spawn(sync_rank, 2, find_free_port(23100), (2 * steps, result))
    found = json.loads(result.read_text())
    one, per_step = found["with"]["sync"], found["with"]["syncs"]
    print(f"one sync takes {one * 1e3:.3f} ms of the loop; there is one every {1 / per_step:.1f} steps")
    for label, seconds in (
        ("per step", one * per_step),
        ("CPU time, all threads", found["with"]["cpu"] - found["without"]["cpu"]),
    ):
        print(f"{label:<24}{seconds * 1e3:>9.3f} ms{seconds / STEP_S:>9.2%}")
    targets.at_most("metric syncs: share of a step", one * per_step / STEP_S, SYNC_SHARE)


def link(folder: Path, steps: int, targets: Targets) -> None:
    """Steps and bytes over a slow cable between two hosts; bytes as counted by the network card."""
    print(f"Two hosts, a cable of {RATE}/s each way; a network of 360 layers of 256 (23.7 M weights), batch 4")
    if reason := skip_reason():
        print(f"not run: {reason}")
        return
    with two_hosts(rate=RATE) as hosts:
        _run_on(hosts, "--link_rank", folder / "link.json")
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


def local(folder: Path, steps: int, targets: Targets) -> None:
    """Seconds that machines which average their weights every H steps (local_steps) need for a step, over cables of
    several speeds and delays: a step without the other machine, and an H-th of an outer step."""
    print("Two hosts that average their weights every H steps; the networks of `link`, batch 4; steps/s")
    if reason := skip_reason():
        print(f"not run: {reason}")
        return
    intervals = (10, 50, 500)
    columns = "".join(f"{f'H={count}':>9}" for count in intervals)
    head = f"{'':<20}{'Mbit/s':>7}{'ms':>4}{'plain':>9}{'alone':>9}  {'sent in':<8}{'outer step, s':>13}"
    print(f"{head}{columns}{'H=50':>9}")
    for rate in (20, 100, 1000):
        for delay_ms in (0, 40):
            try:
                with two_hosts(rate=f"{rate}mbit", delay_ms=delay_ms) as hosts:
                    _run_on(hosts, "--local_rank", folder / "local.json")
            except RuntimeError as error:  # a kernel without netem
                print(f"not run, {rate} Mbit/s and {delay_ms} ms: {error}")
                continue
            for row in json.loads((folder / "local.json").read_text()):
                seconds = [row["alone"] + row["outer"] / count for count in intervals]
                faster = row["plain"] / seconds[1]
                speeds = "".join(f"{1 / each:>9.2f}" for each in seconds)
                line = f"{row['method']:<20}{rate:>7}{delay_ms:>4}{1 / row['plain']:>9.2f}{1 / row['alone']:>9.2f}"
                print(f"{line}  {row['coding']:<8}{row['outer']:>13.2f}{speeds}{faster:>8.1f}x", flush=True)
                if rate == 20 and row["method"] == FULL:
                    name = f"{FULL}, 20 Mbit/s, {delay_ms} ms, {row['coding']}: times faster with local_steps 50"
                    targets.at_least(name, faster, LOCAL)


def _run_on(hosts: tuple[Host, Host], flag: str, result: Path) -> None:
    """One rank on each of two hosts, whose program is this one with `flag`."""
    port = str(find_free_port(23200))
    processes = []
    for rank, host in enumerate(hosts):
        group = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": hosts[0].address}
        environment = {**os.environ, **group, "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "cable"}
        environment["GROUP_RANK"] = str(rank)
        argv = [sys.executable, "-W", "ignore", __file__, flag, str(result)]
        processes.append(host.start(argv, environment))
    for process in processes:
        output, _ = process.communicate()
        if process.returncode:
            sys.exit(output[-3000:])


def processes(folder: Path, steps: int, targets: Targets) -> None:
    """The same work for each of 1, 2, 4 ... processes."""
    most = max(2, torch.cuda.device_count())
    backend = "nccl" if torch.cuda.device_count() > 1 else "gloo"
    print(f"Full fine-tuning, equal work for every process, {backend}; 100 % is as fast as one alone")
    print(f"{'processes':<12}{'ms/step':>9}{'efficiency':>12}")
    alone = 0.0
    for ranks in sorted({1, most, *(2**n for n in range(1, 8) if 2**n < most)}):
        result = folder / "processes.json"
        spawn(steps_rank, ranks, find_free_port(23300), (backend, 256, max(5, steps // 4), result))
        seconds = json.loads(result.read_text())["seconds"]
        alone = alone or seconds
        print(f"{ranks:<12}{seconds * 1e3:>9.1f}{alone / seconds:>12.1%}", flush=True)
        if backend == "nccl":  # processes that share one memory and its CPUs are no measure
            targets.at_least(f"{ranks} processes: efficiency", alone / seconds, EFFICIENCY)


def balance(folder: Path, steps: int, targets: Targets) -> None:
    """Two real ranks of unequal speed: what they compute together of what both would without waiting for each other.

    `asleep` is the same by the clock, of what the sleeps alone allow: other programs on the machine lower it.
    """
    print("Two ranks that sleep for each sample; 100 % is the sum of their speeds")
    print(
        f"{'speeds':<24}{'balance':<10}{'samples/s':>10}{'asleep':>12}{'not waited':>12}  samples of a step at the end"
    )
    from tests.conftest import draw_images  # takes RANK and the like out of the environment

    (folder / "images").mkdir()
    images = draw_images(folder / "images", 12)
    count = max(10, steps // 5)  # of two seconds
    cases = (
        *(("1 : 0.5", 0.5, 0.0, "equal"), ("1 : 0.5", 0.5, 0.0, "auto")),
        *(("1 : 0.3", 0.3, 0.0, "equal"), ("1 : 0.3", 0.3, 0.0, "auto")),
        ("1 : 0.5, then 0.5 : 1", 0.5, 90.0, "auto"),
    )
    for label, slower, swap_s, way in cases:
        config = tiny_config(
            images,
            folder,
            **group_settings(2),
            run_name=f"{way}-{slower}-{swap_s:.0f}",
            family_options={"slow_sample_s": [FAST_S, FAST_S / slower], "speeds_swap_s": swap_s},
            concepts=[{"path": str(images), "repeats": SHARED}],
            aspect_ratio_bucketing=False,
            loader_workers=1,
            balance=way,
            batch_size=16,
            global_batch_size=SHARED,
            max_steps=(5 if swap_s else 2) * count,
        )
        run = train_group(2, {"run": Job(config)})["run"]
        counted = run.events("step")[-count // 2 - 3 : -2]  # the last two are reported together, at the end
        first, last = ([float(str(counted[n][key])) for key in ("samples_seen", "t")] for n in (0, -1))
        speed = (last[0] - first[0]) / (last[1] - first[1])
        ranks = [cast("list[dict[str, float]]", event["ranks"]) for event in run.events("ranks")[-count // 4 :]]
        without_waits = median(sum(row["samples"] / (row["step_s"] - row["sync_s"]) for row in rows) for rows in ranks)
        with_waits = median(sum(row["samples"] / row["step_s"] for row in rows) for rows in ranks)
        used, at_end = with_waits / without_waits, " + ".join(f"{row['samples']:.0f}" for row in ranks[-1])
        of_sum = speed * FAST_S / (1 + slower)
        print(f"{label:<24}{way:<10}{speed:>10.1f}{of_sum:>12.1%}{used:>12.1%}  {at_end}", flush=True)
        if way == "auto":
            targets.at_least(f"speeds {label}, balance auto: share that is not waited", used, BALANCED)


class Adapted(nn.Module):
    """A square layer with an adapter of rank 4."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.base = nn.Linear(size, size)
        self.down = nn.Parameter(torch.randn(RANK, size) / size)
        self.up = nn.Parameter(torch.randn(size, RANK) / size)

    def forward(self, x: Tensor) -> Tensor:
        """[B, size] to the same."""
        out: Tensor = x + 0.1 * torch.tanh(self.base(x) + x @ self.down.T @ self.up.T)
        return out


def network(size: int, *, adapters_only: bool) -> nn.Module:
    """360 layers, of which only the adapters are trained, or everything else."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Adapted(size) for _ in range(LAYERS)))
    for name, weight in model.named_parameters():
        weight.requires_grad_(("base" not in name) == adapters_only)
    return model


def sync_rank(rank_env: RankEnv, steps: int, result: Path) -> None:
    """What metric syncs cost in steps of 50 ms: time spent in them by the loop, and CPU time of all threads."""
    found: dict[str, object] = {}
    names = metric_names([*STOP_REQUESTS, *(action.name for action in ACTIONS)], rank_env.world_size)
    with process_group(rank_env, "gloo", 60) as group:
        all_reduce = AsyncAllReduce(names, group.control)
        for name in ("without", "with"):
            metrics, progress = StepMetrics(group.device, rank_env.rank, rank_env.world_size), Progress(0, steps, 1)
            syncs, cpu = [0.0], time.process_time()
            for _ in range(steps):
                time.sleep(STEP_S)  # a step that computes elsewhere, so that all CPU time is that of the syncs
                progress = progress.after(1)
                if name == "with":
                    metrics.end_step(progress, 0.1, NORM)
                if metrics.sync_is_due:
                    started = time.perf_counter()
                    metrics.finish_group(all_reduce.sync({"stop": 0.0, **metrics.take_group(flush=False)}))
                    syncs.append(time.perf_counter() - started)
            cpu_s = (time.process_time() - cpu) / steps
            found[name] = {"sync": median(syncs), "syncs": (len(syncs) - 1) / steps, "cpu": cpu_s}
        all_reduce.wait()
    _write_result(rank_env, result, found)


def steps_rank(rank_env: RankEnv, backend: str, size: int, count: int, result: Path) -> None:
    """Seconds a step of full fine-tuning on this many processes, without reading any data."""
    with process_group(rank_env, resolve_backend(backend)[0], 60) as group:
        found = _train(group, TrainConfig(), network(size, adapters_only=False), size, batch=64, count=count)
    _write_result(rank_env, result, found)


def link_rank(result: Path) -> None:
    """One of two hosts, with RANK, WORLD_SIZE and so on in the environment."""
    torch.set_num_threads(1)
    group = setup_distributed(backend="gloo", timeout_s=120)
    found: list[dict[str, object]] = []
    for method, adapters_only, size, counts in (
        (ADAPTERS, True, 256, (5, 5, 5, 5)),
        (FULL, False, 256, (2, 2, 2, 5)),
    ):
        for compression, count in zip(("none", "fp16", "bf16", "powersgd"), counts, strict=True):
            config = TrainConfig.model_validate({"gradient_compression": compression, "powersgd_start_step": 2})
            row = _train(group, config, network(size, adapters_only=adapters_only), size, batch=4, count=count)
            found.append({"method": method, "compression": compression, **row})
    cleanup_distributed()
    _write_result(group.rank_env, result, found)


def local_rank(result: Path) -> None:
    """As `link_rank`: a step over the cable, one without it, and an outer step."""
    torch.set_num_threads(1)
    group = setup_distributed(backend="gloo", timeout_s=300)
    machines = Machines(group)
    found: list[dict[str, object]] = []
    for method, adapters_only, count in ((ADAPTERS, True, 3), (FULL, False, 1)):
        model = network(256, adapters_only=adapters_only)
        plain = _train(group, TrainConfig(), model, 256, batch=4, count=count, warm_ups=1)["seconds"]
        model = network(256, adapters_only=adapters_only)
        alone = _train(group, TrainConfig(), model, 256, batch=4, count=20, over=machines.inside)["seconds"]
        weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
        for coding in ("fp16", "int8"):
            updates = LocalUpdates(weights, TrainConfig.model_validate({"outer_compression": coding}), machines)
            for weight in weights.values():
                weight.data.add_(torch.randn_like(weight), alpha=1e-3)
            dist.barrier(group=group.control)
            started = time.perf_counter()
            updates.agree(1, 1, 1.0, [], outer=True)
            outer = time.perf_counter() - started
            found.append({"method": method, "coding": coding, "plain": plain, "alone": alone, "outer": outer})
    cleanup_distributed()
    _write_result(group.rank_env, result, found)


def _train(
    group: Group,
    config: TrainConfig,
    model: nn.Module,
    size: int,
    batch: int,
    count: int,
    *,
    over: dist.ProcessGroup | None = None,
    warm_ups: int = 2,
) -> dict[str, float]:
    """Real steps of the model, whose gradients are averaged `over` some ranks: seconds and bytes sent for each."""
    model = model.to(group.device)
    wrapped = wrap_ddp(model, config, group, over)
    compression = register_compression_hook(wrapped, config)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    x = torch.randn(batch, size, device=group.device)

    def step() -> None:
        wrapped(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    step()
    compression.reset(config.powersgd_start_step)
    for _ in range(warm_ups - 1):
        step()
    _wait_for_device()
    dist.barrier(group=group.control)
    started, sent = time.perf_counter(), _sent()
    for _ in range(count):
        step()
    _wait_for_device()
    dist.barrier(group=group.control)
    return {
        "seconds": (time.perf_counter() - started) / count,
        "bytes": (_sent() - sent) / count,
        "gradients": sum(weight.numel() * weight.element_size() for weight in trained),
    }


def _sent() -> int:
    return int(SENT.read_text()) if SENT.exists() else 0


def _wait_for_device() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _write_result(rank_env: RankEnv, result: Path, found: object) -> None:
    if rank_env.rank == 0:
        result.write_text(json.dumps(found))


PARTS: dict[str, Callable[[Path, int, Targets], None]] = {
    "sync": sync,
    "link": link,
    "local": local,
    "processes": processes,
    "balance": balance,
}


def _devices() -> str:
    count = torch.cuda.device_count()
    return f"{count} x {torch.cuda.get_device_name(0)}" if count else "no GPU"


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--part", action="append", choices=list(PARTS), help="only this part; may be given several times")
    top.add_argument("--steps", type=int, default=100, help="steps that are measured; slow parts take fewer")
    for name in ("--link_rank", "--local_rank"):
        top.add_argument(name, type=Path, help=argparse.SUPPRESS)
    return top


if __name__ == "__main__":
    main()
