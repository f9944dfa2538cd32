"""Ctrl-C, SIGTERM and SIGUSR1 to a supervisor: the first asks for a graceful stop, the second ends at once."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from modules.run.commands import INTERRUPTED, PAUSED, TERMINATED, request_command
from modules.run.console import warn
from modules.run.end_signals import end_signals
from modules.run.launch_plan import TORCHRUN_MODULE
from modules.run.pause import PAUSE_SIGNAL, pause_let_through
from modules.run.process_family import ProcessFamily, signal_children
from modules.run.run_folder import RunFolder

# `timeout` and some shells deliver one request twice; a person needs longer for the second Ctrl-C.
_SAME_REQUEST_S = 0.3
_SIGNALS = {INTERRUPTED: int(signal.SIGINT), PAUSED: PAUSE_SIGNAL, TERMINATED: int(signal.SIGTERM)}
_REASONS = {number: reason for reason, number in _SIGNALS.items()}


class StopRequests:
    """Notes the signals of this process, and passes what they ask for on to the ranks."""

    def __init__(self, folder: RunFolder, family: ProcessFamily, argv: Sequence[str], *, has_first_rank: bool) -> None:
        self._folder = folder
        self._family = family
        self._is_torchrun = TORCHRUN_MODULE in argv
        self._has_first_rank = has_first_rank
        self._noted: list[tuple[int, float]] = []
        self._obeyed = 0
        self._asked_at = 0.0
        self.asked = ""  # the reason of the stop command
        self.was_cut_short = False

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note requests to stop instead of dying of them; outside the main thread nothing is changed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        wanted = [*end_signals(), *([PAUSE_SIGNAL] if PAUSE_SIGNAL else [])]
        before = {number: signal.signal(number, self._note) for number in wanted}
        try:
            with pause_let_through():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def obey(self, child: subprocess.Popen[bytes]) -> None:
        """The first request asks for a stop, the second ends everything; a pause is asked for ever so often."""
        waiting = self._noted[self._obeyed :]
        self._obeyed += len(waiting)
        for number, at in waiting:
            if self.asked and number == PAUSE_SIGNAL:
                continue
            if self.asked in {"", PAUSED}:
                self.asked, self._asked_at = _REASONS.get(number, TERMINATED), at
                self._ask_to_stop(child)
            elif at - self._asked_at > _SAME_REQUEST_S:
                self.was_cut_short = True
                self._family.kill()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._noted.append((number, time.monotonic()))

    def _ask_to_stop(self, child: subprocess.Popen[bytes]) -> None:
        if self.asked == PAUSED:
            warn("Pausing after a backup, as SIGUSR1 asks; --resume latest goes on from there.")
        else:
            warn("Stopping after a backup; press Ctrl-C once more to end at once.")
        try:
            request_command(self._folder, "stop", self.asked)
            is_heard = self._has_first_rank
        except OSError:
            is_heard = False
        if not is_heard:
            # A full disk, or a node without rank 0, which alone reads the folder: tell the ranks themselves.
            number = signal.Signals(_SIGNALS[self.asked])
            if self._is_torchrun:
                signal_children(child.pid, number)
            else:
                child.send_signal(number)
