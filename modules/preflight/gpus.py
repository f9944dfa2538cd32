"""The GPUs: free memory, temperature, throttling, and the links within each host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, cast

from modules.distributed.startup.cluster_report import gib
from modules.distributed.startup.member import Member
from modules.distributed.startup.rank_info import device_name
from modules.machine import GpuHealth, Link, gpu_health, gpu_links, link_table, visible_gpus, without_peer_access
from modules.preflight.cells import hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.run.preflight_report.report import Cell

MIN_FREE = 0.8
HOT_C = 85


def query_gpus(context: Context) -> Answer:
    """Task of each rank: the health of the GPUs that it sees and the links between them."""
    found = visible_gpus() if context.device.type == "cuda" else []
    return {
        "device": device_name(context.device),
        "names": [gpu.name for gpu in found],
        "ids": [gpu.uuid or f"number {gpu.index}" for gpu in found],
        "health": [asdict(health) for health in gpu_health(found)],
        "links": [asdict(link) for link in gpu_links(found)],
    }


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell for a host with healthy GPUs, else one per problem, including missing peer access."""
    everyone = coordinator.ask([member.rank for member in coordinator.alive], "query_gpus")
    answers = {
        first.rank: merge([everyone[rank] for rank in everyone if _is_on(coordinator, rank, first)])
        for first in coordinator.first_ranks
    }
    cpu_only = [member for member in coordinator.first_ranks if answers.get(member.rank, {}).get("names") == []]
    if cpu_only:
        device = answers[cpu_only[0].rank]["device"]
        yield Cell("GPUs", hosts_of(cpu_only), "grey", f"none used: training runs on the {device}")
    for rank, answer in answers.items():
        host = coordinator.context.everyone[rank].host
        if "error" in answer:
            yield Cell("GPUs", host, "red", str(answer["error"]), DRIVER)
        elif answer["names"]:
            yield from judge(host, answer)
            if links := _links(answer):
                coordinator.matrices.append((f"Links of {host}", tuple(link_table(links))))


def merge(answers: Sequence[Answer]) -> Answer:
    """What the ranks of a host see together: under Slurm each may see only its own GPU."""
    if failed := [answer for answer in answers if "error" in answer]:
        return failed[0]
    names: dict[str, object] = {}
    health: dict[str, object] = {}
    for answer in answers:
        ids, found, states = (cast("list[Any]", answer[key]) for key in ("ids", "names", "health"))
        names = {**dict(zip(ids, found, strict=True)), **names}
        health = {**dict(zip(ids, states, strict=False)), **health}  # without NVML there are no states
    return {**answers[0], "names": list(names.values()), "health": list(health.values())}


def judge(host: str, answer: Answer) -> Iterable[Cell]:
    """The cells of one host."""
    names, health = answer["names"], answer["health"]
    assert isinstance(names, list)
    assert isinstance(health, list)
    states = [GpuHealth(**{**each, "slowdown_reasons": tuple(each["slowdown_reasons"])}) for each in health]
    cells = [cell for state in states for cell in _of_gpu(host, state)]
    if closed := without_peer_access(_links(answer)):
        pairs = ", ".join(f"{link.first} and {link.second}" for link in closed[:4])
        cells.append(Cell("GPUs", host, "yellow", f"no peer access between {pairs}", PEERS))
    free = [state.free_mib for state in states if state.free_mib is not None]
    least = f", {gib(min(free))} free or more" if free else ""
    return cells or [Cell("GPUs", host, "green", f"{len(names)} x {names[0]}{least}")]


def _is_on(coordinator: Coordinator, rank: int, first: Member) -> bool:
    member = coordinator.context.everyone[rank]
    return (member.host, member.machine_id) == (first.host, first.machine_id)


def _of_gpu(host: str, state: GpuHealth) -> Iterable[Cell]:
    where = f"{host} GPU {state.index}"
    if state.slowdown_reasons:
        hot = "" if state.temperature_c is None else f" at {state.temperature_c} °C"
        yield Cell("GPUs", where, "red", f"throttled{hot} by {', '.join(state.slowdown_reasons)}", HEAT)
    elif state.temperature_c is not None and state.temperature_c >= HOT_C:
        yield Cell("GPUs", where, "yellow", f"{state.temperature_c} °C at idle", HEAT)
    if state.free_mib is not None and state.free_mib < state.memory_mib * MIN_FREE:
        value = f"only {gib(state.free_mib)} of {gib(state.memory_mib)} free"
        yield Cell("GPUs", where, "yellow", value, OTHERS)


def _links(answer: Answer) -> list[Link]:
    links = answer["links"]
    assert isinstance(links, list)
    return [Link(**link) for link in links]


DRIVER = "Run nvidia-smi on that machine; reboot it if the driver reports an error."
HEAT = "Check fans, airflow and power supply (nvidia-smi -q -d PERFORMANCE); a slow GPU slows down all others."
OTHERS = "Another program uses this GPU: nvidia-smi shows which."
PEERS = "Transfers go through host memory there. In a virtual machine, disable ACS, or choose other GPUs (device_ids)."
