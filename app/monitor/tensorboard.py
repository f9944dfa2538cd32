"""TensorBoard as a child process that ends with the window."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import tempfile
import tkinter as tk
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.config import ConfigError
from modules.files import FileFault, open_for_writing, printable, read_bytes
from modules.machine import find_free_port
from modules.run import RunFolder
from modules.run.folder.links import refuse_links

_FIRST_PORT: Final = 6006
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
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._polls = 0
        self.url = ""
        owner.bind("<Destroy>", lambda event: self.stop() if event.widget is owner else None, add="+")
        atexit.register(self.stop)

    def start(self, folder: RunFolder) -> None:
        """Start TensorBoard, or open the browser again if it is running."""
        if self._process is not None and self._process.poll() is None:
            self.open_browser()
            return
        try:
            refuse_links(folder.path)
            port = find_free_port(_FIRST_PORT)
            self._log = folder.log_dir / "tensorboard.txt"
            # its own would be one that all users share, and it writes to where a link there leads
            self._temporary = tempfile.TemporaryDirectory(prefix="tandem-tensorboard-")
            with os.fdopen(open_for_writing(self._log), "wb") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable, "-P", "-m", "tensorboard.main", "--logdir", str(folder.path.parent),
                        "--port", str(port), "--host", "127.0.0.1",
                    ],
                    env={**os.environ, "TMPDIR": self._temporary.name},
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        except (OSError, RuntimeError, ConfigError) as error:
            self._report(f"TensorBoard did not start: {error}")
            return
        self.url = f"http://127.0.0.1:{port}/"
        self._report("TensorBoard is starting…")
        self._polls = 0
        self._owner.after(_POLL_MS, lambda: self._poll(port))

    def open_browser(self) -> None:
        """Open the browser if TensorBoard is running."""
        if self._process is not None and self._process.poll() is None and self.url:
            self._browse(self.url)

    def stop(self) -> None:
        """Stop the process."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._temporary is not None:
            self._temporary.cleanup()
        atexit.unregister(self.stop)

    def _poll(self, port: int) -> None:
        """Open the browser once the port answers."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._report(f"TensorBoard did not start: {self._last_log_line()}")
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.05):
            self._report(f"TensorBoard: {self.url}")
            self.open_browser()
            return
        self._polls += 1
        if self._polls < _MAX_POLLS:
            self._owner.after(_POLL_MS, lambda: self._poll(port))

    def _last_log_line(self) -> str:
        with suppress(OSError, FileFault):
            if self._log is not None:
                text = read_bytes(self._log).decode(errors="replace")
                lines = [line for line in text.splitlines() if line.strip()]
                return printable(lines[-1], 200) if lines else ""
        return ""
