"""Works off a queue: starts what may run, waits for its end, records how it ended. One process per queue."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Final

import psutil

from modules.config import ConfigError, TandemError
from modules.machine import visible_gpus
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED, PAUSED, TERMINATED
from modules.run.folder.run_lock import file_lock
from modules.run.queue.active_run import ActiveRun, Ended, EntryChanged, is_alive, resources_in_use
from modules.run.queue.entries import Entry, Queue, Resources, now
from modules.run.queue.folder import RunQueue
from modules.run.queue.lanes import Taker, claim, obstacles, why_waiting
from modules.run.queue.place_run import PlaceRun
from modules.run.queue.places import Places
from modules.run.remote.run_copy import read_copy
from modules.run.supervise.signals import PAUSE_SIGNAL, pause_signal_unblocked, signals_handled, termination_signals

_POLL_S: Final = 0.3
_LOOK_EVERY_S: Final = 2.0  # between two looks at the GPUs and all runs of the folder
_START_S: Final = 1.0  # whoever only asks whether there is a runner holds the lock for microseconds
_SAME_REQUEST_S: Final = 0.3
_CONTINUES: Final = "Continues from its last backup"
_CODES: Final = {int(signal.SIGINT): INTERRUPTED, PAUSE_SIGNAL: PAUSED}

Echo = Callable[[str], None]


class QueueRunner:
    """`run` returns once nothing waits, or with `keep_waiting` only when it is stopped or paused.

    With `keep_waiting_for`, a process id, it returns once nothing waits and that process has ended.
    """

    def __init__(
        self,
        queue: RunQueue,
        echo: Echo,
        *,
        keep_waiting: bool = False,
        keep_waiting_for: int | None = None,
        stop_on_failure: bool = False,
    ) -> None:
        self._queue = queue
        self._echo = echo
        self._keep_waiting = keep_waiting
        self._window: psutil.Process | None = None  # or what else adds entries
        if keep_waiting_for is not None:
            with suppress(psutil.Error, ValueError):
                self._window = psutil.Process(keep_waiting_for)
        self._stop_on_failure = stop_on_failure
        self._active: dict[int, ActiveRun | PlaceRun] = {}
        self._places = Places()
        self._has_failed = False
        self._signals: list[tuple[int, float]] = []
        self._signal = 0  # that ended the work, if one did
        self._stopped_at = 0.0
        self._gpus_until = self._others_until = 0.0
        self._gpus: list[int] = []  # the indices of this machine's
        self._others: dict[str, Resources] = {}
        self._said = ""

    def run(self) -> int:
        """Work off the queue; returns an exit code. Raises ConfigError if another process does, or for a broken queue.

        A signal stops the current runs after a backup; they wait again, and the next `run` continues them.
        """
        self._queue.edit(lambda queue: queue)  # makes the folder, and raises for a queue that cannot be read
        with file_lock(self._queue.runner_lock, _START_S) as is_mine:
            if not is_mine:
                raise ConfigError(
                    f"another process already works off the queue of {self._queue.runs_dir}",
                    "New entries are added to it; nothing else is needed",
                )
            self._queue.edit(lambda queue: queue.with_waits({}).model_copy(update={"wanted": "run"}))
            with self._handlers_installed():
                self._adopt()
                return self._work()

    def _work(self) -> int:
        while True:
            self._handle_signals()
            queue = self._queue.read()
            self._collect(queue)
            if queue.wanted == "stop":
                self._stop_all(int(signal.SIGINT), by_command=True)
            may_start = queue.wanted == "run" and not self._signal and not (self._stop_on_failure and self._has_failed)
            if may_start:
                self._start_possible(queue)
                queue = self._queue.read()
            if not self._active and (code := self._exit_code(queue, may_start=may_start)) is not None:
                return code
            self._pause()

    def _exit_code(self, queue: Queue, *, may_start: bool) -> int | None:
        """How to end while nothing runs; None to go on."""
        if self._signal:
            return _CODES.get(self._signal, TERMINATED)
        if queue.wanted != "run":
            return PAUSED if queue.wanted == "pause" else INTERRUPTED
        if may_start and (queue.waiting or self._waits_for_entries):
            return None
        return FAILED if self._has_failed else FINISHED

    @property
    def _waits_for_entries(self) -> bool:
        if self._keep_waiting or self._window is None:
            return self._keep_waiting
        try:
            return self._window.is_running() and self._window.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def _adopt(self) -> None:
        """Take over the entries that a runner which was killed has left: their runs go on, or wait to be continued."""
        for entry in self._queue.read().entries:
            if entry.state != "running":
                continue
            if entry.place:
                self._adopt_there(entry)
            elif is_alive(self._queue.run_folder(entry)):
                self._echo(f"Entry {entry.title} is already training.")
                self._active[entry.number] = ActiveRun(entry, self._queue.run_folder(entry))
            else:
                ended = ActiveRun(entry, self._queue.run_folder(entry)).ended()
                if ended.exit_code is None:
                    self._echo(f"Entry {entry.title} was cut off; it will be continued from its last backup.")
                self._record(entry, ended if ended.exit_code is not None else Ended(None, "", was_stopped=True))

    def _adopt_there(self, entry: Entry) -> None:
        """One whose run there may have gone on, or have ended, while nothing here was on."""
        folder = self._queue.run_folder(entry)
        if (run := PlaceRun.taken_over(entry, folder)) is not None:
            self._echo(f"Entry {entry.title} on {entry.place} is followed again.")
            self._active[entry.number] = run
        elif read_copy(folder) is None:  # cut off before it was sent
            self._record(entry, Ended(None, "", was_stopped=True))
        else:
            self._record(entry, PlaceRun(entry, folder).ended())

    def _collect(self, queue: Queue) -> None:
        """Record the runs that have ended."""
        for number, run in list(self._active.items()):
            entry = next((each for each in queue.entries if each.number == number), run.entry)
            if run.is_alive:
                if entry.state == "removed":
                    run.stop_once()
                run.ask_again()
                continue
            del self._active[number]
            self._record(entry, run.ended())

    def _record(self, entry: Entry, ended: Ended) -> None:
        state = ended.state
        self._places.forget(entry)
        if entry.state == "removed":
            self._echo(f"Entry {entry.title} has ended; it was removed.")
        elif ended.was_stopped:
            self._echo(f"Entry {entry.title} waits again.")
        else:
            self._has_failed = self._has_failed or state == "failed"
            detail = "" if state == "finished" and ended.reason == "Finished" else f": {ended.reason}"
            self._echo(f"Entry {entry.title} {state}{detail}")

        def change(queue: Queue) -> Queue:
            found = next((each for each in queue.entries if each.number == entry.number), None)
            if found is None:
                return queue
            if found.state == "removed":
                return queue.with_entry(found.changed(exit_code=ended.exit_code, ended=now(), waits=""))
            if ended.was_stopped:
                waits = found.to_wait(ended.reason if ended.is_left else _CONTINUES)
                # several that were stopped together keep the order of their starts
                earlier = [each.reason == _CONTINUES and _started(each) < _started(found) for each in queue.waiting]
                return queue.with_entry(waits).moved(entry.number, [*earlier, False].index(False))
            return queue.with_entry(
                found.changed(state=state, ended=now(), exit_code=ended.exit_code, reason=ended.reason, waits="")
            )

        self._queue.edit(change)

    def _start_possible(self, queue: Queue) -> None:
        """Start the entries whose GPUs and machines are free; none overtakes an earlier one that needs the same."""
        waiting = queue.waiting
        if not waiting:
            self._say("Waiting for new entries." if self._waits_for_entries and not self._active else "")
            return
        self._look_at_gpus()
        own = [(run.entry.name, run.resources) for run in self._active.values()]
        takers = [Taker(name, taken) for name, taken in own if taken is not None]
        named = {gpu for entry in waiting if not entry.place for gpu in entry.devices or ()}
        wishes = [claim(entry, self._gpus, takers, named) for entry in waiting]
        if any(not any(wanted.overlaps(each.resources) for each in takers) for wanted in wishes):
            self._look_at_others()
        takers += [Taker(name, taken) for name, taken in self._others.items()]
        waits: dict[int, str] = {}
        for entry in waiting:
            wanted = claim(entry, self._gpus, takers, named)
            in_the_way = obstacles(entry, wanted, takers)
            why: str | None = why_waiting(entry, self._gpus, in_the_way) if in_the_way else self._waits_for_cache(entry)
            if why and in_the_way and not self._active and entry is waiting[0]:
                self._say(f"Entry {entry.title} {why[0].lower()}{why[1:]}.")
            if not why and (why := self._why_not_there(entry)) == "":
                self._start(entry, wanted)
            waits[entry.number] = entry.waits if why is None else why
            takers.append(Taker(entry.name, wanted, is_waiting=entry.number not in self._active))
        if any(entry.waits != waits[entry.number] for entry in waiting):
            self._queue.edit(lambda found: found.with_waits(waits))

    def _waits_for_cache(self, entry: Entry) -> str:
        """What to say if another run may be writing to the entry's cache_dir; it uses what that one has encoded."""
        preparing = [run for run in self._active.values() if run.is_preparing]
        try:
            folder = self._queue.load(entry).cache_dir if preparing else ""
            first = next((run for run in preparing if self._share_cache(entry, run.entry, folder)), None)
        except ConfigError:
            return ""  # the start says why
        if first is None:
            return ""
        where = f"on {entry.place}" if entry.place else f"in {folder}"
        starts = f"starts once {first.entry.name} has cached its images {where}"
        if (reason := f"S{starts[1:]}") != entry.waits:
            self._echo(f"Entry {entry.title} {starts}.")
        return reason

    def _share_cache(self, entry: Entry, other: Entry, folder: str) -> bool:
        """Whether both write to the same cache: that of their place, or this `folder` here."""
        return entry.place == other.place and (bool(entry.place) or self._queue.load(other).cache_dir == folder)

    def _why_not_there(self, entry: Entry) -> str | None:
        """What is in its way on its machine, if it has one; None while that is being asked, or it has failed."""
        if not entry.place:
            return ""
        copy = read_copy(self._queue.run_folder(entry)) if entry.started is not None else None
        if copy is not None and (copy.lacks_results or copy.has_finished):
            return ""  # it is there already, and only has to be followed, if that
        runs = [run.entry for run in self._active.values() if run.entry.place]
        own = {each.name: (each.place, *each.hosts) for each in runs}
        try:
            why = self._places.why_not(entry, own)
        except TandemError as error:
            self._record(entry, Ended(error.exit_code, str(error)))
            return None
        if not why:
            return why
        if (reason := f"{why[0].upper()}{why[1:]}") != entry.waits:
            self._echo(f"Entry {entry.title} waits, because {why}.")
        return reason

    def _look_at_gpus(self) -> None:
        if time.monotonic() >= self._gpus_until:
            self._gpus_until = time.monotonic() + _LOOK_EVERY_S
            self._gpus = list(dict.fromkeys(gpu.index for gpu in visible_gpus()))  # the slices of one (MIG) are one

    def _look_at_others(self) -> None:
        if time.monotonic() >= self._others_until:
            self._others_until = time.monotonic() + _LOOK_EVERY_S
            own = {run.entry.name for run in self._active.values()}
            self._others = resources_in_use(self._queue.runs_dir, own)
        for run in self._active.values():
            self._others.pop(run.entry.name, None)

    def _start(self, entry: Entry, wanted: Resources) -> None:
        given = None if entry.devices is not None or wanted.devices is None else list(wanted.devices)
        started = {"state": "running", "given": given, "started": now(), "ended": None, "exit_code": None}
        mark = entry.changed(**started, reason="", waits="")
        try:
            run = (PlaceRun if entry.place else ActiveRun).start(self._queue, entry, mark)
        except EntryChanged:
            return  # the next look starts what it is now
        except TandemError as error:
            self._record(entry, Ended(error.exit_code, str(error)))
            return
        self._active[entry.number] = run
        where = "" if wanted.devices is None else f" on GPU {', '.join(map(str, wanted.devices))}"
        where += f" on {entry.place}" if entry.place else ""
        where += f" with {' and '.join(entry.hosts)}" if entry.hosts else ""
        verb = "continues" if entry.started else "starts"
        self._said = ""
        self._echo(f"Entry {entry.title} {verb}{where}. Run folder: {run.folder.path}")

    def _stop_all(self, number: int, *, by_command: bool = False) -> None:
        if not self._stopped_at:
            self._stopped_at = time.monotonic()
            if self._active:
                what, it = ("run", "it") if len(self._active) == 1 else ("runs", "them")
                self._echo(f"Stopping the current {what} after a backup; once more stops {it} at once.")
            for run in self._active.values():
                run.stop(number, by_command=by_command)

    def _handle_signals(self) -> None:
        pending, self._signals = self._signals, []
        for number, at in pending:
            if not self._signal:
                self._signal = number
                self._stop_all(number)
            elif at - self._stopped_at > _SAME_REQUEST_S and number != PAUSE_SIGNAL:
                for run in self._active.values():
                    run.stop(number)

    def _pause(self) -> None:
        deadline = time.monotonic() + _POLL_S
        while time.monotonic() < deadline and not self._signals:
            time.sleep(0.05)

    def _say(self, message: str) -> None:
        """Print what lasts, once."""
        if message and message != self._said:
            self._echo(message)
        self._said = message

    @contextmanager
    def _handlers_installed(self) -> Iterator[None]:
        handled = [*termination_signals(), *([PAUSE_SIGNAL] if PAUSE_SIGNAL else [])]
        with signals_handled(handled, self._receive), pause_signal_unblocked():
            yield

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        self._signals.append((number, time.monotonic()))


def _started(entry: Entry) -> float:
    return entry.started or 0.0
