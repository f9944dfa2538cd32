"""Windows that run one of Tandem's programs and show what it says."""

from __future__ import annotations

import tempfile
import tkinter as tk
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from app.child_program import NOT_STARTED, ChildProgram, not_started
from app.form.setting_text import with_titles
from app.multi_gpu.plan_summary import INVALID_SETTINGS
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import text, wrap_within
from app.windows.dialog import Dialog
from modules.config import TrainConfig, save_config
from modules.files import printable
from modules.run.hosts.host_list import known_hosts

_POLL_MS: Final = 250
_SHOWN_CHARACTERS: Final = 20_000


def not_there(state: AppState) -> str:
    """Of a program that works on this computer: that it does so although Train starts runs elsewhere."""
    machine = state.place.machine
    return "" if machine is None else f" This is done on this computer, not on {machine.name}."


def show_output(shown: tk.Text, output: str) -> None:
    """Show what a program says, its end if it is long; what is marked stays so while it says nothing new."""
    said = printable(output[-_SHOWN_CHARACTERS:], _SHOWN_CHARACTERS, lines=True)
    if said != shown.get("1.0", "end-1c"):
        shown.configure(state="normal")
        shown.replace("1.0", "end", said)
        shown.see("end")
        shown.configure(state="disabled")


class ProgramWindow:
    """A window that runs one program at a time; closing it stops the program."""

    status: tk.Label  # what `show_status` writes to

    def __init__(self, parent: tk.Misc, state: AppState, title: str, message: str) -> None:
        self.state = state
        self.child: ChildProgram | None = None
        self.is_stopping = False  # as the user wished
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-window-")  # before the dialog: a disk may be full
        self.dialog = Dialog(parent, title, message, modal=False)
        self.dialog.window.resizable(True, True)
        self.dialog.window.bind("<Destroy>", self._on_destroy, add="+")

    def show(self) -> tk.Toplevel:
        """Open the window and start its program."""
        window = self.dialog.show()
        self.start()
        return window

    def start(self) -> None:
        """Start the program, unless it is running."""
        raise NotImplementedError

    def progressed(self, output: str) -> None:
        """Called every now and then while the program runs, and once more before `ended`."""

    def ended(self, exit_code: int, output: str) -> None:
        """Called when the program has ended by itself, or could not be started: `output` says why."""
        raise NotImplementedError

    def file(self, name: str) -> Path:
        """A file in a folder that exists as long as the window."""
        return Path(self._folder.name, name)

    def settings(self) -> TrainConfig | None:
        """The current settings; None if they are invalid, which is said, or a program is running."""
        config = self.state.draft.config
        if config is None:
            self.show_status(INVALID_SETTINGS, theme.BAD)
        return config if self.child is None else None

    def saved(self, config: TrainConfig) -> str:
        """The path of a file with these settings, for a program."""
        save_config(config, self.file("config.json"))
        return str(self.file("config.json"))

    def hosts(self, config: TrainConfig) -> list[str]:
        """The option for the machines that Train would start over ssh. Raises ConfigError if the list is damaged."""
        names = known_hosts(self.state.preferences.hosts)[: config.num_nodes - 1]
        return ["--hosts", ",".join(names)] if names else []

    def run(self, script: Path, arguments: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
        """Run a program and follow it to its end; `variables` are for what no command line may show."""
        self.is_stopping = False
        try:
            self.child = ChildProgram(script, arguments, self.file("output.txt"), variables=variables)
        except OSError as error:
            self.ended(NOT_STARTED, not_started(error))
        else:
            self._poll(self.child)

    def start_or_stop(self) -> None:
        """Start the program, or ask the running one to end."""
        if self.child is None:
            self.start()
            return
        self.is_stopping = True
        self.show_status("Stopping…", theme.MUTED)
        self.child.stop()

    def show_status(self, message: str, colour: theme.Colour) -> None:
        """Write to `status`, with the titles of settings."""
        theme.paint(self.status, fg=colour)
        self.status.configure(text=with_titles(message))

    def _poll(self, child: ChildProgram) -> None:
        if self.child is not child:
            return
        exit_code = child.process.poll()  # before the output, which is whole then
        output = child.output()
        self.progressed(output)
        if exit_code is None:
            self.dialog.window.after(_POLL_MS, partial(self._poll, child))
            return
        self.child = None
        self.state.place.refresh()  # of which the program may have learnt something
        self.ended(exit_code, output)

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is not self.dialog.window:
            return
        child, self.child = self.child, None
        if child is not None:
            child.stop()
        self._folder.cleanup()


class OutputWindow(ProgramWindow):
    """Shows what its program says; the button starts it `again`."""

    def __init__(self, parent: tk.Misc, state: AppState, title: str, message: str, again: str) -> None:
        super().__init__(parent, state, title, message)
        self.again = again
        self.status = text(self.dialog.body, "", "strong")
        wrap_within(self.status, self.dialog.body, margin=0)
        self.status.pack(fill="x", pady=(0, theme.px(8)))
        self.shown = tk.Text(
            self.dialog.body, width=90, height=12, wrap="char", borderwidth=0, highlightthickness=0, state="disabled"
        )
        theme.paint(self.shown, bg=theme.FIELD, fg=theme.TEXT)
        self.shown.configure(font=theme.tk_font("mono"), padx=theme.px(12), pady=theme.px(10))
        self.shown.pack(fill="both", expand=True)
        self.dialog.button("Close", self.dialog.close)
        self.button = self.dialog.button("Stop", self.start_or_stop, widest=again)

    def run_shown(self, doing: str, script: Path, arguments: Sequence[str]) -> None:
        """Run a program, and say what it is `doing`."""
        self.button.configure(text="Stop")
        self.show_status(doing, theme.MUTED)
        self.run(script, arguments)

    def progressed(self, output: str) -> None:
        """Show what the program says."""
        show_output(self.shown, output)

    def ended(self, exit_code: int, output: str) -> None:
        """It can be started again."""
        self.button.configure(text=self.again)
