"""Surveys of the concept folders in a thread that knows no widget, one at a time; the newest answer is fetched."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from queue import Empty, SimpleQueue
from typing import Final

from app.pictures.catalogue import Catalogue, Child, survey

_FIRST_LOOK: Final = 200  # pictures; then twice as many, and so on


class SurveyReader:
    """`start`, then `newest` again and again while `is_reading`. Main thread only."""

    def __init__(self) -> None:
        self.is_reading = False
        self._answers: SimpleQueue[tuple[int, bool, Catalogue]] = SimpleQueue()
        self._turn = 0
        self._child: Child | None = None

    @property
    def has_read(self) -> bool:
        """Whether there ever was a survey."""
        return self._turn > 0

    def start(self, asked: Mapping[str, object], size_step: int) -> None:
        """Read the folders among `asked`; what was being read is no longer wanted."""
        self.stop()
        self.is_reading = True
        threading.Thread(target=self._survey, args=(self._turn, asked, size_step), name="survey", daemon=True).start()

    def stop(self) -> None:
        """End the survey that goes on."""
        self._turn += 1
        self.is_reading = False
        if self._child is not None:
            self._child.kill()

    def newest(self) -> Catalogue | None:
        """What has been found since the last call; None where there is nothing new."""
        found: Catalogue | None = None
        while True:
            try:
                turn, is_done, catalogue = self._answers.get_nowait()
            except Empty:
                return found
            if turn == self._turn:
                found, self.is_reading = catalogue, not is_done

    def _survey(self, turn: int, asked: Mapping[str, object], size_step: int) -> None:
        wanted = _FIRST_LOOK

        def grown(catalogue: Catalogue) -> None:
            nonlocal wanted
            if len(catalogue.pictures) >= wanted:
                wanted *= 2
                self._answers.put((turn, False, catalogue.snapshot()))

        def started(child: Child) -> None:
            self._child = child

        done = survey(asked, size_step, lambda: turn == self._turn, grown, started)
        self._answers.put((turn, True, done))
