"""One rank of a preflight: sign in, join the group, then ask (rank 0) or answer (the others)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from torch._C._distributed_c10d import PrefixStore, Store

from modules.config import TrainConfig
from modules.distributed.preflight import all_reduce, clocks, disk, gpus, pairs, pictures, ports, versions
from modules.distributed.preflight.conductor import Conductor, Context, Task, answer_questions
from modules.distributed.preflight.words import lost_cells
from modules.distributed.process_group import (
    Group,
    cleanup_distributed,
    device_of,
    join_group,
    open_store,
    resolve_backend,
)
from modules.distributed.sign_in import GroupError, Member, Say, by_host, members
from modules.distributed.timed_store import StoreGone, StoreSilent, TimedStore
from modules.machine import hostname
from modules.run.checkup import Cell, Checkup
from modules.run.group_place import Place

# The longest that rank 0 may be busy with others before it asks this rank again, in patiences.
_BETWEEN_QUESTIONS = 20
_STORE_ANSWERS_S = 10.0
_LEAVE_WITHIN_S = 5.0


@dataclass(frozen=True)
class Check:
    """One check: what rank 0 does, the tasks that it gives the ranks, and whether it sends tensors."""

    name: str
    run: Callable[[Conductor], Iterable[Cell]]
    tasks: Mapping[str, Task]
    needs_group: bool = False


CHECKS = (
    Check("versions", versions.check, {"facts": versions.facts, "sources": versions.sources}),
    Check("clocks", clocks.check, {"clock": clocks.clock}),
    Check("ports", ports.check, {"listen": ports.listen, "call": ports.call}),
    Check("all-reduce", all_reduce.check, {"all_reduce": all_reduce.all_reduce}, needs_group=True),
    Check("pairs", pairs.check, {"pair": pairs.pair}, needs_group=True),
    Check("GPUs", gpus.check, {"gpus": gpus.gpus}),
    Check("disk", disk.check, {"disk": disk.disk, "mark": disk.mark, "look": disk.look}),
    Check("pictures", pictures.check, {"pictures": pictures.pictures, "picture_names": pictures.picture_names}),
)


@dataclass(frozen=True)
class Wanted:
    """What to check with: `config` is the defaults where `has_config` is False; times in seconds."""

    config: TrainConfig
    has_config: bool = False
    thorough: bool = False
    patience_s: float = 30.0  # for each question
    wait_s: float = 300.0  # for all processes to come
    more_checks: Sequence[Check] = ()


def run_preflight(place: Place, wanted: Wanted, say: Say, save: Callable[[Checkup], None]) -> Checkup:
    """Every rank calls it and gets the whole result; rank 0 hands what it knows so far to `save` after each check."""
    backend, _ = resolve_backend(wanted.config.distributed_backend)
    processes = "one process" if place.world_size == 1 else f"{place.world_size} processes"
    depth = "all tests" if wanted.thorough else "basic tests"
    checkup = Checkup(f"Preflight of {processes} over {backend}, {depth}")
    try:
        store = open_store(place, wanted.wait_s, say)
    except GroupError as error:
        return checkup.with_cells([Cell("group", hostname(), "red", error.message, error.advice)])
    everyone = members(store, place.world_size)
    group, cell = _form_group(place, backend, wanted.patience_s, store, everyone)
    context = Context(
        own=everyone[place.rank],
        everyone=everyone,
        group=group,
        device=device_of(place) if group is None else group.device,
        backend=backend,
        master=(place.master_addr, place.master_port),
        config=wanted.config,
        has_config=wanted.has_config,
        thorough=wanted.thorough,
        patience_s=wanted.patience_s,
    )
    checks = (*CHECKS, *wanted.more_checks)
    tasks = {name: task for check in checks for name, task in check.tasks.items()}
    questions = TimedStore(PrefixStore("preflight", store), _STORE_ANSWERS_S)
    try:
        if place.rank == 0:
            return conduct(Conductor(questions, context, tasks), checks, checkup.with_cells([cell]), save)
        return Checkup.parse(answer_questions(questions, context, tasks, wanted.patience_s * _BETWEEN_QUESTIONS))
    except (StoreGone, StoreSilent):
        where = f"{place.master_addr}:{place.master_port}"
        lost = Cell("group", hostname(), "red", f"rank 0 at {where} ended or can no longer be reached", _LOST)
        return checkup.with_cells([lost])
    finally:
        _leave()


def conduct(
    conductor: Conductor, checks: Iterable[Check], checkup: Checkup, save: Callable[[Checkup], None]
) -> Checkup:
    """Rank 0: one check after the other, then send the result to all."""
    save(checkup)
    for check in checks:
        if why := _why_not(check, conductor):
            cells = [Cell(check.name, "all", "grey", why)]
        else:
            cells = [*check.run(conductor), *lost_cells(check.name, conductor)]
        checkup = replace(checkup.with_cells(cells), matrices=tuple(conductor.matrices))
        save(checkup)
    checkup = replace(checkup, complete=True)
    conductor.end(checkup.dump())
    save(checkup)
    return checkup


def _why_not(check: Check, conductor: Conductor) -> str:
    if not check.needs_group:
        return ""
    if len(conductor.context.everyone) == 1:
        return "one process: nothing to exchange"
    if conductor.context.group is None:
        return "not tried: there is no group"
    return "not tried: not all ranks are there any more" if conductor.lost else ""


def _form_group(
    place: Place, backend: str, patience_s: float, store: Store, everyone: tuple[Member, ...]
) -> tuple[Group | None, Cell]:
    began = time.perf_counter()
    try:
        group = join_group(place, backend, patience_s, store)
    except GroupError as error:
        return None, Cell("group", "all", "red", error.message, error.advice)
    seconds = time.perf_counter() - began
    return group, Cell("group", "all", "green", f"{by_host(everyone)}; formed in {seconds:.1f} s")


def _leave() -> None:
    """Leave the group, but wait only a moment: NCCL may wait for ever for a rank that is gone."""
    leaving = threading.Thread(target=cleanup_distributed, daemon=True)
    leaving.start()
    leaving.join(_LEAVE_WITHIN_S)


_LOST = "Look at the output of rank 0's machine and at the network between the two."
