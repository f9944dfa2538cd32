"""What the process is doing, or how it ended, in a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from app.annotate.rows import NOUNS, Row, count
from modules.annotation import Task
from modules.files import FileFault, printable, read_lines

Tone = Literal["muted", "good", "warn", "bad"]


@dataclass(frozen=True)
class JobStatus:
    """A sentence about the process. `fraction` (0 to 1) is None while it is unknown."""

    text: str = ""
    tone: Tone = "muted"
    fraction: float | None = 0.0


def proposed(rows: Sequence[Row], task: Task, note: str, *, is_written: bool) -> JobStatus:
    """After the last image."""
    if not rows:
        plural = NOUNS[task][1]
        return JobStatus(
            f"Nothing to do: there are no images, or all of them have {plural} already. {note}".strip(), "warn"
        )
    made = len([row for row in rows if row.has_proposal])
    failed = f"{len(rows) - made:,} failed; the reason is in the list." if made < len(rows) else ""
    said = f"{count(made, task)} {'written' if is_written else 'proposed'}."
    return JobStatus(" ".join(filter(None, [said, failed, note])), "warn" if failed else "good", 1.0)


def wrote(rows: Sequence[Row], task: Task, written: int, unchanged: int) -> JobStatus:
    """After writing what was accepted."""
    bad = len([row for row in rows if row.problem and row.has_proposal and row.is_accepted])
    failed = f"{bad:,} could not be written; the reason is in the list." if bad else ""
    same = f"{unchanged:,} were so already." if unchanged else ""
    said = f"{count(written, task)} written."
    return JobStatus(" ".join(filter(None, [said, same, failed])), "warn" if failed else "good", 1.0)


def undone(files: int, left: int) -> JobStatus:
    """After putting files back."""
    said = f"Undone: {files:,} file{' is' if files == 1 else 's are'} as before."
    stay = f" {left:,} changed since, and stay{'s' * (left == 1)}." if left else ""
    return JobStatus(said + stay, "warn" if left else "good")


def crashed(exit_code: int, errors: Path) -> JobStatus:
    """After an end that the process did not announce; `errors` is the file of its error output."""
    if exit_code < 0:
        return JobStatus(
            f"The process was ended by signal {-exit_code}. Perhaps the computer ran out of memory: use a smaller "
            "model, or end other programs.",
            "bad",
        )
    said = ""
    with suppress(OSError, FileFault):
        for line in read_lines(errors):
            said = line.decode(errors="replace").strip() or said
    return JobStatus(f"The process failed: {printable(said, 400) or f'exit code {exit_code}'}", "bad")
