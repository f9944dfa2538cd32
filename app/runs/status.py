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
from modules.run.view.event_records import Message, Phase, Step
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
    join_prompt = join_prompt_of(view, liveness.join_line, liveness.started)
    with view.lock:
        is_old = liveness.started > view.time  # the events are about an earlier start
        phase, step, finished = (None, None, None) if is_old else (view.phase, view.step, view.finished)
        position = view.position
        total = view.run_info.total_steps if view.run_info is not None else None
        backup = liveness.backup if view.backup_step is None else view.backup_step
        never_started = view.run_info is None and backup is None and not liveness.has_model
        cause_of_end = view.cause_of_end
        error, last_event_at = None if is_old else view.error, view.time
        backing_up = None if is_old else view.backing_up
        start = max(liveness.started, view.joining[-1].time if view.joining else 0.0)  # of the processes
    done = _fraction(position, total)
    if not liveness.exists:
        title = "The run folder cannot be read" if liveness.fault else "The run folder is gone"
        detail = liveness.fault or "It was deleted, moved, or its disk is no longer connected."
        return Status("missing", title, "bad", detail, liveness.is_alive, 0.0)
    if liveness.is_alive:
        if finished is not None:
            if (known := ENDINGS.get(finished.reason)) is not None and known.is_complete:
                return Status("finishing", "Finishing", "busy", _IS_OVER, True, done)
            return Status("ending", "Shutting down", "busy", _backup_at_the_end(backing_up, backup), True, done)
        stop_wanted = stop_wanted or liveness.stop_wanted
        if join_prompt is not None and not stop_wanted:
            return Status("waiting", "Waiting for machines", "busy", join_prompt.messages[-1], True, None)
        status = _active_status(phase, step, done, now, stop_wanted=stop_wanted, started=start)
        if status.kind == "stopping" and backing_up is not None:
            return replace(status, detail=f"{_backup_at_the_end(backing_up, backup)} {_HOW_TO_FORCE}")
        if backing_up is not None and status.kind == "training":
            return replace(status, title=f"{status.title}, backing up step {backing_up}")
        return status
    if liveness.start_failure is not None and liveness.start_failure.time > last_event_at:
        problem = liveness.start_failure
        effect = "" if never_started else _effect_of_resume(backup)
        return Status("failed", "Did not start", "bad", effect, False, done, problem, never_started)
    if finished is not None:
        return _final_status(finished.reason, done, error or liveness.failure, backup, cause_of_end)
    failure = error or liveness.failure
    if failure is not None and not (is_old and failure.time < liveness.started):
        return Status("failed", "Failed", "bad", _effect_of_resume(backup), False, done, failure)
    if exit_code == FINISHED:
        problem = Message(now, "error", _LOST_END, _AFTER_LOST_END)
        return Status("unknown", "Ended without saying how", "warn", "", False, done, problem)
    if not last_event_at and (backup is not None or liveness.has_model):
        problem = Message(now, "error", _LOST_EVENTS, _AFTER_LOST_EVENTS)
        left = _effect_of_resume(backup) if backup is not None else "Its model is in the run folder."
        return Status("unknown", "Ended without saying how", "warn", left, False, done, problem)
    if phase is None and step is None and (output := _last_lines(liveness.console)):
        problem = Message(0.0, "error", output)
        return Status("failed", "Did not start", "bad", "", False, 0.0, problem, never_started)
    problem = Message(now, "error", "The process was killed, or the computer went down.")
    return Status("killed", "Terminated unexpectedly", "bad", _effect_of_resume(backup), False, done, problem)


def _active_status(
    phase: Phase | None, step: Step | None, done: float | None, now: float, *, stop_wanted: bool, started: float
) -> Status:
    if stop_wanted:
        present = "sample" if phase is not None and phase.name == "sampling" else "step"
        detail = f"Finishing the {present}; then a backup is written."
        detail = "The run stops at the next safe point." if step is None else detail
        return Status("stopping", "Stopping", "warn", f"{detail} {_HOW_TO_FORCE}", True, done)
    if phase is None:
        waited_s = now - started if started else 0.0
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


def _backup_at_the_end(being_written: int | None, newest: int | None) -> str:
    """Which backup a run that ends writes now, else which it has written; their steps."""
    if being_written is not None:
        return f"Writing the backup of step {being_written:,}."
    return "" if newest is None else f"The newest backup is that of step {newest:,}."


def _effect_of_resume(backup: int | None) -> str:
    """What Resume does with the newest backup, that of step `backup`."""
    if backup is None:
        return "There is no backup yet: Resume starts at the first step."
    return f"Resume continues from the backup of step {backup:,}."


def _final_status(
    reason: str, done: float | None, error: Message | None, backup: int | None, cause: str = ""
) -> Status:
    if reason == "failed":
        problem = error or Message(0.0, "error", "The run failed without a message; check its log.")
        return Status("failed", "Failed", "bad", _effect_of_resume(backup), False, done, problem)
    ending = ENDINGS.get(reason, Ending(reason.capitalize() or "Ended"))
    if ending.is_complete:
        return Status(reason, ending.title, "good", ending.explanation, False, 1.0)
    detail = f"{cause or ending.explanation} {_effect_of_resume(backup)}".strip()
    return Status(reason or "ended", ending.title, "warn", detail, False, done)


def _fraction(step: int | None, total: int | None) -> float | None:
    if step is None or not total:
        return 0.0
    return min(1.0, step / total)


def _last_lines(console: str) -> str:
    """The end of the output of a launcher that crashed before it recorded why."""
    return "\n".join([line for line in console.splitlines() if line.strip()][-3:])
