"""The actions of the run bar's buttons, and why they are disabled."""

from __future__ import annotations

import os
import subprocess
import tkinter as tk
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from app.form.setting_text import setting_named, with_titles
from app.multi_gpu.joining import joining
from app.runs.ask_existing import (
    Answer,
    ExistingRun,
    ask_about_existing,
    ask_machines,
    ask_to_resume,
    compare,
    read_existing,
)
from app.runs.control import RunControl, active_runs, create_run, existing_run, launch
from app.runs.outside_watch import OutsideWatch
from app.runs.request_watch import ASKED
from app.runs.start_check import StartCheck
from app.runs.status import STOPPING, Status
from app.shell.ask import Choice, ask
from app.state import AppState
from app.windows.allow_code import ask_for_code
from app.windows.custom_sample import custom_sample_obstacle
from app.windows.dialog import open_dialogs
from modules.config import ConfigError, TandemError, TrainConfig, load_config
from modules.config.imported_code import CodeFile, read_class
from modules.config.trusted_code import foreign_classes, is_trusted, setting_said, trust_code
from modules.run import RunFolder
from modules.run.folder.backup_list import complete_backups
from modules.run.hosts.host_list import find_hosts, known_hosts, read_hosts
from modules.run.hosts.ssh_command import Unreachable
from modules.run.launch.detached import next_free_name
from modules.run.queue.entries import Entry
from modules.run.queue.folder import RunQueue
from modules.run.queue.place_run import check_startable
from modules.run.remote.attendant import ADD, NotReady, begin, go_on, launch_attendant, not_ready, resume_there
from modules.run.remote.parts import for_machines, machines_with, named
from modules.run.remote.run_copy import read_copy

_FORCE_STOP: Final = "Force the run to stop?"


class RunActions:
    """Starts and follows runs, and sends requests to them; lives as long as the window, its `owner`."""

    def __init__(self, owner: tk.Misc, state: AppState) -> None:
        self._owner = owner
        self._state = state
        self._starting = False
        self._outside = OutsideWatch(state, self.follow)
        self._check = StartCheck(owner, state, self._unmark_starting)

    def follow(self, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        """Follow this run from now on; the previous one continues unobserved."""
        if self._state.run is not None:
            self._state.run.detach()
        self._state.run = RunControl(path, process)
        self._state.preferences.last_run = str(path)
        self._state.notify("run")
        if process is None:
            self._state.background.run(partial(go_on, RunFolder(path)), lambda nothing: None, self._state.say)

    def look_outside(self) -> None:
        """Now and then: follow or offer a run that was started elsewhere."""
        if not self._starting:
            self._outside.refresh()

    def attach(self, named: Path | None) -> None:
        """When the window opens: follow the named run, else an active one, else the last one."""
        self._is_place_known()
        if named is not None:
            self.follow(named.absolute())
            return
        runs_dir = self._state.runs_dir
        self._state.background.run(lambda: active_runs(runs_dir), self._attach_active)

    def _attach_active(self, active: list[Path]) -> None:
        last = Path(self._state.preferences.last_run) if self._state.preferences.last_run else None
        if self._state.run is not None:
            return
        if active:
            same = [path for path in active if last is not None and path.resolve() == last.resolve()]
            self.follow([*same, *active][0])
            name = self._state.run.folder.name if self._state.run is not None else ""
            self._state.say(f"{self._state.second_window} Following {name}, which was already training.".lstrip())
            if len(active) > 1:
                self._state.say(f"{len(active) - 1} other runs are training; see Monitor, Runs.")
        elif last is not None and os.path.isdir(last):
            self.follow(last)

    def train(self) -> None:
        """Start a run with the current settings; if they are invalid or something is missing, list it.

        Checks of the window's that are still under way are waited for.
        """
        if self._state.draft.config is None:
            self._state.notify("invalid")
        elif not self._starting and not (self._state.run is not None and self._state.run.is_alive):
            if self._asks_for_code(self._state.draft.config, self.train):
                return
            if not self._is_place_known():
                return
            self._mark_starting()
            if self._state.preferences.place:
                self._start_there(self._state.draft.config)
            else:
                self._check.run(self._start)

    def _is_place_known(self) -> bool:
        """Whether the machine that was chosen is still in the list; else this computer is chosen, and that is said."""
        place = self._state.preferences.place
        with suppress(ConfigError):  # a damaged list: the start says so
            if place and place not in [host.name for host in read_hosts()]:
                self._state.preferences.place = ""
                self._state.preferences.save()
                self._state.notify("run")
                self._state.say(f"{place} is not in the list of machines any more: Train starts runs on this computer.")
                return False
        return True

    def _start_there(self, config: TrainConfig) -> None:
        """Start a run on the machine that was chosen; set it up first if it must be."""
        place, sends_token = self._state.preferences.place, self._state.preferences.sends_token
        make = partial(begin, config, place, sends_token=sends_token, joined=joining(self._state))

        def started(found: tuple[RunFolder, subprocess.Popen[bytes]] | NotReady) -> None:
            self._unmark_starting()
            if isinstance(found, NotReady):
                self._make_ready(found, self.train)
            else:
                self._launched(*found)

        def taken(folder: RunFolder | None) -> None:
            if folder is None:
                self._state.background.run(make, started, self._not_started)
                return
            self._unmark_starting()
            name = next_free_name(folder)
            choices = (Choice("", "Cancel"), Choice("new", f"Train as {name}", style="accent"))
            question = f"There is already a run named {folder.name} on this computer."
            ask(self._owner, "This name is taken", question, choices, lambda answer: rename(name) if answer else None)

        def rename(name: str) -> None:
            self._state.draft.set("run_name", name)
            self.train()

        self._state.background.run(partial(existing_run, config), taken, self._not_started)

    def enqueue(self) -> None:
        """Add a copy of the current settings to the queue, for the place that was chosen, after the same checks as
        `train`."""
        if self._state.draft.config is None:
            self._state.notify("invalid")
        elif not self._starting and not self._asks_for_code(self._state.draft.config, self.enqueue):
            if not self._is_place_known():
                return
            self._mark_starting()
            if self._state.preferences.place:
                self._add_for_place(self._state.draft.config)
            else:
                self._check.run(self._add_to_queue, "Add all the same")

    def _add_for_place(self, config: TrainConfig) -> None:
        place, sends_token = self._state.preferences.place, self._state.preferences.sends_token
        queue = RunQueue(config.runs_dir)

        def added(found: NotReady | str) -> None:
            self._unmark_starting()
            if isinstance(found, NotReady):
                self._make_ready(found, self.enqueue)
            else:
                self._state.say(found)

        joined = joining(self._state)
        add = partial(enqueued_there, queue, config, place, sends_token=sends_token, joined=joined)
        self._state.background.run(add, added, lambda why: self._not_started(why, "Not added"))

    def _make_ready(self, lacks: NotReady, then: Callable[[], object]) -> None:
        if lacks.why:
            self._state.views.set_up(lacks.machine, lacks.why, then)
        else:
            self._state.views.connect(lacks.machine)  # which shows the key, or the line that helps

    def _asks_for_code(self, config: TrainConfig, action: Callable[[], object]) -> bool:
        """Ask about the first class of another package whose code nobody has allowed; once it is, `action`."""

        def allowed(files: Sequence[CodeFile]) -> None:
            trust_code(files)
            action()

        for setting, path in foreign_classes(config):
            with suppress(TandemError):  # there is no such module: the check of the start says so
                if not is_trusted(files := read_class(path, setting)):
                    ask_for_code(self._owner, setting_said(setting), files, allowed)
                    return True
        return False

    def _add_to_queue(self, config: TrainConfig) -> None:
        queue, switched_on = RunQueue(config.runs_dir), list(self._state.preferences.hosts)
        self._state.background.run(
            lambda: enqueued(queue, config, known_hosts(switched_on)),
            lambda said: self._state.say(said),  # in the run bar of then
            lambda why: self._not_started(why, "Not added"),
        )

    def _start(self, config: TrainConfig) -> None:
        def known(existing: ExistingRun | None) -> None:
            if existing is None:
                self._state.background.run(lambda: create_run(config), self._launch, self._not_started)
            else:
                ask_about_existing(self._owner, existing, lambda answer: chosen(existing.folder, answer))

        def chosen(folder: RunFolder, answer: Answer) -> None:
            self._unmark_starting()
            match answer:
                case "own settings":
                    self.resume_in(folder)
                case "current settings":
                    self.resume_in(folder, config)
                case "new":
                    name = next_free_name(folder)
                    self._state.draft.set("run_name", name)
                    self._state.say(f"The settings' run name is {name} now.")
                    self.train()

        self._mark_starting()
        self._state.background.run(lambda: read_existing(config), known, self._not_started)

    def resume(self) -> None:
        """Resume the followed run; if the settings on screen are its own but for some, ask with which."""
        run, config = self._state.run, self._state.draft.config
        if run is None or self._starting:
            return
        if config is None or (run.copy is not None and run.copy.is_underway):
            self.resume_in(run.folder)
            return
        folder = run.folder

        def known(found: ExistingRun) -> None:
            self._unmark_starting()
            if found.is_of_another_model:
                self._state.say(f"{folder.name} continues with its own settings, not with those on screen.")
            if found.is_of_another_model or not found.different:
                self.resume_in(folder)
            else:
                ask_to_resume(self._owner, found, partial(chosen, config.model_copy(update=found.names)))

        def chosen(current: TrainConfig, answer: Answer) -> None:
            if answer:
                self.resume_in(folder, current if answer == "current settings" else None)

        self._mark_starting()
        self._state.background.run(partial(compare, folder, config), known, self._not_started)

    def resume_in(self, folder: RunFolder, config: TrainConfig | None = None) -> None:
        """Resume a run from its last backup, with its own settings or those given; if it is one of several machines,
        ask with which.
        """
        if self._starting:
            return
        self._mark_starting()
        copy = read_copy(folder)
        if copy is not None and copy.is_underway:
            attended = partial(self._launched, folder)
            self._state.background.run(partial(launch_attendant, folder), attended, self._not_started)
            return
        if copy is not None:
            self._unmark_starting()
            self._ask_to_resume_here(folder, config, copy.machine)
            return
        self._resume_here(folder, config)

    def _resume_here(self, folder: RunFolder, config: TrainConfig | None) -> None:
        def chosen(answer: str) -> None:
            if answer:
                self._launch(folder, resume=True, alone=answer == "alone", config=config)
            else:
                self._unmark_starting()

        switched_on = list(self._state.preferences.hosts)

        def read() -> tuple[int, list[str], bool]:
            machines = (config or load_config(folder.config_file)).num_nodes
            hosts = known_hosts(switched_on)[: machines - 1] if machines > 1 else []
            return machines, hosts, bool(complete_backups(folder.backup_dir))

        def known(found: tuple[int, list[str], bool]) -> None:
            machines, started_here, has_backup = found
            if machines > 1:
                ask_machines(self._owner, folder.name, machines, started_here, chosen, has_backup=has_backup)
            else:
                self._launch(folder, resume=True, config=config)

        self._state.background.run(read, known, self._not_started)

    def _ask_to_resume_here(self, folder: RunFolder, config: TrainConfig | None, machine: str) -> None:
        def answered(answer: str) -> None:
            if answer:
                self._mark_starting()
            if answer == "here":
                self._resume_here(folder, config)
            elif answer == "there":
                attended = partial(self._launched, folder)
                self._state.background.run(partial(resume_there, folder), attended, self._not_started)

        question = (
            f"{folder.name} trained on {machine}. It can go on there, from its newest backup with its own settings, "
            "or here, with what was brought from there."
        )
        choices = (
            Choice("", "Cancel"),
            Choice("here", "On this computer"),
            Choice("there", f"On {machine}", style="accent"),
        )
        ask(self._owner, "Where to resume it?", question, choices, answered)

    def _mark_starting(self) -> None:
        self._starting = True
        self._state.notify("run")

    def _unmark_starting(self) -> None:
        self._starting = False
        self._state.notify("run")

    def _launch(
        self, folder: RunFolder, resume: bool = False, alone: bool = False, config: TrainConfig | None = None
    ) -> None:
        take_token, switched_on = self._state.next_join_token.take, list(self._state.preferences.hosts)

        def start() -> subprocess.Popen[bytes]:
            hosts = known_hosts(switched_on)
            return launch(folder, resume=resume, config=config, alone=alone, take_token=take_token, hosts=hosts)

        self._state.background.run(start, partial(self._launched, folder), self._not_started)

    def _launched(self, folder: RunFolder, process: subprocess.Popen[bytes]) -> None:
        self._starting = False
        self.follow(folder.path, process)
        self._state.views.run()

    def _not_started(self, message: str, title: str = "Training did not start") -> None:
        self._unmark_starting()
        said, path = with_titles(message), setting_named(message)
        ask(
            self._owner,
            title,
            f"{said[:1].upper()}{said[1:]}",
            (*((Choice("show", "Show setting"),) if path else ()), Choice("", "Close", style="accent")),
            lambda answer: self._state.jump_to(path) if answer else None,
        )

    def sample(self) -> None:
        """Request samples; of a run without prompts, ask for one."""
        if self._state.run is not None and self._state.run.has_samples:
            self.request("sample")
        else:
            self._state.views.custom_sample()

    def request(self, name: str) -> None:
        """Request a backup, samples or a saved model."""
        run = self._state.run
        if run is not None and (problem := run.request(name)):
            self._state.say(problem)
        elif run is not None:
            self._state.say(ASKED[name])
        self._state.notify("run")

    def stop(self) -> None:
        """Request a stop after a backup; if one is pending already, force a stop after confirmation."""
        run = self._state.run
        if run is None:
            return
        if run.status().kind in {*STOPPING, "missing"} or (run.status().kind == "away" and run.is_stop_asked):
            self._confirm_force_stop(run)
        elif problem := run.stop():
            self._state.say(problem)
        self._state.notify("run")

    def _confirm_force_stop(self, run: RunControl) -> None:
        if _FORCE_STOP in open_dialogs(self._owner):
            return
        with run.view.lock:
            step = run.view.backup_step
        is_over, is_away = run.status().kind in {"ending", "finishing"}, run.status().kind == "away"
        backup = " (there is none yet)" if step is None else f" (step {step})"
        loses = f"A forced stop loses everything since its last backup{backup}."
        choices = (
            Choice("end", "Force stop", style="danger"),
            *((Choice("leave", "Stop following"),) if is_away else ()),
            Choice("", "Wait" if is_over or is_away else "Wait for the backup", style="accent"),
        )

        def chosen(answer: str) -> None:
            if answer == "end":
                run.force_stop()
            elif answer == "leave":
                run.leave()

        says = f"The run is already stopping and writing a backup. {loses}"
        if is_over:
            says = "The run is over; only its processes are still ending."
        elif is_away and run.copy is not None:
            says = (
                f"There is no connection to {run.copy.machine}, and the run there needs none: it goes on, and is asked "
                f"to stop, or forced, as soon as there is one. {loses} If the machine never comes back, or is paid by "
                "the hour, switch it off where you rent it; what has come here stays here."
            )
        ask(
            self._owner,
            _FORCE_STOP,
            says,
            choices,
            chosen,
            is_over=lambda: not run.is_alive,
        )

    def disabled_reasons(self, status: Status) -> dict[str, str]:
        """Why each button is disabled now; an empty string if it is enabled."""
        run = self._state.run
        reason = ""
        if not status.is_alive:
            reason = "No run is active."
        elif status.kind in STOPPING:
            reason = "The run is ending." if status.kind == "finishing" else "The run is stopping."
        elif status.kind == "pulling":
            reason = "The run has ended; its results are on their way."
        elif run is not None and not run.has_started:
            reason = "The run has not reached its first step yet."
        reasons = dict.fromkeys(("back_up", "sample", "save"), reason)
        reasons["train"] = (
            "A run is already training: stop it first, or follow another under Monitor, Runs."
            if status.is_alive or self._starting
            else ""
        )
        reasons["stop"] = "" if status.is_alive else "No run is active."
        if run is not None and not reason:
            for name, command in (("back_up", "backup"), ("sample", "sample"), ("save", "save")):
                if run.is_pending(command):
                    reasons[name] = "Requested; the run acts on it after the current step."
            if not run.has_samples:
                reasons["sample"] = custom_sample_obstacle(run)
        return reasons

    @property
    def is_starting(self) -> bool:
        """Whether a run is being started."""
        return self._starting

    def offers_resume(self, status: Status) -> bool:
        """Whether to offer to resume the followed run."""
        return status.can_resume and not status.is_complete and not self._starting


def enqueued(queue: RunQueue, config: TrainConfig, hosts: Sequence[str]) -> str:
    """Add the config to the queue, with the machines that it starts over ssh; what to say of it. Raises TandemError."""
    entry = queue.add(config, hosts=hosts)
    if (by_hand := config.num_nodes - 1 - len(hosts)) > 0:
        join = "1 machine joins" if by_hand == 1 else f"{by_hand} machines join"
        queued = _queued(queue, entry)
        return f"{queued}. Its run waits until {join} by hand: switch on machines under Multi-GPU to start them."
    return _said_of(queue, entry)


def enqueued_there(
    queue: RunQueue, config: TrainConfig, place: str, *, sends_token: bool, joined: Sequence[str] = ()
) -> NotReady | str:
    """Add the config to the queue, for a machine of the list and those that are to join it; what to say of it, or what
    a machine lacks. Raises TandemError, also if its run could not be started there."""
    host = find_hosts([place], ADD)[0]
    others = machines_with(host, joined, ADD)
    config = for_machines(config, host, others)
    with suppress(Unreachable):  # which is said below
        if lacks := next(filter(None, map(not_ready, [host, *others])), None):
            return lacks
    note = check_startable(queue, config, host, others)
    entry = queue.add(config, hosts=joined, place=place, sends_token=sends_token)
    return f"{_queued(queue, entry)}. {note}" if note else _said_of(queue, entry)


def _said_of(queue: RunQueue, entry: Entry) -> str:
    """That it was added, and what starts it."""
    if queue.has_runner():
        return f"{_queued(queue, entry)}: {entry.name}. It starts by itself."
    # No name, which can be long: the run bar shows two short lines, and this fills them.
    return f"{_queued(queue, entry)}. To begin, press Start queue under Monitor, Queue."


def _queued(queue: RunQueue, entry: Entry) -> str:
    waiting = [each.number for each in queue.read().waiting]
    where = f" for {named([entry.place, *entry.hosts])}" if entry.place else ""
    return f"Queued{where} at place {waiting.index(entry.number) + 1}" if entry.number in waiting else f"Queued{where}"
