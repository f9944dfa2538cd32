"""Finding the captions of an image. An image without a readable caption is used with an empty one and reported."""

from __future__ import annotations

import itertools
import json
import os
import posixpath
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from modules.config import Concept
from modules.config.captions import CaptionPlace, CaptionState, split_caption
from modules.data.index.caption_lists import (
    LABEL_KEYS,
    TEXT_KEYS,
    Entries,
    folded,
    one_line,
    read_entries,
    record_texts,
)
from modules.data.index.findings import CaptionFindings
from modules.data.index.links import describe_foreign_link, is_foreign_link
from modules.data.index.problems import Problem
from modules.data.index.scan import FolderScan
from modules.files import FileFault, control_character, decode_json, printable, read_bytes
from modules.files.encodings import SAMPLE, decode_unicode, find_encoding

_METADATA_SOURCES: Final = ("auto", "metadata", "label")
_MAX_CAPTION_FILE_BYTES: Final = 1 << 20
_PROBED: Final = 20  # NAME.json of a concept that show whether such files hold captions there
_COMPARED: Final = 1000  # images with two captions
_SAMPLED: Final = 200  # files that an encoding is found from
_RULES: Final = 5  # another number when captions are found otherwise than before, so that they are read again


class FoundCaption(NamedTuple):
    """The captions of one image (an empty tuple means one empty caption), the state of the search, and where."""

    captions: tuple[str, ...]
    state: CaptionState
    place: CaptionPlace = CaptionPlace.NOWHERE


class Captions:
    """Finds the captions of one concept's images; files are opened only when needed.

    auto: the first of an image's entry in metadata.jsonl or metadata.csv, its caption file (`FolderScan.caption_file`)
    and its entry in another list. If the concept has none of these, captions are the file names; otherwise an image
    without any is reported and gets an empty caption.
    """

    def __init__(self, concept: Concept, scan: FolderScan) -> None:
        self.problems: list[Problem] = []
        self.faults: dict[str, str] = {}  # of caption files, by the image's relative path
        self.encoding = ""  # of the caption files that are not UTF-8
        self._scan = scan
        self._concept = concept
        self._source: str = concept.caption_source
        self._keys = LABEL_KEYS if self._source == "label" else TEXT_KEYS
        self._column = concept.caption_column
        self._metadata: Entries | None = None
        self._lists: Entries | None = None
        self._records = {path: file for path, file in scan.caption_at.items() if self._is_record(file)}
        self._shards = frozenset(scan.shards)
        self._reads_records = self._source in _METADATA_SOURCES and self._records_have_captions()
        if self._source == "auto" and not self._has_captions():
            self._source = "file_name"

    @property
    def origin(self) -> str:
        """Everything captions depend on apart from each image's caption file; if it is unchanged, so are they."""
        is_listed = self._concept.caption_source in _METADATA_SOURCES  # also if these hold none: they may have problems
        files = [self._concept.caption_lines, *self._concept.caption_extensions]
        lists = [self._scan.metadata, self._scan.lists] if is_listed else []
        return json.dumps([self._source, lists, files, self._column, self._reads_records, _RULES])

    def find(self, relative_path: str, has_caption_file: bool) -> FoundCaption:
        """The captions of one image. CaptionState.OTHER_ENCODING without captions: see `find_encoded`."""
        if self._source == "none":
            return FoundCaption((), CaptionState.FOUND)
        if self._source == "file_name":
            name = posixpath.basename(relative_path)
            return _found((_from_name(posixpath.splitext(name)[0]),), CaptionPlace.FILE_NAME)
        if self._source == "folder_name":
            folder = posixpath.dirname(relative_path)
            folder = posixpath.dirname(folder) if folder in self._shards else folder
            root = Path(self._scan.root)
            name = posixpath.basename(folder) or (root.stem if "" in self._shards else root.name)
            return _found((_from_name(name),), CaptionPlace.FOLDER_NAME)
        is_listed = self._source in _METADATA_SOURCES
        if is_listed and (entry := _entry(self._entries(), relative_path)) is not None:
            return _found(entry, CaptionPlace.METADATA)
        if has_caption_file and self._reads(self._scan.caption_file(relative_path)):
            return self._read_file(relative_path)
        if is_listed and (entry := _entry(self._listed(), relative_path)) is not None:
            return _found(entry, CaptionPlace.LIST)
        return FoundCaption((), CaptionState.MISSING)

    def find_encoded(self, relative_paths: Sequence[str]) -> list[FoundCaption]:
        """As `find` for images whose caption files are not UTF-8, given all of them: a short text alone does not show
        its encoding, but those of one folder are written by one program."""
        sample = bytearray()
        for path in relative_paths[:_SAMPLED] if not self.encoding else ():
            if len(sample) < SAMPLE and not isinstance(data := self._caption_data(path), str):
                sample += data[:SAMPLE] + b"\n"
        self.encoding = self.encoding or find_encoding(bytes(sample))
        return [self._read_file(path, is_found=True) for path in relative_paths]

    def read_metadata(self) -> None:
        """Read the metadata files now, so that `problems` includes theirs."""
        if self._source in _METADATA_SOURCES:
            self._entries()
            self._listed()

    def findings(self, relative_paths: Sequence[str], has_file: Sequence[bool]) -> CaptionFindings:
        """What is in the metadata files, of all images and whether they have a caption file, and is not used."""
        entries = [self._entries(), self._listed()] if self._source in _METADATA_SOURCES else []
        if not any(each.texts for each in entries) and not self._scan.second_captions:
            return CaptionFindings()
        used = [set[str]() for _ in entries]
        alike, twice = list[str](), list[str]()
        for path, is_beside in zip(relative_paths, has_file, strict=True):
            keys = [found.key(path) for found in entries]
            name = os.fsencode(path)
            is_read = is_beside and (self._reads_records or name not in self._records)
            if sum(key is not None for key in keys) + is_read + (name in self._scan.second_captions) > 1:
                twice.append(path)
            for key, names in zip(keys, used, strict=True):
                if key is not None:
                    names.add(key)
                    if key != path and folded(key) == folded(path):
                        alike.append(path)
        unnamed = [key for found, names in zip(entries, used, strict=True) for key in found.texts if key not in names]
        differing = [path for path in twice[:_COMPARED] if len(self._all_texts(path, entries)) > 1]
        return CaptionFindings(
            unnamed=len(unnamed),
            unnamed_example=printable(unnamed[0], 200) if unnamed else "",
            alike=len(alike),
            alike_example=printable(alike[0], 200) if alike else "",
            twice=len(twice),
            compared=min(len(twice), _COMPARED),
            differing=len(differing),
            differing_example=printable(differing[0], 200) if differing else "",
        )

    def _has_captions(self) -> bool:
        """Whether anything but its name may say what an image of the concept shows."""
        scan, unread = self._scan, 0 if self._reads_records else len(self._records)
        if scan.metadata or int((scan.stamps[:, 1, 0] >= 0).sum()) > unread:
            return True
        return bool(scan.lists) and any(self._listed().key(os.fsdecode(path)) is not None for path in scan.paths)

    def _records_have_captions(self) -> bool:
        for path, file in itertools.islice(self._records.items(), _PROBED):
            data = self._caption_data(os.fsdecode(path), file)
            if not isinstance(data, str) and self._record_texts(data) is not None:
                return True
        return False

    def _is_record(self, file: str) -> bool:
        return file.lower().endswith(".json") and ".json" not in self._concept.caption_extensions

    def _reads(self, file: str) -> bool:
        if self._source == "label" and not self._is_record(file):
            return file.lower().endswith(self._concept.caption_extensions)
        return self._reads_records if self._is_record(file) else self._source in ("auto", "txt")

    def _all_texts(self, relative_path: str, entries: Sequence[Entries]) -> set[tuple[str, ...]]:
        """What the places that have captions of an image say."""
        found = {texts for each in entries if (texts := _entry(each, relative_path))}
        second = self._scan.second_captions.get(os.fsencode(relative_path), "")
        for file in filter(None, (self._scan.caption_file(relative_path), second)):
            data = self._caption_data(relative_path, file)
            text = None if isinstance(data, str) else decode_unicode(data)
            if text is not None:
                lines = split_caption(text, self._concept.caption_lines)
                found.add(self._record_texts(text.encode()) or () if self._is_record(file) else lines)
        return found - {()}

    def _caption_data(self, relative_path: str, file: str = "") -> bytes | str:
        """The content of an image's caption file, or why it cannot be read, as the rest of a sentence."""
        file = file or self._scan.caption_file(relative_path)
        path, name = os.path.join(self._scan.root, file), posixpath.basename(file)
        if is_foreign_link(path, self._scan.root, [os.path.join(self._scan.root, relative_path)]):
            return f"{name} {describe_foreign_link(path)}"
        try:
            return read_bytes(path, _MAX_CAPTION_FILE_BYTES)
        except FileNotFoundError:
            return "has been removed, or is a link to nothing"
        except FileFault as fault:
            return f"{name} {fault}"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"

    def _read_file(self, relative_path: str, *, is_found: bool = False) -> FoundCaption:
        """The captions in an image's caption file; with `is_found`, `encoding` is that of text that is not UTF-8."""
        file = self._scan.caption_file(relative_path)
        place = CaptionPlace.OTHER_FILE if os.fsencode(relative_path) in self._scan.caption_at else CaptionPlace.FILE
        data = self._caption_data(relative_path)
        if isinstance(data, str):
            return self._unreadable(relative_path, data)
        text = decode_unicode(data)
        is_other = text is None
        if text is None:
            if not is_found:
                return FoundCaption((), CaptionState.OTHER_ENCODING, place)
            try:
                text = data.decode(self.encoding or "utf-8")
            except UnicodeDecodeError as error:
                return self._unreadable(
                    relative_path, f"{posixpath.basename(file)} is not UTF-8 text (byte {error.start})"
                )
        texts = self._record_texts(text.encode()) or () if self._is_record(file) else None
        found = _found(split_caption(text, self._concept.caption_lines) if texts is None else texts, place)
        if found.state != CaptionState.FOUND:
            return found
        state = CaptionState.CONTROL if "\0" in text else CaptionState.OTHER_ENCODING if is_other else found.state
        return found._replace(state=state)

    def _record_texts(self, data: bytes) -> tuple[str, ...] | None:
        """The captions in the record of one image; None if it is none, or says nothing of captions."""
        keys = (self._column,) if self._column else self._keys
        text = decode_unicode(data)
        try:
            record = decode_json(text or "", only_finite=False)
        except FileFault:
            return None
        record = {"text": record} if isinstance(record, str) else record
        if not isinstance(record, dict) or set(keys).isdisjoint(record):
            return None
        return record_texts(record, keys, joins=True)

    def _unreadable(self, relative_path: str, reason: str) -> FoundCaption:
        self.faults[relative_path] = f"its caption file {reason}; used with an empty caption"
        return FoundCaption((), CaptionState.UNREADABLE)

    def _entries(self) -> Entries:
        if self._metadata is None:
            self._metadata = self._read_all([relative for relative, _ in self._scan.metadata])
        return self._metadata

    def _listed(self) -> Entries:
        if self._lists is None:
            self._lists = self._read_all([relative for relative, _ in self._scan.lists])
        return self._lists

    def _read_all(self, files: Sequence[str]) -> Entries:
        entries = Entries(posixpath.basename(self._scan.root))
        for relative in files:  # a file deeper in the tree comes later and overrides
            entries.texts |= read_entries(self._scan.root, relative, self._keys, self._column, self.problems)
        return entries


def pack_captions(captions: tuple[str, ...]) -> bytes:
    """UTF-8, the captions separated by newlines; a line end within a caption is a carriage return."""
    return "\n".join(caption.replace("\n", "\r") for caption in captions).encode("utf-8")


def unpack_captions(packed: bytes) -> tuple[str, ...]:
    """The result of `pack_captions`; ("",) if it is empty."""
    return tuple(caption.replace("\r", "\n") for caption in packed.decode("utf-8", "replace").split("\n"))


def _entry(entries: Entries, relative_path: str) -> tuple[str, ...] | None:
    key = entries.key(relative_path)
    return None if key is None else entries.texts[key]


def _found(captions: tuple[str, ...], place: CaptionPlace) -> FoundCaption:
    nonempty = tuple(caption for caption in captions if caption)
    if not nonempty:
        return FoundCaption(nonempty, CaptionState.EMPTY, place)
    has_control = any(control_character(caption, lines=True) for caption in nonempty)
    return FoundCaption(nonempty, CaptionState.CONTROL if has_control else CaptionState.FOUND, place)


def _from_name(name: str) -> str:
    readable = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return one_line(readable.replace("_", " "))
