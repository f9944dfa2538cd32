"""Where this process's main thread is: its Python stack, seen from another thread."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple

_ROOT = Path(__file__).resolve().parents[2]
_LIBRARIES = tuple({str(Path(path).resolve()) for path in sysconfig.get_paths().values()})
_ROOMS = {
    "/torch/utils/data/": "the loader (waiting for its worker processes)",
    "/modules/data/loader.py": "the loader",
    "/modules/data/reading.py": "the loader",
    "/modules/data/": "the data",
    "/modules/checkpoint/": "a backup",
    "/modules/families/parts/hub.py": "the download of the base model",
}


class Stack(NamedTuple):
    """The main thread's way to where it is, and a mark that changes when it moves."""

    frames: list[traceback.FrameSummary]  # outermost first
    mark: str

    @property
    def place(self) -> str:
        """The innermost line that is not of a library, such as "modules/data/loader.py:152 (_received)"."""
        own = next((frame for frame in reversed(self.frames) if not _is_library(frame.filename)), None)
        return "" if own is None else f"{_short(own.filename)}:{own.lineno} ({own.name})"

    @property
    def room(self) -> str:
        """What that part of the program is called, such as "the loader"; empty for most."""
        for frame in reversed(self.frames):
            for part, name in _ROOMS.items():
                if part in frame.filename.replace("\\", "/"):
                    return name
        return ""

    @property
    def text(self) -> str:
        """As a traceback shows it."""
        return "".join(traceback.format_list(self.frames))


def main_stack() -> Stack:
    """The present stack of the main thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    mark = "/".join(f"{id(each.f_code)}.{each.f_lasti}" for each in _outwards(frame))
    return Stack(list(traceback.extract_stack(frame)) if frame is not None else [], mark)


def main_mark() -> str:
    """Only the mark, which costs some microseconds."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "/".join(f"{id(each.f_code)}.{each.f_lasti}" for each in _outwards(frame))


def main_computed_s() -> float:
    """How long the main thread has been on a processor; it stands still while the thread does nothing at all.

    Where the system does not tell (Windows, macOS) it seems to go on.
    """
    if sys.platform == "win32" or not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _is_library(filename: str) -> bool:
    return filename.startswith(("<", *_LIBRARIES))


def _short(filename: str) -> str:
    path = Path(filename)
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else filename
