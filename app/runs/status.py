"""What a run is doing or how it ended, derived from its events, processes and folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from app.runs.join_prompt import join_prompt_of
from app.runs.liveness import Liveness
from modules.run.endings import ENDINGS, Ending
from modules.run.exit_codes import FINISHED
from modules.run.format_duration import in_words
from modules.run.format_progress import format_progress
from modules.run.remote.parts import named
from modules.run.remote.run_copy import Copy
from modules.run.view.event_records import Finished, Message, Phase, Step
from modules.run.view.run_view import RunView

Tone = Literal["idle", "busy", "good", "warn", "bad"]

PHASES: Final[Mapping[str, str]] = {
    "loading": "Loading the model",
    "downloading": "Downloading the base model",
    "indexing": "Indexing images",
    "caching": "Caching images",
    "training": "Training",
    "sampling": "Generating samples",
    "saving": "Saving",
    "validation": "Validating",
    "test": "Testing",
    "regrouping": "Taking a machine in again",
}
_QUIET_S: Final = 120.0
_LOST_END: Final = "Its process ended without an error, but no event says that the model was saved."
_SAID_ELSEWHERE: Final = "log/console.txt and log/launcher.txt in the run folder may say more."
_AFTER_LOST_END: Final = f"{_SAID_ELSEWHERE} Resume continues from the newest backup, if there is one."
_LOST_EVENTS: Final = "The run has saved its work, but none of its events are left to say how it ended."
_AFTER_LOST_EVENTS: Final = f"events.jsonl is empty, damaged or was removed; a full disk can do that. {_SAID_ELSEWHERE}"
_HOW_TO_FORCE: Final = "“Force stop” ends it at once, without a backup."
_IS_OVER: Final = "Training is over; its processes are ending."
_RESUME_AFTER: Final = "Continue with --resume latest."
_SLOW_START_S: Final = 20.0  # from here on the time is shown


@dataclass(frozen=True)
class Status:
    """The state of a run in one line. `fraction` (0 to 1) is None if unknown; `problem` says why the run failed.

    `detail` says more; of a run that failed, what Resume does.
    `never_started`: none of its processes has got as far as a first step, so there is nothing to resume.
    """

    kind: str
    title: str
    tone: Tone
    detail: str = ""
    is_alive: bool = False
    fraction: float | None = None
    problem: Message | None = None
    never_started: bool = False

    @property
    def can_resume(self) -> bool:
        """Whether the run can be resumed."""
        return not self.is_alive and not self.never_started and self.kind not in {"none", "missing", "reading"}

    @property
    def is_complete(self) -> bool:
        """Whether the run has done all that its settings ask for, so that a resume would train nothing."""
        ending = ENDINGS.get(self.kind)
        return ending is not None and ending.is_complete

    @property
    def advice(self) -> str:
        """What to try after the problem, in words of the command line; without the resume that `detail` describes."""
        said = "" if self.problem is None else self.problem.advice.strip()
        return said.removesuffix(_RESUME_AFTER).rstrip() if "Resume" in self.detail else said

    @property
    def has_result(self) -> bool:
        """Whether the run is complete and its model saved."""
        return self.kind in {"finished", "early_stopping"}


LEFT: Final = frozenset({"unsent", "left"})  # kinds of a run on another machine that nothing here attends to
STOPPED: Final = frozenset({"stopping", "ending"})  # kinds of a run that somebody or something has stopped
STOPPING: Final = STOPPED | {"finishing"}  # kinds in which Stop can only be forced
NO_RUN: Final = Status("none", "No run yet", "idle", "Press Train to start.", fraction=0.0)
READING: Final = Status("reading", "Reading the run…", "idle")
STARTING: Final = Status(
    "starting", "Starting", "busy", "Loading Python and libraries; this takes a few seconds.", is_alive=True
)


def no_run(queued: int) -> Status:
    """The status without a run, while so many entries wait in the queue."""
    if not queued:
        return NO_RUN
    waits = "1 run waits" if queued == 1 else f"{queued:,} runs wait"
    return replace(NO_RUN, detail=f"{NO_RUN.detail} {waits} in the queue.")


def status_of(
    view: RunView, liveness: Liveness, now: float, stop_wanted: bool = False, exit_code: int | None = None
) -> Status:
    """Derive the status; takes the view's lock. `exit_code` of the launcher, if it has ended and that is known."""
    found = _status_here(view, liveness, now, stop_wanted, exit_code)
    if liveness.copy is None or not liveness.exists:
        return found
    if liveness.copy.stage == "complete":  # its fault is of the command that was to follow
        fault = liveness.copy.fault
        detail = " ".join(filter(None, (liveness.waiting, found.detail)))
        return replace(found, problem=Message(now, "error", fault) if fault else found.problem, detail=detail)
    return _status_there(liveness.copy, found, now)


def _status_there(copy: Copy, found: Status, now: float) -> Status:
    """Of a run on another machine, by what its copy shows."""
    name = copy.machine
    if not found.is_alive:
        return _status_of_left(copy, found, now)
    if copy.stage == "sending" and not copy.id:
        return Status("sending", f"Sending data to {name}", "busy", copy.said, True, copy.done)
    if copy.stage == "pulling":
        return Status("pulling", f"Getting results from {name}", "busy", copy.said, True, copy.done)
    if copy.said and copy.stage == "running":
        asked = "Stop is asked there as soon as there is one; press it again to force it. " * (found.kind == "stopping")
        return Status("away", f"No connection to {name}", "warn", f"{asked}{copy.said}", True, found.fraction)
    if copy.job and copy.stage == "running":
        asked = "It is taken out of the queue. " * (found.kind == "stopping")
        return Status("waiting", f"In the queue of {name}", "busy", f"{asked}{copy.job}", True, found.fraction)
    return replace(found, title=f"{found.title} on {named([name, *copy.joined])}")


def _status_of_left(copy: Copy, found: Status, now: float) -> Status:
    """Nothing here attends to it: it was stopped, was given up, or this computer was off."""
    name, is_sending = copy.machine, copy.stage == "sending" and not copy.id
    title, detail = {
        "sending": (f"May have started on {name}", "Continue looks there, and follows or starts it."),
        "running": (f"Not followed on {name}", "It needs no connection. Continue follows it again."),
    }.get(copy.stage, (f"Results are still on {name}", "Continue brings them here."))
    if is_sending:
        title, detail = f"Not sent to {name} yet", "Continue sends the rest and starts the run."
    problem = Message(now, "error", copy.fault) if copy.fault else None
    done = (copy.done or 0.0) if is_sending else found.fraction
    return Status("unsent" if is_sending else "left", title, "bad" if problem else "warn", detail, False, done, problem)


def _status_here(view: RunView, liveness: Liveness, now: float, stop_wanted: bool, exit_code: int | None) -> Status:
    seen = _Seen.of(view, liveness)
    if not liveness.exists:
        title = "The run folder cannot be read" if liveness.fault else "The run folder is gone"
        detail = liveness.fault or "It was deleted, moved, or its disk is no longer connected."
        return Status("missing", title, "bad", detail, liveness.is_alive, 0.0)
    if not liveness.is_alive:
        return _status_of_ended(seen, liveness, now, exit_code)
    if seen.finished is not None:
        ending = ENDINGS.get(seen.finished.reason)
        if ending is not None and ending.is_complete:
            return Status("finishing", "Finishing", "busy", _IS_OVER, True, seen.done)
        return Status("ending", "Shutting down", "busy", _backup_at_the_end(seen), True, seen.done)
    stop_wanted = stop_wanted or liveness.stop_wanted
    if not stop_wanted and (prompt := join_prompt_of(view, liveness.join_line, liveness.started)) is not None:
        return Status("waiting", "Waiting for machines", "busy", prompt.messages[-1], True, None)
    status = _active_status(seen, now, stop_wanted=stop_wanted)
    if status.kind == "stopping" and seen.backing_up is not None:
        return replace(status, detail=f"{_backup_at_the_end(seen)} {_HOW_TO_FORCE}")
    if status.kind == "training" and seen.backing_up is not None:
        return replace(status, title=f"{status.title}, backing up step {seen.backing_up}")
    return status


@dataclass(frozen=True)
class _Seen:
    """What the events say of a run at one moment; of an earlier start only what still holds."""

    is_old: bool  # the events are about an earlier start
    phase: Phase | None
    step: Step | None
    finished: Finished | None
    error: Message | None
    backing_up: int | None  # the step whose backup is being written
    backup: int | None  # the step of the newest one
    done: float | None  # 0 to 1
    cause_of_end: str
    never_started: bool
    last_event_at: float
    started: float  # the processes

    @classmethod
    def of(cls, view: RunView, liveness: Liveness) -> _Seen:
        """Takes the view's lock."""
        with view.lock:
            is_old = liveness.started > view.time
            backup = liveness.backup if view.backup_step is None else view.backup_step
            return cls(
                is_old,
                phase=None if is_old else view.phase,
                step=None if is_old else view.step,
                finished=None if is_old else view.finished,
                error=None if is_old else view.error,
                backing_up=None if is_old else view.backing_up,
                backup=backup,
                done=_fraction(view.position, None if view.run_info is None else view.run_info.total_steps),
                cause_of_end=view.cause_of_end,
                never_started=view.run_info is None and backup is None and not liveness.has_model,
                last_event_at=view.time,
                started=max(liveness.started, view.joining[-1].time if view.joining else 0.0),
            )


def _status_of_ended(seen: _Seen, liveness: Liveness, now: float, exit_code: int | None) -> Status:
    if liveness.start_failure is not None and liveness.start_failure.time > seen.last_event_at:
        effect = "" if seen.never_started else _effect_of_resume(seen.backup)
        problem, never_started = liveness.start_failure, seen.never_started
        return Status("failed", "Did not start", "bad", effect, False, seen.done, problem, never_started)
    failure = seen.error or liveness.failure
    if seen.finished is not None:
        return _final_status(seen.finished.reason, seen, failure)
    if failure is not None and not (seen.is_old and failure.time < liveness.started):
        return Status("failed", "Failed", "bad", _effect_of_resume(seen.backup), False, seen.done, failure)
    if exit_code == FINISHED:
        problem = Message(now, "error", _LOST_END, _AFTER_LOST_END)
        return Status("unknown", "Ended without saying how", "warn", "", False, seen.done, problem)
    if not seen.last_event_at and (seen.backup is not None or liveness.has_model):
        problem = Message(now, "error", _LOST_EVENTS, _AFTER_LOST_EVENTS)
        left = "Its model is in the run folder." if seen.backup is None else _effect_of_resume(seen.backup)
        return Status("unknown", "Ended without saying how", "warn", left, False, seen.done, problem)
    if seen.phase is None and seen.step is None and (output := _last_lines(liveness.console)):
        problem = Message(0.0, "error", output)
        return Status("failed", "Did not start", "bad", "", False, 0.0, problem, seen.never_started)
    problem = Message(now, "error", "The process was killed, or the computer went down.")
    return Status("killed", "Terminated unexpectedly", "bad", _effect_of_resume(seen.backup), False, seen.done, problem)


def _active_status(seen: _Seen, now: float, *, stop_wanted: bool) -> Status:
    phase, step, done = seen.phase, seen.step, seen.done
    if stop_wanted:
        present = "sample" if phase is not None and phase.name == "sampling" else "step"
        detail = f"Finishing the {present}; then a backup is written."
        detail = "The run stops at the next safe point." if step is None else detail
        return Status("stopping", "Stopping", "warn", f"{detail} {_HOW_TO_FORCE}", True, done)
    if phase is None:
        waited_s = now - seen.started if seen.started else 0.0
        if waited_s < _SLOW_START_S:
            return STARTING
        return replace(STARTING, detail=f"Loading Python and libraries, for {in_words(waited_s)} so far.")
    name = phase.name
    title = PHASES.get(name) or name.capitalize() or "Starting"
    if phase.total and phase.done is not None:
        title = f"{title} {format_progress(phase.done, phase.total, phase.unit)}"
    if name == "training":
        silent_s = now - max(phase.time, step.time if step is not None else 0.0)
        if silent_s > _QUIET_S:
            since = in_words(silent_s)
            return Status(
                "quiet",
                f"Training: no update for {since}",
                "warn",
                "The process is alive but reports nothing. A step may be slow, or a rank hangs: check the log.",
                True,
                done,
            )
        return Status("training", title, "busy", "", True, done)
    share = min(1.0, phase.done / phase.total) if phase.total and phase.done is not None else None
    return Status(name, title, "busy", "", True, share if step is None else done)


def _backup_at_the_end(seen: _Seen) -> str:
    """Which backup a run that ends writes now, else which it has written."""
    if seen.backing_up is not None:
        return f"Writing the backup of step {seen.backing_up:,}."
    return "" if seen.backup is None else f"The newest backup is that of step {seen.backup:,}."


def _effect_of_resume(backup: int | None) -> str:
    """What Resume does with the newest backup, that of step `backup`."""
    if backup is None:
        return "There is no backup yet: Resume starts at the first step."
    return f"Resume continues from the backup of step {backup:,}."


def _final_status(reason: str, seen: _Seen, error: Message | None) -> Status:
    if reason == "failed":
        problem = error or Message(0.0, "error", "The run failed without a message; check its log.")
        return Status("failed", "Failed", "bad", _effect_of_resume(seen.backup), False, seen.done, problem)
    ending = ENDINGS.get(reason, Ending(reason.capitalize() or "Ended"))
    if ending.is_complete:
        return Status(reason, ending.title, "good", ending.explanation, False, 1.0)
    detail = f"{seen.cause_of_end or ending.explanation} {_effect_of_resume(seen.backup)}".strip()
    return Status(reason or "ended", ending.title, "warn", detail, False, seen.done)


def _fraction(step: int | None, total: int | None) -> float | None:
    if step is None or not total:
        return 0.0
    return min(1.0, step / total)


def _last_lines(console: str) -> str:
    """The end of the output of a launcher that crashed before it recorded why."""
    return "\n".join([line for line in console.splitlines() if line.strip()][-3:])
