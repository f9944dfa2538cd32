"""What goes into a debug package, collected into memory, so that it can be shown before it is written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from modules import __version__
from modules.files import MASK, FileFault, open_regular, read_json, read_tail
from modules.machine import device_summary
from modules.run.debug_package.anonymous import anonymous, anonymous_text, private_texts
from modules.run.folder.event_reader import event_time, parse_events
from modules.run.folder.events import Event
from modules.run.folder.links import refuse_links
from modules.run.folder.run_folder import RunFolder

LAST_S: Final = 600.0  # of the events
_LOG_BYTES: Final = 256 << 10  # of the end of each log
_EVENT_BYTES: Final = 2 << 20  # of the end of the event log
_MOST_LOGS: Final = 64
_KEPT: Final = frozenset({"started", "error", "warning", "finished"})  # however old, from the start of the log
_LEFT_OUT: Final = frozenset({"join_line.txt"})  # the token of the run
_SUFFIXES: Final = (".txt", ".json")


@dataclass(frozen=True)
class Part:
    """One file of the package: its name there, what it is, and its text."""

    name: str
    about: str
    text: str


def collect_parts(
    folder: RunFolder | None, config: Mapping[str, object] | None = None, message: str = ""
) -> list[Part]:
    """The parts for a run, or without one for settings; `message` is the error that the window shows.

    What cannot be read is left out. Takes up to a second; imports no torch. Raises ConfigError for a run folder with a
    link, which could lead to any file of this user's, and OSError if it cannot be listed.
    """
    if folder is not None:
        refuse_links(folder.path)
    parts = [*_run_parts(folder)] if folder is not None else []
    if config is not None and folder is None:
        parts.insert(0, Part("config.json", "the settings in the window", _json(config)))
    if message:
        parts.insert(0, Part("message.txt", "the error as it was shown", f"{anonymous_text(message)}\n"))
    parts.append(Part("versions.txt", "Tandem, Python, the system, and the installed packages", _versions()))
    parts.append(
        Part("devices.txt", "processors, memory and GPUs of this machine", f"{anonymous_text(device_summary())}\n")
    )
    parts = _without(parts, private_texts(_config_of(folder) if folder is not None else config))
    return [Part("about.txt", "what is in this package", _about(parts)), *parts]


def _config_of(folder: RunFolder) -> object:
    try:
        return read_json(folder.config_file, only_finite=False)
    except (OSError, FileFault):
        return None


def _without(parts: list[Part], texts: set[str]) -> list[Part]:
    """The parts without prompts that a log quotes."""
    forms = sorted({form for text in texts for form in (text, json.dumps(text)[1:-1])}, key=len, reverse=True)
    for form in forms:
        parts = [replace(part, text=part.text.replace(form, "(left out)")) for part in parts]
    return parts


def _run_parts(folder: RunFolder) -> Iterator[Part]:
    for file in (folder.config_file, *sorted(folder.path.glob("machine-*.json"))[:_MOST_LOGS]):
        try:
            yield Part(file.name, "the settings of the run", _json(read_json(file, only_finite=False)))
        except (OSError, FileFault):
            continue
    if events := _events(folder.events_file):
        lines = (json.dumps(anonymous(event), ensure_ascii=False) for event in events)
        about = f"what the run reported in its last {LAST_S / 60:.0f} minutes, and its warnings and errors"
        yield Part("events.jsonl", about, "".join(f"{line}\n" for line in lines))
    for file in _logs(folder):
        if text := _tail(file, _LOG_BYTES):
            yield Part(f"log/{file.name}", f"the last {_LOG_BYTES >> 10} kB at most", anonymous_text(text))


def _events(file: Path) -> list[Event]:
    """The events of the last minutes, and the important ones of the beginning and the end of the log."""
    found = [*parse_events(_head(file, _EVENT_BYTES // 4)), *parse_events(_tail(file, _EVENT_BYTES).encode())]
    since = max((event_time(event) for event in found), default=0.0) - LAST_S
    kept = {json.dumps(event): event for event in found if event_time(event) >= since or event["type"] in _KEPT}
    return list(kept.values())


def _logs(folder: RunFolder) -> list[Path]:
    try:
        with os.scandir(folder.log_dir) as entries:
            names = [entry.name for entry in entries if entry.name.endswith(_SUFFIXES) and entry.is_file()]
    except OSError:
        return []
    return [folder.log_dir / name for name in sorted(names) if name not in _LEFT_OUT][:_MOST_LOGS]


def _head(file: Path, limit: int) -> bytes:
    try:
        with open_regular(file) as opened:
            data = opened.read(limit)
    except (OSError, FileFault):
        return b""
    return data[: data.rfind(b"\n") + 1]


def _tail(file: Path, limit: int) -> str:
    """The last whole lines within `limit` bytes."""
    data = read_tail(file, limit + 1)
    return (data if len(data) <= limit else data[data.find(b"\n") + 1 :]).decode(errors="replace")


def _json(data: object) -> str:
    return f"{json.dumps(anonymous(data), indent=1, ensure_ascii=False)}\n"


def _versions() -> str:
    packages = {f"{each.metadata['Name']}=={each.version}" for each in importlib.metadata.distributions()}
    system = f"{platform.system()} {platform.release()} ({platform.machine()})"
    lines = [
        f"Tandem {__version__}",
        f"Python {platform.python_version()}",
        system,
        "",
        *sorted(packages, key=str.lower),
    ]
    return anonymous_text("".join(f"{line}\n" for line in lines))


def _about(parts: list[Part]) -> str:
    lines = "".join(f"  {part.name}: {part.about}\n" for part in parts)
    masked = ", ".join(f"{part.name} ({part.text.count(MASK)})" for part in parts if MASK in part.text)
    return (
        f"Debug package of Tandem {__version__}, {time.strftime('%Y-%m-%d %H:%M')}\n\n{lines}\n"
        "Passwords, access tokens and the join token are masked, home folders are ~. Of prompts and captions only the\n"
        "length is given. Images, weights and backups are not in it. Names of files and of machines may be.\n"
        f"Masked as {MASK}: {masked or 'nothing'}.\n"
    )
