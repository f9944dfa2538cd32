"""Plays the video of a sample in a canvas: frames are decoded one at a time, when they are due."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from PIL import Image

from modules.files import FileFault
from modules.files.videos import read_video_header, video_frames

_SOONEST_MS: Final = 5  # until the next frame, so that the window answers meanwhile


class Playback:
    """Calls `draw` with each frame of a video, in a loop, as long as `widget` is there; all of it in the Tk thread."""

    def __init__(self, widget: tk.Misc, draw: Callable[[Image.Image], object]) -> None:
        self._widget, self._draw = widget, draw
        self._file: Path | None = None
        self._frames: Iterator[Image.Image] = iter(())
        self._step_s = 1.0
        self._due = 0.0  # seconds of time.monotonic
        self._job = ""

    @property
    def is_playing(self) -> bool:
        """Whether frames are being drawn."""
        return bool(self._job)

    def show(self, file: Path | None) -> bool:
        """Play this video, or none; returns whether it can be played."""
        self.pause()
        self._file, self._frames = file, iter(())
        try:
            self._step_s = 1 / read_video_header(file).fps if file is not None else 1.0
        except (OSError, FileFault):
            self._file = None
        if self._file is not None:
            self.play()
        return self._file is not None

    def play(self) -> None:
        """Go on from the frame that is shown."""
        if self._file is not None and not self._job:
            self._due = time.monotonic()
            self._next()

    def pause(self) -> None:
        """Leave the frame that is shown."""
        if self._job:
            self._widget.after_cancel(self._job)
        self._job = ""

    def _next(self) -> None:
        frame = self._decoded()
        if frame is None:
            self._job = ""
            return
        self._draw(frame)
        now = time.monotonic()
        self._due = max(self._due + self._step_s, now)  # a slow machine plays slowly, and leaves no frame out
        self._job = self._widget.after(max(_SOONEST_MS, round(1000 * (self._due - now))), self._next)

    def _decoded(self) -> Image.Image | None:
        """The next frame, after the last one the first; None if the video is damaged or gone."""
        assert self._file is not None
        try:
            frame = next(self._frames, None)
            if frame is None:
                self._frames = video_frames(self._file, lambda times: range(len(times)))
                frame = next(self._frames, None)
        except (OSError, FileFault):
            return None
        return frame
