"""The program that draws noise levels by the family's own code, in a process that is kept for the next question."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from modules import ROOT
from modules.files import FileFault, decode_json


@dataclass(frozen=True)
class NoiseHistogram:
    """How often each of equally wide ranges of noise levels, from 0 to 1, is trained; or why that is unknown."""

    counts: tuple[int, ...] = ()
    note: str = ""
    error: str = ""


class NoiseProgram:
    """Call `ask` off the main thread, one call at a time; `close` from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    @property
    def is_running(self) -> bool:
        """Whether the process exists."""
        return self._process is not None and self._process.poll() is None

    def ask(self, settings: Mapping[str, object]) -> NoiseHistogram:
        """The histogram for these settings; the first answer takes seconds, for it imports torch."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
            answer = decode_json(process.stdout.readline())
        except (OSError, ValueError):  # it has ended, or was closed meanwhile
            self.close()
            return NoiseHistogram(error="The noise levels cannot be computed.")
        return _parsed(answer)

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):  # what was not written any more
                    pipe and pipe.close()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "modules.families._noise_levels"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )


def _parsed(answer: object) -> NoiseHistogram:
    """Raises nothing: an answer of another form is an error, too."""
    data = answer if isinstance(answer, dict) else {}
    counts = data.get("counts")
    if isinstance(counts, list) and all(isinstance(each, int) for each in counts):
        return NoiseHistogram(tuple(counts), str(data.get("note", "")))
    return NoiseHistogram(error=str(data.get("error", FileFault("The answer cannot be read."))))
