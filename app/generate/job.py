"""The process that generates images for the window: scripts/sample.py, followed through the file of its events."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from app.child_program import ChildProgram
from app.form.setting_text import with_titles
from app.generate.settings import OPTIONS, GenerateSettings, arguments, number_of_images
from modules import ROOT
from modules.files import (
    FileFault,
    Record,
    decode_json,
    expand_home,
    is_plain_name,
    printable,
    read_lines,
    validate_record,
)
from modules.run.format_progress import BYTES, format_progress

SCRIPT: Final = ROOT / "scripts" / "sample.py"
_STOP_ENDING: Final = ".stop"  # as in scripts/sample_events.py

Tone = Literal["muted", "good", "warn", "bad"]


class SampleEvent(Record):
    """One line of the events of scripts/sample.py."""

    event: str
    done: int = 0
    total: int = 0
    image: int = 0
    images: int = 0
    step: int = 0
    steps: int = 0
    file: str = ""
    message: str = ""
    advice: str = ""
    stopped: bool = False


@dataclass(frozen=True)
class JobStatus:
    """A sentence about the process. `fraction` (0 to 1) is None while it is unknown."""

    text: str = ""
    tone: Tone = "muted"
    fraction: float | None = 0.0
    details: str = ""  # more about an error


class GenerateJob:
    """One generation at a time. Belongs to the Tk thread; `poll` takes about a millisecond."""

    def __init__(self) -> None:
        self.status = JobStatus()
        self.files: list[Path] = []  # of this generation, in their order
        self.note = ""
        self._child: ChildProgram | None = None
        self._place: tempfile.TemporaryDirectory[str] | None = None
        self._read = 0  # bytes of the events
        self._wanted = 0
        self._is_stopping = self._is_killed = self._is_over = False
        self._folder = Path()

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended, or its end has not been read."""
        return self._child is not None

    @property
    def is_stopping(self) -> bool:
        """Whether it ends after the current image."""
        return self._is_stopping

    def start(self, settings: GenerateSettings) -> None:
        """Start the process, unless one is running. Raises OSError."""
        if self._child is not None:
            return
        self._place = tempfile.TemporaryDirectory(prefix="tandem-generate-")
        self.files, self.note, self._read, self._wanted = [], "", 0, number_of_images(settings)
        self._is_stopping = self._is_killed = self._is_over = False
        self._folder = expand_home(settings.folder.strip())
        try:
            self._child = ChildProgram(SCRIPT, arguments(settings, self._events), self._log)
        except OSError:
            self._end()
            raise
        self.status = JobStatus("Starting: loading Python and libraries takes a few seconds.", fraction=None)

    def stop(self) -> None:
        """Let the process end after the current image; at the second call, at once."""
        if self._child is None:
            return
        if not self._is_stopping and self._ask_to_stop():
            self._is_stopping = True
        else:
            self._is_killed = True
            self._child.process.terminate()

    def close(self) -> None:
        """End the process: nobody is left to see its images."""
        if self._child is not None:
            self._child.kill()
            self._end()

    def poll(self) -> bool:
        """Read new events; returns whether anything has changed."""
        if self._child is None:
            return False
        exit_code = self._child.process.poll()  # before the events, which are whole then
        before = (self.status, len(self.files), self.note)
        for event in self._new_events():
            self._apply(event)
        if exit_code is not None:
            if not self._is_over:
                self.status = self._unexpected_end(exit_code, self._child.output())
            self._end()
            return True
        return before != (self.status, len(self.files), self.note)

    def _ask_to_stop(self) -> bool:
        """Whether the request could be written: a disk may be full."""
        try:
            self._events.with_name(self._events.name + _STOP_ENDING).touch()
        except OSError:
            return False
        return True

    def _apply(self, event: SampleEvent) -> None:
        match event.event:
            case "loading":
                self.status = JobStatus("Loading the model…", fraction=None)
            case "downloading" if event.total > 0:
                progress = format_progress(event.done, event.total, BYTES)
                self.status = JobStatus(f"Downloading the model: {progress}", fraction=event.done / event.total)
            case "sampling":
                self.status = self._sampling(event)
            case "image" if is_plain_name(name := event.file.replace("\\", "/").rpartition("/")[2]):
                self.files.append(self._folder / name)
            case "note":
                self.note = printable(event.message, 400)
            case "failed":
                self._is_over = True
                message, advice = (with_titles(said, OPTIONS.values()) for said in (event.message, event.advice))
                self.status = JobStatus(printable(message, 600), "bad", details=printable(advice, 600))
            case "finished":
                self._is_over = True
                count = f"{len(self.files)} image{'' if len(self.files) == 1 else 's'}"
                text = f"Stopped after {count}." if event.stopped else f"{count} saved in the folder {self._folder}."
                self.status = JobStatus(text, "warn" if event.stopped else "good", 1.0)

    def _sampling(self, event: SampleEvent) -> JobStatus:
        steps, images = max(1, event.steps), max(1, event.images)
        done = (event.image - 1 + min(event.step, steps) / steps) / images
        what = f"Image {event.image} of {images}" if images > 1 else "Generating"
        step = f", step {event.step} of {steps}" if event.step else ""
        after = "; stops after this image" if self._is_stopping else ""
        return JobStatus(f"{what}{step}{after}", fraction=min(1.0, max(0.0, done)))

    def _unexpected_end(self, exit_code: int, output: str) -> JobStatus:
        if self._is_killed:
            return JobStatus(f"Stopped after {len(self.files)} of {self._wanted} images.", "warn", 0.0)
        if exit_code < 0:
            return JobStatus(
                f"The process was ended by signal {-exit_code}.",
                "bad",
                details="Perhaps the computer ran out of memory: use a smaller model or end other programs.",
            )
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        said = printable(last, 400) or f"exit code {exit_code}"
        return JobStatus(f"The process failed: {said}", "bad")

    def _new_events(self) -> list[SampleEvent]:
        found = []
        try:
            for line in read_lines(self._events, start=self._read):
                self._read += len(line) + 1
                found.append(validate_record(SampleEvent, decode_json(line)))
        except (OSError, FileFault):
            pass  # not there yet, or a line that says nothing
        return found

    def _end(self) -> None:
        self._child = None
        if self._place is not None:
            self._place.cleanup()

    @property
    def _events(self) -> Path:
        assert self._place is not None
        return Path(self._place.name, "events.jsonl")

    @property
    def _log(self) -> Path:
        assert self._place is not None
        return Path(self._place.name, "output.txt")
