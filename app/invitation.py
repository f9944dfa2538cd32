"""What a run on several machines says while it waits for the others: the line they need, and who has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from modules.run import RunFolder

CONSOLE_FILE: Final = "console.txt"
_HEAD_BYTES: Final = 64 << 10
_MOST_NEWS: Final = 6
_FOR_TERMINALS: Final = " Ctrl-C ends the wait."


@dataclass(frozen=True)
class Invitation:
    """The line to paste on each of the other machines, and the newest sentences about them, the last one newest."""

    line: str
    news: tuple[str, ...] = ()


def invitation_of(folder: RunFolder) -> Invitation | None:
    """What the launcher has printed; None where it has invited nobody (yet)."""
    try:
        with (folder.log_dir / CONSOLE_FILE).open("rb") as file:
            printed = file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return None
    lines = [line.strip() for line in printed.splitlines()[: printed.count("\n")] if line.strip()]
    place = next((n for n, line in enumerate(lines) if " --join " in line and " --token " in line), None)
    if place is None:
        return None
    news = [line.removesuffix(_FOR_TERMINALS) for line in lines[place + 1 :]]
    return Invitation(lines[place], tuple(news[-_MOST_NEWS:]))
