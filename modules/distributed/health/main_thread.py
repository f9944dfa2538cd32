"""What this process's main thread is doing: its Python stack and CPU time, read from another thread."""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from modules import ROOT

_LIBRARIES = tuple({str(Path(path).resolve()) for path in sysconfig.get_paths().values()})
_COMPONENTS = {
    "/torch/utils/data/": "the loader (waiting for its worker processes)",
    "/modules/data/loading/loader.py": "the loader",
    "/modules/data/cache/reader.py": "the loader",
    "/modules/data/": "the data",
    "/modules/checkpoint/": "a backup",
    "/modules/diffusion/hub/model.py": "the download of the base model",
}


class Stack(NamedTuple):
    """The main thread's call stack."""

    frames: list[traceback.FrameSummary]  # outermost first

    @property
    def location(self) -> str:
        """The innermost line outside of libraries, such as "modules/data/loading/loader.py:152 (_received)"."""
        for frame in reversed(self.frames):
            if not frame.filename.startswith(("<", *_LIBRARIES)):
                path = Path(frame.filename)
                file = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else frame.filename
                return f"{file}:{frame.lineno} ({frame.name})"
        return ""

    @property
    def component(self) -> str:
        """The part of the program that is running, such as "the loader"; empty for most."""
        for frame in reversed(self.frames):
            for path, name in _COMPONENTS.items():
                if path in frame.filename.replace("\\", "/"):
                    return name
        return ""

    @property
    def text(self) -> str:
        """Formatted like a traceback."""
        return "".join(traceback.format_list(self.frames))


def main_thread_stack() -> Stack:
    """The main thread's current stack."""
    frame = _main_frame()
    return Stack([] if frame is None else list(traceback.extract_stack(frame)))


def main_thread_fingerprint() -> str:
    """A text that changes whenever the main thread moves; takes microseconds."""
    found, frame = [], _main_frame()
    while frame is not None:
        found.append(f"{id(frame.f_code)}.{frame.f_lasti}")
        frame = frame.f_back
    return "/".join(found)


def main_thread_cpu_s() -> float:
    """CPU time of the main thread in seconds; constant while the thread does nothing at all.

    On systems that do not report it (Windows, macOS) it keeps growing.
    """
    if sys.platform == "win32" or not hasattr(time, "pthread_getcpuclockid"):
        return time.monotonic()
    return time.clock_gettime(time.pthread_getcpuclockid(threading.main_thread().ident or 0))


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)
