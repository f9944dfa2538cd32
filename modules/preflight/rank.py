"""One rank of a preflight: join the group, then send tasks (rank 0) or run them (all others)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from modules.distributed.formatting import error_summary
from modules.distributed.health.timed_store import StoreClosed, StoreTimeout, TimedStore
from modules.distributed.process_group import Group, cleanup_distributed, device_of, join_group, resolve_backend
from modules.distributed.run_store import RunStore, StoreFault
from modules.distributed.startup.member import Member, ranks_by_host
from modules.distributed.startup.rendezvous import GroupError, Log, members
from modules.distributed.startup.store import open_store
from modules.files import printable
from modules.machine import hostname, set_hostname
from modules.preflight import all_reduce, clocks, disk, gpus, images, loader, pairs, ports, speed, versions
from modules.preflight.coordinator import Context, Coordinator, PreflightOptions, Task, answer_tasks
from modules.run.launch.rank_env import RankEnv
from modules.run.preflight_report.report import Cell, PreflightReport
from modules.training.device.choice import require_device

# How long rank 0 may be busy with other ranks between two tasks of this one, in task timeouts.
_TIMEOUTS_BETWEEN_TASKS = 20
_STORE_TIMEOUT_S = 10.0
_LEAVE_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Check:
    """One check: what rank 0 runs, the tasks that it sends to ranks, and whether it needs the process group."""

    name: str
    run: Callable[[Coordinator], Iterable[Cell]]
    tasks: tuple[Task, ...]
    needs_group: bool = False


CHECKS = (
    Check("versions", versions.check, (versions.rank_info, versions.sources)),
    Check("clocks", clocks.check, (clocks.read_clock,)),
    Check("ports", ports.check, (ports.listen, ports.connect)),
    Check("all-reduce", all_reduce.check, (all_reduce.all_reduce,), needs_group=True),
    Check("pairs", pairs.check, (pairs.exchange,), needs_group=True),
    Check("GPUs", gpus.check, (gpus.query_gpus,)),
    Check("speed", speed.check, (speed.measure_speed,)),
    Check("disk", disk.check, (disk.probe_disk, disk.set_marker, disk.sees_marker)),
    Check("images", images.check, (images.list_images, images.hash_images)),
    Check("loader", loader.check, (loader.measure_loader,)),
)


def run_preflight(
    rank_env: RankEnv, options: PreflightOptions, log: Log, save: Callable[[PreflightReport], None]
) -> PreflightReport:
    """Called by every rank; returns the full report. After each check, rank 0 passes the report so far to `save`.

    From when all ranks have met, this process ignores SIGTERM.
    """
    require_device(options.config)
    backend, _ = resolve_backend(options.config.distributed_backend)
    processes = "one process" if rank_env.world_size == 1 else f"{rank_env.world_size} processes"
    depth = "all tests" if options.thorough else "basic tests"
    report = PreflightReport(f"Preflight of {processes} over {backend}, {depth}")
    try:
        store = open_store(rank_env, options.wait_s, log)
        everyone = members(store, rank_env.world_size)
        set_hostname(everyone[rank_env.rank].host)
        # From here on the table is finished, which the timeouts of its tasks ensure: torchrun terminates all ranks when
        # one dies.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except (GroupError, StoreFault) as error:
        return report.with_cells([Cell("group", hostname(), "red", error.message, error.advice)])
    group, cell = _form_group(rank_env, backend, options.timeout_s, store, everyone)
    context = Context(
        own=everyone[rank_env.rank],
        everyone=everyone,
        group=group,
        device=device_of(rank_env) if group is None else group.device,
        backend=backend,
        master=(rank_env.master_addr, rank_env.master_port),
        **vars(options),
    )
    tasks = {task.__name__: task for check in CHECKS for task in check.tasks}
    task_store = TimedStore(store.within("preflight"), _STORE_TIMEOUT_S)
    try:
        if rank_env.rank == 0:
            return run_checks(Coordinator(task_store, context, tasks), report.with_cells([cell]), save)
        return PreflightReport.parse(
            answer_tasks(task_store, context, tasks, options.timeout_s * _TIMEOUTS_BETWEEN_TASKS)
        )
    except StoreFault as error:
        return report.with_cells([Cell("group", hostname(), "red", error.message, error.advice)])
    except (StoreClosed, StoreTimeout):
        where = f"{rank_env.master_addr}:{rank_env.master_port}"
        lost = Cell("group", hostname(), "red", f"rank 0 at {where} exited or can no longer be reached", _RANK0_LOST)
        return report.with_cells([lost])
    finally:
        _leave_group()


def run_checks(
    coordinator: Coordinator, report: PreflightReport, save: Callable[[PreflightReport], None]
) -> PreflightReport:
    """Rank 0: run one check after the other, then send the report to all ranks."""
    everyone = coordinator.context.everyone
    save(report)
    for check in CHECKS:
        if reason := _skip_reason(check, coordinator):
            cells = [Cell(check.name, "all", "grey", reason)]
        else:
            lost_before = len(coordinator.lost)
            found = _cells(check, coordinator)
            lost = list(coordinator.lost.items())[lost_before:]
            cells = [Cell(check.name, f"rank {rank} on {everyone[rank].host}", "red", how, _LOST) for rank, how in lost]
            cells += found
        report = replace(report.with_cells(cells), matrices=tuple(coordinator.matrices))
        save(report)
    report = replace(report, complete=True)
    coordinator.end(report.dump())
    save(report)
    return report


def _cells(check: Check, coordinator: Coordinator) -> list[Cell]:
    try:
        return list(check.run(coordinator))
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:  # another rank wrote it
        text = f"an answer of another rank cannot be read: {error_summary(error)}"
        return [Cell(check.name, "all", "red", printable(text, 300), _UNREADABLE)]


def _skip_reason(check: Check, coordinator: Coordinator) -> str:
    if not check.needs_group:
        return ""
    if len(coordinator.context.everyone) == 1:
        return "one process: nothing to exchange"
    if coordinator.context.group is None:
        return "skipped: the process group did not form"
    return "skipped: a rank was lost" if coordinator.lost else ""


def _form_group(
    rank_env: RankEnv, backend: str, timeout_s: float, store: RunStore, everyone: tuple[Member, ...]
) -> tuple[Group | None, Cell]:
    started = time.perf_counter()
    try:
        group = join_group(rank_env, backend, timeout_s, store)
    except GroupError as error:
        return None, Cell("group", "all", "red", error.message, error.advice)
    seconds = time.perf_counter() - started
    return group, Cell("group", "all", "green", f"{ranks_by_host(everyone)}; formed in {seconds:.1f} s")


def _leave_group() -> None:
    """Leave the group, but wait only briefly: NCCL may wait for ever for a rank that is gone."""
    leaving = threading.Thread(target=cleanup_distributed, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_TIMEOUT_S)


_UNREADABLE = "Install the same version of Tandem on every machine."
_LOST = "It exited, hangs, or its machine can no longer be reached: check its output and the network connection."
_RANK0_LOST = "Check the output of rank 0's machine and the network between the two."
