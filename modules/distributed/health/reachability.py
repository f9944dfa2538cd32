"""Whether a silent machine can still be reached: its operating system answers a connection even if its programs hang.

A rank may be silent for a while because native code holds the GIL. A machine that has lost its network or its power
does not even refuse a connection, so its loss is certain sooner.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Sequence

from modules.distributed.startup.rendezvous import Member
from modules.run.launch.rank_env import RankEnv

PROBE_TIMEOUT_S = 2.0
# How long probes must fail before the machine counts as unreachable: longer than a brief network glitch.
UNREACHABLE_AFTER_S = 6.0
# A probe that failed longer ago belongs to an earlier outage.
_SAME_OUTAGE_S = 8.0


class HostProbe:
    """Probes one machine with TCP connections. A failing probe takes seconds, so it runs in a thread."""

    def __init__(self, address: str, port: int, *, answers: bool = False) -> None:
        """`answers`: it has been reached there before. If it never was, a firewall may drop every probe."""
        self._address, self._port = address, port
        self._answers = answers
        self.refuses = False  # the machine answers, but nothing listens at the port
        self._failing_since: float | None = None
        self._last_failure_at = 0.0
        self._thread: threading.Thread | None = None

    def is_unreachable(self) -> bool:
        """Whether it answered once and has not for too long; starts a new probe for the next call."""
        since = self._failing_since
        self.start()
        return self._answers and since is not None and time.monotonic() - since > UNREACHABLE_AFTER_S

    def start(self) -> None:
        """Start a probe, unless one is running."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self.probe, name="probe", daemon=True)
            self._thread.start()

    def probe(self) -> None:
        """Connect and disconnect; a refused connection is an answer, too."""
        started = time.monotonic()
        try:
            socket.create_connection((self._address, self._port), PROBE_TIMEOUT_S).close()
            self.refuses = False
        except ConnectionRefusedError:
            self.refuses = True
        except OSError:
            self.refuses = False
            if self._failing_since is None or started - self._last_failure_at > _SAME_OUTAGE_S:
                self._failing_since = started
            self._last_failure_at = started
            return
        self._answers, self._failing_since = True, None


def host_probes(everyone: Sequence[Member], rank_env: RankEnv) -> dict[str, HostProbe]:
    """The machines that this rank probes, by machine id: on rank 0 all others, elsewhere the one that hosts the store.

    Rank 0 probes every machine once, to know which of them answer.
    """
    own, first = everyone[rank_env.rank], everyone[0]
    if own.machine_id != first.machine_id:
        return {first.machine_id: HostProbe(rank_env.master_addr, rank_env.master_port, answers=True)}
    if rank_env.rank != 0:
        return {}
    others = {member.machine_id: member.address for member in everyone if member.machine_id != own.machine_id}
    probes = {machine: HostProbe(address, rank_env.master_port) for machine, address in others.items() if address}
    for probe in probes.values():
        probe.start()
    return probes
