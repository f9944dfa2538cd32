"""TensorBoard as a child process that ends with the window."""

from __future__ import annotations

import atexit
import tkinter as tk
import webbrowser
from collections.abc import Callable
from typing import Final

from modules.config import ConfigError
from modules.run import RunFolder
from modules.run.tensorboard import TensorBoardServer

_POLL_MS: Final = 300
_MAX_POLLS: Final = 300


class TensorBoard:
    """Serves the folder of the given run, so that all runs in it can be compared."""

    def __init__(
        self, owner: tk.Misc, report: Callable[[str], object], *, browse: Callable[[str], object] | None = None
    ) -> None:
        self._owner = owner
        self._report = report
        self._browse = browse or webbrowser.open
        self.server: TensorBoardServer | None = None
        self._polls = 0
        owner.bind("<Destroy>", lambda event: self.stop() if event.widget is owner else None, add="+")
        atexit.register(self.stop)

    def start(self, folder: RunFolder) -> None:
        """Start TensorBoard, or open the browser again if it is running."""
        if self.server is not None and self.server.runs:
            self.open_browser()
            return
        self.stop()
        try:
            self.server = TensorBoardServer(folder)
        except (OSError, RuntimeError, ConfigError) as error:
            self._report(f"TensorBoard did not start: {error}")
            return
        self._report("TensorBoard is starting…")
        self._polls = 0
        self._owner.after(_POLL_MS, self._poll)

    def open_browser(self) -> None:
        """Open the browser if TensorBoard is running."""
        if self.server is not None and self.server.runs:
            self._browse(self.server.url)

    def stop(self) -> None:
        """Stop the process."""
        if self.server is not None:
            self.server.stop()
        self.server = None

    def _poll(self) -> None:
        """Open the browser once the port answers."""
        if self.server is None:
            return
        if not self.server.runs:
            self._report(f"TensorBoard did not start: {self.server.last_log_line()}")
            return
        if self.server.answers():
            self._report(f"TensorBoard: {self.server.url}")
            self.open_browser()
            return
        self._polls += 1
        if self._polls < _MAX_POLLS:
            self._owner.after(_POLL_MS, self._poll)
