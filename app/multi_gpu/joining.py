"""The machines that are switched on for Train: with this computer, or with the one that was chosen beside Train."""

from __future__ import annotations

from collections.abc import Sequence

from app.state import AppState
from modules.config import ConfigError
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import read_hosts
from modules.run.queue.places import is_cluster
from modules.run.remote.link import is_for_runs


def can_join(state: AppState, host: Host) -> bool:
    """Whether a machine can join the run where Train starts it: elsewhere, only one that Tandem sets up by itself, and
    none that of a cluster."""
    place = state.preferences.place
    return not place or (host.name != place and is_for_runs(host) and not host.slurm and not is_cluster(place))


def switched_on(state: AppState, hosts: Sequence[Host]) -> list[str]:
    """The names of those that can join, in the order of the list."""
    return [host.name for host in hosts if host.name in state.preferences.hosts and can_join(state, host)]


def joining(state: AppState) -> list[str]:
    """Those that join a run on the chosen machine, as many as “Number of machines” says."""
    machines = machine_count(state)
    if not state.preferences.place or machines is None or state.draft.get("enable_multi_gpu") is not True:
        return []
    try:
        return switched_on(state, read_hosts())[: machines - 1]
    except ConfigError:  # a damaged list: the start says so
        return []


def machine_count(state: AppState) -> int | None:
    """How many there are in all, which may just have been typed; None if that is no number."""
    machines = str(state.draft.get("num_nodes"))
    return int(machines) if machines.isdecimal() else None


def switch(state: AppState, hosts: Sequence[Host], name: str, is_on: bool) -> None:
    """Remember a switch; the number of machines follows, those who join by hand stay counted."""
    preferences, draft = state.preferences, state.draft
    before = len(switched_on(state, hosts))
    others = [other for other in preferences.hosts if other != name]
    preferences.hosts = [*others, name] if is_on else others
    preferences.save()
    now, machines = len(switched_on(state, hosts)), machine_count(state)
    is_short = is_on and machines is not None and machines <= now
    if is_short or (not is_on and machines == before + 1):
        draft.set("num_nodes", now + 1)
    if is_on and draft.get("enable_multi_gpu") is not True:
        draft.set("enable_multi_gpu", True)
