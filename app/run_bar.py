"""The bar at the foot of the window: what the run does, how far it is, and what one may ask of it."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Final

from app import look, texts
from app.controls import Button, Style, add_hint, frame, text
from app.cut import fit
from app.progress import ProgressLine
from app.run_actions import RunActions
from app.run_facts import Step
from app.run_status import NO_RUN, Status, Tone, duration
from app.state import AppState

REFRESH_MS: Final = 250
MESSAGE_S: Final = 8.0
WIDE, MEDIUM, NARROW = 1060, 830, 680  # unscaled pixels from which there is room for more
ICON_WIDTH: Final = 34
LABELLED_WIDTH: Final = 88  # where there is room; else as wide as its words

FIGURES: Final[Mapping[str, str]] = {
    "step": texts.STEP,
    "loss": texts.LOSS,
    "left": texts.LEFT,
    "speed": texts.SPEED,
}

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
        self._labels: dict[Button, str] = {}
        self._level = -1
        self._build()
        self.bind("<Configure>", lambda event: self._fit(event.width))
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

    def press_resume(self) -> None:
        """As a click on Resume, where it is offered."""
        if self.resume.winfo_manager():
            self.resume.invoke()

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
        self._text_room = words
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
        self._figures_room = frame(middle)
        self._figures_room.pack(fill="x")
        self._cells: dict[str, tk.Frame] = {}
        self._figures: dict[str, tk.Label] = {}
        for name, title in FIGURES.items():
            cell = self._cells[name] = frame(self._figures_room)
            text(cell, title, "small", colour=look.MUTED).pack(side="left", padx=(0, look.px(5)))
            self._figures[name] = text(cell, texts.FIGURE_NONE, "small")
            self._figures[name].pack(side="left")

    def _build_buttons(self, body: tk.Frame) -> None:
        box = frame(body)
        box.pack(side="right")
        acts = self.actions
        self.train = self._button(box, texts.TRAIN, acts.train, "play", "accent")
        self.resume = self._button(box, texts.RESUME, acts.resume, "refresh", "plain")
        self.join = self._button(box, texts.JOIN_LINE, self._copy_join_line, "copy", "plain")
        self.stop = self._button(box, texts.STOP, acts.stop, "stop", "plain")
        self.back_up = self._button(box, texts.BACK_UP, lambda: acts.ask("backup"), "backup", "quiet")
        self.sample = self._button(box, texts.SAMPLE, lambda: acts.ask("sample"), "picture", "quiet")
        self.save = self._button(box, texts.SAVE, lambda: acts.ask("save"), "save", "quiet")
        self.resume.pack_forget()
        self.join.pack_forget()

    def _button(self, box: tk.Frame, words: str, command: Callable[[], object], icon: str, style: Style) -> Button:
        button = Button(box, words, command, icon=icon, style=style, on=look.CARD, width=ICON_WIDTH)
        button.pack(side="left", padx=(look.px(4), 0))
        add_hint(button, lambda: self._hint(button))
        self._labels[button] = words
        return button

    def _fit(self, width: int) -> None:
        """Where there is little room, the rarer buttons become icons first, then figures and words give way."""
        unscaled = width / look.scale()
        level = sum(unscaled >= least for least in (NARROW, MEDIUM, WIDE))
        if level == self._level:
            return
        self._level = level
        rare = (self.back_up, self.sample, self.save)
        for button in self._labels:
            self._label(button, shown=level > (2 if button in rare else 0))
        self._text_room.configure(width=look.px((150, 190, 230, 270)[level]))
        self._shown.clear()  # words are cut at another place
        columns = 4 if level == 3 else 2
        for place, name in enumerate(FIGURES):
            self._cells[name].grid(row=place // columns, column=place % columns, sticky="w")
            used = place < columns
            weight = 3 if name == "step" else 2
            self._figures_room.grid_columnconfigure(
                place, weight=weight if used else 0, uniform="figures" if used else ""
            )
        self.refresh()

    def _label(self, button: Button, *, shown: bool) -> None:
        button.configure(
            text=self._labels[button] if shown else "", width=LABELLED_WIDTH if self._level == 3 else ICON_WIDTH
        )

    # Showing

    def _show_state(self, status: Status) -> None:
        run = self._state.run
        if self._changes("words", status.words):
            self._words.configure(
                text=self._fitted(status.words, "strong", room=self._text_room.winfo_reqwidth() - look.px(24))
            )
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
            self._detail.configure(text=self._fitted(detail, "small", room=self._text_room.winfo_reqwidth()))
            look.paint(self._detail, fg=colour)

    def _fitted(self, words: str, font: look.FontName, room: int) -> str:
        return fit(self, words.strip().split("\n")[0], look.tk_font(font), room)

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
        self._figure("step", _step_words(step, total if self._level else None))
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
        if self._changes("stop", ending):
            self._labels[self.stop] = texts.END_AT_ONCE if ending else texts.STOP
            self._label(self.stop, shown=self._level != 0)
        self._offer(self.resume, self.actions.offers_resume(status))
        self._offer(self.join, status.kind == "waiting")

    def _offer(self, button: Button, wanted: bool) -> None:
        """Show a button only while it is of use."""
        if wanted and not button.winfo_manager():
            button.pack(side="left", padx=(look.px(4), 0), after=self.train)
        elif not wanted and button.winfo_manager():
            button.pack_forget()

    def _copy_join_line(self) -> None:
        invitation = None if self._state.run is None else self._state.run.invitation
        if invitation is not None:
            self.clipboard_clear()
            self.clipboard_append(invitation.line)
            self.say(texts.JOIN_LINE_COPIED)

    def _hint(self, button: Button) -> str:
        reasons = self.actions.reasons(self._status)
        run = self._state.run
        name = "" if run is None else run.folder.name
        ending = self._status.kind == "stopping"
        helps = {
            self.train: (texts.TRAIN_HELP, "train"),
            self.resume: (texts.RESUME_HELP.format(name=name), "resume"),
            self.join: (texts.JOIN_LINE_HELP, "join"),
            self.stop: (texts.END_HELP if ending else texts.STOP_HELP, "stop"),
            self.back_up: (texts.BACK_UP_HELP, "back_up"),
            self.sample: (texts.SAMPLE_HELP, "sample"),
            self.save: (texts.SAVE_HELP, "save"),
        }
        words, name = helps[button]
        key = texts.RUN_KEYS.get(name, "")
        return f"{reasons.get(name, '') or words}{f'  ({key})' if key else ''}"

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
