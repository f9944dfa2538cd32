"""What goes on at the machines that entries wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping
from typing import Final

from modules.config import ConfigError, TandemError
from modules.files import printable
from modules.run.hosts.host_list import find_hosts, read_hosts
from modules.run.hosts.ssh_command import Unreachable
from modules.run.queue.entries import Entry, Resources
from modules.run.remote.attendant import ADD
from modules.run.remote.link import LinkLost, connect
from modules.run.remote.machine import Activity, activity, run_is_active

_ASKED_EVERY_S: Final = 5.0
_CONNECTED_EVERY_S: Final = 30.0  # a machine that does not answer


class Places:
    """Asks each machine in a thread, because a machine that is switched off takes long not to answer."""

    def __init__(self) -> None:
        self._looks: dict[str, _Look] = {}

    def forget(self, entry: Entry) -> None:
        """What was known of an entry's machines may be over."""
        for machine in (entry.place, *entry.hosts):
            self._looks.pop(machine, None)

    def why_not(self, entry: Entry, own: Mapping[str, Collection[str]]) -> str | None:
        """Why an entry must wait for one of its machines, as the end of a sentence; "" if nothing is in its way, None
        as long as one is being asked. `own` are runs of the queue's, which it knows itself, with their machines.

        Raises TandemError if one cannot be asked for a reason that does not pass.
        """
        answers = [
            self._why_not_at(machine, entry, {name for name, machines in own.items() if machine in machines})
            for machine in (entry.place, *entry.hosts)
        ]
        return None if None in answers else next(filter(None, answers), "")  # the same one until all have answered

    def _why_not_at(self, machine: str, entry: Entry, own: Collection[str]) -> str | None:
        look = self._looks.get(machine)
        if look is None or look.is_old:
            look = self._looks[machine] = _Look(machine)
        if not look.ended_at:
            return None
        if isinstance(look.fault, Unreachable | LinkLost):
            return f"there is no connection to {machine}: {printable(look.fault.message, 500)}"
        if look.fault is not None:
            raise look.fault
        return _in_the_way(machine, entry, look.found, own)


def is_cluster(place: str) -> bool:
    """Whether Slurm starts the runs there, which wait in its queue."""
    try:
        return any(host.name == place and host.slurm for host in read_hosts())
    except ConfigError:  # the start says it
        return False


def _in_the_way(machine: str, entry: Entry, found: Activity, own: Collection[str]) -> str:
    if (busy := found.transfer(machine)) or is_cluster(machine):
        return busy
    for run, devices in zip(found.runs, found.devices, strict=False):
        if run not in own and entry.resources.overlaps(Resources(devices, place=machine)):
            return run_is_active(run, machine)
    return ""


class _Look:
    """One question, which is asked when this is made."""

    def __init__(self, place: str) -> None:
        self._place = place
        self.found = Activity(runs=[], devices=[], sends=False, installs=False, reads=False)
        self.fault: TandemError | None = None
        self.ended_at = 0.0
        threading.Thread(target=self._ask, name=f"ask {place}", daemon=True).start()

    @property
    def is_old(self) -> bool:
        """Whether it is time to ask again."""
        every_s = _ASKED_EVERY_S if self.fault is None else _CONNECTED_EVERY_S
        return bool(self.ended_at) and time.monotonic() - self.ended_at > every_s

    def _ask(self) -> None:
        try:
            with connect(find_hosts([self._place], ADD)[0]) as link:
                self.found = activity(link)
        except TandemError as error:
            self.fault = error
        finally:
            self.ended_at = time.monotonic()
