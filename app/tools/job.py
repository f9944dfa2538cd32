"""The conversion that runs in a process of its own, and what it says in the end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.child_program import ChildProgram, ended_early
from modules import ROOT
from modules.files import printable
from modules.run.format_progress import format_bytes

SCRIPT: Final = ROOT / "scripts" / "convert.py"
_SHOWN: Final = 600  # characters of an error


@dataclass(frozen=True)
class JobResult:
    """What the process has come to: a sentence, and the result if there is one."""

    sentence: str
    out: Path | None = None
    was_stopped: bool = False


class ModelJob:
    """One run of scripts/convert.py; it outlives the page that shows it."""

    def __init__(self, arguments: Sequence[str], out: Path) -> None:
        self.out = out.absolute()
        self.started = time.monotonic()
        self._was_stopped = False
        self._folder = tempfile.TemporaryDirectory(prefix="tandem-tool-")
        self._child = ChildProgram(SCRIPT, arguments, Path(self._folder.name, "output.txt"))

    @property
    def is_running(self) -> bool:
        return self._child.is_running

    def written(self) -> int:
        """Bytes that are in the result so far, under the temporary name that it has until it is whole."""
        try:
            partial = [
                path for path in self.out.parent.iterdir() if self.out.name in path.name and ".partial" in path.name
            ]
            return sum(size_of(path) for path in partial)
        except OSError:
            return 0

    def stop(self) -> None:
        """End the process; what it has begun to write is removed."""
        self._was_stopped = True
        self._child.stop()

    def result(self) -> JobResult:
        """After the end."""
        lines = [line for line in self._child.output().splitlines() if line.strip()]
        if self._was_stopped and self._child.process.returncode != 0:
            return JobResult("Stopped: nothing was written.", was_stopped=True)
        if self._child.process.returncode < 0:
            return JobResult(f"Nothing was written. {ended_early(self._child.process.returncode)}")
        if self._child.process.returncode != 0 or not self.out.exists():
            why = next((line for line in reversed(lines) if line.startswith("Nothing was written: ")), "")
            why = why or (f"Nothing was written: {lines[-1]}" if lines else "Nothing was written, without a reason.")
            return JobResult(printable(why, _SHOWN))
        notes = " ".join(line.removeprefix("Note: ") for line in lines if line.startswith("Note: "))
        sentence = f"{self.out.name}: {format_bytes(size_of(self.out))}. {notes}".strip()
        return JobResult(printable(sentence, _SHOWN), self.out)

    def close(self) -> None:
        """End the process, if it has not ended, and remove its log."""
        self.stop()
        self._child.process.wait()
        self._folder.cleanup()


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size
