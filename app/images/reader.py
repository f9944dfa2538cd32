"""Surveys of the concept folders in a background thread, one at a time; the main thread polls for results."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Final

from app.images.image_index import Child, ImageIndex, survey

_FIRST_RESULT: Final = 200  # images before the first partial result; doubles after each


class SurveyReader:
    """Call `start`, then poll `newest` while `is_reading`. Main thread only."""

    def __init__(self) -> None:
        self.is_reading = False
        self._results: SimpleQueue[tuple[int, bool, ImageIndex]] = SimpleQueue()
        self._survey_number = 0
        self._child: Child | None = None

    @property
    def has_read(self) -> bool:
        """Whether a survey was ever started."""
        return self._survey_number > 0

    def start(self, settings: Mapping[str, object], size_step: int) -> None:
        """Read the concept folders of `settings`; a survey in progress is cancelled."""
        self.stop()
        self.is_reading = True
        arguments = (self._survey_number, settings, size_step)
        threading.Thread(target=self._survey, args=arguments, name="survey", daemon=True).start()

    def stop(self) -> None:
        """Cancel the survey in progress."""
        self._survey_number += 1
        self.is_reading = False
        if self._child is not None:
            self._child.kill()

    def newest(self) -> ImageIndex | None:
        """The latest result since the last call; None if there is nothing new."""
        found: ImageIndex | None = None
        while True:
            try:
                number, is_done, image_index = self._results.get_nowait()
            except Empty:
                return found
            if number == self._survey_number:
                found, self.is_reading = image_index, not is_done

    def _survey(self, number: int, settings: Mapping[str, object], size_step: int) -> None:
        threshold = _FIRST_RESULT

        def on_progress(image_index: ImageIndex) -> None:
            nonlocal threshold
            if len(image_index.images) >= threshold:
                threshold *= 2
                self._results.put((number, False, image_index.snapshot()))

        def on_start(child: Child) -> None:
            self._child = child

        done = survey(settings, size_step, lambda: number == self._survey_number, on_progress, on_start)
        self._results.put((number, True, done))
