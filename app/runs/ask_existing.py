"""What is asked before a run that exists is trained further: with which settings, and with which machines."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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


def ask_machines(
    owner: tk.Misc,
    name: str,
    machines: int,
    started_here: Sequence[str],
    chosen: Callable[[str], object],
    *,
    has_backup: bool = True,
) -> None:
    """Ask how to resume the run; `chosen` gets "together", "alone", or an empty answer for neither.

    `started_here`: those of the other machines that Train starts over ssh. `has_backup`: there is one on this machine.
    """
    others = "the other machine" if machines == 2 else f"the other {machines - 1} machines"
    choices = (
        Choice("", "Cancel", style="quiet"),
        Choice("alone", "On this machine alone"),
        Choice("together", f"With {others}", style="accent"),
    )
    trained = f"{name} trained on {machines} machines."
    ask(owner, f"Resume with {others}?", f"{trained} {effects(others, started_here, has_backup)}", choices, chosen)


def effects(others: str, started_here: Sequence[str], has_backup: bool) -> str:
    """What either choice does."""
    how = f" ({', '.join(started_here)} started over ssh by this window)" if started_here else ""
    begin = "goes on at once, from the newest backup that is here" if has_backup else "starts at the first step"
    return (
        f"With {others} it goes on once all have joined again{how}. On this machine alone it {begin}: with the same "
        "result, but slower."
    )


@dataclass(frozen=True)
class ExistingRun:
    """A run of the name that the settings have, and in what its settings differ from them."""

    folder: RunFolder
    is_complete: bool
    different: tuple[str, ...] = ()  # names of settings
    described: tuple[str, ...] = ()  # the same in words
    fixed: tuple[str, ...] = ()  # the titles of those that must not change on resume
    names: Mapping[str, object] = field(default_factory=dict)  # its run_name and runs_dir, as its settings have them

    @property
    def answer_to_resume(self) -> Answer:
        """With which settings it can be resumed; empty if that would train nothing."""
        resumes_own = bool(self.fixed) or not self.different
        if self.is_complete and (resumes_own or not _LENGTH & set(self.different)):
            return ""
        return "own settings" if resumes_own else "current settings"

    @property
    def is_of_another_model(self) -> bool:
        """Whether the settings are those of something else, not of this run continued otherwise."""
        return bool({"family", "base_model"} & set(self.different))

    @property
    def question_to_resume(self) -> str:
        """What to ask before it is resumed while other settings are on screen."""
        if self.fixed:
            return (
                f"The settings of {self.folder.name} differ from those on screen in {_named(self.fixed)}, which cannot "
                "change when a run resumes: it continues with its own."
            )
        return f"The settings on screen differ from those of {self.folder.name}: {_named(self.described, ', ')}."

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
    return None if folder is None else compare(folder, config)


def compare(folder: RunFolder, config: TrainConfig) -> ExistingRun:
    """In what a config differs from that of a run. Raises TandemError if the run's cannot be read."""
    before, now = dump(load_config(folder.config_file)), dump(config)
    names = tuple(name for name in now if before.get(name) != now[name] and name not in _NAMES)
    fixed = dict.fromkeys(
        _title(each.path) for each in find_changes(TrainConfig, before, now) if each.resume == "fixed"
    )
    if before["family"] != now["family"] and {before["family"], now["family"]} <= {*family_names()}:
        fixed = {_title("family"): None, **fixed}  # no backup of one is one of the other
    ending = ENDINGS.get(EventSummary.of_file(folder.events_file).reason)
    described = tuple(_described(name, before, now) for name in names)
    own = {name: before[name] for name in ("run_name", "runs_dir")}
    return ExistingRun(folder, ending is not None and ending.is_complete, names, described, tuple(fixed), own)


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


def ask_to_resume(owner: tk.Misc, run: ExistingRun, chosen: Callable[[Answer], object]) -> None:
    """Ask with which settings a run continues; `chosen` gets the answer, which is empty for neither."""
    own = Choice("own settings", "Resume with its own settings", style="accent" if run.fixed else "plain")
    choices = [Choice("", "Cancel", style="quiet"), own]
    if not run.fixed:
        choices.append(Choice("current settings", "Resume with these settings", style="accent"))
    ask(owner, "The settings differ", run.question_to_resume, choices, chosen)  # type: ignore[arg-type]


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
