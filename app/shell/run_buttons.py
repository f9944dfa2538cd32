"""The buttons of the run bar. Those that start and stop never move; a slot before them has the one of the moment."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping
from typing import Final

from app.multi_gpu.joining import joining
from app.runs.actions import RunActions
from app.runs.status import LEFT, NO_RUN, STOPPED, Status
from app.shell.place_menu import open_place_menu
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Overflow, Style, add_tooltip, frame
from app.widgets.ellipsis import fit
from app.widgets.text_width import text_width
from modules.run.remote.parts import named

ICON_WIDTH: Final = 34
LABELLED_WIDTH: Final = 88  # of buttons with text in a wide window
BESIDE_LABEL: Final = 40  # of a button: its icon and the gaps
LONG_WIDTH: Final = 112  # of "Force stop", and of "Save model": the header's Save writes the settings
HELP: Final[Mapping[str, tuple[str, str]]] = {  # of the attribute that holds the button: its key, what it does
    "train": ("F5", "Start training with these settings, in a separate process."),
    "where": ("", "Train starts the run on {place}. Choose here: this computer, or another one that ssh reaches."),
    "enqueue": ("F4", "Add to queue: a copy of these settings waits for the GPUs of {place}."),
    "resume": ("Ctrl+F5", "Resume the run {run} from its last backup."),
    "join": ("", "Copy the command that lets another machine join; run it there, in Tandem's folder."),
    "result": ("", "What the run has written, and which programs open it."),
    "stop": ("Shift+F5", "Stop the run after the current step and a backup."),
    "back_up": ("F6", "Save everything needed to resume, now."),
    "sample": ("F7", "Generate sample images with the current model; without sample prompts, asks for one."),
    "save": ("F9", "Save the model as trained so far, in its output format; the run goes on."),
}
WIDEST_PLACE: Final = 104  # of the button with the name of another machine
_FORCE_STOP: Final = "Stop the run without waiting for a backup."


class RunButtons(tk.Frame):
    """`say` shows a message in the bar."""

    def __init__(self, parent: tk.Misc, state: AppState, actions: RunActions, say: Callable[[str], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._state, self._actions, self._say = state, actions, say
        self.status = NO_RUN
        self._level = -1
        self._labels: dict[Button, str] = {}
        self._shown: dict[str, bool] = {}
        self._build()

    def arrange(self, level: int) -> None:
        """Fit the bar's width, from 0 (narrow: they are in a menu) to 4: rarely used buttons become icons first."""
        self._level = level
        rare = dict.fromkeys((self.back_up, self.sample, self.save, self.join, self.result, self.where), 2)
        rare[self.enqueue] = 3
        for button in self._labels:
            self._label(button, shown=level > rare.get(button, 0))
        for button, before in ((self.where, self.train), (self.enqueue, self.where)):
            if not level:
                button.pack_forget()
            elif not button.winfo_manager():
                button.pack(side="left", padx=(4, 0), after=before)
        self.overflow.fit(self.winfo_screenwidth() if level else 0)
        self.slot.configure(width=self._slot_width())
        self._shown.clear()

    def show(self, status: Status) -> None:
        """Enable what is possible in this state of the run."""
        self.status = status
        reasons = self.reasons()
        for name in ("train", "stop", "back_up", "sample", "save"):
            allowed = not reasons[name]
            if self._has_changed(f"can {name}", allowed):
                button: Button = getattr(self, name)
                button.configure(state="normal" if allowed else "disabled")
        self._show_place(self._state.preferences.place, len(joining(self._state)))
        is_left = status.kind in LEFT
        if self._has_changed("left", is_left):
            self._labels[self.resume] = "Continue" if is_left else "Resume"
            self._label(self.resume, shown=True)
        is_stopping = status.kind in STOPPED
        if self._has_changed("stop", is_stopping):
            self._labels[self.stop] = "Force stop" if is_stopping else "Stop"
            self._label(self.stop, shown=self._level != 0)
        offers_resume = self._actions.offers_resume(status)
        if self._has_changed("resume first", offers_resume):  # only one button is the next thing to do
            self.train.restyle("plain" if offers_resume else "accent")
        self._set_visible(self.resume, offers_resume)
        self._set_visible(self.join, status.kind == "waiting" and self._joins_by_hand())
        self._set_visible(self.result, status.has_result and not self._actions.is_starting)

    def _show_place(self, place: str, others: int) -> None:
        """The name of another machine and how many join it, as far as there is room; this computer needs none."""
        whole = f"{place} +{others}" if others else place
        name = fit(self, whole, theme.tk_font(), theme.px(WIDEST_PLACE - BESIDE_LABEL))
        if self._labels[self.where] != name:
            self._labels[self.where] = name
            self._label(self.where, shown=self._level > 2)

    def reasons(self) -> dict[str, str]:
        """Why each button cannot be pressed, by its name; an empty text if it can."""
        return self._actions.disabled_reasons(self.status)

    def tooltip_text(self, button: Button) -> str:
        """What a button does, or why it cannot be pressed."""
        name = next(name for name in HELP if getattr(self, name) is button)
        run = self._state.run
        reason = self.reasons().get(name, "")
        run_name = "" if run is None else run.folder.name
        said = help_text(name, reason, run_name, is_stopping=self.status.kind in STOPPED)
        place = self._state.preferences.place
        others = joining(self._state)
        return said.replace("{place}", named([place, *others]) if place else "this computer")

    def _build(self) -> None:
        actions = self._actions
        # at the left, of a fixed width: no button moves when one of the three comes or goes
        self.slot = frame(self)
        self.slot.pack_propagate(False)
        self.slot.pack(side="left", fill="y")
        self.resume = self._button(self.slot, "Resume", actions.resume, "refresh", "accent")
        self.join = self._button(self.slot, "Copy join line", self._copy_join_line, "copy", "plain")
        self.result = self._button(self.slot, "Show result", self._show_result, "file", "plain")
        self.train = self._button(self, "Train", actions.train, "play", "accent")
        self.where = self._button(self, "", self._choose_place, "down", "plain")
        self.enqueue = self._button(self, "Queue", actions.enqueue, "plus", "plain")
        self.stop = self._button(self, "Stop", actions.stop, "stop", "plain")
        self.back_up = self._button(self, "Back up", lambda: actions.request("backup"), "backup", "quiet")
        self.sample = self._button(self, "Sample", actions.sample, "image", "quiet")
        self.save = self._button(self, "Save model", lambda: actions.request("save"), "save", "quiet")
        words = {button: self._labels[button] for button in (self.back_up, self.sample, self.save)}
        self.overflow = Overflow(self, words, theme.CARD, also=self._hidden_entries)
        self.resume.pack_forget()
        self.join.pack_forget()
        self.result.pack_forget()

    def _button(self, box: tk.Frame, label: str, command: Callable[[], object], icon: str, style: Style) -> Button:
        button = Button(box, label, command, icon=icon, style=style, bg=theme.CARD, width=ICON_WIDTH)
        button.pack(side="left", padx=(4, 0))
        add_tooltip(button, lambda: self.tooltip_text(button))
        self._labels[button] = label
        return button

    def _hidden_entries(self) -> list[tuple[str, Callable[[], object]]]:
        return [("Where Train starts it", self._choose_place), ("Queue", self._actions.enqueue)]

    def _choose_place(self) -> None:
        open_place_menu(self._state, self.overflow.place_of(self.where))

    def _slot_width(self) -> int:
        """Of the widest button of the slot; Tk knows no width of those that are hidden."""
        labels = [str(button.cget("text")) for button in (self.resume, self.join, self.result)]
        widest = max(text_width(self, label, theme.tk_font()) for label in labels)
        least = theme.px(LABELLED_WIDTH if self._level >= 3 else ICON_WIDTH)
        return max(widest + theme.px(BESIDE_LABEL) if widest else 0, least) + theme.px(4)

    def _label(self, button: Button, *, shown: bool) -> None:
        labelled = LONG_WIDTH if button in (self.stop, self.save) else LABELLED_WIDTH
        is_wide = shown and self._level >= 3 and bool(self._labels[button])
        button.configure(text=self._labels[button] if shown else "", width=labelled if is_wide else ICON_WIDTH)

    def _joins_by_hand(self) -> bool:
        join_prompt = None if self._state.run is None else self._state.run.join_prompt
        return join_prompt is not None and join_prompt.by_hand

    def _set_visible(self, button: Button, visible: bool) -> None:
        """Show a button only while it is useful."""
        if visible and not button.winfo_manager():
            button.pack(side="right", padx=(4, 0))
        elif not visible and button.winfo_manager():
            button.pack_forget()

    def _show_result(self) -> None:
        self._state.views.result()

    def _copy_join_line(self) -> None:
        join_prompt = None if self._state.run is None else self._state.run.join_prompt
        if join_prompt is not None:
            self.clipboard_clear()
            self.clipboard_append(join_prompt.line)
            self._say("Copied. Run it in Tandem's folder on each of the other machines. Monitor says what they ask.")

    def _has_changed(self, name: str, value: bool) -> bool:
        if self._shown.get(name) is value:
            return False
        self._shown[name] = value
        return True


def help_text(name: str, reason: str, run: str, *, is_stopping: bool) -> str:
    """Of a button: `reason` if it is off, else what it does; and its key. `run` is the followed run's name."""
    key, does = HELP[name]
    if name == "stop" and is_stopping:
        does = _FORCE_STOP
    return f"{reason or does.replace('{run}', run)}{f'  ({key})' if key else ''}"
