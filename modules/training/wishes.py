"""What this rank would like to happen: signals it got, command files it found, clocks that rang.

A wish is never acted upon by one rank: the trainer hands it to the agreement, and all act at the same step.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from modules.config import TandemError
from modules.run import Commands, SilentCommands, exit_codes
from modules.run.commands import INTERRUPTED, PAUSED, TERMINATED
from modules.run.pause import PAUSE_SIGNAL, pause_let_through
from modules.training.calendar import Clocks

NAMES = ("stop", "interrupt", "terminate", "pause", "backup", "save", "sample", "validate")


@dataclass(frozen=True)
class Ending:
    """How a run ends: the reason for the `finished` event, and the process's exit code."""

    reason: str
    exit_code: int


FINISHED = Ending("finished", exit_codes.FINISHED)
STOPPED_EARLY = Ending("early_stopping", exit_codes.FINISHED)
CACHED = Ending("cached", exit_codes.FINISHED)
ENDINGS = {
    "terminate": Ending("terminated", exit_codes.TERMINATED),
    "interrupt": Ending("interrupted", exit_codes.INTERRUPTED),
    "pause": Ending("paused", exit_codes.PAUSED),
    "stop": Ending("stopped", exit_codes.INTERRUPTED),
}
SIGNALS = {signal.SIGINT: "interrupt", signal.SIGTERM: "terminate", PAUSE_SIGNAL: "pause"}


class StoppedBeforeTraining(TandemError):
    """The run ends before its first step, as asked: there is nothing to back up yet."""

    kind = "stopped"

    def __init__(self, ending: Ending) -> None:
        super().__init__(
            "The pictures are prepared and nothing was trained, as cache_only asks; training will start at once."
            if ending == CACHED
            else "Stopped before the first step; what was cached is kept."
        )
        self.ending = ending


class Wishes:
    """Collects this rank's wishes between two steps."""

    def __init__(self, commands: Commands | SilentCommands, clocks: Clocks | None) -> None:
        self._commands = commands
        self._clocks = clocks
        self._signalled: set[str] = set()

    def collect(self) -> dict[str, float]:
        """1.0 for each wish; signals stay wished for until the run ends, the others are told once."""
        wished = set(self._signalled)
        for name, reason in self._commands.pending().items():
            wished.add(_command(name, reason))
            if name != "stop":
                self._commands.done(name)
        if self._clocks is not None:
            wished.update(self._clocks.rung())
        return dict.fromkeys(wished, 1.0)

    def check_stop(self) -> None:
        """Between two pictures while caching, before ranks act together: raises StoppedBeforeTraining if so wished."""
        wished = set(self._signalled)
        if "stop" in (pending := self._commands.pending()):
            wished.add(_command("stop", pending["stop"]))
        for name, ending in ENDINGS.items():
            if name in wished:
                raise StoppedBeforeTraining(ending)

    def stopped(self) -> None:
        """The run has ended as wished: the command file goes."""
        self._commands.done("stop")

    @contextmanager
    def signals(self) -> Iterator[None]:
        """Inside the block Ctrl-C, SIGTERM and SIGUSR1 become wishes; a second Ctrl-C ends at once."""
        former = {number: signal.signal(number, self._remember) for number in SIGNALS if number}
        try:
            with pause_let_through():
                yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        name = SIGNALS[number]
        if name == "interrupt" and name in self._signalled:
            raise KeyboardInterrupt
        self._signalled.add(name)


def _command(name: str, reason: str) -> str:
    """The supervisor passes signals on as a stop command that says so."""
    if name == "stop":
        return {INTERRUPTED: "interrupt", TERMINATED: "terminate", PAUSED: "pause"}.get(reason, "stop")
    return name
