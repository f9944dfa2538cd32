"""The copy on this computer of a run on another machine: a run folder that grows as that one does.

Whatever the other machine sends, only files of the kinds below are written, inside this folder, with limits on their
sizes and number.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field

from modules.config import ConfigError, ResumeError
from modules.files import (
    FileFault,
    Record,
    is_plain_name,
    open_for_writing,
    open_regular,
    printable,
    read_json,
    read_text,
    remove_tree,
    replacing,
    validate_record,
)
from modules.files.private import write_private_json
from modules.run.exit_codes import FINISHED
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.run_folder import CONFIG_FILE_NAME, RunFolder, check_run_name, not_writable_error
from modules.run.folder.run_lock import supervisor_lock
from modules.run.format_progress import format_bytes
from modules.run.hosts.host import DEFAULT_PYTHON
from modules.run.hosts.host_list import MOST_HOSTS
from modules.run.hosts.ssh_command import HostError
from modules.run.html_report import update_report
from modules.run.remote.far_followed import LOGS, MOST_WHOLE, TENSORBOARD, WHOLES, most_of_log
from modules.run.remote.far_side import COMMANDS
from modules.run.remote.job import Job
from modules.run.remote.link import Link

_EVENTS: Final = "events.jsonl"
_CONSOLE: Final = re.compile(r"log/(console|slurm-\d{1,12})\.txt")
_MOST_EVENTS: Final = 2 << 30  # bytes
_MOST_FOLLOWED: Final = 32 << 30
_MOST_FILES: Final = 20_000
_LONGEST_LINE: Final = 64 << 10
_SPARE: Final = 1 << 30  # bytes that stay free on this disk
_PULLING: Final = "pulling"
_ASK_AGAIN_S: Final = 5.0
_MOST_COMMAND: Final = 128 << 10  # bytes
# escape codes and other control characters; C1 as UTF-8 has it. The length stays, because it says where to go on.
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|(?<=\xc2)[\x80-\x9f]")

Echo = Callable[[str], None]
Stage = Literal["sending", "running", "pulling", "complete"]
_Size = Annotated[int, Field(ge=0, le=1 << 45)]


class Copy(Record):
    """remote.json: whose copy it is, and how far the run's journey has come.

    `said` is what is under way, or why it has to wait, `done` its share, from 0 to 1; `fault` is why it was given up.
    `job` says of its Slurm job that it waits.
    `resumes`: what is under way resumes the run there. `code` is its exit code, if it has ended and left one.
    `queued`: a queue has started it, so that it waits for a connection rather than be given up.
    `joined` are the machines that take part in the run of this one.
    `attended`: a program of the window's goes through all stages, and the window goes on with it when it opens. `id` is
    that of its start there, once asked for.
    """

    machine: str
    stage: Stage = "running"
    attended: bool = False
    sends_token: bool = False
    resumes: bool = False
    queued: bool = False
    code: Annotated[int, Field(ge=0, le=255)] | None = None
    joined: Annotated[list[str], Field(max_length=MOST_HOSTS)] = Field(default_factory=list)
    id: str = ""
    said: str = ""
    job: str = ""
    fault: str = ""
    done: Annotated[float, Field(ge=0, le=1)] | None = None

    @property
    def is_underway(self) -> bool:
        """Whether there is anything left to do for an attendant of the copy."""
        return self.stage != "complete"

    @property
    def may_run(self) -> bool:
        """Whether the run was asked to start there and is not known to have ended."""
        return self.stage == "running" or (self.stage == "sending" and bool(self.id))

    @property
    def lacks_results(self) -> bool:
        """Whether the run was asked to start there, and not all that it has made is here."""
        return self.may_run or self.stage == "pulling"

    @property
    def has_finished(self) -> bool:
        """Whether the run has done all its steps, and all that it has made is here."""
        return self.stage == "complete" and self.code == FINISHED


class _New(Record):
    """A piece of a file (`offset` if it only grows, `last` if it comes whole), a command that it has, what Slurm says
    of its job, the end, or nothing."""

    file: Annotated[str, Field(max_length=300)] = ""
    offset: _Size | None = None
    last: bool = False
    taken: Annotated[str, Field(max_length=100)] = ""
    job: Job | None = None
    end: bool = False
    seconds: Annotated[int, Field(ge=0, le=1 << 40)] = 0
    code: Annotated[int, Field(ge=0, le=255)] | None = None


class Result(Record):
    """A file of a model or a backup there: its path in the run folder, its bytes, its hash."""

    path: Annotated[str, Field(max_length=2000)]
    size: _Size
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @property
    def item(self) -> str:
        """What appears here as a whole: the model, one saved step, one backup."""
        parts = self.path.split("/")
        return "/".join(parts[:2]) if parts[0] in ("saves", "backup") else parts[0]


class _Results(Record):
    files: Annotated[list[Result], Field(max_length=1000)]
    more: bool


class _Piece(Record):
    last: bool


@contextmanager
def opened_copy(runs_dir: str | Path, run: str, machine: str) -> Iterator[RunFolder]:
    """The copy's folder, made if it is missing, for this program alone.

    Raises ConfigError if the name is that of another run here, or another program is at work in the folder.
    """
    check_run_name(run)
    folder = RunFolder(Path(runs_dir) / run)
    is_new, locks = not os.path.lexists(folder.path), ("supervisor.lock", "launcher.lock")
    made = [folder.remote_file, *(folder.log_dir / each for each in locks)]
    try:
        copy = read_copy(folder)
        if not is_new and copy is not None:
            require_machine(folder, copy, machine)
        if not is_new and copy is None:
            raise ConfigError(
                f"{folder.path} is the folder of another run, not the copy of one on {machine}",
                "Give another --runs_dir",
            )
        folder.make_directories()
        if copy is None:
            mark_copy(folder, Copy(machine=machine))
        with supervisor_lock(folder), pidfile_held(folder):
            yield folder
    except ResumeError:
        raise ConfigError(
            f"another program is at work in {folder.path}: it follows this run, or trains in its copy",
            "Wait until it ends, or stop it",
        ) from None
    except OSError as error:
        raise not_writable_error(folder.path, error) from error
    finally:
        if is_new and not any(file.is_file() and file not in made for file in folder.path.rglob("*")):
            remove_tree(folder.path)  # nothing has come: there is no such run


def require_machine(folder: RunFolder, copy: Copy, machine: str) -> None:
    """Raise ConfigError if it is the copy of a run on another one."""
    if copy.machine != machine:
        raise ConfigError(
            f"{folder.path} is the copy of a run on {printable(copy.machine, 100)}, not on {machine}",
            f"Name that machine: if it has another name now, add it under {printable(copy.machine, 100)} again",
        )


def mark_copy(folder: RunFolder, copy: Copy) -> None:
    """Say in the folder whose copy it is. Raises OSError."""
    write_private_json(folder.remote_file, copy.model_dump(exclude_defaults=True))


def mark_stage(folder: RunFolder, stage: Stage) -> None:
    """Say how far it is. Raises OSError."""
    if (copy := read_copy(folder)) is not None:
        mark_copy(folder, copy.model_copy(update={"stage": stage, "said": "", "done": None}))


def read_copy(folder: RunFolder) -> Copy | None:
    """What the folder says of the run that it is a copy of; None if it is none."""
    try:
        return validate_record(Copy, read_json(folder.remote_file))
    except (OSError, FileFault):
        return None


class Follower:
    """Brings a copy up to date, and keeps it so until the run ends. What is put into the copy's commands/ goes there.

    `python` is the run's, which force_stop needs. `tell` gets what is new of its Slurm job, if it has one.
    """

    def __init__(
        self,
        folder: RunFolder,
        echo: Echo,
        python: str = DEFAULT_PYTHON,
        tell: Callable[[Job], object] = lambda _: None,
    ) -> None:
        self._folder, self._echo, self._python, self._tell = folder, echo, python, tell
        self.job: Job | None = None
        self.seconds = 0  # that the run has taken, once it has ended
        self._asked = ""  # the command whose answer has not come
        self._stop_asked_at = -_ASK_AGAIN_S
        self._written, self._names = 0, set[str]()
        self._whole: tuple[str, bytearray] = ("", bytearray())
        self._line = b""

    def follow(self, link: Link) -> int | None:
        """Its exit code at the end; None if it has left none. What its console prints is printed here.

        Raises LinkLost, after which it may be called again, and HostError for what no run sends.
        """
        self._whole, self._asked = ("", bytearray()), ""
        logs, wholes = self._sizes()
        link.tell(
            "follow",
            run=self._folder.name,
            logs=logs,
            wholes=wholes,
            digest=_events_digest(self._folder),
            config=not self._folder.config_file.exists(),
        )
        while True:
            new, data = link.read(_New)
            if new.end:
                for name in COMMANDS:
                    (self._folder.commands_dir / name).unlink(missing_ok=True)
                self._print(b"\n" if self._line else b"")
                self.seconds = new.seconds
                update_report(self._folder)  # written here: a page from there could have scripts
                return new.code
            if new.file:
                self._take(link, new, data)
            if new.taken:
                self._taken(new.taken)
            if new.job is not None and new.job != self.job:
                self.job = new.job
                self._tell(new.job)
            self._send_command(link)

    def _send_command(self, link: Link) -> None:
        """One at a time, so that the other side finds each as soon as it looks."""
        if self._asked:
            return
        pending = {name: text for name in COMMANDS if (text := self._command(name)) is not None}
        if time.monotonic() - self._stop_asked_at < _ASK_AGAIN_S:
            pending.pop("stop", None)
        for name, text in list(pending.items())[:1]:
            self._asked = name
            link.tell("command", run=self._folder.name, command=name, content=text, python=self._python)

    def _command(self, name: str) -> str | None:
        try:
            return read_text(self._folder.commands_dir / name, _MOST_COMMAND)
        except (OSError, FileFault):
            return None

    def _taken(self, name: str) -> None:
        """A stop stays until the end and is asked again: the start of a run there removes those of an earlier one."""
        self._asked = ""
        if name == "stop":
            self._stop_asked_at = time.monotonic()
        elif name in COMMANDS:
            (self._folder.commands_dir / name).unlink(missing_ok=True)

    def _sizes(self) -> tuple[dict[str, int], dict[str, int]]:
        """What is here already: bytes of the logs, and of the files that come whole."""
        parts = [folder for part in ("log", "samples", "tensorboard") if (folder := self._folder.path / part).is_dir()]
        found = [file for folder in parts for file in folder.iterdir() if file.is_file()]
        found += [self._folder.events_file] if self._folder.events_file.is_file() else []
        sizes = {file.relative_to(self._folder.path).as_posix(): file.stat().st_size for file in found}
        return tuple({path: size for path, size in sizes.items() if kind.fullmatch(path)} for kind in (LOGS, WHOLES))  # type: ignore[return-value]

    def _take(self, link: Link, new: _New, data: bytes) -> None:
        is_config = new.file == CONFIG_FILE_NAME and not self._folder.config_file.exists()
        is_whole = WHOLES.fullmatch(new.file) is not None or is_config
        if not (LOGS.fullmatch(new.file) or is_whole):
            raise _refused(link, f"a file {printable(new.file, 100)!r}, which is none that a copy of a run has")
        self._written += len(data)
        self._names.add(new.file)
        if self._written > _MOST_FOLLOWED or len(self._names) > _MOST_FILES:
            raise _refused(
                link, f"more than {format_bytes(_MOST_FOLLOWED)} or {_MOST_FILES:,} files for the copy of one run"
            )
        if shutil.disk_usage(self._folder.path).free < _SPARE:
            raise HostError(
                f"less than {format_bytes(_SPARE)} is free on the disk of {self._folder.path}: no more is copied",
                "The run goes on there; free some space here and follow it again",
            )
        if is_whole:
            self._take_whole(link, new, data)
        else:
            self._take_log(link, new, data)

    def _take_whole(self, link: Link, new: _New, data: bytes) -> None:
        path, gathered = self._whole
        if path not in ("", new.file) or len(gathered) + len(data) > MOST_WHOLE:
            raise _refused(link, f"a file {new.file} of more than {format_bytes(MOST_WHOLE)}, or in disorder")
        gathered += data
        self._whole = (new.file, gathered)
        if new.last:
            place = self._folder.path / new.file
            with replacing(place) as partial, os.fdopen(open_for_writing(partial), "wb") as file:
                file.write(gathered)
            self._whole = ("", bytearray())

    def _take_log(self, link: Link, new: _New, data: bytes) -> None:
        place = self._folder.path / new.file
        place.parent.mkdir(exist_ok=True)
        with os.fdopen(open_for_writing(place, append=True), "r+b", buffering=0) as file:
            size = file.seek(0, os.SEEK_END)
            if new.offset == 0 and new.file != _EVENTS:  # begun anew
                file.truncate(0)
                size = 0
            most = _MOST_EVENTS if new.file == _EVENTS else most_of_log(new.file)
            if new.offset != size or size + len(data) > most:
                raise _refused(link, f"more than {format_bytes(most)} for {new.file}, or in disorder")
            if not TENSORBOARD.fullmatch(new.file):
                file.seek(max(0, size - 1))
                before = file.read(1) if size else b""
                data = _CONTROL.sub(b"?", before + data)[len(before) :]
            file.write(data)
        if _CONSOLE.fullmatch(new.file):
            self._print(data)

    def _print(self, data: bytes) -> None:
        *lines, rest = (self._line + data).split(b"\n")
        self._line = rest[-_LONGEST_LINE:]
        for line in lines:  # of a progress bar the last state
            self._echo(line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace"))


def pull(
    link: Link, folder: RunFolder, backups: str, echo: Echo, share: Callable[[float], object] = lambda _: None
) -> list[str]:
    """Bring the models, and the chosen backups, here, each verified by its hash; returns what has come.

    What was begun before goes on where it was. `share` gets how much is here, 0 to 1. Raises HostError, also if another
    model or backup is here, LinkLost, OSError.
    """
    results = list(_results(link, folder, backups))
    items: dict[str, list[Result]] = {}
    for result in results:
        items.setdefault(result.item, []).append(result)
    missing = {item: files for item, files in items.items() if not _is_complete(folder, item, files)}
    if others := [item for item in missing if item != "best" and os.path.lexists(folder.path / item)]:
        raise HostError(
            f"{folder.path / others[0]} is here, and another than that on {link.name}",
            "Move it away and pull again, or give another --runs_dir",
        )
    total = sum(result.size for files in missing.values() for result in files)
    free = shutil.disk_usage(folder.path).free
    if missing and total + _SPARE > free:
        raise HostError(
            f"{link.name} has {format_bytes(total)} to pull, and {format_bytes(free)} are free on the disk of "
            f"{folder.path}, of which {format_bytes(_SPARE)} must stay",
            "Free some space, or choose fewer backups: --backups none",
        )
    staging = folder.path / _PULLING
    places = {item: staging / _listing_digest(files) for item, files in missing.items()}
    if staging.is_dir():
        for each in staging.iterdir():
            if each not in places.values():
                remove_tree(each)
    here = 0
    for item, files in missing.items():
        echo(f"Pulling {item} ({format_bytes(sum(result.size for result in files))}).")
        for result in files:
            _fetch(link, folder, places[item] / result.path, result, partial(_share, share, here, total))
            here += result.size
        final = folder.path / item
        final.parent.mkdir(exist_ok=True)
        remove_tree(final)
        (places[item] / item).replace(final)
        remove_tree(places[item])
    remove_tree(staging)
    return list(missing)


def _results(link: Link, folder: RunFolder, backups: str) -> Iterator[Result]:
    """What the other machine has. Raises HostError for a name that is not one of a model or backup."""
    size = folder.events_file.stat().st_size if folder.events_file.is_file() else 0
    link.tell("results", run=folder.name, backups=backups, events=size, digest=_events_digest(folder))
    seen: set[str] = set()
    more = True
    while more:
        answer, _ = link.read(_Results)
        more = answer.more and bool(answer.files)
        for result in answer.files:
            path = result.path
            parts = path.split("/")
            is_single = path == f"{folder.name}.safetensors"
            is_inside = parts[0] in ("model", "best", "saves", "backup") and 2 <= len(parts) <= 12
            is_known = is_single or is_inside
            if not is_known or not all(map(is_plain_name, parts)) or path.lower() in seen or len(seen) >= _MOST_FILES:
                raise _refused(link, f"a file {printable(path, 100)!r}, none of a model or backup, or too many")
            seen.add(path.lower())
            yield result


def _is_complete(folder: RunFolder, item: str, files: Sequence[Result]) -> bool:
    """Whether exactly these files are here, with this content."""
    place = folder.path / item
    here = {file for file in place.rglob("*") if file.is_file()} if place.is_dir() else {place}
    if here != {folder.path / result.path for result in files}:
        return False
    try:
        return all(_digest(folder.path / result.path) == result.sha256 for result in files)
    except (OSError, FileFault):
        return False


def _share(share: Callable[[float], object], before: int, total: int, size: int) -> None:
    share((before + size) / max(1, total))


def _fetch(link: Link, folder: RunFolder, place: Path, result: Result, came: Callable[[int], object]) -> None:
    """Bring one file to `place`, from where an earlier try has ended."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(open_for_writing(place, append=True), "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size > result.size:
            file.truncate(0)
            size = 0
        if size < result.size:
            link.tell("get", run=folder.name, path=result.path, offset=size)
            is_last = False
            while not is_last:
                piece, data = link.read(_Piece)
                is_last = piece.last
                size += len(data)
                if size > result.size:
                    raise _refused(link, f"more bytes of {result.path} than it has said")
                file.write(data)
                came(size)
    if _digest(place) != result.sha256:
        place.unlink()
        raise HostError(
            f"{result.path} did not arrive as it is on {link.name}: it was damaged, or has changed there meanwhile",
            "Pull again",
        )


def _listing_digest(files: Sequence[Result]) -> str:
    """A name for a content: what was begun of another one is not gone on with."""
    text = "\n".join(f"{result.path} {result.size} {result.sha256}" for result in files)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _events_digest(folder: RunFolder) -> str:
    """By which the other side knows whether the copy's events are the beginning of its own; "" without any."""
    return _digest(folder.events_file) if folder.events_file.is_file() else ""


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _refused(link: Link, what: str) -> HostError:
    return HostError(f"{link.name} sends {what}; nothing of it was kept", "Do not trust that machine")
