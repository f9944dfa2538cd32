"""faults.c, compiled: a program gets failing or slow files, no file locks, or a clock that jumps."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
ALL = 0  # armed with it, calls are only counted


def shim_environment(folder: Path) -> dict[str, str] | None:
    """The variable that loads the shim, which is compiled into `folder`; None where that is impossible."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = folder / "faults.so"
    if not library.exists():
        argv = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
        subprocess.run(argv, check=True, capture_output=True)
    return {"LD_PRELOAD": str(library)}


class Faults:
    """The shim in this process, which was started with it. Raises AttributeError if it was not."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._place, self._arm, self._count = library.faults_place, library.faults_arm, library.faults_count
        self._slow, self._locks, self._clock = library.faults_slow, library.faults_locks, library.faults_clock

    def place(self, folder: Path, restart: str = "") -> None:
        """Only calls below `folder` count; creating a folder whose name has `restart` in it starts a round: in the
        n-th one, call n fails."""
        self._place(os.fsencode(folder.resolve()), restart.encode())

    def arm(self, call: int, error: int, *, lasts: bool) -> None:
        """Let the call of this number, counted from now on from 1, fail with `error`, and if it `lasts` those after."""
        self._arm(call, error, int(lasts))

    def delay(self, ms: int, every: int, long_ms: int) -> None:
        """Let each call, and opening and reading, take `ms` longer, and every n-th `long_ms`."""
        self._slow(ms, every, long_ms)

    def without_locks(self) -> None:
        """Let file locks be missing, as on a share without a lock service."""
        self._locks(1)

    def turn_clock(self, seconds: int, once: Path) -> None:
        """Turn the wall clock by `seconds` as soon as the file `once` exists."""
        self._clock(seconds, os.fsencode(once))

    def disarm(self) -> None:
        """All is well again."""
        self._arm(ALL, 0, 0)
        self._slow(0, 0, 0)
        self._locks(0)
        self._clock(0, b"")

    @property
    def count(self) -> int:
        """How many calls there were since `arm`."""
        return int(self._count())


Check = Callable[[], None]
