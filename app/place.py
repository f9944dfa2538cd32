"""Where Train starts runs, with the devices there, and what would be started on them."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable
from functools import partial
from typing import Final, Literal

from app.background import Background
from app.preferences import Preferences
from modules.config import ConfigError, TrainConfig
from modules.run import LaunchPlan
from modules.run.hosts.check import ask_host
from modules.run.hosts.hardware import Hardware, known_hardware
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import read_hosts

_OLD_S: Final = 3600.0  # after which a machine is asked again


class Place:
    """`machine` is what is known of the chosen machine's devices, None on this computer; `fault` is why it could not be
    asked again. The listeners of "place" are told of every change."""

    def __init__(
        self,
        root: tk.Misc,
        preferences: Preferences,
        background: Background,
        notify: Callable[[Literal["place"]], object],
        subscribe: Callable[[Literal["run"], Callable[[], object]], object],
    ) -> None:
        self._preferences, self._background = preferences, background
        self._changed = partial(notify, "place")
        self.machine: Hardware | None = None
        self.fault = ""
        self._asked: Host | None = None  # is being asked now
        self._asked_at = 0.0
        self.refresh()
        subscribe("run", self._look_whether_chosen)
        root.after_idle(self.keep_fresh)

    @property
    def is_asking(self) -> bool:
        """Whether the chosen machine is being asked."""
        return self._asked is not None and self._asked == self._host()

    def refresh(self) -> None:
        """Another place may have been chosen, or a machine may have been asked."""
        before = self.machine, self.fault
        host = self._host()
        self.machine = None if host is None else known_hardware(host)
        if self.machine is None or (before[0] is not None and before[0].name != self.machine.name):
            self.fault = ""
        if (self.machine, self.fault) != before:
            self._changed()

    def _look_whether_chosen(self) -> None:
        if self._preferences.place != ("" if self.machine is None else self.machine.name):
            self.refresh()

    def keep_fresh(self) -> None:
        """Ask the chosen machine if it was not asked within the last hour."""
        machine, now = self.machine, time.time()
        if machine is not None and now - max(machine.at, self._asked_at) > _OLD_S:
            self.ask()

    def ask(self) -> None:
        """Ask the chosen machine in the background, unless it is being asked."""
        host = self._host()
        if host is None or self.is_asking:
            return
        self._asked, self._asked_at = host, time.time()
        self._changed()
        self._background.run(partial(ask_host, host), lambda _: self._answered(host, ""), partial(self._answered, host))

    def _answered(self, host: Host, fault: str) -> None:
        self._asked = None if self._asked == host else self._asked
        if host == self._host():
            self.fault, self.machine = fault, known_hardware(host)
        self._changed()

    def _host(self) -> Host | None:
        """The chosen machine as it is in the list."""
        name = self._preferences.place
        try:
            return next((host for host in read_hosts() if host.name == name), None) if name else None
        except ConfigError:  # Train says it
            return None


def planned(config: TrainConfig, machine: Hardware | None) -> LaunchPlan | None:
    """What Train would start on this computer, or on the machine; None if its devices are not known. Queries the
    driver: call it off the main thread. Raises ConfigError."""
    if machine is None:
        return LaunchPlan.from_config(config, config_path="config.json")
    if not machine.at:
        return None
    return LaunchPlan.from_config(
        config,
        config_path="config.json",
        gpus=machine.as_gpus,
        cores=machine.cores,
        environment={},
        is_free=lambda _port: True,
    )


def planned_world_size(config: TrainConfig, machine: Hardware | None) -> int:
    """The processes that a run would have; slow."""
    try:
        plan = planned(config, machine)
    except ConfigError:
        return 1  # which its own fields report
    return (config.world_size if plan is None else plan.world_size) or 1
