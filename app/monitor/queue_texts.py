"""What the Queue page says of the queue and of each entry."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final

from app.form.setting_text import display_value, format_value, with_titles
from app.runs.status import Status
from modules.config import Option
from modules.config.family_about import family_about
from modules.config.numbers import format_number
from modules.files import printable
from modules.run.format_duration import format_duration
from modules.run.queue.entries import Entry, Queue

UNKNOWN: Final = 0  # a number of steps
_WITHOUT_TITLE: Final = ("concepts", "method", "base_model", "family")
_LIMITS: Final = {"max_steps": "step", "epochs": "epoch"}  # of a run's length
_STATES: Final = {
    "waiting": "Waiting",
    "running": "Running",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "removed": "Removed",
}


def state_text(queue: Queue, *, has_runner: bool, is_working: bool) -> str:
    """What the process that works the queue off is doing; `is_working` also while it starts."""
    waiting, running = len(queue.waiting), sum(entry.state == "running" for entry in queue.entries)
    if has_runner and queue.wanted != "run":
        state = "Stopping after a backup" if queue.wanted == "stop" else "Pausing after the current runs"
    elif has_runner:
        idle = "Waiting until the devices are free" if waiting else "Ready: what is added starts at once"
        state = "Working" if running else idle
    elif is_working:
        state = "Starting…"
    else:
        state = "Not started" if waiting else "Nothing to do"
    return f"{state}  ·  {running} running, {waiting} waiting"


def settings_text(differences: Iterable[tuple[Option, object]], steps: int | None = UNKNOWN) -> str:
    """The settings in which an entry differs from others, on one line; a value that speaks for itself has no title.

    With the number of `steps` that the run takes, of two limits only that which ends it is named; none is as long as
    they are being counted (None).
    """
    texts, limits = dict[str, str](), dict[str, int]()
    for option, value in differences:
        if option.path in _LIMITS:
            texts["limits"] = ""  # where the first of them stands
            if isinstance(value, int):
                limits[option.path] = value
        else:
            texts[option.path] = _setting(option, value)
    if limits:
        texts["limits"] = _length(limits, steps)
    return _joined(*texts.values())


def _length(limits: Mapping[str, int], steps: int | None) -> str:
    """What ends the run: "500 steps", "3 epochs (180 steps)"; both limits if its steps cannot be counted."""
    by_steps, by_epochs = (
        f"{limits.get(path, 0):,} {unit}{'s' * (limits.get(path) != 1)}" for path, unit in _LIMITS.items()
    )
    if len(limits) < 2:
        return by_steps if "max_steps" in limits else by_epochs
    if steps is None:
        return ""
    if steps == UNKNOWN:
        return f"{by_steps} or {by_epochs}, whichever first"
    return by_steps if steps >= limits["max_steps"] else f"{by_epochs} ({steps:,} step{'s' * (steps != 1)})"


def _setting(option: Option, value: object) -> str:
    if value == {}:
        return ""  # those of a family, or of single layers: there are none
    said = _value(option, value)
    speaks_for_itself = said and said != "empty" and option.path in _WITHOUT_TITLE
    return said if speaks_for_itself else f"{option.title.partition(' (')[0]}: {said}"


def _value(option: Option, value: object) -> str:
    if option.path == "concepts" and isinstance(value, list):
        return ", ".join(PurePath(str(path)).name for path in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {format_value(each)}" for name, each in value.items())
    if option.path == "base_model" and value:
        return printable(PurePath(str(value)).name or str(value), 200)
    if option.path == "family" and value:
        return printable(family_about(str(value)).title, 200)
    if isinstance(value, int | float) and option.unit and (option.unit in option.title.lower() or value == 1):
        return format_number(value)  # not "Maximum steps: 500 steps" or "1 images"
    return printable(" ".join(display_value(option, value).split()), 200)


def loss_text(loss: float | None, validation_loss: float | None) -> str:
    """The last losses of a run, that of validation first; empty if it has none."""
    named = (("validation", validation_loss), ("loss", loss))
    return ", ".join(f"{name} {value:.4g}" for name, value in named if value is not None)


def step_text(step: int, total_steps: int | None) -> str:
    """The step that a run has reached."""
    return f"step {step:,}" + (f" of {total_steps:,}" if total_steps else "")


def progress_text(status: Status, step: int | None, total_steps: int | None, loss: float | None) -> str:
    """How far a run is: its step and loss, or what it does before the first step and between steps."""
    doing = f"{status.title[:1].lower()}{status.title[1:]}"
    if step is None or not status.is_alive:
        return doing
    phase = "" if status.kind == "training" else doing
    return ", ".join(filter(None, (step_text(step, total_steps), loss_text(loss, None), phase)))


def row_of(entry: Entry, settings: str = "", result: str = "", run_s: float | None = None) -> tuple[str, ...]:
    """The cells of an entry; `settings` in what it differs from others, `result` how far it is or its losses, for which
    one that waits has what it waits for; `run_s` how long its run was at work.
    """
    return (
        str(entry.number),
        entry.name,
        _STATES[entry.state],
        entry.devices_text if entry.place else f"{entry.devices_text[0].upper()}{entry.devices_text[1:]}",
        _time(entry, run_s),
        settings,
        with_titles(entry.waits) or _end(entry) or result,
    )


def selected_text(entry: Entry, settings: str, result: str, folder: PurePath, run_s: float | None = None) -> str:
    """What its row has no room for; of an entry that has ended, first how and when."""
    output = f"Output: {printable(folder)}"
    if entry.is_open:
        return _joined(with_titles(entry.waits), with_titles(entry.reason), result, settings, output)
    when = _time(entry, run_s)
    end = _joined(_end(entry), when) if _end(entry) else f"{_STATES[entry.state]} {when}"
    rest = [with_titles(line) for line in entry.reason.split("\n")[1:]]
    return "\n".join([_joined(end, result, output, settings), *rest])


def _end(entry: Entry) -> str:
    """Why it ended, unless its state says it; the code of a stop says nothing more."""
    code = f" (exit code {entry.exit_code})" if entry.state == "failed" and entry.exit_code is not None else ""
    reason = printable(with_titles(entry.reason.split("\n")[0]), 300)
    reason = reason.removesuffix(".") if code else reason
    return f"{reason}{code}" if reason and reason != _STATES[entry.state] else ""


def _joined(*parts: str) -> str:
    return "  ·  ".join(filter(None, parts))


def _time(entry: Entry, run_s: float | None) -> str:
    if entry.state == "running":
        return f"since {_clock(entry.started)}"
    if entry.state == "waiting":
        return f"added {_clock(entry.added)}"
    return f"{_clock(entry.ended)}, {format_duration(run_s)}" if run_s else _clock(entry.ended)


def _clock(at: float | None) -> str:
    """A moment; of today only the time."""
    if not at:
        return ""
    day, today = time.localtime(at), time.localtime()
    return time.strftime("%H:%M" if day[:3] == today[:3] else "%d %b %H:%M", day)
