"""A module of Tandem's that runs in a process of its own and prints lines of JSON."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.child_program import ended_early
from modules import ROOT
from modules.files import FileFault, decode_json, read_bytes

Answer = dict[str, object]


class LineProgram:
    """Runs `python -m module` in the current folder with `text` as its input; `folder` exists until `close`.

    It outlives the page that has started it, which a change of scale builds anew: all `answers` stay.
    """

    def __init__(self, module: str, arguments: Sequence[str], text: str = "") -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tandem-tool-")
        self.folder = Path(self._temporary.name)
        self._log, given = self.folder / "output.txt", self.folder / "input.txt"
        given.write_text(text, encoding="utf-8")
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        # a file, not a pipe, which would block the program unless read
        with self._log.open("wb") as output, given.open("rb") as source:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-m",
                    module,
                    *(each.replace("{folder}", str(self.folder)) for each in arguments),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                stdin=source,
                stdout=output,
                stderr=subprocess.DEVNULL,
            )
        self._read = 0
        self.arguments = tuple(arguments)
        self.answers: list[Answer] = []
        self.was_stopped = False
        self._fault = ""  # of the answers

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._process.poll() is None

    @property
    def error(self) -> str:
        """Why it has failed; empty if it has not, or was stopped."""
        said = next((str(answer["error"]) for answer in self.answers if "error" in answer), "")
        if said or self._fault or self.is_running or self.was_stopped or self._process.returncode == 0:
            return said or self._fault
        return ended_early(self._process.returncode)

    def read(self) -> None:
        """Add the whole lines since the last call to `answers`."""
        try:
            new = read_bytes(self._log)[self._read :]
        except OSError:
            return
        except FileFault as fault:
            self._fault = f"The answer of the program {fault}."
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self.answers += [answer for line in whole.splitlines() if isinstance(answer := _decoded(line), dict)]

    def stop(self) -> None:
        """End it; what it has answered stays."""
        self.was_stopped = True
        self._end()

    def close(self) -> None:
        """End it, and remove its folder."""
        self._end()
        self._temporary.cleanup()

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()


def _decoded(line: bytes) -> object:
    try:
        return decode_json(line.decode())
    except ValueError:
        return None
