"""Ctrl-C, SIGTERM and SIGUSR1 to a supervisor: the first requests a graceful stop, the second stops at once."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final

from modules.run.console import warn
from modules.run.folder.commands import (
    STOP_INTERRUPTED,
    STOP_PAUSED,
    STOP_TERMINATED,
    is_stopped_by_user,
    request_command,
)
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.plan import TORCHRUN
from modules.run.supervise.process_tree import ProcessTree, signal_children
from modules.run.supervise.signals import (
    PAUSE_SIGNAL,
    describe_stop,
    ignores_signals_after_stop,
    pause_signal_unblocked,
    termination_signals,
)

# `timeout` and some shells deliver one request twice; a person takes longer to press Ctrl-C again.
SAME_REQUEST_S: Final = 0.3
_SIGNALS = {
    STOP_INTERRUPTED: int(signal.SIGINT),
    STOP_PAUSED: PAUSE_SIGNAL,
    STOP_TERMINATED: int(signal.SIGTERM),
}
_REASONS = {number: reason for reason, number in _SIGNALS.items()}


class StopRequests:
    """Handles the signals of this process and forwards stop requests to the ranks."""

    def __init__(
        self,
        folder: RunFolder,
        process_tree: ProcessTree,
        argv: Sequence[str],
        *,
        has_first_rank: bool,
        within_s: float = math.inf,
    ) -> None:
        """What has not stopped `within_s` of a request is stopped at once; infinite if a backup may be made."""
        self._folder = folder
        self._within_s = within_s
        self._tree = process_tree
        self._is_torchrun = str(TORCHRUN) in argv
        self._has_first_rank = has_first_rank
        self._received: list[tuple[int, float]] = []
        self._handled = 0
        self._requested_at = 0.0
        self.stop_reason = ""  # the reason of the stop command
        self.stopped_by = ""  # the signal in words
        self.was_forced = False
        self.was_requested = False  # a rank was asked to stop, by a signal or a command

    @contextmanager
    def handlers_installed(self) -> Iterator[None]:
        """Record stop signals instead of dying of them; no effect outside the main thread.

        Of a program that asked for it (`ignore_signals_after_stop`) they stay ignored after a requested stop.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handled = [*termination_signals(), *([PAUSE_SIGNAL] if PAUSE_SIGNAL else [])]
        before = {number: signal.signal(number, self._record) for number in handled}
        try:
            with pause_signal_unblocked():
                yield
        finally:
            ignored = (bool(self.stop_reason) or self.was_requested) and ignores_signals_after_stop()
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if ignored else handler)

    def handle(self, child: subprocess.Popen[bytes]) -> None:
        """Act on new signals: the first requests a stop, the second kills everything; repeated pauses are ignored."""
        pending = self._received[self._handled :]
        self._handled += len(pending)
        for number, at in pending:
            if self.stop_reason and number == PAUSE_SIGNAL:
                continue
            if self.stop_reason in {"", STOP_PAUSED}:
                self.stop_reason, self._requested_at = _REASONS.get(number, STOP_TERMINATED), at
                self.stopped_by = describe_stop(number)
                self._request_stop(child)
            elif at - self._requested_at > SAME_REQUEST_S:
                self._force()
        if self.stop_reason and not self.was_forced and time.monotonic() - self._requested_at > self._within_s:
            self._force()

    def _force(self) -> None:
        self.was_forced = True
        self._tree.kill()

    def take_late(self) -> None:
        """Count signals since the end of the processes, which no `handle` has seen, as a requested stop."""
        late = self._received[self._handled :]
        self._handled += len(late)
        if late and not self.stop_reason:
            self.stop_reason = _REASONS.get(late[0][0], STOP_TERMINATED)
            self.stopped_by = describe_stop(late[0][0])

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._received.append((number, time.monotonic()))

    def _request_stop(self, child: subprocess.Popen[bytes]) -> None:
        if self.stop_reason == STOP_PAUSED:
            where = "" if self._has_first_rank else " on machine 0"
            warn(f"Pausing after a backup because of SIGUSR1; --resume latest{where} continues from there.")
        else:
            after = " after a backup" if math.isinf(self._within_s) else ""
            again = "; press Ctrl-C again to stop at once" if sys.stdin and sys.stdin.isatty() else ""
            warn(f"Stopping{after}{again}.")
        try:
            if not is_stopped_by_user(self._folder):  # who closes the window sends both
                request_command(self._folder, "stop", self.stop_reason)
            is_delivered = self._has_first_rank
        except OSError:
            is_delivered = False
        if not is_delivered:
            # A full disk, or a node without rank 0, the only one to read the folder: signal the ranks themselves.
            number = signal.Signals(_SIGNALS[self.stop_reason])
            if self._is_torchrun:
                signal_children(child.pid, number)
            else:
                child.send_signal(number)
