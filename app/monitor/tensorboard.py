"""TensorBoard as a process of its own, which ends with the window."""

from __future__ import annotations

import atexit
import socket
import subprocess
import sys
import tkinter as tk
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from app import texts
from modules.machine import find_free_port
from modules.run import RunFolder

_FIRST_PORT: Final = 6006
_LOOK_MS: Final = 300
_PATIENCE_LOOKS: Final = 300


class TensorBoard:
    """Shows all runs beside the given one, so that they can be compared."""

    def __init__(
        self, owner: tk.Misc, say: Callable[[str], object], *, browse: Callable[[str], object] | None = None
    ) -> None:
        self._owner = owner
        self._say = say
        self._browse = browse or webbrowser.open
        self._process: subprocess.Popen[bytes] | None = None
        self._log: Path | None = None
        self._looks = 0
        self.url = ""
        owner.bind("<Destroy>", lambda event: self.end() if event.widget is owner else None, add="+")
        atexit.register(self.end)

    def start(self, folder: RunFolder) -> None:
        """Start it, or open it again in the browser."""
        if self._process is not None and self._process.poll() is None:
            self.open_browser()
            return
        try:
            port = find_free_port(_FIRST_PORT)
            self._log = folder.log_dir / "tensorboard.txt"
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable, "-m", "tensorboard.main", "--logdir", str(folder.path.parent),
                        "--port", str(port), "--host", "127.0.0.1",
                    ],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
        except (OSError, RuntimeError) as error:
            self._say(texts.TENSORBOARD_FAILED.format(reason=error))
            return
        self.url = f"http://127.0.0.1:{port}/"
        self._say(texts.TENSORBOARD_STARTING)
        self._looks = 0
        self._owner.after(_LOOK_MS, lambda: self._look(port))

    def open_browser(self) -> None:
        """Show it, where it runs."""
        if self._process is not None and self._process.poll() is None and self.url:
            self._browse(self.url)

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(2)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        atexit.unregister(self.end)

    def _look(self, port: int) -> None:
        """Wait until it answers."""
        if self._process is None:
            return
        if self._process.poll() is not None:
            self._say(texts.TENSORBOARD_FAILED.format(reason=self._last_words()))
            return
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=0.05):
            self._say(texts.TENSORBOARD_AT.format(url=self.url))
            self.open_browser()
            return
        self._looks += 1
        if self._looks < _PATIENCE_LOOKS:
            self._owner.after(_LOOK_MS, lambda: self._look(port))

    def _last_words(self) -> str:
        with suppress(OSError):
            if self._log is not None:
                lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
                return lines[-1][:200] if lines else ""
        return ""
