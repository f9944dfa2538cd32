"""The GPUs: memory that is free, heat and other brakes, and the links between those of one host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict

from modules.distributed.preflight.conductor import Answer, Conductor, Context
from modules.distributed.preflight.words import hosts_of, lost_cells
from modules.distributed.rank_facts import device_name
from modules.distributed.roster_report import gib
from modules.machine import GpuHealth, Link, gpu_health, gpu_links, link_table, visible_gpus, without_peer_access
from modules.run.checkup import Cell

LITTLE_FREE = 0.8
HOT_C = 85


def gpus(context: Context) -> Answer:
    """The task of a host's first rank: health of its GPUs, and how they are joined."""
    found = visible_gpus() if context.device.type == "cuda" else []
    return {
        "device": device_name(context.device),
        "names": [gpu.name for gpu in found],
        "health": [asdict(health) for health in gpu_health(found)],
        "links": [asdict(link) for link in gpu_links(found)],
    }


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for a host whose GPUs are well; one for each that is not, and one for missing peer access."""
    answers = conductor.ask([member.rank for member in conductor.firsts], "gpus")
    yield from lost_cells("GPUs", conductor)
    hosts = {member.rank: member.host for member in conductor.context.everyone}
    without = [member for member in conductor.firsts if answers.get(member.rank, {}).get("names") == []]
    if without:
        device = answers[without[0].rank]["device"]
        yield Cell("GPUs", hosts_of(without), "grey", f"none is used: training runs on the {device}")
    for rank, answer in answers.items():
        if "error" in answer:
            yield Cell("GPUs", hosts[rank], "red", str(answer["error"]), DRIVER)
        elif answer["names"]:
            yield from judge(hosts[rank], answer)
            links = _links(answer)
            conductor.matrices.extend([(f"Links of {hosts[rank]}", tuple(link_table(links)))] if links else [])


def judge(host: str, answer: Answer) -> Iterable[Cell]:
    """The cells of one host."""
    names, health = answer["names"], answer["health"]
    assert isinstance(names, list)
    assert isinstance(health, list)
    states = [GpuHealth(**{**each, "brakes": tuple(each["brakes"])}) for each in health]
    cells = [cell for state in states for cell in _of_gpu(host, state)]
    if closed := without_peer_access(_links(answer)):
        pairs = ", ".join(f"{link.first} and {link.second}" for link in closed[:4])
        cells.append(Cell("GPUs", host, "yellow", f"no peer access between {pairs}", PEERS))
    free = [state.free_mib for state in states if state.free_mib is not None]
    least = f", {gib(min(free))} free at least" if free else ""
    return cells or [Cell("GPUs", host, "green", f"{len(names)} x {names[0]}{least}")]


def _of_gpu(host: str, state: GpuHealth) -> Iterable[Cell]:
    where = f"{host} GPU {state.index}"
    if state.brakes:
        hot = "" if state.temperature_c is None else f" at {state.temperature_c} °C"
        yield Cell("GPUs", where, "red", f"slowed down{hot} by {', '.join(state.brakes)}", HEAT)
    elif state.temperature_c is not None and state.temperature_c >= HOT_C:
        yield Cell("GPUs", where, "yellow", f"{state.temperature_c} °C before any work", HEAT)
    if state.free_mib is not None and state.free_mib < state.memory_mib * LITTLE_FREE:
        value = f"only {gib(state.free_mib)} of {gib(state.memory_mib)} free"
        yield Cell("GPUs", where, "yellow", value, OTHERS)


def _links(answer: Answer) -> list[Link]:
    links = answer["links"]
    assert isinstance(links, list)
    return [Link(**link) for link in links]


DRIVER = "Run nvidia-smi on that machine; restart it if the driver reports an error."
HEAT = "Look at fans, air flow and power supply (nvidia-smi -q -d PERFORMANCE); a slow GPU holds all others up."
OTHERS = "Another program uses this GPU: nvidia-smi shows which."
PEERS = "Gradients go through main memory there. In a virtual machine turn ACS off, or choose other GPUs (device_ids)."
