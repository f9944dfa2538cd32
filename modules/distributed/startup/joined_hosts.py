"""Rank 0's view of the hosts whose ranks have joined while others are still missing: one may be cut off meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final

from modules.distributed.startup.host_probe import HostProbe

SIGN_EVERY_S: Final = 2.0  # by each rank that waits for others
SILENT_AFTER_S: Final = 5.0  # from then on the host is probed again and again
CUT_OFF_AFTER_S: Final = 10.0  # and this long it is silent, if no probe is answered


@dataclass
class _Host:
    probe: HostProbe | None  # None without an address
    signs: dict[int, bytes] = field(default_factory=dict)  # the last one of each of its ranks
    heard_at: float = field(default_factory=time.monotonic)  # of any of them


class JoinedHosts:
    """Processes that end are no matter: they may be started again. A host that nothing answers from is."""

    def __init__(self, own_machine: str, port: int) -> None:
        """`port`: any will do, as a refused connection is an answer."""
        self._own_machine, self._port = own_machine, port
        self._hosts: dict[str, _Host] = {}

    def record(self, rank: int, machine: str, address: str, sign: bytes) -> None:
        """Note what a rank on another machine has said last."""
        if machine == self._own_machine:
            return
        host = self._hosts.get(machine)
        if host is None:
            host = self._hosts[machine] = _Host(HostProbe(address, self._port) if address else None)
            if host.probe is not None:
                host.probe.start()  # to know whether it answers at all
        if host.signs.get(rank) != sign:
            host.signs[rank] = sign
            host.heard_at = time.monotonic()

    def cut_off(self) -> tuple[list[int], float] | None:
        """The ranks of a host that is cut off, and for how many seconds it has been silent; None if there is none."""
        for host in self._hosts.values():
            silent_s = time.monotonic() - host.heard_at
            if silent_s > SILENT_AFTER_S and host.probe is not None:
                is_unreachable = host.probe.is_unreachable()
                if is_unreachable and silent_s > CUT_OFF_AFTER_S:
                    return sorted(host.signs), silent_s
        return None
