"""The process that captions, tags or masks images, and the ones that write or take back what was accepted."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from app.annotate.earlier import EarlierSet
from app.annotate.rows import TITLES, Row
from app.annotate.status import JobStatus, crashed, proposed, undone, wrote
from app.background import Background
from app.child_program import ChildProgram, not_started
from app.form.setting_text import with_actions
from modules import ROOT
from modules.annotation import Message, Proposal, ProposalSet, Task
from modules.files import FileFault, decode_json, printable, read_lines, validate_record
from modules.run.format_duration import format_duration
from modules.run.format_progress import BYTES, format_progress

SCRIPT: Final = ROOT / "scripts" / "annotate.py"
_SHOWN: Final = 600  # characters of an error
_FIELDS: Final = {"model": "Model", "batch_size": "Images at once", "device": "Device"}  # by the names of flags
_SURE: Final = 3  # images after which the time left is estimated


Work = Literal["propose", "apply", "undo"]


@dataclass(frozen=True)
class Order:
    """What to propose: the arguments of scripts/annotate.py after the task, and what the window has to know of them."""

    task: Task
    folder: Path  # absolute
    ending: str  # of the files beside the images
    arguments: tuple[str, ...]


class AnnotateJob:
    """One process at a time. Belongs to the Tk thread; `poll` takes milliseconds, however long the list is."""

    def __init__(self, background: Background) -> None:
        self.task: Task = "caption"
        self.work: Work = "propose"
        self.folder, self.ending = Path(), ".txt"
        self.rows: list[Row] = []
        self.status = JobStatus()
        self.note = ""
        self.is_written = self.is_partly_written = self.is_stopping = False
        self._background = background
        self._set: ProposalSet | None = None
        self._by_image: dict[str, Row] = {}
        self._by_file: dict[str, Row] = {}  # by the file that was written
        self._child: ChildProgram | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._read = 0  # bytes of the events
        self._is_preparing = self._is_over = False
        self._total = self._done = self._kept = 0
        self._began = 0.0  # when the first image was waited for

    @property
    def is_running(self) -> bool:
        """Whether a process has not ended, or its end has not been read."""
        return self._child is not None or self._is_preparing

    @property
    def title(self) -> str:
        """Such as "Captions of cats"."""
        return f"{TITLES[self.task]} of {self.folder.name or self.folder}"

    @property
    def accepted(self) -> int:
        """The number of proposals to be written."""
        return len([row for row in self.rows if row.is_accepted and (row.text or row.mask)])

    @property
    def can_write(self) -> bool:
        """Whether what is accepted may be written: it was not yet, or not all of it could be."""
        if self._set is None or self.is_running:
            return False
        return not self.is_written or any(row.problem and row.has_proposal for row in self.rows)

    @property
    def can_undo(self) -> bool:
        """Whether something was written."""
        return (self.is_written or self.is_partly_written) and not self.is_running

    def start(self, order: Order) -> None:
        """Start proposing, unless a process is running."""
        if self.is_running:
            return
        self._begin(order.task, order.folder, order.ending)
        self.status = JobStatus("Starting: loading Python and libraries takes a few seconds.", fraction=None)
        self._start("propose", order.task, *order.arguments)

    def open(self, earlier: EarlierSet) -> None:
        """Show proposals that were made before, unless a process is running."""
        if self.is_running:
            return
        self._begin(earlier.header.task, Path(earlier.header.folder), earlier.header.ending)
        self._set, self.is_written, self.work = earlier.proposals, earlier.is_written, "propose"
        self._is_preparing = True
        self.status = JobStatus("Reading the proposals…", fraction=None)

        def show(found: dict[str, Proposal]) -> None:
            self._is_preparing = False
            self._take_kept(found)

        self._background.run(earlier.proposals.read, show, self._cannot_begin)

    def apply(self) -> None:
        """Write what is accepted."""
        if self._set is None or self.is_running:
            return
        chosen = {row.relative: (row.text, not (row.is_accepted and row.has_proposal)) for row in self.rows}
        proposals = self._set
        self._is_preparing = True
        self.status = JobStatus("Writing…", fraction=None)

        def begin(_: object) -> None:
            self._is_preparing = False
            self._forget_problems()
            self._start("apply", "apply", str(proposals.path))

        self._background.run(lambda: _keep_choices(proposals, chosen), begin, self._cannot_begin)

    def undo(self) -> None:
        """Take back what was written."""
        if self._set is not None and not self.is_running:
            self.status = JobStatus("Putting back what was there…", fraction=None)
            self._forget_problems()
            self._by_file = {os.path.splitext(row.relative)[0] + self.ending: row for row in self.rows}
            self._start("undo", "undo", str(self._set.path))

    def stop(self) -> None:
        """End the process; what it has proposed stays."""
        if self._child is not None and not self.is_stopping:
            self.is_stopping = True
            self._child.stop()
            self.status = JobStatus("Stopping…", fraction=None)

    def close(self) -> None:
        """End the process: nobody is left to see what it proposes, which is kept."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def poll(self) -> bool:
        """Read new events; returns whether anything has changed."""
        if self._child is None:
            return self._is_preparing
        exit_code = self._child.process.poll()  # before the events, which are whole then
        before = (self.status, len(self.rows))
        for message in self._new_messages():
            self._take(message)
        if exit_code is not None:
            if not self._is_over:
                self.status = self._unexpected_end(exit_code)
            if self._set is not None and self.work != "propose":
                self.is_partly_written = self._set.state == "written"  # also if it was stopped, or has failed
            self._end()
            return True
        return before != (self.status, len(self.rows))

    def _begin(self, task: Task, folder: Path, ending: str) -> None:
        self.task, self.folder, self.ending = task, folder, ending
        self.rows, self._by_image, self._set, self.note = [], {}, None, ""
        self.is_written = self.is_partly_written = False
        self._total = self._done = self._kept = 0

    def _start(self, work: Work, command: str, *arguments: str) -> None:
        self.work, self._read = work, 0
        self.is_stopping = self._is_over = False
        try:
            self._place = tempfile.TemporaryDirectory(prefix="tandem-annotate-")
            self._child = ChildProgram(
                SCRIPT, [command, "--events", *arguments], self._file("events"), self._file("errors")
            )
        except OSError as error:
            self._end()
            self.status = JobStatus(not_started(error), "bad")

    def _forget_problems(self) -> None:
        for row in self.rows:
            if row.has_proposal:
                row.problem = ""

    def _cannot_begin(self, message: str) -> None:
        self._is_preparing = False
        self.status = JobStatus(printable(message, _SHOWN), "bad")

    def _take(self, message: Message) -> None:
        if message.failed is not None:
            self._is_over = True
            said = " ".join(filter(None, [message.failed, message.advice]))
            self.status = JobStatus(printable(with_actions(said, _FIELDS), _SHOWN), "bad")
        elif message.image is not None:
            self._take_image(message)
        elif message.note is not None:
            self.note = printable(message.note, _SHOWN)
        elif message.loading is not None:
            self.status = JobStatus(f"Loading {printable(message.loading, 100)}…", fraction=None)
        elif message.downloading is not None and message.downloading[1] > 0:
            done, total = message.downloading
            self.status = JobStatus(f"Downloading: {format_progress(done, total, BYTES)}", fraction=done / total)
        elif message.proposals is not None:
            self._set = ProposalSet(message.proposals)
        elif message.total is not None:
            self._begin_images(message.total, message.kept or 0)
        elif message.finished is not None:
            self._is_over = True
            self.status = proposed(self.rows, self.task, self.note, is_written=self.is_written)
        elif message.written is not None:
            self._is_over = self.is_written = True
            self.status = wrote(self.rows, self.task, message.written, message.unchanged or 0)
        elif message.undone is not None:
            self._is_over, self.is_written = True, bool(message.left)
            self.status = undone(message.undone, message.left or 0)

    def _take_image(self, message: Message) -> None:
        assert message.image is not None
        if self.work != "propose":
            known = (self._by_file if self.work == "undo" else self._by_image).get(message.image)
            if known is not None:
                known.problem = printable(message.error or "", _SHOWN)
            return
        self._add(message.image, message.text or "", Path(message.mask) if message.mask else None, message.error or "")
        self._done += 1
        seconds = (time.monotonic() - self._began) / self._done * max(0, self._total - self._done)
        left = f", about {format_duration(seconds)} left" if self._done >= _SURE and self._done < self._total else ""
        if not self.is_stopping:
            text = f"{self._done:,} of {self._total:,} images{left}"
            self.status = JobStatus(text, fraction=min(1.0, self._done / max(1, self._total)))

    def _add(self, image: str, text: str, mask: Path | None, error: str) -> None:
        row = self._by_image.get(image)
        if row is None:
            row = self._by_image[image] = Row(self.folder / image, image)
            self.rows.append(row)
        row.text, row.mask, row.problem, row.is_accepted = text, mask, printable(error, _SHOWN), not error

    def _begin_images(self, total: int, kept: int) -> None:
        self._total, self._kept, self._began = total, kept, time.monotonic()
        self.status = JobStatus(f"0 of {total:,} images", fraction=0.0 if total else None)
        if kept and self._set is not None:
            self._background.run(self._set.read, self._take_kept)

    def _take_kept(self, found: dict[str, Proposal]) -> None:
        """Add what an earlier start has proposed, after what has arrived meanwhile."""
        assert self._set is not None
        for each in found.values():
            if each.image not in self._by_image and not (self.is_running and each.error):  # it is asked about again
                mask = self._set.mask_file(each) if each.mask is not None else None
                self._add(each.image, each.text or "", mask, each.error or "")
                self._by_image[each.image].is_accepted = each.is_wanted
        if not self.is_running:
            self.status = proposed(self.rows, self.task, self.note, is_written=self.is_written)

    def _unexpected_end(self, exit_code: int) -> JobStatus:
        if not self.is_stopping:
            return crashed(exit_code, self._file("errors"))
        done = f"{self._done:,} of {self._total:,} images done. Start goes on where it stopped."
        return JobStatus(f"Stopped: {done}" if self.work == "propose" else "Stopped.", "warn")

    def _new_messages(self) -> Iterator[Message]:
        try:
            for line in read_lines(self._file("events"), start=self._read):
                self._read += len(line) + 1
                with suppress(FileFault):  # a line that says nothing
                    yield validate_record(Message, decode_json(line))
        except (OSError, FileFault):
            return

    def _end(self) -> None:
        self._child = None
        if self._place is not None:
            self._place.cleanup()

    def _file(self, name: str) -> Path:
        assert self._place is not None
        return Path(self._place.name, f"{name}.txt")


def _keep_choices(proposals: ProposalSet, chosen: dict[str, tuple[str, bool]]) -> None:
    """Write edited texts, and what is left out, into the set. Raises TandemError or OSError."""
    for image, proposal in proposals.read().items():
        if image not in chosen or proposal.error is not None:
            continue
        text, skip = chosen[image]
        wanted = proposal.model_copy(update={"text": None if proposal.text is None else text, "skip": skip})
        if wanted != proposal:
            proposals.add(wanted)
