"""What Undo and Redo return to: the data before each edit, with the path that the edit changed."""

from __future__ import annotations

import time
from typing import Final

from modules.config.io.text_formats import Data

_MOST: Final = 500  # edits
_MERGED_S: Final = 1.5  # keystrokes in one field within this time are undone together

_Step = tuple[Data, str]


class EditHistory:
    """Edits of data that is never changed in place, so that keeping it costs little."""

    def __init__(self) -> None:
        self._undo: list[_Step] = []
        self._redo: list[_Step] = []
        self._last_keystroke = ("", 0.0)

    @property
    def can_undo(self) -> bool:
        return bool(self._undo)

    @property
    def can_redo(self) -> bool:
        return bool(self._redo)

    def record(self, before: Data, path: str, *, typing: bool = False) -> None:
        """Keep the data before an edit; of keystrokes (`typing`) in one field only that before the first."""
        field, at = self._last_keystroke
        if not (typing and self._undo and field == path and time.monotonic() - at < _MERGED_S):
            self._undo.append((before, path))
            del self._undo[:-_MOST]
        self._redo.clear()
        self._last_keystroke = (path, time.monotonic() if typing else 0.0)

    def undo(self, present: Data) -> _Step | None:
        """The data before the last edit and the path that it changed; None if there is nothing to undo."""
        return self._step(present, self._undo, self._redo)

    def redo(self, present: Data) -> _Step | None:
        """The data after the last undone edit and the path that it changed; None if there is none."""
        return self._step(present, self._redo, self._undo)

    def _step(self, present: Data, source: list[_Step], target: list[_Step]) -> _Step | None:
        if not source:
            return None
        data, path = source.pop()
        target.append((present, path))
        self._last_keystroke = ("", 0.0)
        return data, path
