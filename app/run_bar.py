"""The bar at the foot of the window: what the run does, how far it is, and what one may ask of it."""

from __future__ import annotations

import time
import tkinter as tk
from typing import Final

from app import look
from app import run_texts as texts
from app.controls import Button, add_hint, frame, text
from app.progress import ProgressLine
from app.run_actions import RunActions
from app.run_status import NO_RUN, Status, Tone, duration
from app.run_view import Step
from app.state import AppState

REFRESH_MS: Final = 250
MESSAGE_S: Final = 8.0

TONES: Final[dict[Tone, look.Colour]] = {
    "idle": look.FAINT,
    "busy": look.ACCENT_TEXT,
    "good": look.GOOD,
    "warn": look.WARN,
    "bad": look.BAD,
}


class RunBar(tk.Frame):
    """Reads the followed run four times a second; only what changed is drawn."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.CARD)
        self._state = state
        self.actions = state.actions = RunActions(self, state, self.say)
        self._message, self._message_until = "", 0.0
        self._shown: dict[str, object] = {}
        self._status = NO_RUN
        self._build()
        state.subscribe("run", self.refresh, self)
        self._job = self.after(REFRESH_MS, self._tick)
        self.refresh()

    def destroy(self) -> None:
        """Look no longer."""
        self.after_cancel(self._job)
        super().destroy()

    def say(self, words: str) -> None:
        """Show a sentence for some seconds in place of the run's detail."""
        self._message, self._message_until = words, time.monotonic() + MESSAGE_S
        self.refresh()

    def refresh(self) -> None:
        """Show the followed run as it is now."""
        run = self._state.run
        status = NO_RUN if run is None else run.status()
        if run is not None and status.kind == "stopping":
            run.insist()
        self._show_state(status)
        self._show_figures(status)
        self._show_buttons(status)
        self._status = status

    def _tick(self) -> None:
        self._job = self.after(REFRESH_MS, self._tick)
        self.refresh()

    # Building

    def _build(self) -> None:
        line = look.paint(tk.Frame(self, height=1), bg=look.LINE)
        line.pack(side="top", fill="x")
        body = frame(self)
        body.pack(fill="both", expand=True, padx=look.px(16), pady=look.px(10))
        self._build_buttons(body)
        words = frame(body)
        words.pack(side="left", fill="y")
        words.configure(width=look.px(270), height=look.px(40))
        words.pack_propagate(False)
        first = frame(words)
        first.pack(fill="x")
        self._dot = text(first, "●", "small")
        self._dot.pack(side="left", padx=(0, look.px(7)))
        self._words = text(first, "", "strong")
        self._words.pack(side="left")
        self._detail = text(words, "", "small", colour=look.MUTED)
        self._detail.pack(fill="x", pady=(look.px(2), 0))
        add_hint(self._detail, self._whole_detail)
        middle = frame(body)
        middle.pack(side="left", fill="both", expand=True, padx=look.px(20))
        self._progress = ProgressLine(middle)
        self._progress.pack(fill="x", pady=(look.px(4), look.px(7)))
        figures = frame(middle)
        figures.pack(fill="x")
        self._figures: dict[str, tk.Label] = {}
        for place, name in enumerate(("step", "loss", "speed", "left")):
            title = {"step": texts.STEP, "loss": texts.LOSS, "speed": texts.SPEED, "left": texts.LEFT}[name]
            cell = frame(figures)
            cell.grid(row=0, column=place, sticky="w")
            figures.grid_columnconfigure(place, weight=3 if name == "step" else 2, uniform="figures")
            text(cell, title, "small", colour=look.MUTED).pack(side="left", padx=(0, look.px(5)))
            self._figures[name] = text(cell, texts.FIGURE_NONE, "small")
            self._figures[name].pack(side="left")

    def _build_buttons(self, body: tk.Frame) -> None:
        box = frame(body)
        box.pack(side="right")
        acts = self.actions
        self.train = Button(box, texts.TRAIN, acts.train, icon="play", style="accent", on=look.CARD, width=92)
        self.resume = Button(box, texts.RESUME, acts.resume, icon="refresh", style="plain", on=look.CARD, width=96)
        self.stop = Button(box, texts.STOP, acts.stop, icon="stop", style="plain", on=look.CARD, width=84)
        self.back_up = Button(
            box, texts.BACK_UP, lambda: acts.ask("backup"), icon="backup", style="quiet", on=look.CARD, width=92
        )
        self.sample = Button(
            box, texts.SAMPLE, lambda: acts.ask("sample"), icon="picture", style="quiet", on=look.CARD, width=88
        )
        self.save = Button(
            box, texts.SAVE, lambda: acts.ask("save"), icon="save", style="quiet", on=look.CARD, width=78
        )
        for button in (self.train, self.resume, self.stop, self.back_up, self.sample, self.save):
            button.pack(side="left", padx=(look.px(4), 0))
            add_hint(button, lambda button=button: self._hint(button))  # type: ignore[misc]
        self.resume.pack_forget()

    # Showing

    def _show_state(self, status: Status) -> None:
        run = self._state.run
        if self._changes("words", status.words):
            self._words.configure(text=_cut(status.words, 34))
        if self._changes("tone", status.tone):
            look.paint(self._dot, fg=TONES[status.tone])
        detail, colour = self._detail_of(status), look.MUTED
        if self._message and time.monotonic() < self._message_until:
            detail, colour = self._message, look.TEXT
        elif status.tone == "bad":
            colour = look.BAD
        elif run is not None and status.kind == "training":
            detail = run.folder.name
        if self._changes("detail", (detail, colour)):
            self._detail.configure(text=_cut(detail, 44))
            look.paint(self._detail, fg=colour)

    def _detail_of(self, status: Status) -> str:
        if status.problem is not None:
            return status.problem.text
        run = self._state.run
        return status.detail or (run.folder.name if run is not None else "")

    def _whole_detail(self) -> str:
        problem = self._status.problem
        advice = "" if problem is None or not problem.advice else f"\n\n{problem.advice}"
        if self._message and time.monotonic() < self._message_until:
            return self._message
        return self._detail_of(self._status) + advice

    def _show_figures(self, status: Status) -> None:
        run = self._state.run
        step: Step | None = None
        total: int | None = None
        if run is not None:
            with run.view.lock:
                step, facts = run.view.step, run.view.facts
            total = facts.total_steps if facts is not None else None
        self._progress.show(status.fraction, busy=status.is_alive, colour=_bar_colour(status))
        self._figure("step", _step_words(step, total))
        self._figure("loss", None if step is None or step.loss is None else f"{step.loss:.4g}")
        speed = None if step is None or not step.samples_per_s or not status.is_alive else f"{step.samples_per_s:.3g}"
        self._figure("speed", speed)
        left = None if step is None or step.eta_s is None or status.kind != "training" else duration(step.eta_s)
        self._figure("left", left)

    def _figure(self, name: str, words: str | None) -> None:
        if self._changes(name, words):
            self._figures[name].configure(text=words or texts.FIGURE_NONE)

    def _show_buttons(self, status: Status) -> None:
        reasons = self.actions.reasons(status)
        for name in ("train", "stop", "back_up", "sample", "save"):
            allowed = not reasons[name]
            if self._changes(f"can {name}", allowed):
                button: Button = getattr(self, name)
                button.configure(state="normal" if allowed else "disabled")
                if name == "train":  # grey letters on the accent's colour cannot be read
                    button.configure(fg_color=look.ACCENT if allowed else look.HOVER)
        ending = status.kind == "stopping"
        if self._changes("stop words", ending):
            self.stop.configure(text=texts.END_AT_ONCE if ending else texts.STOP)
        if self._changes("resume", self.actions.offers_resume(status)):
            if self.actions.offers_resume(status):
                self.resume.pack(side="left", padx=(look.px(4), 0), after=self.train)
            else:
                self.resume.pack_forget()

    def _hint(self, button: Button) -> str:
        reasons = self.actions.reasons(self._status)
        run = self._state.run
        name = "" if run is None else run.folder.name
        ending = self._status.kind == "stopping"
        helps = {
            self.train: (texts.TRAIN_HELP, "train"),
            self.resume: (texts.RESUME_HELP.format(name=name), ""),
            self.stop: (texts.END_HELP if ending else texts.STOP_HELP, "stop"),
            self.back_up: (texts.BACK_UP_HELP, "back_up"),
            self.sample: (texts.SAMPLE_HELP, "sample"),
            self.save: (texts.SAVE_HELP, "save"),
        }
        words, name = helps[button]
        return reasons.get(name, "") or words

    def _changes(self, name: str, value: object) -> bool:
        if self._shown.get(name, self) == value:
            return False
        self._shown[name] = value
        return True


def _step_words(step: Step | None, total: int | None) -> str | None:
    if step is None:
        return None
    return f"{step.step:,}" if total is None else texts.STEP_OF.format(step=f"{step.step:,}", total=f"{total:,}")


def _bar_colour(status: Status) -> look.Colour:
    return look.ACCENT if status.tone in {"busy", "idle"} else TONES[status.tone]


def _cut(words: str, most: int) -> str:
    first = words.strip().split("\n")[0]
    return first if len(first) <= most else f"{first[: most - 1]}…"
