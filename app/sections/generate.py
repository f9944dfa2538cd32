"""Generating images without a run: the settings at the left, the images at the right, the process below."""

from __future__ import annotations

import os
import secrets
import tkinter as tk
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from app.child_program import not_started
from app.generate.chosen import use_as_data
from app.generate.form import WIDTH, GenerateForm
from app.generate.history import History
from app.generate.job import GenerateJob, JobStatus, Tone
from app.generate.results import Results, read_folder
from app.generate.run_models import models_of_runs, read_run_model
from app.generate.settings import check
from app.open_path import show_folder
from app.sections import SECTIONS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, frame, popup_menu, text, wrap_within
from app.widgets.progress_bar import ProgressBar
from app.widgets.section_head import SectionHead
from modules.config import TandemError
from modules.files import expand_home, printable
from modules.machine import visible_gpus
from modules.run import RunFolder

POLL_MS: Final = 200
IDLE_MS: Final = 2000  # without a process
FIRST_CARDS: Final = 2  # shown at once
_MAX_SEED: Final = 1 << 32  # as other programs draw them
_BUSY: Final = (
    "A run is training: generating takes memory and time of the same devices. The device can be chosen under "
    "“Process and files”."
)
_TONES: Final[dict[Tone, theme.Colour]] = {
    "muted": theme.MUTED,
    "good": theme.GOOD,
    "warn": theme.WARN,
    "bad": theme.BAD,
}


class Section(tk.Frame):
    """Polls the process while the section exists: it goes on while another section is shown."""

    name = "generate"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.job = state.generate_job = state.generate_job or GenerateJob()
        self.history = History.load()
        self._shown_status: tuple[JobStatus, str, bool] | None = None
        self._added = 0
        self._said_training = False
        self._says_faults = False
        self._building = self._build()
        next(self._building)
        self._poll_job = self.after(POLL_MS, self._poll)
        self._show_status()

    def prepare(self) -> Iterator[None]:
        """Build the fields before the section is first shown, those of one card at each step."""
        yield from self._building

    def show(self) -> None:
        """Show the section: the first cards now, the others in steps."""
        for _ in self._building:
            pass
        steps = self.form.appear()
        for _ in range(FIRST_CARDS):
            next(steps, None)
        self.state.slices.soon(steps)
        self.look_outside()
        self._show_status()

    def hide(self) -> None:
        """Remember what is in the fields."""
        settings, _ = check(self.form.values())
        if settings is not None:
            self.history.last = settings
            self.history.save()

    def jump_to(self, path: str) -> None:
        """Do nothing: there are no settings of a run here."""

    def destroy(self) -> None:
        """Stop polling; the process goes on, for the page that a change of scale builds anew."""
        self.after_cancel(self._poll_job)
        super().destroy()

    def use_run(self, folder: RunFolder, sample: Mapping[str, object] | None = None, step: int | None = None) -> None:
        """Fill in what a run has saved, at a step or last, and the prompt and numbers of `sample`; an error is shown in
        its place."""
        self.form.repeat(sample or {})
        try:
            found = read_run_model(folder, step)
        except TandemError as error:
            self._say(JobStatus(str(error), "bad"))
            return
        self.form.repeat({**found.fields, **(sample or {})})
        self.form.show_faults({})
        todo = "Press Generate."
        if not self.form.values()["prompt"]:
            self.form.fields["prompt"].control.focus_set()
            todo = "Write a prompt if it needs one, and press Generate."
        self._say(JobStatus(f"The model of {printable(found.name)} is filled in. {todo}"))

    def generate(self) -> None:
        """Start generating, or mark what is missing."""
        if self.job.is_running:
            return
        values = self.form.values()
        if values["random_seed"]:
            values["seed"] = secrets.randbelow(_MAX_SEED)
        settings, faults = check(values)
        self.form.show_faults(faults)
        if settings is None:
            self._say_faults()
            return
        self.form.show({"seed": settings.seed})
        self.history.add(settings)
        self.history.save()
        self._added = 0
        self.results.begin()
        try:
            self.job.start(settings)
        except OSError as error:
            self._say(JobStatus(not_started(error), "bad"))
            return
        self.after_cancel(self._poll_job)  # which may be as late as IDLE_MS
        self._poll()
        self.look_outside()
        self._show_status()

    def _say_faults(self) -> None:
        """How many fields are wrong; after the last is corrected, what was said before."""
        count, self._says_faults = self.form.fault_count, self.form.fault_count > 0
        if count:
            self._say(JobStatus(f"{count} field{'s are' if count > 1 else ' is'} not right yet.", "bad"))
        else:
            self._show_status()

    def _edited(self) -> None:
        self.state.typed[self.name] = self.form.values()
        if self._says_faults:
            self._say_faults()

    def stop(self) -> None:
        """Stop after the current image; at the second press at once."""
        self.job.stop()
        self._show_status()

    def _build(self) -> Iterator[None]:
        head = SectionHead(self, *SECTIONS[self.name])
        opened = Button(head.frame, "Open folder", self._open_folder, icon="folder", bg=theme.WINDOW)
        opened.pack(side="right")
        add_tooltip(opened, lambda: f"The images are in {self._folder()}.")
        body = frame(self, theme.WINDOW)
        body.pack(fill="both", expand=True, padx=(theme.px(18), theme.px(24)), pady=(0, theme.px(8)))
        left = frame(body, theme.WINDOW)
        left.configure(width=theme.px(WIDTH))
        left.pack_propagate(False)
        left.pack(side="left", fill="y", padx=(0, theme.px(8)))
        self._build_buttons(left)
        self.form = GenerateForm(left, self.state, self._edited, self.generate)
        self.form.prompts = lambda: self.history.prompts
        self.form.choose_run = self._list_runs
        self.form.pack(fill="both", expand=True)
        self.results = Results(body, self.form.repeat, lambda file: self.state.say(use_as_data(self.state, file)))
        self.results.pack(side="left", fill="both", expand=True)
        yield
        yield from self.form.steps
        self.form.show({**self.history.last.model_dump(), **self.state.typed[self.name]})
        self.state.background.run(lambda: len(visible_gpus()), self.form.show_devices)

    def _build_buttons(self, left: tk.Frame) -> None:
        bottom = frame(left, theme.WINDOW)
        bottom.pack(side="bottom", fill="x", padx=(theme.px(6), theme.px(16)), pady=(theme.px(8), theme.px(4)))
        row = frame(bottom, theme.WINDOW)
        row.pack(fill="x")
        self.start_button = Button(row, "Generate", self.generate, icon="play", style="accent", width=140)
        self.start_button.pack(side="left")
        add_tooltip(self.start_button, "Generate in a process of its own.  (Ctrl+Return in the prompt)")
        self.stop_button = Button(row, "Stop", self.stop, icon="stop", width=110)
        self.stop_button.pack(side="left", padx=(8, 0))
        add_tooltip(self.stop_button, self._stop_help)
        self.bar = ProgressBar(bottom, theme.WINDOW)
        self.bar.pack(fill="x", pady=(theme.px(10), theme.px(6)))
        self.status = text(bottom, "", "small", colour=theme.MUTED, bg=theme.WINDOW)
        self.status.pack(anchor="w", fill="x")
        wrap_within(self.status, bottom, 0)

    def _stop_help(self) -> str:
        return "Stop at once; the current image is lost." if self.job.is_stopping else "Stop after the current image."

    def _poll(self) -> None:
        self._poll_job = self.after(POLL_MS if self.job.is_running else IDLE_MS, self._poll)
        if self.job.poll() or self._added < len(self.job.files):
            for file in self.job.files[self._added :]:
                self.results.add(file)
            self._added = len(self.job.files)
            self._show_status()
        elif self._is_training() != self._said_training:
            self._show_status()

    def _is_training(self) -> bool:
        return self.state.run is not None and self.state.run.is_alive

    def _show_status(self) -> None:
        key = (self.job.status, self.job.note, self.job.is_running)
        is_busy, self._said_training = self.job.is_running, self._is_training()
        self.start_button.configure(state="disabled" if is_busy else "normal")
        self.stop_button.configure(
            state="normal" if is_busy else "disabled", text="Stop now" if self.job.is_stopping and is_busy else "Stop"
        )
        if key == self._shown_status and is_busy:
            return
        self._shown_status = key
        status = self.job.status
        if not status.text and self._said_training:
            status = JobStatus(_BUSY)
        self._say(status, self.job.note)

    def _say(self, status: JobStatus, note: str = "") -> None:
        lines = [status.text, status.details, note and f"Note: {note}"]
        theme.paint(self.status, fg=_TONES[status.tone])
        self.status.configure(text="\n".join(line for line in lines if line))
        colour = theme.GOOD if status.tone == "good" else theme.ACCENT
        self.bar.show(status.fraction, busy=self.job.is_running, colour=colour)

    def _folder(self) -> Path:
        return expand_home(str(self.form.values()["folder"]).strip() or ".")

    def _open_folder(self) -> None:
        folder = self._folder()
        if not os.path.isdir(folder):
            self._say(JobStatus(f"There is no folder {folder} yet: the first image creates it.", "warn"))
            return
        show_folder(self.state, folder, lambda why: self._say(JobStatus(why, "bad")))

    def look_outside(self) -> None:
        """Read the folder again: another program may have removed images."""
        folder = self._folder()
        self.state.background.run(partial(read_folder, folder), self.results.show)

    def _list_runs(self, widget: tk.Misc) -> None:
        runs_dir = self.state.runs_dir
        self.state.background.run(lambda: models_of_runs(runs_dir), partial(self._show_runs, widget, runs_dir))

    def _show_runs(self, widget: tk.Misc, runs_dir: Path, models: list[tuple[RunFolder, int | None]]) -> None:
        menu = popup_menu(self)
        for folder, step in models:
            label = folder.name if step is None else f"{folder.name}, step {step:,}"
            menu.add_command(label=label, command=partial(self.use_run, folder, step=step))
        if not models:
            menu.add_command(label=f"No run in the folder “{runs_dir}” has saved a model yet", state="disabled")
        menu.open_below(widget)
