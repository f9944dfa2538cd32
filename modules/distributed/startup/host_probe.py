"""Whether a silent machine can still be reached: its system answers a connection even if its programs hang."""

from __future__ import annotations

import socket
import threading
import time

PROBE_TIMEOUT_S = 2.0
# From the first of the failing probes to the last before the machine counts as unreachable. They begin after three
# seconds of silence, and each takes two: an outage of less than ten seconds is survived.
UNREACHABLE_AFTER_S = 7.0
_PROBE_EVERY_S = 0.5
# For how long after the last question probes go on.
_WANTED_FOR_S = 8.0
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
        self._wanted_at = 0.0

    def is_unreachable(self) -> bool:
        """Whether it answered once and has not for too long; goes on probing for the next call.

        The time since the last probe does not count: the machine may have come back, while TCP still waits for many
        seconds before it repeats what was lost.
        """
        since, last = self._failing_since, self._last_failure_at
        self.start()
        return self._answers and since is not None and last - since > UNREACHABLE_AFTER_S

    def start(self) -> None:
        """Probe until the machine answers or nobody asks any more."""
        self._wanted_at = time.monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._probe_until_answer, name="probe", daemon=True)
            self._thread.start()

    def _probe_until_answer(self) -> None:
        self.probe()
        while self._failing_since is not None and time.monotonic() - self._wanted_at < _WANTED_FOR_S:
            time.sleep(_PROBE_EVERY_S)
            self.probe()

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
