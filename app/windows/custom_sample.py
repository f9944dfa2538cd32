"""Asks for the prompt of an image that a running training generates after its current step."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import ValidationError

from app.form.setting_text import fault_message, format_value
from app.generate.run_models import has_model
from app.generate.settings import EMPTY_PROMPT, GENERATES_NOTHING
from app.runs.control import RunControl
from app.runs.custom_sample_watch import generate_fields
from app.runs.status import STOPPING
from app.widgets import theme
from app.widgets.buttons import Entry, TextBox, frame, text
from app.windows.dialog import Dialog
from modules.config import Sample, faults, options
from modules.facts import all_facts
from modules.run.folder.commands import CUSTOM_SAMPLE
from modules.run.folder.custom_sample import MAX_PROMPT_CHARS, encode_sample

_WIDTH: Final = 480
_OPTIONS: Final = {option.path: option for option in options(Sample)}
_NUMBERS: Final = (("seed", "width", "height"), ("steps", "guidance_scale", "frames"))
_OPTIONAL: Final = ("width", "height", "frames")
_POLL_MS: Final = 250
_ENDED: Final = "The run has ended. “Open Generate” takes this prompt along, with the model that the run has saved."
_ENDED_WITHOUT: Final = "The run has ended, and has saved no model. “Open Generate” takes this prompt along."


def custom_sample_obstacle(run: RunControl) -> str:
    """Why no custom sample can be asked for now; empty if it can."""
    status = run.status()
    if not status.is_alive:
        return "No run is active. Generate makes images with the model of a finished run."
    if status.kind in STOPPING:
        return "The run is stopping."
    if not run.has_started:
        return "The run has not reached its first step yet."
    with run.view.lock:
        run_info = run.view.run_info
    if run_info is not None and run_info.config.get("family") in GENERATES_NOTHING:
        return "This model family generates no images."
    if run.is_pending(CUSTOM_SAMPLE):
        return "Requested; the run generates it after the current step."
    return ""


class CustomSampleDialog:
    """Prompt, seed and size; what is wrong is shown before anything is sent.

    `draft` is what was typed the last time, and gets what is typed now. Once the run has ended, `generate` gets the
    fields for the page Generate. `say` gets what becomes of it.
    """

    def __init__(
        self,
        owner: tk.Misc,
        run: RunControl,
        draft: dict[str, object],
        generate: Callable[[dict[str, object]], object],
        say: Callable[[str], object],
    ) -> None:
        self._run, self._draft, self._generate, self._say = run, draft, generate, say
        self._has_ended = False
        message = "Training pauses for one image after the current step; its result does not change."
        self.dialog = Dialog(owner, "Custom sample", message)
        self.texts: dict[str, TextBox] = {}
        self.entries: dict[str, Entry] = {}
        body = self.dialog.body
        for name, height in (("prompt", 92), ("negative_prompt", 48)):
            text(body, _OPTIONS[name].title, "small", colour=theme.MUTED).pack(anchor="w")
            box = self.texts[name] = TextBox(body, lambda _: self._edited(), width=_WIDTH, height=height)
            box.show(str(draft.get(name, "")))
            box.pack(fill="x", pady=(theme.px(3), theme.px(10 if name != "prompt" else 2)))
            if name == "prompt":
                self.remark = text(body, "", "small", colour=theme.MUTED)
                self.remark.pack(anchor="w", pady=(0, theme.px(4)))
            for key in ("<Control-Return>", "<Control-KP_Enter>"):
                box.text.bind(key, lambda event: self._send_by_key())
        start = {**self._first_sample(), **draft}
        self.reference: Entry | None = None
        if self._takes_reference():
            text(body, _OPTIONS["reference"].title, "small", colour=theme.MUTED).pack(anchor="w")
            self.reference = Entry(body, lambda _: self._edited(), width=_WIDTH, placeholder="none")
            self.reference.pack(fill="x", pady=(theme.px(3), theme.px(10)))
            self.reference.show(str(start.get("reference", "")))
        for names in _NUMBERS:
            row = frame(body)
            row.pack(fill="x", pady=(0, theme.px(10)))
            for column in range(3):
                row.grid_columnconfigure(column, weight=1, uniform="numbers")
            for column, name in enumerate(name for name in names if name != "frames" or self._makes_videos()):
                field = frame(row)
                field.grid(row=0, column=column, sticky="ew", padx=(theme.px(10) if column else 0, 0))
                text(field, _OPTIONS[name].title, "small", colour=theme.MUTED).pack(anchor="w")
                placeholder = "automatic" if name in _OPTIONAL else None
                entry = Entry(field, lambda _: self._edited(), width=120, placeholder=placeholder)
                entry.pack(fill="x", pady=(theme.px(3), 0))
                entry.show(str(start.get(name, "")))
                self.entries[name] = entry
        self.message = text(body, "", "small", colour=theme.BAD, wrap=_WIDTH)
        self.message.pack(anchor="w")
        self._show_remark()
        self.dialog.button("Cancel", self.dialog.close)
        self.send_button = self.dialog.button("Generate", self.send, "accent")

    def show(self) -> tk.Toplevel:
        """Open the dialog."""
        window = self.dialog.show()
        self.texts["prompt"].focus_set()
        self._watch()
        return window

    def send(self) -> None:
        """Ask the run for the image, or show what is wrong."""
        sample, sentence = self._checked()
        if self._has_ended:
            texts: dict[str, object] = {name: box.get() for name, box in self.texts.items()}
            self.dialog.close()
            self._generate(texts if sample is None else generate_fields(sample))
            return
        if sample is not None:
            sentence = custom_sample_obstacle(self._run) or self._run.request(CUSTOM_SAMPLE, encode_sample(sample))
        if sentence:
            self.message.configure(text=sentence)
        else:
            self._run.awaited_sample = sample
            self.dialog.close()
            self._say("Generating your sample after the current step…")

    def _watch(self) -> None:
        """Once the run has ended, what is typed can go to the page Generate."""
        if not self.dialog.window.winfo_exists():
            return
        if self._run.is_alive:
            self.dialog.window.after(_POLL_MS, self._watch)
            return
        self._has_ended = True
        theme.paint(self.message, fg=theme.WARN)
        self.message.configure(text=_ENDED if has_model(self._run.folder) else _ENDED_WITHOUT)
        self.send_button.configure(text="Open Generate")
        self.dialog.place()

    def _checked(self) -> tuple[Sample | None, str]:
        values: dict[str, object] = {name: box.get() for name, box in self.texts.items()}
        for name, entry in self.entries.items():
            typed = entry.get().strip().replace(",", ".")
            if typed or name not in _OPTIONAL:
                values[name] = typed
        if self.reference is not None:
            values["reference"] = self.reference.get().strip()
        try:
            sample = Sample.model_validate(values)
        except ValidationError as error:
            fault = faults(error, Sample)[0]
            option = _OPTIONS.get(fault.path)
            return None, fault.sentence if option is None else f"{option.title}: {fault_message(fault, option)}."
        if max(len(sample.prompt), len(sample.negative_prompt)) > MAX_PROMPT_CHARS:
            return None, f"A prompt may have at most {MAX_PROMPT_CHARS:,} characters."
        return sample, ""

    def _edited(self) -> None:
        controls: dict[str, TextBox | Entry] = {**self.texts, **self.entries}
        if self.reference is not None:
            controls["reference"] = self.reference
        self._draft.update({name: control.get() for name, control in controls.items()})
        self._show_remark()
        if not self._has_ended:
            self.message.configure(text="")

    def _show_remark(self) -> None:
        self.remark.configure(text="" if self.texts["prompt"].get().strip() else EMPTY_PROMPT)

    def _send_by_key(self) -> str:
        self.send()
        return "break"

    def _takes_reference(self) -> bool:
        facts = all_facts().get(str(self._run_config().get("family")))
        return facts is not None and facts.sample_images > 0

    def _makes_videos(self) -> bool:
        facts = all_facts().get(str(self._run_config().get("family")))
        return facts is not None and facts.clips is not None

    def _run_config(self) -> Mapping[str, object]:
        with self._run.view.lock:
            run_info = self._run.view.run_info
        return {} if run_info is None else run_info.config

    def _first_sample(self) -> dict[str, str]:
        """Numbers and reference to begin with: those of the run's first sample, or the usual ones."""
        samples = self._run_config().get("samples")
        first = samples[0] if isinstance(samples, list) and samples and isinstance(samples[0], dict) else {}
        usual = {"seed": 42, "steps": 20, "guidance_scale": 4}
        found = {name: first.get(name, usual.get(name)) for names in _NUMBERS for name in names}
        numbers = {name: format_value(value) for name, value in found.items() if isinstance(value, (int, float))}
        return numbers | {"reference": str(first.get("reference") or "")}
