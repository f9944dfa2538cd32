"""The page for model files: a task, its fields, the process and its result."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Mapping
from typing import Final, Literal

from app.base_model import tensor_shapes
from app.child_program import not_started
from app.form.setting_text import with_actions
from app.open_path import show_folder
from app.state import AppState
from app.tools.job import JobResult, ModelJob
from app.tools.model_tasks import FORMATS, KIND, LORA_FILES, TASKS, arguments, faults, suggested_out
from app.tools.tool_form import ToolForm
from app.widgets import theme
from app.widgets.buttons import Button, Segments, card, frame, text, wrap_within
from app.widgets.progress_bar import ProgressBar
from app.widgets.scroll import Scroll
from modules.facts import MODEL_FILES, family_names, is_lora, named_family
from modules.files import FileFault, expand_home
from modules.run.format_duration import format_duration
from modules.run.format_progress import format_bytes

POLL_MS: Final = 200
_INPUTS: Final = ("source", "to", "layout")  # the fields that the suggested name depends on
# "lora_folder": a run's model folder with a LoRA, which is no source itself; "": not known
SourceKind = Literal["folder", "lora_folder", "model", "lora", "kohya_lora", "embedding", "other", ""]
# As scripts/convert.py, which a test compares.
FITTING: Final[Mapping[SourceKind, tuple[str, ...]]] = {
    "folder": ("single_file",),
    "model": ("dtype", "diffusers"),
    "lora": ("kohya", "diffusers", "dtype"),
    "kohya_lora": ("diffusers", "kohya", "dtype"),
    "lora_folder": ("kohya", "diffusers", "dtype"),
    "embedding": ("embedding", "dtype"),
    "other": ("dtype", "kohya", "diffusers", "embedding"),
    "": tuple(FORMATS),
}
REASONS: Final[Mapping[SourceKind, str]] = {
    "folder": "This is a diffusers folder, which becomes a single file.",
    "model": "This file holds the weights of a model: they get another number format, or become a diffusers folder.",
    "lora": "This file is a LoRA, which becomes one for other programs.",
    "kohya_lora": "This file is a LoRA as ComfyUI, A1111 and Forge read it; it becomes one for other programs.",
    "lora_folder": "This folder holds a LoRA: choose its .safetensors file above.",
    "embedding": "This file is an embedding, which becomes one for other programs.",
    "other": "What this file holds is not known; another number format suits any file.",
    "": "",
}


class ModelsPage(tk.Frame):
    """One task at a time runs; it goes on while another page is shown."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self.forms: dict[str, ToolForm] = {}
        self._suggested = state.typed["suggested"]  # task -> the name of its result
        self._is_checked = False
        self.result = JobResult("")
        self._poll_job = ""
        self._scroll = Scroll(self)
        self._scroll.pack(fill="both", expand=True)
        outer = card(self._scroll.inside)
        outer.pack(fill="x", padx=8, pady=(0, 16))
        head = frame(outer)
        head.pack(fill="x", padx=theme.px(16), pady=(theme.px(14), theme.px(4)))
        self.tasks = Segments(head, [task.title for task in TASKS], self._choose_title, bg=theme.CARD)
        self.tasks.pack(side="left")
        head.bind("<Configure>", lambda event: self.tasks.fit(event.width))
        self._about = text(outer, "", colour=theme.MUTED)
        wrap_within(self._about, outer)
        self._about.pack(fill="x", padx=theme.px(16), pady=(theme.px(4), theme.px(12)))
        self._place = frame(outer)
        self._place.pack(fill="x", padx=theme.px(16))
        self._build_bottom(outer)
        if state.model_job is not None:
            self._poll()

    def shown(self) -> None:
        """Build the first task's fields at the first time."""
        if not self.forms:
            self.choose(str(self._state.typed["models"].get("task", TASKS[0].name)))

    def choose(self, name: str) -> None:
        """Show a task."""
        task = next(each for each in TASKS if each.name == name)
        for form in self.forms.values():
            form.pack_forget()
        if is_new := name not in self.forms:
            self.forms[name] = ToolForm(self._place, task, self._edited, self._state.typed[name])
        self.form = self.forms[name]
        self._state.typed["models"]["task"] = name
        self.form.pack(fill="x")
        self.tasks.set(task.title)
        self._about.configure(text=task.about)
        self._is_checked = False
        self.form.say({})
        if is_new:
            self._look_at(self.form)

    def start(self) -> None:
        """Start the process, or show what is missing."""
        values = self.form.values()
        wrong = faults(self.form.task, values)
        self._is_checked = True
        self.form.say(wrong)
        if wrong or self._state.model_job is not None:
            return
        try:
            self._state.model_job = ModelJob(arguments(self.form.task, values), expand_home(values["out"].strip()))
        except OSError as error:
            self._show_result(JobResult(f"Nothing was written. {not_started(error)}"))
            return
        self._show_result(JobResult(""))
        self._poll()

    def stop(self) -> None:
        """End the process."""
        if self._state.model_job is not None:
            self._state.model_job.stop()

    def destroy(self) -> None:
        """Stop polling; the process goes on, for the page that a change of scale builds anew."""
        if self._poll_job:
            self.after_cancel(self._poll_job)
        super().destroy()

    def _build_bottom(self, outer: tk.Misc) -> None:
        row = frame(outer)
        row.pack(fill="x", padx=theme.px(16), pady=(theme.px(6), theme.px(6)))
        self.run_button = Button(row, "Start", self.start, icon="play", style="accent", bg=theme.CARD)
        self.run_button.pack(side="left")
        self.stop_button = Button(row, "Stop", self.stop, icon="stop", bg=theme.CARD)
        self.stop_button.pack(side="left", padx=(8, 0))
        self.stop_button.configure(state="disabled")
        self.open_button = Button(row, "Open folder", self._open_folder, icon="folder", bg=theme.CARD)
        below = frame(outer)
        below.pack(fill="x", pady=(0, theme.px(8)))
        self.progress = ProgressBar(below)
        self.status = text(below, "", colour=theme.MUTED)
        wrap_within(self.status, outer)

    def _choose_title(self, title: str) -> None:
        self.choose(next(task.name for task in TASKS if task.title == title))

    def _edited(self, name: str) -> None:
        form = self.form
        if name == "source":
            self._look_at(form)
        if name in _INPUTS:
            values = form.values()
            if values["out"].strip() in ("", self._suggested.get(form.task.name)):
                suggested = self._suggested[form.task.name] = suggested_out(form.task, values)
                form.show("out", suggested)
        if self._is_checked:
            form.say(faults(form.task, form.values()))

    def _look_at(self, form: ToolForm) -> None:
        """Offer the formats that the file or folder to convert can become."""
        if form.task.name != "convert":
            return
        source = form.values()["source"].strip()

        def found(kind: SourceKind) -> None:
            if form.values()["source"].strip() == source and form.values()[KIND] != kind:
                form.offer("to", FITTING[kind], kind, REASONS[kind])

        self._state.background.run(lambda: source_kind(source), found)

    def _poll(self) -> None:
        self._poll_job = ""
        job = self._state.model_job
        if job is None:
            return
        if job.is_running:
            self.run_button.configure(state="disabled")
            self.stop_button.configure(state="normal")
            self.progress.show(None, busy=True)
            seconds, written = int(time.monotonic() - job.started), job.written()
            size = f", {format_bytes(written)} written" if written else ""
            self._say(f"Working on {job.out.name}: {format_duration(seconds)}{size}", theme.MUTED)
            self._poll_job = self.after(POLL_MS, self._poll)
            return
        self._state.model_job = None
        self._show_result(job.result())
        job.close()

    def _show_result(self, result: JobResult) -> None:
        self.result = result
        self.run_button.configure(state="normal")
        self.stop_button.configure(state="disabled")
        self.progress.show(1.0 if result.out else 0.0, busy=False, colour=theme.GOOD if result.out else theme.ACCENT)
        colour = theme.GOOD if result.out else theme.MUTED if result.was_stopped else theme.BAD
        titles = {field.name: field.title for field in self.form.task.fields}
        self._say(with_actions(result.sentence, titles), colour)
        if result.out:
            self.open_button.pack(side="left", padx=(8, 0))
        else:
            self.open_button.pack_forget()

    def _say(self, sentence: str, colour: theme.Colour) -> None:
        if sentence and not self.status.winfo_manager():
            self.progress.pack(fill="x", padx=theme.px(16), pady=(theme.px(6), 0))
            self.status.pack(fill="x", padx=theme.px(16), pady=(theme.px(8), theme.px(6)))
            self._scroll.see(self.status)
        theme.paint(self.status, fg=colour)
        self.status.configure(text=sentence)

    def _open_folder(self) -> None:
        if self.result.out is not None:
            folder = self.result.out.parent
            show_folder(self._state, folder, self._failed)

    def _failed(self, message: str) -> None:
        self._say(message, theme.BAD)


def source_kind(name: str) -> SourceKind:
    """What a path leads to, from the names of its tensors; reads headers only, and may be slow on a network disk."""
    path = expand_home(name)
    try:
        if path.is_dir():
            if (path / "model_index.json").is_file():
                return "folder"
            return "lora_folder" if any((path / name).is_file() for name in LORA_FILES) else ""
        shapes = tensor_shapes(path) if path.name.lower().endswith(MODEL_FILES) else None
    except (OSError, FileFault):
        return ""
    if not shapes:
        return ""
    if is_lora(shapes):
        return "kohya_lora" if all(name.startswith("lora_") for name in shapes) else "lora"
    if set(shapes) == {"clip_l", "clip_g"} or (len(shapes) == 1 and "." not in next(iter(shapes))):
        return "embedding"
    if any(each.startswith("model.diffusion_model.") for each in shapes) or named_family(shapes) in family_names():
        return "model"
    return "other"
