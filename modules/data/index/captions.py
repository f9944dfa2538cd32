"""Finding the captions of an image. An image without a readable caption is used with an empty one and reported."""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from modules.config import Concept
from modules.config.captions import CaptionState, split_caption
from modules.data.index.links import describe_foreign_link, is_foreign_link
from modules.data.index.problems import Problem
from modules.data.index.scan import FolderScan
from modules.files import FileFault, control_character, decode_json, read_text

Metadata: TypeAlias = dict[str, tuple[str, ...]]

_TEXT_KEYS = ("text", "caption", "prompt")
_METADATA_SOURCES = ("auto", "metadata", "label")
_LABEL_KEYS = ("label", "class")
_MAX_CAPTION_FILE_BYTES = 1 << 20
_MAX_METADATA_BYTES = 512 << 20  # a line of text for each of a million images
_MAX_FAULTS = 20  # listed of one metadata file
_RULES = 2  # another number when captions are found otherwise than before, so that they are read again


class Captions:
    """Finds the captions of one concept's images; files are opened only when needed.

    auto: the image's metadata entry, else its caption file. If the concept has neither metadata nor caption files,
    captions are the file names; otherwise an image without either is reported and gets an empty caption.
    """

    def __init__(self, concept: Concept, scan: FolderScan) -> None:
        self.problems: list[Problem] = []
        self.faults: dict[str, str] = {}  # of caption files, by the image's relative path
        self._scan = scan
        self._concept = concept
        self._source: str = concept.caption_source
        if self._source == "auto" and not scan.metadata and (scan.stamps[:, 1, 0] < 0).all():
            self._source = "file_name"
        self._metadata: Metadata | None = None

    @property
    def origin(self) -> str:
        """Everything captions depend on apart from each image's caption file; if it is unchanged, so are they."""
        metadata = self._scan.metadata if self._source in _METADATA_SOURCES else []
        files = [self._concept.caption_lines, *self._concept.caption_extensions]
        return json.dumps([self._source, metadata, files, _RULES])

    def find(self, relative_path: str, has_text_file: bool) -> tuple[tuple[str, ...], CaptionState]:
        """The captions of one image (an empty tuple means one empty caption) and the state of the search."""
        if self._source == "none":
            return (), CaptionState.FOUND
        if self._source == "file_name":
            return _with_state((_from_name(posixpath.splitext(posixpath.basename(relative_path))[0]),))
        if self._source == "folder_name":
            folder = posixpath.basename(posixpath.dirname(relative_path)) or Path(self._scan.root).name
            return _with_state((_from_name(folder),))
        if self._source in _METADATA_SOURCES:
            entry = self._entries().get(relative_path)
            if entry is not None:
                return _with_state(entry)
        if self._source in ("auto", "txt") and has_text_file:
            return self._read_text(relative_path)
        return (), CaptionState.MISSING

    def read_metadata(self) -> None:
        """Read the metadata files now, so that `problems` includes theirs."""
        if self._source in _METADATA_SOURCES:
            self._entries()

    def _read_text(self, relative_path: str) -> tuple[tuple[str, ...], CaptionState]:
        stem = posixpath.splitext(relative_path)[0]
        for extension in self._concept.caption_extensions:
            name = posixpath.basename(stem) + extension
            path = os.path.join(self._scan.root, stem + extension)
            if is_foreign_link(path, self._scan.root, [os.path.join(self._scan.root, relative_path)]):
                reason = f"{name} {describe_foreign_link(path)}"
                break
            try:
                text = read_text(path, _MAX_CAPTION_FILE_BYTES)
            except FileNotFoundError:
                continue
            except FileFault as fault:
                reason = f"{name} {fault}"
            except OSError as error:
                reason = f"{name} cannot be read ({error.strerror})"
            else:
                captions, state = _with_state(split_caption(text, self._concept.caption_lines))
                is_stripped = state == CaptionState.FOUND and "\0" in text
                return captions, CaptionState.CONTROL if is_stripped else state
            break
        else:
            reason = "has been removed, or is a link to nothing"
        self.faults[relative_path] = f"its caption file {reason}; used with an empty caption"
        return (), CaptionState.UNREADABLE

    def _entries(self) -> Metadata:
        if self._metadata is None:
            self._metadata = {}
            keys = _LABEL_KEYS if self._source == "label" else _TEXT_KEYS
            for relative, _ in self._scan.metadata:  # a file deeper in the tree comes later and overrides
                self._metadata |= _read_metadata(self._scan.root, relative, keys, self.problems)
        return self._metadata


def pack_captions(captions: tuple[str, ...]) -> bytes:
    """UTF-8, the captions separated by newlines; a line end within a caption is a carriage return."""
    return "\n".join(caption.replace("\n", "\r") for caption in captions).encode("utf-8")


def unpack_captions(packed: bytes) -> tuple[str, ...]:
    """The result of `pack_captions`; ("",) if it is empty."""
    return tuple(caption.replace("\r", "\n") for caption in packed.decode("utf-8", "replace").split("\n"))


def _with_state(captions: tuple[str, ...]) -> tuple[tuple[str, ...], CaptionState]:
    nonempty = tuple(caption for caption in captions if caption)
    if not nonempty:
        return nonempty, CaptionState.EMPTY
    has_control = any(control_character(caption, lines=True) for caption in nonempty)
    return nonempty, CaptionState.CONTROL if has_control else CaptionState.FOUND


def _from_name(name: str) -> str:
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _one_line(readable.replace("_", " "))


def _one_line(text: str) -> str:
    # one pattern for line ends and the blanks around them would take quadratic time on a long row of blanks
    return " ".join(filter(None, (line.strip() for line in re.split("[\r\n]", text))))


def _read_metadata(root: str, relative: str, keys: Sequence[str], problems: list[Problem]) -> Metadata:
    path = Path(root, relative)
    try:
        text = read_text(path, _MAX_METADATA_BYTES)
        records = _csv_records(text) if relative.endswith(".csv") else _json_records(text, path, problems)
    except FileFault as fault:
        problems.append(Problem(str(path), f"it {fault}"))
        return {}
    except (OSError, csv.Error) as error:
        problems.append(Problem(str(path), f"cannot be read as {path.suffix[1:]}: {error}"))
        return {}
    entries: Metadata = {}
    unnamed = 0
    for record in records:
        name = record.get("file_name")
        if not isinstance(name, str):
            unnamed += 1
            continue
        key = posixpath.normpath(posixpath.join(posixpath.dirname(relative), name.replace("\\", "/")))
        entries[key] = _texts(record, keys)
    if unnamed:
        problems.append(
            Problem(str(path), f"{unnamed} {'entry has' if unnamed == 1 else 'entries have'} no `file_name`; ignored")
        )
    return entries


def _csv_records(text: str) -> list[dict[str, object]]:
    return [dict(row) for row in csv.DictReader(io.StringIO(text, newline=""))]


def _json_records(text: str, path: Path, problems: list[Problem]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    faults: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = decode_json(line)
        except FileFault as fault:
            faults.append(f"line {number} {fault}; it was ignored")
            continue
        if isinstance(record, dict):
            records.append(record)
        else:
            faults.append(f"line {number} is not a JSON object; it was ignored")
    problems.extend(Problem(str(path), fault) for fault in faults[:_MAX_FAULTS])
    if len(faults) > _MAX_FAULTS:
        problems.append(Problem(str(path), f"{len(faults) - _MAX_FAULTS} more lines are no JSON objects"))
    return records


def _texts(record: dict[str, object], keys: Sequence[str]) -> tuple[str, ...]:
    value = next((record[key] for key in keys if key in record), None)
    if isinstance(value, int) and keys is _LABEL_KEYS:
        value = str(value)
    texts = value if isinstance(value, list) else [value]
    # JSON can contain a lone surrogate, which neither tokenizers nor files accept.
    return tuple(_one_line(t.encode("utf-8", "replace").decode()) for t in texts if isinstance(t, str))
