"""What the pages that run a program have in common: Start and Stop, progress, and a line that says how it goes."""

from __future__ import annotations

import tkinter as tk
from typing import Final

from app.state import AppState
from app.tools.line_program import Answer, LineProgram
from app.widgets import theme
from app.widgets.buttons import Button, card, frame, text, wrap_within
from app.widgets.progress_bar import ProgressBar
from app.widgets.scroll import Scroll

POLL_MS: Final = 120


class ProgramPage(tk.Frame):
    """Subclasses build their fields in `head`, and handle each `answer` and the end."""

    start_label = "Start"

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self.state = state
        self.program: LineProgram | None = None
        self.error = ""
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
        tk.Misc.bind(self, "<Destroy>", self._destroyed, add="+")

    def start(self) -> None:
        """Start the program with what the fields say."""
        raise NotImplementedError

    def answer(self, answer: Answer) -> None:
        """Handle one line of the program."""
        raise NotImplementedError

    def ended(self) -> None:
        """Called when the program has ended by itself."""

    def run(self, module: str, arguments: list[str], given: str = "") -> None:
        """Run a program and follow it."""
        self.close_program()
        self.error = ""
        self.program = LineProgram(module, arguments, given)
        self.start_button.configure(state="disabled")
        self.stop_button.configure(state="normal")
        self.progress.show(None, busy=True)
        self._poll()

    def stop(self) -> None:
        """End the program; what it has answered stays."""
        self.close_program()
        self._show_idle()
        self.say("Stopped.")

    def say(self, sentence: str, colour: theme.Colour = theme.MUTED) -> None:
        """Show a sentence below the progress."""
        theme.paint(self.status, fg=colour)
        self.status.configure(text=sentence)

    def close_program(self) -> None:
        """End the program, if there is one."""
        if self._job:
            self.after_cancel(self._job)
            self._job = ""
        program, self.program = self.program, None
        if program is not None:
            program.close()

    def _poll(self) -> None:
        self._job = ""
        program = self.program
        if program is None:
            return
        is_running = program.is_running  # before the answers, which are whole then
        for answer in program.answers():
            if "error" in answer:
                self.error = str(answer["error"])
            else:
                self.answer(answer)
        if is_running:
            self._job = self.after(POLL_MS, self._poll)
            return
        self.close_program()
        self._show_idle()
        if self.error:
            self.say(self.error, theme.BAD)
        else:
            self.ended()

    def _show_idle(self) -> None:
        self.start_button.configure(state="normal")
        self.stop_button.configure(state="disabled")
        self.progress.show(0.0, busy=False)

    def _destroyed(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is self:
            self._job = ""  # cancelled with the widget's other timers
            program, self.program = self.program, None
            if program is not None:
                program.close()


def load_image(file: str, side: int) -> object:
    """A PIL image of at most `side` x `side` pixels. Slow; raises OSError or ValueError."""
    from modules.files.images import memory_to_decode, open_image

    with open_image(file) as image, memory_to_decode(image):
        image.draft("RGB", (side, side))
        small = image.convert("RGB")
        small.thumbnail((side, side))
        return small
