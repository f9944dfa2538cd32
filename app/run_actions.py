"""What the buttons of the run bar do, and why one may not press them now."""

from __future__ import annotations

import subprocess
import tkinter as tk
from collections.abc import Callable
from pathlib import Path

from app import texts
from app.ask import Choice, ask
from app.run_control import RunControl, launch, live_runs, make_run, next_name, taken_name
from app.run_status import Status
from app.state import AppState
from modules.run import RunFolder

_DONE = {"finished", "early_stopping", "cached"}


class RunActions:
    """Starts runs, follows them, and passes on what is asked of them."""

    def __init__(self, owner: tk.Misc, state: AppState, say: Callable[[str], None]) -> None:
        self._owner = owner
        self._state = state
        self._say = say
        self._starting = False

    # Following

    def follow(self, path: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        """Show this run from now on; the one that was followed goes on unseen."""
        if self._state.run is not None:
            self._state.run.leave()
        self._state.run = RunControl(path, process)
        self._state.preferences.last_run = str(path)
        self._state.notify("run")

    def attach(self, named: Path | None) -> None:
        """At the start of the window: follow the named run, else one that is being trained, else the last one."""
        if named is not None:
            self.follow(named.resolve())
            return
        runs_dir = Path(str(self._state.draft.get("runs_dir") or "runs"))
        self._state.background.run(lambda: live_runs(runs_dir), self._attach_living)

    def _attach_living(self, living: list[Path]) -> None:
        last = Path(self._state.preferences.last_run) if self._state.preferences.last_run else None
        if self._state.run is not None:
            return
        if living:
            self.follow(last if last in living else living[0])
            name = self._state.run.folder.name if self._state.run is not None else ""
            self._say(texts.REATTACHED.format(name=name))
            if len(living) > 1:
                self._say(texts.MORE_RUNS.format(count=len(living) - 1))
        elif last is not None and last.is_dir():
            self.follow(last)

    # Starting

    def train(self) -> None:
        """Begin a run with the settings as they are; where they are not right, show what is missing."""
        config = self._state.draft.config
        if config is None:
            self._state.notify("missing")
            return
        if self._starting or (self._state.run is not None and self._state.run.is_alive):
            return
        if (taken := taken_name(config)) is not None:
            self._ask_about_taken(taken)
            return
        self._begin_to_start()
        self._state.background.run(lambda: make_run(config), self._launch, self._not_started)

    def resume(self) -> None:
        """Go on with the followed run."""
        if self._state.run is not None:
            self.resume_in(self._state.run.folder)

    def resume_in(self, folder: RunFolder) -> None:
        """Go on with a run where its last backup stands."""
        if not self._starting:
            self._begin_to_start()
            self._launch(folder, resume=True)

    def _begin_to_start(self) -> None:
        self._starting = True
        self._state.notify("run")

    def _launch(self, folder: RunFolder, resume: bool = False) -> None:
        def done(process: subprocess.Popen[bytes]) -> None:
            self._starting = False
            self.follow(folder.path, process)

        self._state.background.run(
            lambda: launch(folder, resume=resume, token=self._state.join_token), done, self._not_started
        )

    def _not_started(self, sentence: str) -> None:
        self._starting = False
        self._state.notify("run")
        ask(
            self._owner,
            texts.NOT_STARTED_TITLE,
            sentence,
            (Choice("", texts.CLOSE, style="accent"),),
            lambda answer: None,
        )

    def _ask_about_taken(self, folder: RunFolder) -> None:
        name = next_name(folder)
        choices = (
            Choice("resume", texts.TAKEN_RESUME),
            Choice("new", texts.TAKEN_NEW.format(name=name), style="accent"),
            Choice("", texts.CANCEL, style="quiet"),
        )

        def chosen(answer: str) -> None:
            if answer == "resume":
                self.resume_in(folder)
            elif answer == "new":
                self._state.draft.set("run_name", name)
                self.train()

        ask(self._owner, texts.TAKEN_TITLE, texts.TAKEN_QUESTION.format(name=folder.name), choices, chosen)

    # Asking

    def ask(self, name: str) -> None:
        """Ask the run for a backup, samples or a saved model."""
        run = self._state.run
        if run is not None and (problem := run.ask(name)):
            self._say(problem)
        self._state.notify("run")

    def stop(self) -> None:
        """First a stop after a backup; while that is waited for, an end at once, if confirmed."""
        run = self._state.run
        if run is None:
            return
        if run.status().kind in {"stopping", "missing"}:
            self._confirm_end(run)
        elif problem := run.stop():
            self._say(problem)
        self._state.notify("run")

    def _confirm_end(self, run: RunControl) -> None:
        with run.view.lock:
            step = run.view.backup_step
        backup = texts.END_NO_BACKUP if step is None else texts.END_BACKUP.format(step=step)
        choices = (
            Choice("end", texts.END_YES, style="danger"),
            Choice("", texts.END_NO, style="accent"),
        )

        def chosen(answer: str) -> None:
            if answer == "end":
                run.end_at_once()

        ask(self._owner, texts.END_TITLE, texts.END_QUESTION.format(backup=backup), choices, chosen)

    # Reasons

    def reasons(self, status: Status) -> dict[str, str]:
        """For each button why it cannot be pressed now; an empty text where it can."""
        run = self._state.run
        listening = ""
        if not status.is_alive:
            listening = texts.WHY_NO_RUN
        elif status.kind in {"stopping", "ending"}:
            listening = texts.WHY_STOPPING
        elif run is not None and not run.has_begun:
            listening = texts.WHY_NOT_YET
        found = dict.fromkeys(("back_up", "sample", "save"), listening)
        found["train"] = texts.WHY_TRAINING if status.is_alive or self._starting else ""
        found["stop"] = "" if status.is_alive else texts.WHY_NO_RUN
        if run is not None and not listening:
            for name, command in (("back_up", "backup"), ("sample", "sample"), ("save", "save")):
                if run.waits_for(command):
                    found[name] = texts.WHY_ASKED
            if not run.has_samples:
                found["sample"] = texts.WHY_NO_SAMPLES
        return found

    def offers_resume(self, status: Status) -> bool:
        """Whether going on with the followed run is the natural next step."""
        return status.can_resume and status.kind not in _DONE and not self._starting
