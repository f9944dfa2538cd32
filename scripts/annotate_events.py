"""What scripts/annotate.py reports, for a person or, with `--events`, for another program."""

from __future__ import annotations

import json
import sys

from modules.annotation import Message
from modules.files import printable
from modules.run.format_progress import BYTES, format_progress


class Reporter:
    """Prints messages for another program, or lines for a person."""

    def __init__(self, *, events: bool) -> None:
        self.events = events
        self._done = self._total = 0

    def send(self, message: Message) -> None:
        """Print one message. Raises OSError if nobody reads any more."""
        if self.events:
            print(json.dumps(message.model_dump(exclude_none=True)), flush=True)
            return
        if message.total is not None:
            self._total = message.total
        if message.downloading is not None:
            done, total = message.downloading
            end = "\n" if done >= total else ""
            print(f"\rdownloading: {format_progress(done, total, BYTES)}", end=end, file=sys.stderr, flush=True)
            return
        line = self._line(message)
        if line:
            print(printable(line, 500), flush=True)

    def _line(self, message: Message) -> str:
        if message.image is not None:
            self._done += 1
            position = f"{self._done}/{self._total} " if self._done <= self._total else ""
            return f"{position}{message.image}: {message.error or message.text or message.mask}"
        sentences = {
            "note": f"Note: {message.note}",
            "loading": f"Loading {message.loading}",
            "total": f"{message.total} images" + (f", {message.kept} have a proposal already" if message.kept else ""),
            "finished": f"{message.finished} proposals",
            "written": f"{message.written} files written, {message.unchanged} were as proposed.",
            "undone": f"{message.undone} files put back, {message.left} left as they are.",
            "state": f"{message.proposals}: {message.task} of {message.folder} by {message.model}, {message.state}, "
            f"{message.images} images",
            "proposals": f"Proposals: {message.proposals}",
        }
        return next((line for name, line in sentences.items() if getattr(message, name) is not None), "")
