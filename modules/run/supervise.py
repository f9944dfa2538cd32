"""Watches over the processes of one start until the last has ended, and says how it ended."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from modules.run.commands import clear_commands
from modules.run.console import warn
from modules.run.ending import Ending, Traces, decide_ending, ending_message, said_exit_code
from modules.run.events import Event, EventLog, EventReader
from modules.run.exit_codes import exit_code_of
from modules.run.failures import forget_failures, give_room_back, read_failures, record_failure
from modules.run.folder_guard import FolderGuard
from modules.run.generations import Generations
from modules.run.launch_plan import TORCHRUN_MODULE, LaunchPlan
from modules.run.launcher_log import LauncherLogFile, parse_launcher_log
from modules.run.pause import pause_held_back
from modules.run.process_family import ProcessFamily
from modules.run.refusals import is_final
from modules.run.run_folder import RunFolder, not_writable
from modules.run.run_lock import supervising_in
from modules.run.stop_requests import StopRequests

_LOOK_EVERY_S = 0.1
_LOOK_AROUND_EVERY_S = 2.0


class Supervisor:
    """Runs one command to its end; Ctrl-C and SIGTERM ask for a graceful stop, a second ends it at once."""

    def __init__(
        self,
        argv: Sequence[str],
        folder: RunFolder,
        *,
        environment: Mapping[str, str] | None = None,
        ranks: range = range(1),
        watched: range | None = None,
        hear_others: Callable[[], None] | None = None,
        failure_grace_s: float = 8.0,
        report_grace_s: float = 4.0,
        finish_grace_s: float = 60.0,
        alone_grace_s: float = 5.0,
    ) -> None:
        """Prepare to run `argv`; `ranks` are those of this node, `watched` those whose failures it hears of.

        `hear_others` is called before a failure is judged, so that other machines can say what they know.
        The graces are for the other ranks after a failure, then for torchrun's report, and for all after the
        `finished` event, shorter for a torchrun whose ranks have all ended and which waits for other machines'
        torchrun; whoever is still there after that is killed.
        """
        self._argv = list(argv)
        self._folder = folder
        self._environment = dict(environment or {})
        self._ranks = ranks
        self._watched = ranks if watched is None else watched
        self._hear_others = hear_others
        self._failure_grace_s = failure_grace_s
        self._report_grace_s = report_grace_s
        self._finish_grace_s = finish_grace_s
        self._alone_grace_s = alone_grace_s
        self.ending: Ending | None = None
        self._family = ProcessFamily()
        self._generations = Generations(self._family, argv)
        self._guard = FolderGuard(folder)
        self._launcher_id = 0
        self._reader = EventReader(folder.events_file, from_end=True)
        self._events: list[Event] = []
        self._log = LauncherLogFile(folder.launcher_log)
        self._requests = StopRequests(folder, self._family, argv, has_first_rank=0 in ranks)
        self._failed_at: float | None = None
        self._finished_at: float | None = None
        self._alone_since: float | None = None
        self._looked_around_at = 0.0
        self._victims: set[int] = set()

    @classmethod
    def of_plan(cls, plan: LaunchPlan, folder: RunFolder, hear_others: Callable[[], None] | None = None) -> Self:
        """The supervisor of this node's part of a plan; that of machine 0 hears of all."""
        return cls(
            plan.argv(),
            folder,
            environment=plan.environment(),
            ranks=plan.ranks(),
            watched=range(plan.world_size or 0) if plan.node_rank == 0 else None,
            hear_others=hear_others,
        )

    def run(self) -> int:
        """Start the command, wait for its end, leave no process behind; returns a protocol exit code.

        Raises ConfigError if the run folder cannot be written, ResumeError if the run is trained already. Killing
        this process leaves the training alone: it goes on to its end and still hears the commands in the run folder.
        """
        with supervising_in(self._folder):
            return self._run()

    def _run(self) -> int:
        try:
            self._forget_last_start()
            settings = [f"{name}={value}" for name, value in self._environment.items()]
            log = self._log.open(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {shlex.join([*settings, *self._argv])}")
        except OSError as error:
            raise not_writable(self._folder.path, error) from error
        with log, self._requests.noted():
            child = self._start(log)
            self._launcher_id = child.pid
            try:
                while child.poll() is None:
                    self._requests.obey(child)
                    self._end_stragglers(child)
                    self._look_around()
                    with suppress(subprocess.TimeoutExpired):
                        child.wait(_LOOK_EVERY_S)
            finally:
                # Helpers of a run that ended well are on their way out; those of a failed one may hang.
                self._family.end(patience_s=2.0 if child.poll() == 0 else 0.0)
                child.wait()
            if self._hear_others is not None and child.returncode != 0:
                self._hear_others()
            self.ending = self._decide(child.returncode)
            give_room_back(self._folder, self._ranks)
            self._tell(self.ending)
        return self.ending.exit_code

    def _forget_last_start(self) -> None:
        self._folder.log_dir.mkdir(parents=True, exist_ok=True)
        forget_failures(self._folder, self._watched)
        if 0 in self._ranks:
            clear_commands(self._folder)

    def _start(self, log: BinaryIO) -> subprocess.Popen[bytes]:
        # A session of its own: the terminal's Ctrl-C must reach only this process, because torchrun would
        # answer it by ending the ranks before they have made a backup.
        new_group = int(getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0))  # Windows has no sessions
        with pause_held_back():
            return subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **self._environment, **self._family.variables},
                start_new_session=sys.platform != "win32",
                creationflags=new_group,
            )

    def _end_stragglers(self, child: subprocess.Popen[bytes]) -> None:
        """End a failed run within 30 s even if a rank is stuck in a collective; torchrun alone is slower."""
        now = time.monotonic()
        self._look_for_news(now)
        if self._failed_at is not None and self._generations.allowed and self._would_fail_again():
            self._victims.update(self._family.kill())  # torchrun, too, before it starts the ranks again
            return
        deadline = _earliest(
            self._failed_at and self._failed_at + self._failure_grace_s,
            self._finished_at and self._finished_at + self._finish_grace_s,
            self._alone_since and self._alone_since + self._alone_grace_s,
        )
        if deadline is None or now < deadline:
            return
        if not self._generations.is_last and self._finished_at is None:
            self._victims.update(self._generations.kill_ranks())  # torchrun will start them again
            return
        if now < deadline + self._report_grace_s:
            # torchrun is spared, because its report says which rank ended first.
            self._victims.update(self._family.kill(spare=[child.pid]))
        else:
            self._victims.update(self._family.kill())

    def _look_around(self) -> None:
        """What is rare, or takes longer to look at."""
        now = time.monotonic()
        if now - self._looked_around_at < _LOOK_AROUND_EVERY_S:
            return
        self._looked_around_at = now
        if self._failed_at is not None and not self._generations.is_last and self._generations.has_begun_anew():
            self._tell_restart()
        if self._failed_at is None and (failure := self._generations.stopped_rank()):
            record_failure(self._folder, failure, unless_there=True)
        if self._finished_at is not None and self._alone_since is None and self._is_launcher_alone():
            self._alone_since = now
        if self._guard.restore():
            self._warn(
                f"The run folder {self._folder.path} was deleted or moved while the run goes on. It was made anew; "
                "earlier backups, events and samples are no longer in it."
            )

    def _is_launcher_alone(self) -> bool:
        """Whether only torchrun is left of all that was started on this machine."""
        is_torchrun = _launcher_of(self._argv) == "torchrun"
        return is_torchrun and all(each.pid == self._launcher_id for each in self._family.members())

    def _tell_restart(self) -> None:
        """Say what has ended the start before, and begin to look at the new one."""
        failure = self._decide(returncode=1).failure
        cause = f"rank {failure.rank} on {failure.host} failed: {failure.message}" if failure else "a rank failed."
        number, allowed = self._generations.number, self._generations.allowed
        self._warn(f"Restart {number} of {allowed} from the newest backup, because {cause}")
        forget_failures(self._folder, [each.rank for each in read_failures(self._folder)])
        self._failed_at = None
        self._log.begin_anew()

    def _warn(self, text: str) -> None:
        warn(f"Warning: {text}")
        if 0 in self._ranks:
            log = EventLog(self._folder.events_file)
            log.write("warning", message=text)
            log.close()

    def _look_for_news(self, now: float) -> None:
        self._events.extend(self._reader.new())
        if self._finished_at is None and said_exit_code(self._events) is not None:
            self._finished_at = now
        if self._failed_at is None and (self._has_recorded_failure() or self._log.shows_failure()):
            self._failed_at = now

    def _has_recorded_failure(self) -> bool:
        recorded = [file for rank in self._watched if (file := self._folder.failure_file(rank)).exists()]
        if not recorded or not self._generations.allowed:
            return bool(recorded)
        # Others may write down the loss of this machine's ranks when it has already come back with new ones.
        born = self._generations.born_at(self._launcher_id)
        return born is not None and any(_written_after(file, born) for file in recorded)

    def _would_fail_again(self) -> bool:
        """Whether a rank was refused for its settings or its pictures, which another start would find alike."""
        failures = [each for each in read_failures(self._folder) if each.rank in self._watched]
        return any(is_final(exit_code_of(each.kind)) for each in failures)

    def _decide(self, returncode: int) -> Ending:
        while news := self._reader.new():
            self._events.extend(news)
        return decide_ending(
            Traces(
                returncode=returncode,
                events=self._events,
                failures=read_failures(self._folder),
                report=parse_launcher_log(self._log.text(), self._ranks.start),
                asked=self._requests.asked,
                was_cut_short=self._requests.was_cut_short,
                victims=frozenset(self._victims),
                launcher=_launcher_of(self._argv),
                launcher_id=self._launcher_id,
                ranks=self._ranks,
            )
        )

    def _tell(self, ending: Ending) -> None:
        """Complete the events that a dead rank 0 could not write, and print the one message."""
        if 0 in self._ranks:
            self._complete_events(ending)
        if message := ending_message(ending, self._folder):
            warn(message)
        elif self._requests.was_cut_short:
            warn(f"Ended at once, without a backup; {self._last_backup()}")

    def _last_backup(self) -> str:
        if 0 in self._ranks and not any(self._folder.backup_dir.glob("step-*")):
            return "there is none yet, so --resume latest begins at the first step."
        return "--resume latest continues from the last one."

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
            reason = "failed" if failure else self._requests.asked or "finished"
            log.write("finished", reason=reason, exit_code=ending.exit_code)
        log.close()


def _launcher_of(argv: Sequence[str]) -> str:
    if TORCHRUN_MODULE in argv:
        return "torchrun"
    return "spawn" if "--spawn" in argv else ""


def _written_after(file: Path, seconds: float) -> bool:
    try:
        return file.stat().st_mtime > seconds
    except OSError:
        return False


def _earliest(*times: float | None) -> float | None:
    return min((each for each in times if each is not None), default=None)
