"""What this rank was asked for: by signals, by command files, and by intervals in minutes.

No rank acts on a request alone: the trainer sends requests along with the metrics, and all ranks act at the same step.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from modules.config import TandemError
from modules.distributed import RankGroup
from modules.run import Commands, SilentCommands, exit_codes
from modules.run.folder.commands import CUSTOM_SAMPLE, REGROUP, STOP_INTERRUPTED, STOP_PAUSED, STOP_TERMINATED
from modules.run.folder.event_summary import REGROUPING
from modules.run.supervise.signals import PAUSE_SIGNAL, other_deadly_signals, pause_signal_unblocked, signals_handled
from modules.run.supervise.stop_requests import SAME_REQUEST_S
from modules.training.step.triggers import TimeTrigger


@dataclass(frozen=True)
class Outcome:
    """How a run ends: the reason in its `finished` event, and the exit code."""

    reason: str
    exit_code: int
    is_complete: bool = False  # nothing is left to train


FINISHED = Outcome("finished", exit_codes.FINISHED, is_complete=True)
STOPPED_EARLY = Outcome("early_stopping", exit_codes.FINISHED, is_complete=True)
CACHED = Outcome("cached", exit_codes.FINISHED)
STOP_REQUESTS = {  # by name, the most urgent first
    "terminate": Outcome("terminated", exit_codes.TERMINATED),
    "interrupt": Outcome("interrupted", exit_codes.INTERRUPTED),
    "pause": Outcome("paused", exit_codes.PAUSED),
    "stop": Outcome("stopped", exit_codes.INTERRUPTED),
}
REGROUPED = Outcome(REGROUPING, exit_codes.FINISHED)  # at a backup, for the request REGROUP
PAUSE = "pause"
SIGNALS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminate", PAUSE_SIGNAL: "pause"}


class StoppedBeforeTraining(TandemError):
    """The run ends before its first step, as requested: there is nothing to back up yet."""

    kind = "stopped"

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(
            "The images are cached and nothing was trained, as cache_only asks; training will start at once."
            if outcome == CACHED
            else "Stopped before the first step; what was cached is kept."
        )
        self.outcome = outcome


class ControlRequests:
    """Collects this rank's requests between two steps."""

    def __init__(self, commands: Commands | SilentCommands, timer: TimeTrigger | None) -> None:
        self._commands = commands
        self._timer = timer
        self._signalled: set[str] = set()
        self._interrupted_at = 0.0  # seconds of time.monotonic()
        self._custom_samples: list[str] = []

    def poll(self, *, at_once: bool = False) -> dict[str, float]:
        """1.0 for each request. Those to end the run are repeated until it does, all others are returned once.

        With `at_once` the command files are those of this moment, otherwise they may have been read shortly before.
        """
        requested = set(self._signalled)
        for name, reason in self._commands.pending(at_once=at_once).items():
            requested.add(_request(name, reason))
            if name == CUSTOM_SAMPLE:
                self._custom_samples.append(reason)
            if name not in ("stop", REGROUP):
                self._commands.done(name)
        if self._timer is not None:
            requested.update(self._timer.due())
        return dict.fromkeys(requested, 1.0)

    def take_custom_samples(self) -> list[str]:
        """What the command files for custom samples held that no action has taken yet; empty on ranks other than 0."""
        taken, self._custom_samples = self._custom_samples, []
        return taken

    def stop_requested(self) -> Outcome | None:
        """Before the first step: how the run is to end, if anybody asked for that."""
        requested = set(self._signalled)
        if "stop" in (pending := self._commands.pending()):
            requested.add(_request("stop", pending["stop"]))
        if self._timer is not None:
            requested.update(self._timer.due(PAUSE))
        return next((outcome for name, outcome in STOP_REQUESTS.items() if name in requested), None)

    def check_stop(self, ranks: RankGroup) -> None:
        """Before the first step: raises StoppedBeforeTraining on every rank as soon as any was asked to stop."""
        if reason := ranks.cancel_reason():
            raise StoppedBeforeTraining(next(o for o in STOP_REQUESTS.values() if o.reason == reason))
        outcome = self.stop_requested()
        # False: another rank's reason came first, or all have passed this barrier; the next check finds out
        if outcome is not None and ranks.cancel(outcome.reason):
            raise StoppedBeforeTraining(outcome)

    def take_late(self) -> list[str]:
        """What was asked for after the last step, by name; nobody carries it out any more."""
        late = [name for name in self._commands.pending(at_once=True) if name not in ("stop", REGROUP)]
        for name in late:
            self._commands.done(name)
        return late

    @property
    def stop_is_wanted(self) -> bool:
        """Whether a person or a signal wants the run to end. Does not count as reading the request."""
        return bool(self._signalled) or "stop" in self._commands.pending()

    def clear_stop(self) -> None:
        """The run has ended: remove the command file."""
        self._commands.done("stop")

    def clear_regroup(self) -> None:
        """The run has ended, to go on with other machines: remove the command file. A stop that was asked for stays."""
        self._commands.done(REGROUP)

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Inside the block Ctrl-C, SIGTERM and SIGUSR1 become requests; a second Ctrl-C raises KeyboardInterrupt.

        One that reaches torchrun as well arrives twice, as torchrun passes it on at once. What would end the process,
        such as SIGHUP, counts as SIGTERM.
        """
        handled = [*(number for number in SIGNALS if number), *other_deadly_signals()]
        with signals_handled(handled, self._remember), pause_signal_unblocked():
            yield

    def _remember(self, number: int, frame: FrameType | None) -> None:
        name = SIGNALS.get(number, "terminate")
        if name == "interrupt":
            if name not in self._signalled:
                self._interrupted_at = time.monotonic()
            elif time.monotonic() - self._interrupted_at > SAME_REQUEST_S:
                raise KeyboardInterrupt
        self._signalled.add(name)


def _request(name: str, reason: str) -> str:
    """The supervisor passes signals on as a `stop` command whose reason says which."""
    if name == "stop":
        return {STOP_INTERRUPTED: "interrupt", STOP_TERMINATED: "terminate", STOP_PAUSED: "pause"}.get(reason, "stop")
    return name
