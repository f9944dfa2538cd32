"""What a run is doing, or how it ended, in words: from its events and from what its processes and folder show."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final, Literal

from app import texts
from app.invitation import CONSOLE_FILE, Invitation, invitation_of
from app.run_facts import Message, Phase, Step
from app.run_view import RunView
from modules.run import RunFolder, root_cause
from modules.run.amounts import counted
from modules.run.launcher_mark import Launcher, launcher_of
from modules.run.run_lock import is_training

Tone = Literal["idle", "busy", "good", "warn", "bad"]

_CONSOLE_TAIL_BYTES: Final = 4096
_QUIET_S: Final = 120.0
_QUIET_STEPS: Final = 30


@dataclass(frozen=True)
class Life:
    """Signs of life of a run's processes and folder."""

    exists: bool = True
    launcher: Launcher | None = None
    is_training: bool = False
    stop_wanted: bool = False
    failure: Message | None = None
    console: str = ""  # the end of what the launcher printed, of a run that has ended
    invitation: Invitation | None = None  # of a run that waits for other machines

    @property
    def is_alive(self) -> bool:
        """Whether any process of the run is known to be there."""
        return self.launcher is not None or self.is_training

    @property
    def started(self) -> float:
        """When the launcher did, in seconds since 1970; 0 where that is not known."""
        return self.launcher.marked if self.launcher is not None else 0.0


@dataclass(frozen=True)
class Status:
    """One line about a run. `fraction` is None where it cannot be counted; `problem` says why a run failed."""

    kind: str
    words: str
    tone: Tone
    detail: str = ""
    is_alive: bool = False
    fraction: float | None = None
    problem: Message | None = None

    @property
    def can_resume(self) -> bool:
        """Whether going on makes sense."""
        return not self.is_alive and self.kind not in {"none", "missing", "reading"}


NO_RUN: Final = Status("none", texts.NO_RUN, "idle", texts.NO_RUN_DETAIL, fraction=0.0)


def look_at(folder: RunFolder) -> Life:
    """Ask the system about the processes of a run, and the folder about its end. Takes milliseconds; any thread."""
    if not folder.path.is_dir():
        return Life(exists=False)
    launcher, has_begun = launcher_of(folder), is_training(folder)
    if launcher is not None or has_begun:
        waits = launcher is not None and not has_begun
        stop_wanted = (folder.commands_dir / "stop").exists()
        return Life(True, launcher, has_begun, stop_wanted, invitation=invitation_of(folder) if waits else None)
    cause = root_cause(folder)
    failure = None
    if cause is not None:
        failure = Message(cause.time, "error", cause.message, cause.advice, cause.rank, cause.host, cause.kind)
    return Life(True, None, False, False, failure, _tail(folder))


def status_of(view: RunView, life: Life, now: float, stop_wanted: bool = False) -> Status:
    """The run in words; takes the view's lock."""
    with view.lock:
        is_old = life.started > view.time  # what was told is about an earlier start
        phase, step, finished = view.phase, view.step, None if is_old else view.finished
        total = view.facts.total_steps if view.facts is not None else None
        error, backup = view.error, view.backup_step
    done = _fraction(step, total)
    if not life.exists:
        return Status("missing", texts.FOLDER_GONE, "bad", texts.FOLDER_GONE_DETAIL, life.is_alive, 0.0)
    if life.is_alive:
        if finished is not None:
            return Status("ending", texts.ENDING, "busy", "", True, done)
        stop_wanted = stop_wanted or life.stop_wanted
        if life.invitation is not None and not stop_wanted:
            news = life.invitation.news[-1] if life.invitation.news else ""
            return Status("waiting", texts.WAITING, "busy", news, True, None)
        return _living(None if is_old else phase, step, done, now, stop_wanted=stop_wanted)
    if finished is not None:
        return _ended(finished.reason, done, error or life.failure)
    if life.failure is not None or error is not None:
        return Status("failed", texts.FAILED, "bad", "", False, done, error or life.failure)
    if phase is None and step is None:
        refusal = _refusal(life.console)
        if refusal is not None:
            return Status("failed", texts.NOT_STARTED, "bad", "", False, 0.0, refusal)
    advice = texts.RESUME_FROM_STEP.format(step=backup) if backup is not None else texts.RESUME_FROM_START
    problem = Message(now, "error", texts.KILLED_DETAIL, advice)
    return Status("killed", texts.KILLED, "bad", "", False, done, problem)


def _living(phase: Phase | None, step: Step | None, done: float | None, now: float, *, stop_wanted: bool) -> Status:
    if stop_wanted:
        detail = texts.STOPPING_EARLY if step is None else texts.STOPPING_DETAIL
        return Status("stopping", texts.STOPPING, "warn", detail, True, done)
    if phase is None:
        return Status("starting", texts.STARTING, "busy", texts.STARTING_DETAIL, True, None)
    name = phase.name
    words = texts.PHASES.get(name) or name.capitalize() or texts.STARTING
    if phase.total and phase.done is not None:
        words = texts.COUNTED.format(words=words, amount=counted(phase.done, phase.total, phase.unit))
    if name == "training":
        silent_s = now - max(phase.time, step.time if step is not None else 0.0)
        if silent_s > _QUIET_S:
            since = duration(silent_s)
            return Status("quiet", texts.QUIET.format(since=since), "warn", texts.QUIET_DETAIL, True, done)
        return Status("training", words, "busy", "", True, done)
    share = min(1.0, phase.done / phase.total) if phase.total and phase.done is not None else None
    return Status(name, words, "busy", "", True, share if step is None else done)


def _ended(reason: str, done: float | None, error: Message | None) -> Status:
    if reason == "failed":
        problem = error or Message(0.0, "error", texts.NO_REASON)
        return Status("failed", texts.FAILED, "bad", "", False, done, problem)
    words, detail = texts.ENDINGS.get(reason, (reason.capitalize() or texts.ENDED, ""))
    good = reason in {"finished", "early_stopping", "cached"}
    return Status(reason or "ended", words, "good" if good else "warn", detail, False, 1.0 if good else done)


def _fraction(step: Step | None, total: int | None) -> float | None:
    if step is None or not total:
        return 0.0
    return min(1.0, step.step / total)


def _refusal(console: str) -> Message | None:
    """What a launcher said that ended before it started anything: its last lines."""
    lines = [line for line in console.splitlines() if line.strip()]
    start = next((n for n, line in enumerate(lines) if line.startswith("Training did not start:")), None)
    if start is None:
        lines = lines[-3:]
        return Message(0.0, "error", "\n".join(lines)) if lines else None
    first = lines[start].removeprefix("Training did not start:").strip()
    return Message(0.0, "error", first, "\n".join(line.strip() for line in lines[start + 1 : start + 4]))


def _tail(folder: RunFolder) -> str:
    try:
        with (folder.log_dir / CONSOLE_FILE).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _CONSOLE_TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def duration(seconds: float) -> str:
    """ "45 s", "3 min", "2 h 05 min", "4 d 3 h"."""
    whole = max(0, round(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 90:
        return texts.SECONDS.format(n=whole)
    if hours < 1:
        return texts.MINUTES.format(n=minutes)
    if days < 1:
        return texts.HOURS.format(n=hours, m=minutes % 60)
    return texts.DAYS.format(n=days, h=hours % 24)
