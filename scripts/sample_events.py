"""What scripts/sample.py reports with `--events FILE`, for another program: a JSON object per line.

Each has an `event`: loading, downloading (`done` and `total` bytes), sampling (`image` of `images`, `step` of `steps`),
image (`file`), note (`message`), and at the end finished (`images`, and whether it was `stopped`) or failed (`message`,
one sentence, and `advice`). If there is a file of the same name and the ending .stop, it ends after the current image.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from modules.files import open_for_writing
from modules.run.console import warn

STOP_ENDING: Final = ".stop"
_STEPS_EVERY_S: Final = 0.2


class SampleEvents:
    """Writes the events; none without a file. Knows whether to stop after the current image."""

    def __init__(self, file: Path | None) -> None:
        """Raises OSError if the file cannot be written."""
        self._stop_file = None if file is None else file.with_name(file.name + STOP_ENDING)
        self._output = None if file is None else os.fdopen(open_for_writing(file), "w", encoding="utf-8")
        self.was_interrupted = False  # by Ctrl-C
        self._next_step = 0.0
        self.images = 0  # that were written

    @property
    def is_stopped(self) -> bool:
        """Whether no further image is wanted."""
        return self.was_interrupted or (self._stop_file is not None and self._stop_file.exists())

    def close(self) -> None:
        """Close the file."""
        if self._output is not None:
            with suppress(OSError):
                self._output.close()

    def report(self, event: str, **details: object) -> None:
        """Write one event; a full disk loses it."""
        self.images += event == "image"
        if self._output is not None:
            with suppress(OSError):
                self._output.write(json.dumps({"event": event, **details}) + "\n")
                self._output.flush()

    def step(self, image: int, images: int, step: int, steps: int) -> None:
        """Write a step of an image, at most a few times a second."""
        now = time.monotonic()
        if now >= self._next_step or step == 0:
            self._next_step = now + _STEPS_EVERY_S
            self.report("sampling", image=image, images=images, step=step, steps=steps)

    @contextmanager
    def stopping_after_the_image(self) -> Iterator[None]:
        """Inside the block the first Ctrl-C ends it after the current image, the second one at once."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.was_interrupted:
            raise KeyboardInterrupt
        self.was_interrupted = True
        warn("Stopping after this image; Ctrl-C again stops at once.")
