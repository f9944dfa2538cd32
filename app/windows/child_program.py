"""Programs of Tandem's that windows run in processes of their own, and the windows that show them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import tkinter as tk
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from app.state import AppState
from app.widgets import theme
from app.windows.dialog import Dialog
from modules.files import FileFault, read_bytes

_POLL_MS: Final = 250


class ChildProgram:
    """Runs `script` with `arguments`; `log` is the file for its output."""

    def __init__(self, script: Path, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        # a file, not a pipe, which would block the program unless read
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=sys.platform != "win32",
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def output(self) -> str:
        """All that it has written so far."""
        try:
            return read_bytes(self._log).decode(errors="replace").strip()
        except OSError as error:
            return f"Its output cannot be read: {error.strerror or error}."
        except FileFault as error:
            return f"Its output {error}."

    def stop(self) -> None:
        """Ask it to end, as Ctrl-C does; it ends its own processes."""
        if not self.is_running:
            return
        if sys.platform == "win32":
            self.process.terminate()
        else:
            os.killpg(self.process.pid, signal.SIGINT)


class ProgramWindow:
    """A window that runs one program at a time; closing it stops the program."""

    status: tk.Label  # what `show_status` writes to

    def __init__(self, parent: tk.Misc, state: AppState, title: str, message: str) -> None:
        self.state = state
        self.child: ChildProgram | None = None
        self.dialog = Dialog(parent, title, message, modal=False)
        self.dialog.window.resizable(True, True)
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-window-")
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
        """Called when the program has ended by itself."""
        raise NotImplementedError

    def file(self, name: str) -> Path:
        """A file in a folder that exists as long as the window."""
        return Path(self._folder.name, name)

    def run(self, script: Path, arguments: Sequence[str]) -> None:
        """Run a program and follow it to its end."""
        self.child = ChildProgram(script, arguments, self.file("output.txt"))
        self._poll(self.child)

    def show_status(self, message: str, colour: theme.Colour) -> None:
        """Write to `status`."""
        theme.paint(self.status, fg=colour)
        self.status.configure(text=message)

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
