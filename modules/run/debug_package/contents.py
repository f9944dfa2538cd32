"""What goes into a debug package, collected into memory, so that it can be shown before it is written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Final

from modules import __version__
from modules.config import Sample
from modules.config.choices import drawn_prompts
from modules.files import (
    MASK,
    FileFault,
    is_secret_name,
    mask_secrets,
    open_for_writing,
    open_regular,
    printable,
    read_json,
    read_tail,
    replacing,
)
from modules.machine import device_summary
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
_LONGEST: Final = 100_000  # characters of one text
_SHORTEST_QUOTE: Final = 8  # characters
# The home folders of Linux, macOS and Windows, of anybody, also with the doubled separators of a quoted text, and on
# disks that are mounted elsewhere, such as /mnt/home/anna.
_HOMES: Final = re.compile(
    r"(?i)(?:(?<![\w/.~-])(?:/[\w.-]{1,64}){0,3}/(?:home|Users)/[^/\s:'\"]+|(?<![\w/.~-])/root(?![\w.-])"
    r"|\b[A-Z]:\\{1,2}Users\\{1,2}[^\\\s:'\"]+)"
)
# What `mask_secrets` leaves, because the name of a setting before an error would mask the error; each with the group to
# keep before the mask. A number is no token ("max_token: 77"), nor is a word of a tokenizer ("pad_token: <pad>");
# PWD is a folder.
_SECRETS: Final = (
    re.compile(r"(?i)(TANDEM_JOIN_TOKEN['\"]?\s*[=:]\s*['\"]?|--token(?:_file)?[ =]['\"]?)[^\s'\"]+"),
    re.compile(r"(?i)(\b[\w-]{0,40}(?:password|passwd|passphrase)['\"]?\s{0,3}[:=]\s{0,3}['\"]?)[^\s'\",;&]+"),
    re.compile(
        r"(?i)(\b[\w-]{0,40}(?:token|secret|api[_-]?key|access[_-]?key)['\"]?\s{0,3}[:=]\s{0,3}['\"]?)"
        r"(?!\d+\b|<[^\s'\"]*>|\[[A-Z]+\])[^\s'\",;&]{6,}"
    ),
    re.compile(r"(?i)(\b\w{0,40}pwd['\"]?\s{0,3}[:=]\s{0,3}['\"]?)(?![/~.]|[a-z]:\\)[^\s'\",;&]+"),
    re.compile(r"(\b[A-Z0-9_]{0,40}_KEY['\"]?\s{0,3}[:=]\s{0,3}['\"]?)[^\s'\",;&]+"),
    re.compile(r"(\bsshpass\s+-p\s*['\"]?)[^\s'\"]+"),
    re.compile(r"(\bcurl\b[^\n]{0,200}?\s(?:-u|--user)[\s=]*['\"]?[^\s:'\"]{1,100}:)[^\s'\"]+"),
    re.compile(r"(?i)(\bauthorization['\"]?\s{0,3}[:=]\s{0,3}['\"]?(?:\w{1,20}\s{1,3})?)[\w.~+/=-]{6,}"),
    re.compile(r"(?i)(\b(?:wandb|password)\b[^\n]{0,60}?\b)[0-9a-f]{40}\b"),
    re.compile(
        r"(?i)(--[\w-]{0,40}(?:password|passphrase|secret)[ =]['\"]?|\blogin\s+\S+\s+password\s+)\S+"
    ),  # a .netrc
    re.compile(
        r"(?i)(\b(?:set-)?cookie:\s|\b[\w-]{0,40}(?:secret|private)[_-]?key['\"]?\s{0,3}[:=]\s{0,3}['\"]?)[^\n'\"]+"
    ),
    re.compile(r"\b(xox[a-z]-|AIza|npm_|r8_|eyJ[\w-]{8,}\.(?=eyJ))[\w.-]{16,}"),  # Slack, Google, npm, Replicate, JWT
    re.compile(r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)(?s:.)*?(?=-----END|\Z)"),
)
# Prompts of custom samples that fail, and captions, which are in no settings.
_QUOTES: Final = (
    re.compile(r"(the sample )['\"\\].{1,5000}?(?= (?:\(|is )\d{1,5}x\d)"),
    re.compile(r"(truncated, for example )['\"\\].{1,400}?(?=\.\.\. \()"),
)
# What people write to be drawn, and their name; the start of a caption is a setting, too.
_PRIVATE_NAMES: Final = frozenset(
    {
        "prompt",
        "written_prompt",
        "negative_prompt",
        "prompt_prefix",
        "caption",
        "captions",
        "trigger_phrase",
        "model_author",
        "note",
    }
)


@dataclass(frozen=True)
class PackedFile:
    """One file of the package: its name there, what it is, and its text."""

    name: str
    about: str
    text: str


def collect_parts(
    folder: RunFolder | None, config: Mapping[str, object] | None = None, message: str = ""
) -> list[PackedFile]:
    """The parts for a run, or without one for settings; `message` is the error that the window shows.

    What cannot be read is left out. Takes up to a second; imports no torch. Raises ConfigError for a run folder with a
    link, which could lead to any file of this user's, and OSError if it cannot be listed.
    """
    if folder is not None:
        refuse_links(folder.path)
    events = _read_events(folder.events_file) if folder is not None else []
    parts = [*_run_parts(folder, events)] if folder is not None else []
    if config is not None and folder is None:
        parts.insert(0, PackedFile("config.json", "the settings in the window", _json(config)))
    if message:
        parts.insert(0, PackedFile("message.txt", "the error as it was shown", f"{anonymous_text(message)}\n"))
    parts.append(PackedFile("versions.txt", "Tandem, Python, the system, and the installed packages", _versions()))
    devices = f"{anonymous_text(device_summary())}\n"
    parts.append(PackedFile("devices.txt", "processors, memory and GPUs of this machine", devices))
    quoted = [event for event in events if event["type"] == "started" or "-custom-" in str(event.get("file"))]
    parts = _without(parts, private_texts([_config_of(folder) if folder is not None else config, *quoted]))
    return [PackedFile("about.txt", "what is in this package", _about(parts)), *parts]


def _config_of(folder: RunFolder) -> object:
    try:
        return read_json(folder.config_file, only_finite=False)
    except (OSError, FileFault):
        return None


def _without(parts: list[PackedFile], texts: set[str]) -> list[PackedFile]:
    """The parts without prompts that a log quotes, and without captions in the sentences that quote one."""
    forms = sorted({form for text in texts for form in (text, json.dumps(text)[1:-1])}, key=len, reverse=True)
    for form in forms:
        parts = [replace(part, text=part.text.replace(form, "(left out)")) for part in parts]
    for pattern in _QUOTES:
        parts = [replace(part, text=pattern.sub(r"\1(left out)", part.text)) for part in parts]
    return parts


def _run_parts(folder: RunFolder, read: list[Event]) -> Iterator[PackedFile]:
    for file in (folder.config_file, *sorted(folder.path.glob("machine-*.json"))[:_MOST_LOGS]):
        try:
            yield PackedFile(file.name, "the settings of the run", _json(read_json(file, only_finite=False)))
        except (OSError, FileFault):
            continue
    if events := _kept_events(read):
        lines = (json.dumps(anonymous(event), ensure_ascii=False) for event in events)
        about = f"what the run reported in its last {LAST_S / 60:.0f} minutes, and its warnings and errors"
        yield PackedFile("events.jsonl", about, "".join(f"{line}\n" for line in lines))
    for file in _logs(folder):
        if text := _tail(file, _LOG_BYTES):
            yield PackedFile(f"log/{file.name}", f"the last {_LOG_BYTES >> 10} kB at most", anonymous_text(text))


def _read_events(file: Path) -> list[Event]:
    """The events of the beginning and the end of the log; of a short one they come twice."""
    return [*parse_events(_head(file, _EVENT_BYTES // 4)), *parse_events(_tail(file, _EVENT_BYTES).encode())]


def _kept_events(found: list[Event]) -> list[Event]:
    """The events of the last minutes, and the important ones."""
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


def _about(parts: list[PackedFile]) -> str:
    lines = "".join(f"  {part.name}: {part.about}\n" for part in parts)
    masked = ", ".join(f"{part.name} ({part.text.count(MASK)})" for part in parts if MASK in part.text)
    return (
        f"Debug package of Tandem {__version__}, {time.strftime('%Y-%m-%d %H:%M')}\n\n{lines}\n"
        "Passwords, access tokens and the join token are masked, home folders are ~. Of prompts and captions only the\n"
        "length is given. Images, weights and backups are not in it. Names of files and of machines may be.\n"
        f"Masked as {MASK}: {masked or 'nothing'}.\n"
    )


def write_package(parts: Sequence[PackedFile], file: Path) -> int:
    """Write the parts as a zip, replacing `file` once it is complete; returns its bytes. Raises OSError."""
    with (
        replacing(file) as partial,
        os.fdopen(open_for_writing(partial), "w+b") as opened,
        zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED) as package,
    ):
        for part in parts:
            package.writestr(part.name, part.text.encode())
    return file.stat().st_size


def anonymous_text(text: str) -> str:
    """`text`, printable, with ~ for home folders and *** for secrets."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    text = mask_secrets(text)
    for home in {str(Path.home()), str(Path.home().resolve())} - {"/", ""}:
        text = re.sub(rf"{re.escape(home)}(?![\w-])", "~", text)
    return printable(_HOMES.sub("~", text), max(_LONGEST, len(text) + 1), lines=True)


def anonymous(value: object, name: str = "") -> object:
    """Data as of JSON, with all its texts made so; of prompts and captions only the length is left."""
    if isinstance(value, Mapping):
        return {_anonymous_word(str(key), Path.home()): anonymous(item, str(key)) for key, item in value.items()}
    if name in _PRIVATE_NAMES and value:
        return f"(left out, {len(str(value))} characters)"
    if isinstance(value, (list, tuple)):
        return [anonymous(item, name) for item in value]
    if is_secret_name(name) and value:
        return MASK
    return _anonymous_word(value, Path.home()) if isinstance(value, str) else value


@lru_cache(maxsize=1 << 14)
def _anonymous_word(text: str, home: Path) -> str:  # while the home is the same
    """Events of 4,096 ranks have the same few thousand names in each line, and each takes 25 patterns."""
    return anonymous_text(text)


def private_texts(value: object, name: str = "") -> set[str]:
    """The prompts and their like in data; shorter ones than 8 characters may be ordinary words."""
    if isinstance(value, Mapping):
        return {text for key, item in _with_drawn(value).items() for text in private_texts(item, str(key))}
    if isinstance(value, (list, tuple)):
        return {text for item in value for text in private_texts(item, name)}
    if name not in _PRIVATE_NAMES or not isinstance(value, str):
        return set()
    return {value} if len(value.strip()) >= _SHORTEST_QUOTE else set()


def _with_drawn(value: Mapping[object, object]) -> Mapping[object, object]:
    """A sample's settings with what is drawn of `{a|b}` in its prompts, which is what logs quote."""
    if not isinstance(prompt := value.get("prompt"), str):
        return value
    negative, seed = value.get("negative_prompt"), value.get("seed")
    seed = seed if isinstance(seed, int) else Sample.model_fields["seed"].default
    drawn = drawn_prompts(prompt, negative if isinstance(negative, str) else "", seed)
    return {**value, "prompt": [prompt, drawn[0]], "negative_prompt": [negative, drawn[1]]}
