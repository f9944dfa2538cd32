"""Watches over the processes of one start until the last has ended, and says how it ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import BinaryIO, Self

from modules.run.commands import INTERRUPTED, TERMINATED, clear_commands, request_command
from modules.run.ending import Ending, Traces, decide_ending, ending_message, said_exit_code
from modules.run.events import Event, EventLog, EventReader
from modules.run.failures import forget_failures, read_failures
from modules.run.launch_plan import TORCHRUN_MODULE, LaunchPlan
from modules.run.launcher_log import parse_launcher_log, shows_failure
from modules.run.process_family import ProcessFamily, signal_children
from modules.run.run_folder import RunFolder, not_writable

_LOOK_EVERY_S = 0.1
# `timeout` and some shells deliver one request twice; a person needs longer for the second Ctrl-C.
_SAME_REQUEST_S = 0.3


class Supervisor:
    """Runs one command to its end; Ctrl-C and SIGTERM ask for a graceful stop, a second ends it at once."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: RunFolder,
        *,
        environment: Mapping[str, str] | None = None,
        ranks: range = range(1),
        failure_grace_s: float = 8.0,
        report_grace_s: float = 4.0,
        finish_grace_s: float = 60.0,
    ) -> None:
        """Prepare to run `argv`; `ranks` are those of this node.

        The graces are for the other ranks after a failure, then for torchrun's report, and for all after the
        `finished` event; whoever is still there after that is killed.
        """
        self._argv = list(argv)
        self._folder = folder
        self._environment = dict(environment or {})
        self._ranks = ranks
        self._failure_grace_s = failure_grace_s
        self._report_grace_s = report_grace_s
        self._finish_grace_s = finish_grace_s
        self.ending: Ending | None = None
        self._family = ProcessFamily()
        self._reader = EventReader(folder.events_file, from_end=True)
        self._events: list[Event] = []
        self._requests: list[tuple[int, float]] = []
        self._obeyed = 0
        self._asked = ""
        self._was_cut_short = False
        self._failed_at: float | None = None
        self._finished_at: float | None = None
        self._victims: set[int] = set()
        self._log_start = 0
        self._log_seen = 0

    @classmethod
    def of_plan(cls, plan: LaunchPlan, folder: RunFolder) -> Self:
        """The supervisor of this node's part of a plan."""
        return cls(plan.argv(), folder, environment=plan.environment(), ranks=plan.ranks())

    def run(self) -> int:
        """Start the command, wait for its end, leave no process behind; returns a protocol exit code.

        Raises ConfigError if the run folder cannot be written. Killing this process leaves the training
        alone: it goes on to its end and still hears the commands in the run folder.
        """
        try:
            self._forget_last_start()
            log = self._open_launcher_log()
        except OSError as error:
            raise not_writable(self._folder.path, error) from error
        with log, _signals_to(self._requests):
            child = self._start(log)
            try:
                while child.poll() is None:
                    self._obey_requests(child)
                    self._end_stragglers(child)
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(_LOOK_EVERY_S)
            finally:
                # Helpers of a run that ended well are on their way out; those of a failed one may hang.
                self._family.end(patience_s=2.0 if child.poll() == 0 else 0.0)
                child.wait()
            self.ending = self._decide(child.returncode)
            self._tell(self.ending)
        return self.ending.exit_code

    def _forget_last_start(self) -> None:
        self._folder.log_dir.mkdir(parents=True, exist_ok=True)
        forget_failures(self._folder, self._ranks)
        if 0 in self._ranks:
            clear_commands(self._folder)

    def _open_launcher_log(self) -> BinaryIO:
        log = self._folder.launcher_log.open("ab")
        self._log_start = self._log_seen = log.tell()
        settings = [f"{name}={value}" for name, value in self._environment.items()]
        line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join([*settings, *self._argv])}\n"
        log.write(line.encode())
        log.flush()
        return log

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        # A session of its own: the terminal's Ctrl-C must reach only this process, because torchrun would
        # answer it by ending the ranks before they have made a backup.
        new_group = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))  # Windows has no sessions
        return subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={**os.environ, **self._environment, **self._family.variables},
            start_new_session=sys.platform != "win32",
            creationflags=new_group,
        )

    def _obey_requests(self, child: subprocess.Popen[bytes]) -> None:
        """The first request asks for a stop, the second ends everything."""
        waiting = self._requests[self._obeyed :]
        self._obeyed += len(waiting)
        for number, at in waiting:
            if not self._asked:
                self._asked = INTERRUPTED if number == signal.SIGINT else TERMINATED
                self._ask_to_stop(child)
            elif at - self._requests[0][1] > _SAME_REQUEST_S:
                self._was_cut_short = True
                self._family.kill()

    def _ask_to_stop(self, child: subprocess.Popen[bytes]) -> None:
        _say("Stopping after a backup; press Ctrl-C once more to end at once.")
        try:
            request_command(self._folder, "stop", self._asked)
            is_heard = 0 in self._ranks
        except OSError:
            is_heard = False
        if not is_heard:
            # A full disk, or a node without rank 0, which alone reads the folder: tell the ranks themselves.
            number = signal.SIGINT if self._asked == INTERRUPTED else signal.SIGTERM
            if TORCHRUN_MODULE in self._argv:
                signal_children(child.pid, number)
            else:
                child.send_signal(number)

    def _end_stragglers(self, child: subprocess.Popen[bytes]) -> None:
        """End a failed run within 30 s even if a rank is stuck in a collective; torchrun alone is slower."""
        now = time.monotonic()
        self._look_for_news(now)
        deadline = _earliest(
            self._failed_at and self._failed_at + self._failure_grace_s,
            self._finished_at and self._finished_at + self._finish_grace_s,
        )
        if deadline is None or now < deadline:
            return
        if now < deadline + self._report_grace_s:
            # torchrun is spared, because its report says which rank ended first.
            self._victims.update(self._family.kill(spare=[child.pid]))
        else:
            self._family.kill()

    def _look_for_news(self, now: float) -> None:
        self._events.extend(self._reader.new())
        if self._finished_at is None and said_exit_code(self._events) is not None:
            self._finished_at = now
        if self._failed_at is None and (self._has_recorded_failure() or self._has_failure_sign()):
            self._failed_at = now

    def _has_recorded_failure(self) -> bool:
        return any(self._folder.failure_file(rank).exists() for rank in self._ranks)

    def _has_failure_sign(self) -> bool:
        """Whether torchrun said, since the last look, that a rank failed."""
        news = self._launcher_bytes(self._log_seen)
        whole_lines = news[: news.rfind(b"\n") + 1]
        self._log_seen += len(whole_lines)
        return shows_failure(whole_lines.decode(errors="replace"))

    def _launcher_bytes(self, start: int) -> bytes:
        try:
            with self._folder.launcher_log.open("rb") as file:
                file.seek(start)
                return file.read()
        except OSError:
            return b""

    def _decide(self, returncode: int) -> Ending:
        while news := self._reader.new():
            self._events.extend(news)
        return decide_ending(
            Traces(
                returncode=returncode,
                events=self._events,
                failures=read_failures(self._folder),
                report=parse_launcher_log(
                    self._launcher_bytes(self._log_start).decode(errors="replace"), self._ranks.start
                ),
                asked=self._asked,
                was_cut_short=self._was_cut_short,
                victims=frozenset(self._victims),
                ranks=self._ranks,
            )
        )

    def _tell(self, ending: Ending) -> None:
        """Complete the events that a dead rank 0 could not write, and print the one message."""
        if 0 in self._ranks:
            self._complete_events(ending)
        if message := ending_message(ending, self._folder):
            _say(message)
        elif self._was_cut_short:
            _say("Ended at once, without a backup; --resume latest continues from the last one.")

    def _complete_events(self, ending: Ending) -> None:
        failure = ending.failure
        told = [event for event in self._events if event["type"] == "error"]
        is_told = failure is None or (
            bool(told) and (told[-1].get("rank"), told[-1].get("kind")) == (failure.rank, failure.kind)
        )
        is_finished = said_exit_code(self._events) is not None
        if is_told and is_finished:
            return
        log = EventLog(self._folder.events_file)
        if failure is not None and not is_told:
            log.write("error", **failure.event())
        if not is_finished:
            reason = "failed" if failure else self._asked or "finished"
            log.write("finished", reason=reason, exit_code=ending.exit_code)
        log.close()


@contextmanager
def _signals_to(requests: list[tuple[int, float]]) -> Iterator[None]:
    """Note requests to stop instead of dying of them; outside the main thread nothing is changed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(number: int, _frame: FrameType | None) -> None:
        requests.append((number, time.monotonic()))

    names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    # nohup asks not to be told when the terminal closes.
    wanted = [each for each in numbers if each.name != "SIGHUP" or signal.getsignal(each) != signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _earliest(*times: float | None) -> float | None:
    return min((each for each in times if each is not None), default=None)


def _say(text: str) -> None:
    # The terminal may be gone (SIGHUP); that must not keep the run from ending well.
    with suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)
