"""Requests to a running training: a file named after the command in the run folder's commands/."""

import os
import time
from pathlib import Path

from modules.run.run_folder import RunFolder

NAMES = ("stop", "backup", "save", "sample")

# The reasons a `stop` may carry when a signal is behind it; any other text is a wish of the user.
INTERRUPTED = "interrupted"
TERMINATED = "terminated"
PAUSED = "paused"

_LONGEST_REASON = 200


class Commands:
    """What the user asks of this run; looks into the folder at most every `every_s` seconds."""

    def __init__(self, folder: RunFolder, *, every_s: float = 0.2) -> None:
        self._directory = folder.commands_dir
        self._every_s = every_s
        self._next_look = 0.0
        self._pending: dict[str, str] = {}
        self._stuck: set[str] = set()

    def pending(self) -> dict[str, str]:
        """The commands that wait, each with its reason (may be empty)."""
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._every_s
            self._pending = self._look()
        return dict(self._pending)

    def done(self, name: str) -> None:
        """Take the command away, so that it is not obeyed twice."""
        self._pending.pop(name, None)
        try:
            (self._directory / name).unlink(missing_ok=True)
        except OSError:
            # In a folder that became read-only the file stays; obeying it at every step would be worse than
            # being deaf to its repetition.
            self._stuck.add(name)

    def _look(self) -> dict[str, str]:
        found = {}
        for name in NAMES:
            if name in self._stuck:
                continue
            try:
                text = (self._directory / name).read_text(encoding="utf-8", errors="replace")
            except OSError:
                continue
            found[name] = text.strip()[:_LONGEST_REASON]
        return found


class SilentCommands:
    """Hears nothing: for the ranks that do not listen to the user."""

    def pending(self) -> dict[str, str]:
        """Always empty."""
        return {}

    def done(self, name: str) -> None:
        """Nothing to take away."""


def request_command(folder: RunFolder, name: str, reason: str = "") -> None:
    """Ask a run for `name`; raises ValueError for an unknown name, OSError in a folder not writable."""
    if name not in NAMES:
        raise ValueError(f"command is {name!r}; use one of {', '.join(NAMES)}")
    folder.commands_dir.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that the run never reads half a reason.
    temporary = folder.commands_dir / f".{name}-{os.getpid()}"
    temporary.write_text(reason, encoding="utf-8")
    temporary.replace(folder.commands_dir / name)


def clear_commands(folder: RunFolder) -> None:
    """Forget commands that an earlier start of this run left behind; raises OSError in a read-only folder."""
    for name in NAMES:
        path: Path = folder.commands_dir / name
        path.unlink(missing_ok=True)
