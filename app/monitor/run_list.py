"""All runs of a folder at a glance, read from the head and the tail of their events, however long those are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app import texts
from app.run_status import Life, Status, look_at, status_of
from app.run_view import RunView
from modules.run import Event, EventReader, RunFolder
from modules.run.events import parse_events

MOST_RUNS: Final = 2000
_HEAD_BYTES: Final = 192 << 10
_TAIL_BYTES: Final = 96 << 10


@dataclass(frozen=True)
class RunSummary:
    """One run as a row of the table; times in seconds since 1970."""

    path: Path
    status: Status
    begun: float | None
    length_s: float
    step: int | None
    total_steps: int | None
    loss: float | None
    measured: float | None

    @property
    def name(self) -> str:
        """The run's name."""
        return self.path.name


class RunList:
    """Remembers what did not change since the last look. Any thread, one at a time."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[tuple[int, float, Life], RunSummary]] = {}

    def look(self, runs_dir: Path) -> list[RunSummary]:
        """The runs, the newest first."""
        found = [summary for path in _folders(runs_dir) if (summary := self._summary(path)) is not None]
        self._known = {summary.path: self._known[summary.path] for summary in found}
        return sorted(found, key=lambda summary: summary.begun or 0.0, reverse=True)

    def _summary(self, path: Path) -> RunSummary | None:
        folder = RunFolder(path)
        try:
            status = folder.events_file.stat() if folder.events_file.exists() else folder.config_file.stat()
            life = look_at(folder)
            key = (status.st_size, status.st_mtime, life)
            known = self._known.get(path)
            if known is None or known[0] != key:
                known = key, summary_of(folder, life)
                self._known[path] = known
        except OSError:
            return None  # deleted meanwhile
        return known[1]


def summary_of(folder: RunFolder, life: Life) -> RunSummary:
    """Read what a row needs."""
    view = RunView()
    view.apply(_head_and_tail(folder.events_file))
    step, facts = view.step, view.facts
    measured = view.measured.get("validation")
    begun = view.first_time or _written(folder.config_file)
    return RunSummary(
        folder.path,
        status_of(view, life, time.time()),
        begun,
        max(0.0, view.time - (view.first_time or view.time)),
        None if step is None else step.step,
        None if facts is None else facts.total_steps,
        None if step is None else step.loss,
        measured.curve().means[-1] if measured is not None and len(measured) else None,
    )


def read_view(folder: RunFolder) -> RunView:
    """All of a run, for a comparison. Takes a second for 200,000 steps: not on the Tk thread."""
    view, reader = RunView(), EventReader(folder.events_file, at_once_bytes=16 << 10)
    while events := reader.new():
        view.apply(events)
        time.sleep(0.001)  # lets the window have its turn
    return view


def differences(paths: list[Path]) -> list[tuple[str, list[str]]]:
    """The settings in which runs differ: the path of each, and its value in every run (empty where it has none)."""
    configs = [dict(_flat(_config(path))) for path in paths]
    names = sorted({name for config in configs for name in config})
    rows = [
        (name, [config.get(name, "") for config in configs]) for name in names if name not in {"run_name", "version"}
    ]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _folders(runs_dir: Path) -> list[Path]:
    try:
        found = [path for path in runs_dir.iterdir() if RunFolder(path).config_file.is_file()]
        return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_RUNS]
    except OSError:
        return []


def _head_and_tail(file: Path) -> list[Event]:
    try:
        with file.open("rb") as events:
            head = events.read(_HEAD_BYTES)
            end = events.seek(0, 2)
            if end <= _HEAD_BYTES:
                return list(parse_events(head))
            events.seek(max(_HEAD_BYTES, end - _TAIL_BYTES))
            tail = events.read(_TAIL_BYTES)
    except OSError:
        return []
    whole_head = head[: head.rfind(b"\n") + 1]
    whole_tail = tail[tail.find(b"\n") + 1 : tail.rfind(b"\n") + 1]
    return [*parse_events(whole_head), *parse_events(whole_tail)]


def _config(path: Path) -> object:
    try:
        return json.loads(RunFolder(path).config_file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def _flat(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value:
        for name, inside in value.items():
            yield from _flat(inside, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for place, inside in enumerate(value):
            yield from _flat(inside, f"{path}.{place}")
    else:
        yield path, _words(value)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return texts.ON if value else texts.OFF
    if value is None or value == [] or value == {}:
        return "-"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _written(file: Path) -> float | None:
    try:
        return file.stat().st_mtime
    except OSError:
        return None
