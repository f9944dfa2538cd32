"""The question what Train does where there is already a run of the same name: resume it, or start another."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from app.form.setting_text import display_value
from app.runs.control import existing_run
from app.shell.ask import Choice, ask
from modules.config import Option, TrainConfig, dump, find_changes, find_option, load_config
from modules.facts import family_names
from modules.run import RunFolder
from modules.run.endings import ENDINGS
from modules.run.folder.event_summary import EventSummary
from modules.run.launch.detached import next_free_name

Answer = Literal["", "new", "own settings", "current settings"]

_LENGTH: Final = frozenset({"epochs", "max_steps", "early_stopping_patience"})  # of a run: what ends it
_NAMES: Final = frozenset({"run_name", "runs_dir", "version"})  # written otherwise, they may name the same run
_MOST: Final = 4  # differences that are named


@dataclass(frozen=True)
class ExistingRun:
    """A run of the name that the settings have, and in what its settings differ from them."""

    folder: RunFolder
    is_complete: bool
    different: tuple[str, ...] = ()  # names of settings
    described: tuple[str, ...] = ()  # the same in words
    fixed: tuple[str, ...] = ()  # the titles of those that must not change on resume

    @property
    def answer_to_resume(self) -> Answer:
        """With which settings it can be resumed; empty if that would train nothing."""
        resumes_own = bool(self.fixed) or not self.different
        if self.is_complete and (resumes_own or not _LENGTH & set(self.different)):
            return ""
        return "own settings" if resumes_own else "current settings"

    @property
    def question(self) -> str:
        """What to ask about it."""
        exists = f"There is already a run named {self.folder.name}."
        if self.is_complete and not self.answer_to_resume:
            fixed = f" {_named(self.fixed)} cannot change when a run resumes." if self.fixed else ""
            return f"{exists} It is complete: to train it further, raise its epochs or maximum steps first.{fixed}"
        if self.fixed:
            return (
                f"{exists} Its settings differ from the current ones in {_named(self.fixed)}, which cannot change when "
                "a run resumes: it would continue with its own."
            )
        if self.different:
            return f"{exists} It would continue with the current settings: {_named(self.described, ', ')}."
        return f"{exists} Resume it, or start a new one under another name?"


def read_existing(config: TrainConfig) -> ExistingRun | None:
    """The run of the config's name, if there is one. Raises TandemError if its settings cannot be read."""
    folder = existing_run(config)
    if folder is None:
        return None
    before, now = dump(load_config(folder.config_file)), dump(config)
    names = tuple(name for name in now if before.get(name) != now[name] and name not in _NAMES)
    fixed = dict.fromkeys(
        _title(each.path) for each in find_changes(TrainConfig, before, now) if each.resume == "fixed"
    )
    if before["family"] != now["family"] and {before["family"], now["family"]} <= {*family_names()}:
        fixed = {_title("family"): None, **fixed}  # no backup of one is one of the other
    ending = ENDINGS.get(EventSummary.of_file(folder.events_file).reason)
    described = tuple(_described(name, before, now) for name in names)
    return ExistingRun(folder, ending is not None and ending.is_complete, names, described, tuple(fixed))


def ask_about_existing(owner: tk.Misc, existing: ExistingRun, chosen: Callable[[Answer], object]) -> None:
    """Ask what to do; `chosen` gets the answer, which is empty for neither."""
    labels: Mapping[Answer, str] = {
        "own settings": "Resume with its own settings" if existing.fixed else "Resume it",
        "current settings": "Resume with these settings",
    }
    resume = existing.answer_to_resume
    choices = [
        Choice("", "Cancel", style="quiet"),
        *([Choice(resume, labels[resume])] if resume else []),
        Choice("new", f"Start as {next_free_name(existing.folder)}", style="accent"),
    ]
    ask(owner, "This run already exists", existing.question, choices, chosen)  # type: ignore[arg-type]


def _described(name: str, before: Mapping[str, object], now: Mapping[str, object]) -> str:
    option = find_option(TrainConfig, name)
    if option is None or option.type == "list":
        return _title(name)
    was, is_ = (display_value(replace(option, unit=None), values.get(name)) for values in (before, now))
    return f"{option.title} {was} → {is_}"


def _title(path: str) -> str:
    option: Option | None = find_option(TrainConfig, path)
    return path.replace("_", " ").capitalize() if option is None else option.title


def _named(titles: tuple[str, ...], before_last: str = " and ") -> str:
    more = len(titles) - _MOST
    if more > 0:
        return f"{', '.join(titles[:_MOST])} and {more} more"
    *others, last = titles
    return f"{', '.join(others)}{before_last}{last}" if others else last
