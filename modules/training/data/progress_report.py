"""How far counted work is that ranks share, such as caching, and whether the run should stop meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from modules.monitoring import Report

_REPORT_EVERY_S: Final = 0.5


class ProgressReport:
    """Reports counted progress at most twice a second, and checks whether the run should stop."""

    def __init__(self, report: Report, check_stop: Callable[[], None]) -> None:
        self._report = report
        self.check_stop = check_stop
        self._reported_at = 0.0
        self._phase = ""

    def callback(self, phase: str, workers: int) -> Callable[[int, int], None]:
        """A callback (done, total) for this rank's part of work that `workers` ranks share about equally."""

        def on_progress(done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._reported_at >= _REPORT_EVERY_S or done >= total or phase != self._phase:
                self._reported_at, self._phase = now, phase
                self.check_stop()
                self._report.phase(phase, done * workers, total * workers)

        return on_progress
