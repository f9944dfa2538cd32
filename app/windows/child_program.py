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
from app.state import AppState
from app.widgets import theme
from app.windows.dialog import Dialog
from modules.config import TrainConfig
from modules.run.hosts.host_list import known_hosts

_POLL_MS: Final = 250


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
        self.ended(exit_code, output)

    def _on_destroy(self, event: tk.Event[tk.Misc]) -> None:
        if event.widget is not self.dialog.window:
            return
        child, self.child = self.child, None
        if child is not None:
            child.stop()
        self._folder.cleanup()
