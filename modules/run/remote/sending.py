"""What another machine gets for a run: Tandem's code, the files that a config names, and the config with their places
there."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules import ROOT
from modules.config import Concept, ConfigError, DataError, TrainConfig, dump, override, validate
from modules.config.imported_code import read_with_imports
from modules.config.sections.concept import IMAGE_SUFFIXES, LIST_NAMES, METADATA_NAMES
from modules.facts import FILE_INDEX
from modules.files import Record, is_shard, open_regular, printable, weight_map
from modules.files.shard_paths import SHARD_OF_CACHE
from modules.files.videos import VIDEO_SUFFIXES
from modules.run.format_progress import BYTES, format_bytes, format_progress
from modules.run.hosts.host import Host
from modules.run.hosts.ssh_command import HostError
from modules.run.join.allowed_paths import path_settings, paths_of_machine_0, separator_of
from modules.run.join.fingerprint import data_listing, walk_files
from modules.run.remote.far_messages import PIECE
from modules.run.remote.link import Link

_CODE: Final = ("app", "modules", "presets", "scripts", "tandem")
_BESIDE_CODE: Final = ("pyproject.toml", "requirements.lock", "README.md", "LICENSE")
_NOT_SENT: Final = ("__pycache__", "mine")  # bytecode; presets of this user
_BATCH: Final = 1000  # files of one message
_SPARE: Final = 1 << 30  # bytes that stay free there, for the first backup
_LISTED: Final = ("auto", "metadata", "label")  # caption sources that read files with the captions of many images
_TELL_EVERY_S: Final = 5.0
_ASK_EVERY: Final = 64 << 20  # bytes, after which a fault there is asked for
_A_PATH: Final = re.compile(r"[/~]|\.\.?[/\\]|[A-Za-z]:|.*\.(safetensors|gguf)$")

Echo = Callable[[str], None]
_Count = Annotated[int, Field(ge=-1, le=1 << 50)]


class Hello(Record):
    """What the other side says of itself; `is_ours`: Tandem has made its folder there."""

    home: Annotated[str, Field(pattern=r"^/[^\x00-\x1f\x7f]{0,999}$")]
    is_ours: bool
    free: Annotated[int, Field(ge=0)]
    python: Annotated[str, Field(max_length=100)]
    system: Annotated[str, Field(max_length=100)]


class Numbers(Record):
    """An answer about each file of a request, or about some."""

    numbers: Annotated[list[_Count], Field(max_length=_BATCH)]


@dataclass(frozen=True)
class Upload:
    """A file here and its place there, below Tandem's folder; size in bytes, date in ns."""

    place: str
    file: Path
    size: int
    date: int

    @classmethod
    def of(cls, file: Path, place: str) -> Upload:
        """Raises OSError."""
        found = file.stat()
        return cls(place, file, found.st_size, found.st_mtime_ns)


def code_uploads() -> list[Upload]:
    """Tandem's programs as they are here, of a checkout or an installed package."""
    files = [file for part in _CODE for file in sorted((ROOT / part).rglob("*")) if file.is_file()]
    files += [ROOT / name for name in _BESIDE_CODE if (ROOT / name).is_file()]
    kept = [file for file in files if not {*file.relative_to(ROOT).parts} & {*_NOT_SENT}]
    return [Upload.of(file, f"code/{file.relative_to(ROOT).as_posix()}") for file in kept]


def place_there(path: str) -> str:
    """Where a file or folder of this computer goes: by its whole path, below data/."""
    whole = Path(os.path.abspath(os.path.expanduser(path))).as_posix()
    drive, rest = os.path.splitdrive(whole)  # of Windows: C:
    return f"data/{(drive.replace(':', '') + rest).strip('/')}"


def data_uploads(config: TrainConfig, own: Iterable[str]) -> dict[str, list[Upload]]:
    """The files that a run reads, by the path that the config names. `own` are settings that the machine chooses.

    Raises DataError if a folder of images is missing, ConfigError for a family file that cannot be read, or two files
    that would be one there, OSError.
    """
    found: dict[str, dict[Path, Upload]] = {}
    files: dict[str, Path] = {}  # by their places
    for name, value in _sent_settings(config, own):
        for path in _parts(name, value):
            uploads = found.setdefault(path, {})
            for file in _files_of(config, name, os.path.expanduser(path)):
                upload = uploads.setdefault(file, Upload.of(file, place_there(str(file))))
                other = files.setdefault(upload.place, file)
                if other != file and not other.samefile(file):
                    raise ConfigError(f"{other} and {file} would both be {upload.place} there", "Rename one")
    return {path: list(uploads.values()) for path, uploads in found.items()}


def sent_folders(paths: Iterable[str]) -> list[str]:
    """The places of those that are folders."""
    return [place_there(path) for path in paths if os.path.isdir(os.path.expanduser(path))]


def only_there(config: TrainConfig, own: Iterable[str]) -> list[tuple[str, str]]:
    """(name, value) of settings that can only be paths, and not of this computer: the other one must have them."""
    names = {name for name, _ in paths_of_machine_0(config, own) if not name.startswith(("concepts.", "family"))}
    named = [(name, part) for name, value in path_settings(config) if name in names for part in _parts(name, value)]
    return [(name, part) for name, part in named if _A_PATH.match(part) and not _is_here(part)]


def config_there(config: TrainConfig, host: Host, home: str, run_name: str | None) -> str:
    """The config as JSON with the places of its files on the other machine, whose `home` is Tandem's folder there.

    Raises ConfigError for settings of the machine that do not fit.
    """
    data = dump(config)
    for name, value in places_there(config, host, home).items():
        _assign(data, name, value)
    own = {"runs_dir": "runs", "cache_dir": "cache", "rescue_dir": "rescued"}
    data |= {"run_name": run_name, **{name: f"{home}/{folder}" for name, folder in own.items()}}
    settings = list(host.settings)
    return json.dumps(dump(validate(override(data, settings), f"The settings for {host}", settings)))


def places_there(config: TrainConfig, host: Host, home: str) -> dict[str, str]:
    """The settings whose files are sent, by their names, with the places that these have there."""
    found = {}
    for name, value in _sent_settings(config, own_settings(host)):
        parts = [f"{home}/{_place_of(name, part)}" if _is_here(part) else part for part in _parts(name, value)]
        found[name] = f"{separator_of(name)} ".join(parts)
    return found


def own_settings(host: Host) -> set[str]:
    """The names of the settings that a machine's entry in the list chooses for it."""
    return {assignment.partition("=")[0].strip() for assignment in host.settings}


def _sent_settings(config: TrainConfig, own: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(name, value) of the settings whose files the run reads and which are on this computer."""
    names = {name for name, _ in paths_of_machine_0(config, own)}
    for name, value in path_settings(config):
        group, _, rest = name.partition(".")
        is_used = group != "concepts" or config.concepts[int(rest.partition(".")[0])].enabled
        if name in names and is_used and any(_is_meant(name, part) for part in _parts(name, value)):
            yield name, value


def _parts(name: str, value: str) -> list[str]:
    separator = separator_of(name)
    return [part for each in value.split(separator) if (part := each.strip())] if separator else [value]


def _place_of(name: str, path: str) -> str:
    """A family file goes where what it imports goes, which is beside the file that a link leads to."""
    return place_there(os.path.realpath(os.path.expanduser(path)) if name == "family" else path)


def _is_here(path: str) -> bool:
    return "\0" not in path and os.path.exists(os.path.expanduser(path))


def _is_meant(name: str, path: str) -> bool:
    """Whether a text is the path of something here, or of images, which must be. A word among a family's options is
    none, even if a folder has its name."""
    if name.startswith("family_options.") and not os.path.dirname(path):
        return os.path.isfile(path)
    return _is_here(path) or name.startswith("concepts.")


def _files_of(config: TrainConfig, name: str, path: str) -> Iterator[Path]:
    file = Path(path)
    if name == "family":
        yield from (code.path for code in read_with_imports(file))
    elif name.startswith("concepts."):
        concept: Concept = config.concepts[int(name.split(".")[1])]
        with_videos = config.clip_step is not None
        names = list(data_listing(concept.model_copy(update={"path": path}), with_videos=with_videos))
        kept = _read_names(concept, path, names, with_texts=name.endswith(".path"))
        yield from (file / each for each in kept) if file.is_dir() else [file]
    elif file.is_dir():
        yield from (file / each for each, _ in walk_files(file, lambda _: "sent"))
    elif file.is_file():
        yield file
        if file.name.endswith(FILE_INDEX):
            yield from (file.parent / shard for shard in sorted(set(weight_map(file).values())))


def _read_names(concept: Concept, root: str, names: Iterable[str], *, with_texts: bool) -> Iterator[str]:
    """Of the files in a folder of images those that a run reads: images, shards of them, and the texts of its caption
    source."""
    bases = {name: os.path.basename(name).lower() for name in names}
    suffixes = IMAGE_SUFFIXES | VIDEO_SUFFIXES
    images = {name for name, base in bases.items() if os.path.splitext(base)[1] in suffixes}
    unpacked = {os.path.dirname(name) for name in images if not name.endswith(concept.mask_suffix)}
    stems = {part for name in images for part in (bases[name], os.path.splitext(bases[name])[0])}
    for name, base in bases.items():
        is_list = base in (*METADATA_NAMES, *LIST_NAMES) and concept.caption_source in _LISTED
        is_text = any(base.endswith(end) and base.removesuffix(end) in stems for end in concept.text_suffixes)
        if name in images or (with_texts and (is_list or is_text or _is_read_shard(root, name, unpacked))):
            yield name


def _is_read_shard(root: str, name: str, unpacked: set[str]) -> bool:
    """As modules/data/index/scan.py reads them: not beside images, nor beside the folder that they were unpacked to."""
    folder, base = os.path.split(name)
    if not is_shard(base) or base in METADATA_NAMES or base.startswith(SHARD_OF_CACHE):
        return False
    return folder not in unpacked and not os.path.lexists(os.path.join(root, os.path.splitext(name)[0]))


def _assign(data: object, name: str, value: str) -> None:
    *parents, last = name.split(".")
    for part in parents:
        data = data[int(part)] if isinstance(data, list) else data[part]  # type: ignore[index]
    data[int(last) if isinstance(data, list) else last] = value  # type: ignore[index]


class Push:
    """Files on their way to one machine; `send` may be called again after a connection was lost."""

    def __init__(
        self,
        uploads: Sequence[Upload],
        echo: Echo,
        folders: Sequence[str] = (),
        share: Callable[[float], object] = lambda _: None,
    ) -> None:
        """`folders` are places there in which nothing but the uploads stays. `share` gets how much is there, 0 to 1."""
        self._uploads, self._echo, self._folders, self._share = uploads, echo, folders, share
        self._session = os.urandom(8).hex()  # by which the other side knows the same push again
        self._digests: dict[Path, str] = {}
        self._unasked = 0  # bytes that were sent since the other side has answered

    def send(self, link: Link) -> int:
        """Send what is missing or has changed there; returns how many files.

        Raises HostError if it has no room or what it answers is wrong, LinkLost, DataError for a file that changes.
        """
        needed = list(self.needed(link))
        if self._folders:  # before anything is sent, as a run that is active there may be in the way
            link.ask(Record, "prune", folders=self._folders, session=self._session)
        if not needed:
            return 0
        total = sum(upload.size for upload in needed)
        self._require_room(link, total)
        self._echo(f"Sending {_count(len(needed), 'file')} ({format_bytes(total)}) to {link.name}.")
        progress = _Progress(total, self._echo, self._share)
        sent = 0
        for start in range(0, len(needed), _BATCH):
            batch = needed[start : start + _BATCH]
            files = [(each.place, each.size, each.date, self._digest(each)) for each in batch]
            offsets = link.ask(Numbers, "offer", files=files, session=self._session).numbers
            if len(offsets) != len(batch):
                raise _nonsense(link)
            for upload, offset in zip(batch, offsets, strict=True):
                if offset > upload.size:
                    raise _nonsense(link)
                sent += offset >= 0
                progress.add(upload.size if offset < 0 else offset)
                if offset >= 0:
                    self._send_file(link, upload, offset, progress)
            link.ask(Record, "saved")
        return sent

    def is_needed(self, link: Link) -> bool:
        """Whether anything is missing or has changed there."""
        return next(self.needed(link), None) is not None

    def needed(self, link: Link) -> Iterator[Upload]:
        """What is missing or has changed there."""
        for start in range(0, len(self._uploads), _BATCH):
            batch = self._uploads[start : start + _BATCH]
            answer = link.ask(Numbers, "compare", files=[(each.place, each.size, each.date) for each in batch])
            if any(not 0 <= number < len(batch) for number in answer.numbers):
                raise _nonsense(link)
            yield from (batch[number] for number in sorted(set(answer.numbers)))

    def _require_room(self, link: Link, total: int) -> None:
        hello = link.ask(Hello, "hello")
        if total + _SPARE > hello.free:
            raise HostError(
                f"{link.name} has {format_bytes(hello.free)} free in {printable(hello.home)}, and "
                f"{format_bytes(total)} are to be sent and {format_bytes(_SPARE)} must stay free",
                "Remove what is not needed there (tandem remote clean), or add it with a --folder on another disk",
            )

    def _digest(self, upload: Upload) -> str:
        if upload.file not in self._digests:
            with open_regular(upload.file) as file:
                self._digests[upload.file] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._digests[upload.file]

    def _send_file(self, link: Link, upload: Upload, offset: int, progress: _Progress) -> None:
        entry = {"path": upload.place, "size": upload.size, "date": upload.date}
        with open_regular(upload.file) as file:
            file.seek(offset)
            while True:
                piece = file.read(min(PIECE, upload.size - offset))
                is_last = offset + len(piece) == upload.size
                if not piece and not is_last:
                    raise DataError(f"{printable(upload.file)} has become shorter while it was sent", "Start again")
                link.tell("put", piece, **entry, sha256=self._digest(upload), offset=offset, last=is_last)
                offset += len(piece)
                progress.add(len(piece))
                self._unasked += len(piece)
                if self._unasked >= _ASK_EVERY:  # such as a full disk
                    link.ask(Hello, "hello")
                    self._unasked = 0
                if is_last:
                    return


class _Progress:
    """Says every few seconds how much is done."""

    def __init__(self, total: int, echo: Echo, share: Callable[[float], object]) -> None:
        self._total, self._echo, self._share = total, echo, share
        self._done, self._since, self._told = 0, time.monotonic(), time.monotonic()

    def add(self, count: int) -> None:
        self._done += count
        self._share(self._done / max(1, self._total))
        now = time.monotonic()
        if now - self._told > _TELL_EVERY_S:
            self._told = now
            left_s = (self._total - self._done) * (now - self._since) / max(1, self._done)
            self._echo(
                f"{format_progress(self._done, self._total, BYTES)} "
                f"({100 * self._done // max(1, self._total)} %), about {left_s:.0f} s left"
            )


def _nonsense(link: Link) -> HostError:
    return HostError(f"{link.name} answers in a way that Tandem does not understand: wrong numbers of files")


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"
