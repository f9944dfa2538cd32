"""TensorBoard as a child process of a program, for this computer alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

from modules.config import ConfigError
from modules.files import FileFault, open_for_writing, printable, read_bytes
from modules.machine import PortReservations, find_free_port
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder

FIRST_PORT: Final = 6006
_SERVES: Final = """import os, runpy, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)"""  # ends with its parent, even a killed one


class TensorBoardServer:
    """It serves the folder of the given run, so that all runs in it can be compared."""

    def __init__(self, folder: RunFolder, port: int | None = None) -> None:
        """On the first free port from 6006 on, or on this one. Raises OSError, and ConfigError for a folder with links
        or a port that is taken."""
        refuse_links(folder.path)
        self._reserved = PortReservations()  # TensorBoard listens only after its imports
        if port is not None and not self._reserved.take(port):
            raise ConfigError(
                f"--port is {port}, which is no free port of this computer", "Leave it out, or give another"
            )
        self._port = find_free_port(FIRST_PORT, self._reserved.take) if port is None else port
        self.url = f"http://127.0.0.1:{self._port}/"
        self._log: Path = folder.log_dir / "tensorboard.txt"
        # its own would be one that all users share, and it writes to where a link there leads
        self._temporary = tempfile.TemporaryDirectory(prefix="tandem-tensorboard-")
        with os.fdopen(open_for_writing(self._log), "wb") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable, "-P", "-c", _SERVES, "--logdir", str(folder.path.parent),
                    "--port", str(self._port), "--host", "127.0.0.1",
                ],
                env={**os.environ, "TMPDIR": self._temporary.name},
                stdin=subprocess.PIPE, stdout=log, stderr=log,
                start_new_session=os.name != "nt",  # Ctrl-C is for this program
            )  # fmt: skip

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def answers(self) -> bool:
        """Whether a browser may be opened."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=0.05):
            return self.runs
        return False

    def wait(self) -> None:
        """Until it ends."""
        self._process.wait()

    def last_log_line(self) -> str:
        """Why it has ended."""
        with suppress(OSError, FileFault):
            text = read_bytes(self._log).decode(errors="replace")
            lines = [line for line in text.splitlines() if line.strip()]
            return printable(lines[-1], 200) if lines else ""
        return ""

    def stop(self) -> None:
        """End it."""
        if self.runs:
            self._process.terminate()
            try:
                self._process.wait(2)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._temporary.cleanup()
        self._reserved.close()
