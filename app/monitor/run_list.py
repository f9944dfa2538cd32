"""Summaries of all runs in a folder, read from the head and the tail of their event files only."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.form.setting_text import format_value
from app.runs.liveness import Liveness, read_liveness
from app.runs.status import Status, status_of
from modules.files import FileFault, read_json
from modules.run import EventReader, RunFolder
from modules.run.folder.event_reader import head_and_tail
from modules.run.folder.run_folder import newest_first
from modules.run.folder.run_notes import RunNotes, notes_file, read_notes
from modules.run.view.run_view import RunView

MAX_RUNS: Final = 2000


@dataclass(frozen=True)
class RunSummary:
    """One run as a row of the table; times in seconds since 1970."""

    path: Path
    status: Status
    started: float | None
    duration_s: float
    step: int | None
    total_steps: int | None
    loss: float | None
    validation_loss: float | None
    notes: RunNotes = field(default_factory=lambda: RunNotes())

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name


class RunList:
    """Caches the summaries of unchanged runs. Usable from any thread, one at a time."""

    def __init__(self) -> None:
        self._cached: dict[Path, tuple[tuple[int, float, float, Liveness], RunSummary]] = {}

    def scan(self, runs_dir: Path, limit: int = MAX_RUNS) -> list[RunSummary]:
        """Summaries of the newest runs in a folder, newest first."""
        return self.scan_folders([runs_dir], limit)

    def scan_folders(self, folders: Sequence[Path], limit: int = MAX_RUNS) -> list[RunSummary]:
        """Summaries of the newest runs in each of several folders, newest first; by another path it is the same one."""
        once = {os.path.realpath(folder): folder for folder in reversed(folders)}  # the first path of each is shown
        found = self.read([path for folder in once.values() for path in _folders(folder)[:limit]])
        return sorted(found, key=lambda summary: summary.started or 0.0, reverse=True)

    def read(self, paths: Sequence[Path]) -> list[RunSummary]:
        """Summaries of these runs, as far as they exist; what is cached of others is forgotten."""
        found = [summary for path in paths if (summary := self._summary(path)) is not None]
        self._cached = {summary.path: self._cached[summary.path] for summary in found}
        return found

    def _summary(self, path: Path) -> RunSummary | None:
        folder = RunFolder(path)
        try:
            status = folder.events_file.stat() if folder.events_file.exists() else folder.config_file.stat()
            liveness = read_liveness(folder)
            key = (status.st_size, status.st_mtime, _modified(notes_file(folder)) or 0.0, liveness)
            cached = self._cached.get(path)
            if cached is None or cached[0] != key:
                cached = key, summarize_run(folder, liveness)
                self._cached[path] = cached
        except OSError:
            return None  # deleted in the meantime
        return cached[1]


def summarize_run(folder: RunFolder, liveness: Liveness) -> RunSummary:
    """Read the summary of one run."""
    view = RunView()
    view.apply(head_and_tail(folder.events_file))
    run_info = view.run_info
    validation_loss = view.eval_losses.get("validation")
    started = view.first_time or _modified(folder.config_file)
    return RunSummary(
        folder.path,
        status_of(view, liveness, time.time()),
        started,
        view.duration_s,
        view.position,
        None if run_info is None else run_info.total_steps,
        view.last_loss,
        validation_loss.curve().means[-1] if validation_loss is not None and len(validation_loss) else None,
        read_notes(folder),
    )


def read_view(folder: RunFolder) -> RunView:
    """Read a whole run. Takes a second per 200,000 steps: call it off the Tk thread."""
    view, reader = RunView(), EventReader(folder.events_file, chunk_bytes=16 << 10)
    while events := reader.new():
        view.apply(events)
        time.sleep(0.001)  # yield to the Tk thread
    return view


def setting_differences(paths: list[Path]) -> list[tuple[str, list[str]]]:
    """Settings that differ between runs: path, and the value in each run (empty if it has none).

    Runs of the queue have whole paths: a path of another run differs only if it leads somewhere else.
    """
    configs = [dict(_flat(_config(path))) for path in paths]
    names = sorted({name for config in configs for name in config})
    rows = [
        (name, [config.get(name, "") for config in configs]) for name in names if name not in {"run_name", "version"}
    ]
    started_in = [_started_in(path, config.get("runs_dir", "")) for path, config in zip(paths, configs, strict=True)]
    return [(name, values) for name, values in rows if len(_different(values, started_in)) > 1]


def _started_in(path: Path, runs_dir: str) -> Path | None:
    """The current folder in which a run was started, from a relative `runs_dir`; None if it does not tell."""
    below, runs = Path(runs_dir).parts, path.absolute().parent
    is_below = below and not Path(runs_dir).is_absolute() and runs.parts[-len(below) :] == below
    return Path(*runs.parts[: -len(below)]) if is_below else None


def _different(values: Sequence[str], started_in: Sequence[Path | None]) -> set[str]:
    """The values that differ: without a relative path that another value names whole."""
    whole = [
        value if folder is None or not value else str(folder / value)
        for value, folder in zip(values, started_in, strict=True)
    ]
    return {long if long in values else short for short, long in zip(values, whole, strict=True)}


def _folders(runs_dir: Path) -> list[Path]:
    """The run folders in a folder, newest first."""
    found = newest_first(runs_dir, lambda run: run.path.stat().st_mtime if run.config_file.is_file() else None)
    return [run.path for run in found[:MAX_RUNS]]


def _config(path: Path) -> object:
    try:
        return read_json(RunFolder(path).config_file)
    except (OSError, FileFault):
        return {}


def _flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inside in value.items():
            yield from _flat(inside, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for index, inside in enumerate(value):
            yield from _flat(inside, f"{path}.{index}")
    else:
        yield path, _format(value)


def _format(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == [] or value == {}:
        return "-"
    return format_value(value)


def _modified(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None
