"""What the pages that run a program have in common: Start and Stop, progress, and a line that says how it goes."""

from __future__ import annotations

import tkinter as tk
from typing import ClassVar, Final

from app.child_program import not_started
from app.state import AppState
from app.tools.line_program import Answer, LineProgram
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text, wrap_within
from app.widgets.later import later
from app.widgets.progress_bar import ProgressBar
from app.widgets.scroll import Scroll

POLL_MS: Final = 120


class ProgramPage(tk.Frame):
    """Subclasses build their fields in `head`, call `follow`, and show each `answer` and the end.

    The program goes on while the page is built anew, which then shows all its answers again.
    """

    name: ClassVar[str]
    start_label: ClassVar[str] = "Start"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self._shown = 0  # answers
        self._job = ""
        outer = card(self)
        outer.pack(fill="x", padx=(8, 20), pady=(0, 12))
        self.head = frame(outer)
        self.head.pack(fill="x", padx=theme.px(16), pady=(theme.px(14), theme.px(8)))
        row = frame(outer)
        row.pack(fill="x", padx=theme.px(16), pady=(0, theme.px(8)))
        self.start_button = Button(row, self.start_label, self.start, icon="play", style="accent", bg=theme.CARD)
        self.start_button.pack(side="left")
        self.stop_button = Button(row, "Stop", self.stop, icon="stop", bg=theme.CARD)
        self.stop_button.pack(side="left", padx=(8, 0))
        self.stop_button.configure(state="disabled")
        self.progress = ProgressBar(outer)
        self.progress.pack(fill="x", padx=theme.px(16))
        self.status = text(outer, "", colour=theme.MUTED)
        wrap_within(self.status, outer)
        self.status.pack(fill="x", padx=theme.px(16), pady=(theme.px(6), theme.px(12)))
        self.scroll = Scroll(self)
        self.scroll.pack(fill="both", expand=True)

    def start(self) -> None:
        """Start the program with what the fields say."""
        raise NotImplementedError

    def answer(self, answer: Answer) -> None:
        """Show one line of the program."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called when the program has ended by itself."""

    @property
    def program(self) -> LineProgram | None:
        """The one that was started last."""
        return self.state.programs.get(self.name)

    @property
    def is_running(self) -> bool:
        """Whether the program runs, or its end is not shown yet."""
        return bool(self._job)

    def run(self, module: str, arguments: list[str], given: str = "") -> None:
        """Run a program and follow it."""
        if self.program is not None:
            self.program.close()
        try:
            self.state.programs[self.name] = LineProgram(module, arguments, given)
        except OSError as error:
            self.say(not_started(error), theme.BAD)
        else:
            self.follow()

    def follow(self) -> None:
        """Show what the program has answered, and from now on what it answers."""
        self._shown = 0
        if self.program is not None:
            self.start_button.configure(state="disabled")
            self.stop_button.configure(state="normal")
            self.progress.show(None, busy=True)
            self._poll()

    def stop(self) -> None:
        """End the program; what it has answered stays."""
        if self.program is not None and self.is_running:
            self.program.stop()

    def say(self, sentence: str, colour: theme.Colour = theme.MUTED) -> None:
        """Show a sentence below the progress."""
        theme.paint(self.status, fg=colour)
        self.status.configure(text=sentence)

    def _poll(self) -> None:
        self._job = ""
        program = self.program
        if program is None:
            return
        is_running = program.is_running  # before the answers, which are whole then
        program.read()
        new, self._shown = program.answers[self._shown :], len(program.answers)
        for answer in new:
            if "error" not in answer:
                self.answer(answer)
        if is_running:
            self._job = later(self, POLL_MS, self._poll)
            return
        self.start_button.configure(state="normal")
        self.stop_button.configure(state="disabled")
        self.progress.show(0.0, busy=False)
        if program.was_stopped:
            self.say("Stopped.")
        elif program.error:
            self.say(program.error, theme.BAD)
        else:
            self.ended()


def load_image(file: str, side: int) -> object:
    """A PIL image of at most `side` x `side` pixels. Slow; raises OSError or ValueError."""
    from modules.files.images import small_rgb

    return small_rgb(file, side)
