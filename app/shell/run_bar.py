"""The bar at the bottom of the window: the run's state, progress and buttons."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from app.form.setting_text import with_titles
from app.runs.actions import RunActions
from app.runs.control import RunControl
from app.runs.custom_sample_watch import CustomSampleWatch, generate_fields
from app.runs.request_watch import RequestWatch
from app.runs.status import NO_RUN, Status, Tone, no_run
from app.shell.run_buttons import RunButtons
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import add_tooltip, frame, handler, text
from app.widgets.ellipsis import fit, fit_lines
from app.widgets.progress_bar import ProgressBar
from app.widgets.text_width import text_width
from app.windows.error_details import ErrorDetails
from modules.run.format_duration import format_duration
from modules.run.view.run_view import RunView

REFRESH_MS: Final = 250
IDLE_MS: Final = 1000  # while no run is active
MESSAGE_S: Final = 8.0
ACTION_S: Final = 60.0  # of a message that can be clicked
WIDEST, WIDE, MEDIUM, NARROW = 1400, 1244, 830, 680  # unscaled pixels of width from which more is shown
FOUR_COLUMNS: Final = 1650  # of figures, from this width on
# By level: the width of the texts, and that of the bar from which on they have half of what is more. Up to there the
# figures and their total need it.
_TEXTS: Final = ((126, 930), (180, 930), (174, 880), (270, 1280), (270, 1372))
_ABOVE: Final = 3  # of a title with one line below it
_FOCUS_RING: Final = 1  # around the line below it, in pixels

TONES: Final[dict[Tone, theme.Colour]] = {
    "idle": theme.FAINT,
    "busy": theme.ACCENT_TEXT,
    "good": theme.GOOD,
    "warn": theme.WARN,
    "bad": theme.BAD,
}
TITLES: Final[Mapping[str, str]] = {
    "step": "Step",
    "loss": "Loss",
    "left": "ETA",
    "speed": "Samples/s",
}
_TIME: Final = "Time"  # in place of the time that is left, once the run has ended
_MEAN: Final = "Mean rate"  # of samples, as well
_GAP: Final = 8  # between a figure and the next column, in unscaled pixels


class RunBar(tk.Frame):
    """Polls the followed run four times a second; redraws only what changed."""

    def __init__(
        self, parent: tk.Misc, state: AppState, actions: RunActions, ended: Callable[[str, Status], object]
    ) -> None:
        """`ended` is called with the name and the status of a run that has been seen to end."""
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._state = state
        self._ended = ended
        self._seen_alive: RunControl | None = None
        self.actions = actions
        self._custom = CustomSampleWatch()
        self._requests = RequestWatch()
        self._message, self._message_until = "", 0.0
        self._message_action: Callable[[], object] | None = None
        state.say = self.show_message
        self._shown: dict[str, object] = {}
        self._status = NO_RUN
        self._level, self._columns = -1, 0
        self._figures_of: Path | None = None
        self._build()
        self.bind("<Configure>", lambda event: self._fit(event.width))
        state.subscribe("run", self._show_other_run, self)
        self._job = self.after(REFRESH_MS, self._tick)
        self.refresh()

    def destroy(self) -> None:
        """Stop polling."""
        self.after_cancel(self._job)
        super().destroy()

    def show_message(self, message: str, action: Callable[[], object] | None = None) -> None:
        """Show a message for a few seconds in place of the run's detail; `action` is what a click on it does."""
        self._message, self._message_action = message, action
        self._message_until = time.monotonic() + (MESSAGE_S if action is None else ACTION_S)
        self.refresh()

    def press_text(self) -> None:
        """Do what the message of the moment offers, or show the details."""
        action = self._message_action if self._has_message() else None
        if action is None:
            self.show_details()
        else:
            self._message = ""
            self.refresh()
            action()

    def show_details(self) -> None:
        """Show the run's error, the message of the moment, or what does not fit into the bar, whole."""
        if not self._has_details():
            return
        has_log = self._status.problem is not None
        title = "Message" if self._has_message() and not has_log else self._status.title
        open_log = self._state.views.log if has_log else None
        self.details = ErrorDetails(self, self._state, title, self._full_detail(), self._names_settings(), open_log)
        self.details.show()

    def press_resume(self) -> None:
        """Press Resume if it is shown."""
        if self.buttons.resume.winfo_manager():
            self.buttons.resume.invoke()

    def refresh(self) -> None:
        """Update the bar from the followed run."""
        run = self._state.run
        status = no_run(self._state.queued) if run is None else run.status()
        self._state.queue_watch.refresh()
        self.actions.look_outside()
        if run is not None and status.kind == "stopping":
            run.resend_stop()
        if (status.tone == "bad" and self._status.tone != "bad") or (self._status.is_alive and not status.is_alive):
            self._message = ""  # what is older hides neither an error nor what a run's end means
        self._show_state(status)
        self._progress.show(status.fraction, busy=status.is_alive, colour=_bar_colour(status))
        view, is_old = (None, False) if run is None else (run.view, run.shows_earlier_start)
        # until a run that was started again has said it, its total is that of the former settings
        with_total = self._level != 0 and (run is None or not status.is_alive or run.has_started)
        folder = None if run is None else run.folder.path
        if run is None or run.is_caught_up or folder != self._figures_of:  # one that is resumed keeps them until then
            self.figures.show(view, status, with_total=with_total, is_old=is_old)
            self._figures_of = folder
        self.buttons.show(status)
        self._status = status
        if run is not None and status.is_alive:
            self._seen_alive = run
        elif run is not None and self._seen_alive is run and status.kind != "reading":
            self._seen_alive = None
            self._ended(run.folder.name, status)
        if self._has_changed("details", self._has_details()):
            for label in (self._dot, self._title, self._detail):
                label.configure(cursor="hand2" if self._has_details() else "")
            self._detail.configure(takefocus=self._has_details())

    def _show_other_run(self) -> None:
        self.after_cancel(self._job)
        self._tick()

    def _tick(self) -> None:
        run = self._state.run
        is_all_read = run is None or run.is_caught_up  # before it is shown: what is read meanwhile is shown next time
        self.refresh()
        is_idle = is_all_read and not self._status.is_alive
        self._job = self.after(IDLE_MS if is_idle else REFRESH_MS, self._tick)
        self._report_requests()
        self._report_custom_samples()

    def _report_requests(self) -> None:
        run = self._state.run
        name, said = self._requests.done(run)
        if run is None or not name:
            return
        if name == "sample" and run.view.samples:
            self.show_message(said, partial(self._state.views.sample, run.view.samples[-1]))
        else:
            self.show_message(said, self._state.views.result if name == "save" else None)

    def _report_custom_samples(self) -> None:
        run = self._state.run
        if (arrived := self._custom.arrived(run)) is not None:
            said = f"Custom sample, step {arrived.step:,}: click to see it."
            self.show_message(said, partial(self._state.views.sample, arrived))
        elif (missed := self._custom.missed(run)) is not None and self._status.tone != "bad":  # an error comes first
            said = "The run ended before your custom sample: click to generate it."
            self.show_message(said, lambda: self._state.views.generate(fields=generate_fields(missed)))

    def _build(self) -> None:
        line = theme.paint(tk.Frame(self, height=1), bg=theme.LINE)
        line.pack(side="top", fill="x")
        body = frame(self)
        body.pack(fill="both", expand=True, padx=theme.px(16), pady=theme.px(7))
        self.buttons = RunButtons(body, self._state, self.actions, self.show_message)
        self.buttons.pack(side="right")
        text_frame = frame(body)
        text_frame.pack(side="left", fill="y")
        text_frame.configure(width=theme.px(270), height=theme.px(52))  # the title and two lines
        text_frame.pack_propagate(False)
        self._text_frame = text_frame
        self._first = first = frame(text_frame)
        first.pack(fill="x", pady=(theme.px(_ABOVE), 0))
        self._dot = text(first, "●", "small")
        self._dot.pack(side="left", padx=(0, theme.px(7)))
        self._title = text(first, "", "strong")
        self._title.pack(side="left")
        self._detail = text(text_frame, "", "small", colour=theme.MUTED)
        self._detail.pack(fill="x", pady=(theme.px(2), 0))
        self._detail.configure(highlightthickness=_FOCUS_RING)
        theme.paint(self._detail, highlightbackground=theme.CARD, highlightcolor=theme.ACCENT)
        add_tooltip(self._detail, self._full_detail)
        for key in ("<Return>", "<space>"):
            self._detail.bind(key, handler(self.press_text))
        for label in (self._dot, self._title, self._detail):
            label.bind("<Button-1>", lambda event: self.press_text(), add="+")
        middle = frame(body)
        middle.pack(side="left", fill="both", expand=True, padx=theme.px(14))
        self._progress = ProgressBar(middle)
        self._progress.pack(fill="x", pady=(theme.px(4 + _ABOVE), theme.px(7)))
        self.figures = RunFigures(middle)
        self.figures.pack(fill="x")

    def _fit(self, width: int) -> None:
        """In a narrow bar, rarely used buttons become icons first, then figures and texts shrink."""
        unscaled = width / theme.scale()
        level = sum(unscaled >= least for least in (NARROW, MEDIUM, WIDE, WIDEST))
        least, full = _TEXTS[level]
        text_width = theme.px(least + max(0.0, unscaled - full) / 2)
        if text_width != self._text_frame.winfo_reqwidth():
            self._text_frame.configure(width=text_width)
            self._shown.clear()  # texts are shortened anew
        columns = 4 if unscaled >= FOUR_COLUMNS else 2
        if (level, columns) == (self._level, self._columns):
            return
        self._level, self._columns = level, columns
        self.buttons.arrange(level)
        self._shown.clear()
        self.figures.arrange(columns)
        self.refresh()

    def _show_state(self, status: Status) -> None:
        run = self._state.run
        if self._has_changed("title", status.title):
            room = self._text_frame.winfo_reqwidth() - theme.px(24)
            self._title.configure(text=fit(self, status.title.strip().split("\n")[0], theme.tk_font("strong"), room))
        if self._has_changed("tone", status.tone):
            theme.paint(self._dot, fg=TONES[status.tone])
        detail, colour = self._detail_of(status), theme.MUTED
        if self._has_message():
            detail, colour = self._message, theme.TEXT if self._message_action is None else theme.ACCENT_TEXT
        elif status.tone == "bad":
            colour = theme.BAD
        elif run is not None and status.kind == "training":
            detail = run.folder.name
        if self._has_changed("detail", (detail, colour)):
            font, room = theme.tk_font("small"), self._text_frame.winfo_reqwidth() - 2 * _FOCUS_RING
            lines = fit_lines(self, detail.strip().split("\n")[0], font, room, most=2)
            self._detail.configure(text=lines)
            self._first.pack_configure(pady=(0 if "\n" in lines else theme.px(_ABOVE), 0))
            theme.paint(self._detail, fg=colour)

    def _has_message(self) -> bool:
        return bool(self._message) and time.monotonic() < self._message_until

    def _has_details(self) -> bool:
        is_cut = str(self._detail.cget("text")).endswith("…")
        return self._status.problem is not None or self._has_message() or is_cut

    def _detail_of(self, status: Status) -> str:
        run = self._state.run
        name = "" if run is None else run.folder.name
        said = status.detail if status.problem is None else with_titles(status.problem.text.strip())
        if self.actions.offers_resume(status):  # that of another config may be open
            return f"{name}: {said}"
        return said or name

    def _full_detail(self) -> str:
        problem = self._status.problem
        if self._has_message():
            return self._message
        if problem is None:
            return self._detail_of(self._status)
        more = [with_titles(part) for part in (self._status.advice, self._status.detail) if part]
        return "\n\n".join([self._detail_of(self._status), *more])

    def _names_settings(self) -> str:
        """What names the settings at fault as files do."""
        problem = self._status.problem
        return self._full_detail() if self._has_message() or problem is None else f"{problem.text}\n{problem.advice}"

    def _has_changed(self, name: str, value: object) -> bool:
        if self._shown.get(name, self) == value:
            return False
        self._shown[name] = value
        return True


def _bar_colour(status: Status) -> theme.Colour:
    return theme.ACCENT if status.tone in {"busy", "idle"} else TONES[status.tone]


class RunFigures(tk.Frame):
    """`arrange` in two columns or four, then `show`; redraws only what changed."""

    def __init__(self, parent: tk.Misc) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self.cells: dict[str, tk.Frame] = {}
        self.labels: dict[str, tk.Label] = {}
        self._titles: dict[str, tk.Label] = {}
        self._mean: tuple[object, float | None] = (None, None)  # of the samples/s, and of which values
        for name, title in TITLES.items():
            cell = self.cells[name] = frame(self)
            self._titles[name] = text(cell, title, "small", colour=theme.MUTED)
            self._titles[name].pack(side="left", padx=(0, theme.px(5)))
            self.labels[name] = text(cell, "-", "small")
            self.labels[name].pack(side="left")

    def arrange(self, columns: int) -> None:
        """Place them in this many columns."""
        for place, name in enumerate(TITLES):
            self.cells[name].grid(row=place // columns, column=place % columns, sticky="w")
            used = place < columns
            weight = 3 if name == "step" and columns == 4 else 2
            self.grid_columnconfigure(place, weight=weight if used else 0, uniform="metrics" if used else "")

    def show(self, view: RunView | None, status: Status, *, with_total: bool, is_old: bool = False) -> None:
        """Show those of a run, nothing without one and of one that ended before its first step.

        `with_total`: also how many steps there are, where there is room and that is known.
        `is_old`: the run has been started again, and the view knows nothing of that yet.
        """
        if view is None:
            self._show_nothing()
            return
        with view.lock:
            step, position, run_info, finished = view.step, view.position, view.run_info, view.finished
            if is_old:
                step, position, finished = None, view.backup_step, None
            took = view.duration_s
            loss = None if step is None else step.loss
            if loss is None and not status.is_alive:
                loss = view.last_loss  # of the earlier start, where the last one had nothing left to train
        if position is None and not status.is_alive:
            self._show_nothing()  # it ended before its first step
            return
        total = run_info.total_steps if run_info is not None and with_total else None
        self._set("step", "" if position is None else self._step_text(position, total))
        self._set("loss", "" if loss is None else f"{loss:.4g}")
        if finished is not None and position is not None and not status.is_alive:
            self._set("left", format_duration(took), _TIME)
            mean = _number(self._mean_rate(view))
            self._set("speed", f"{mean}/s" if mean else "", _MEAN)
        else:
            left = None if step is None or status.kind != "training" else step.eta_s
            self._set("left", "" if left is None else format_duration(left))
            self._set("speed", _number(None if step is None or not status.is_alive else step.samples_per_s))

    def _show_nothing(self) -> None:
        for label in (*self._titles.values(), *self.labels.values()):
            _set_text(label, "")

    def _step_text(self, step: int, total: int | None) -> str:
        """Without the total where both would reach into the next column."""
        both = f"{step:,}" if total is None else f"{step:,} of {total:,}"
        last = self.cells["loss"]
        font, room = theme.tk_font("small"), last.winfo_x() - self.labels["step"].winfo_x() - theme.px(_GAP)
        is_wide = not last.winfo_x() or text_width(self, both, font) <= room
        return both if is_wide else f"{step:,}"

    def _mean_rate(self, view: RunView) -> float | None:
        """Samples/s in the mean of the steps."""
        with view.lock:
            series = view.metrics["samples_per_s"]
            key = (id(series), series.count)
            if key != self._mean[0]:
                means = series.curve().means
                self._mean = key, sum(means) / len(means) if means else None
        return self._mean[1]

    def _set(self, name: str, value: str, title: str = "") -> None:
        _set_text(self._titles[name], title or TITLES[name])
        _set_text(self.labels[name], value or "-")


def _number(rate: float | None) -> str:
    return f"{rate:.3g}" if rate else ""


def _set_text(label: tk.Label, shown: str) -> None:
    if label.cget("text") != shown:
        label.configure(text=shown)
