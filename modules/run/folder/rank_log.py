"""log/rank-N.txt: one log per rank; every line starts with its time and rank."""

from __future__ import annotations

import logging
import os
import sys
import time
from contextlib import suppress
from io import TextIOWrapper
from typing import cast

from modules.files import open_for_writing, printable
from modules.run.console import LONGEST_TEXT
from modules.run.folder.run_folder import RunFolder


class RankLog(logging.FileHandler):
    """Appends to a rank's log; a failing disk is reported once and never ends the training."""

    def __init__(self, folder: RunFolder, rank: int, level: int) -> None:
        super().__init__(folder.log_file(rank), encoding="utf-8", errors="backslashreplace", delay=True)
        self.setLevel(level)
        self.setFormatter(_RankFormatter(rank))
        self._has_warned = False

    def _open(self) -> TextIOWrapper:
        """As the standard handler opens the file, but never a link or a pipe."""
        descriptor = open_for_writing(self.baseFilename, append=True)
        return cast(TextIOWrapper, os.fdopen(descriptor, self.mode, encoding=self.encoding, errors=self.errors))

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record; unlike the standard handler, tolerate a file that cannot be opened."""
        try:
            super().emit(record)
        except OSError:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Report once that the log cannot be written."""
        if self._has_warned:
            return
        self._has_warned = True
        with suppress(OSError, ValueError):
            print(f"Warning: {self.baseFilename} cannot be written; training continues.", file=sys.stderr)


def start_rank_log(folder: RunFolder, rank: int, verbose: bool = False) -> logging.Handler:
    """Log to this rank's file, Python warnings included: INFO on rank 0, else WARNING; everything if `verbose`."""
    level = logging.DEBUG if verbose else logging.INFO if rank == 0 else logging.WARNING
    handler = RankLog(folder, rank, level)
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(min(root.level or logging.WARNING, level))
    logging.captureWarnings(True)
    return handler


def stop_rank_log(handler: logging.Handler) -> None:
    """Undo `start_rank_log` for this handler."""
    logging.captureWarnings(False)
    logging.getLogger().removeHandler(handler)
    with suppress(OSError):  # lines that a failing disk has not taken
        handler.close()


def rank_lines(rank: int, text: str, seconds: float | None = None) -> str:
    """`text`, printable, with time and rank before each line, ending in a newline.

    `seconds` since 1970, default now.
    """
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    lines = printable(text, LONGEST_TEXT, lines=True).splitlines()
    return "".join(f"{stamp} rank {rank} {line}\n" for line in lines or [""])


class _RankFormatter(logging.Formatter):
    def __init__(self, rank: int) -> None:
        super().__init__("%(levelname)s %(name)s: %(message)s")
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        # The handler adds the last newline itself.
        return rank_lines(self._rank, super().format(record), record.created)[:-1]
