"""notes.json in a run folder: what its user wrote about the run, and its tags."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from modules.config import ConfigError
from modules.files import FileFault, Record, open_for_writing, printable, read_json, replacing, validate_record
from modules.run.folder.run_folder import RunFolder

NOTES_FILE_NAME: Final = "notes.json"
MAX_NOTE, MAX_TAG, MAX_TAGS = 10_000, 40, 20  # characters, characters, number
_LIMIT: Final = 256 << 10  # bytes


class RunNotes(Record):
    """A note of several lines, and tags without blanks."""

    note: Annotated[str, Field(max_length=MAX_NOTE)] = ""
    tags: list[Annotated[str, Field(max_length=MAX_TAG)]] = Field(default_factory=list, max_length=MAX_TAGS)

    @property
    def line(self) -> str:
        """Tags and the first line of the note, for a table."""
        return "  ".join(filter(None, [" ".join(f"#{tag}" for tag in self.tags), self.note.partition("\n")[0]]))


def notes_file(folder: RunFolder) -> Path:
    """Where the notes are."""
    return folder.path / NOTES_FILE_NAME


def read_notes(folder: RunFolder) -> RunNotes:
    """The notes of a run, made printable; empty ones if there are none or the file is damaged."""
    try:
        found = validate_record(RunNotes, read_json(notes_file(folder), _LIMIT))
    except (OSError, FileFault):
        return RunNotes()
    tags = (printable(tag.strip(), MAX_TAG) for tag in found.tags)
    return RunNotes(note=printable(found.note, MAX_NOTE, lines=True, mask=False), tags=list(filter(None, tags)))


def write_notes(folder: RunFolder, notes: RunNotes) -> None:
    """Replace the notes of a run; empty ones remove the file. Raises OSError."""
    file = notes_file(folder)
    if notes == RunNotes():
        file.unlink(missing_ok=True)
        return
    with replacing(file) as partial, os.fdopen(open_for_writing(partial), "w", encoding="utf-8") as opened:
        opened.write(json.dumps({"note": notes.note, "tags": notes.tags}, indent=1, ensure_ascii=False))


def parse_tags(text: str) -> list[str]:
    """The tags in a line, separated by blanks or commas, each once, with or without "#". Raises ConfigError."""
    tags = list(dict.fromkeys(part.lstrip("#") for part in text.replace(",", " ").split()))
    tags = [tag for tag in tags if tag]
    if len(tags) > MAX_TAGS:
        raise ConfigError(f"These are {len(tags)} tags; a run can have {MAX_TAGS}.")
    for tag in tags:
        if len(tag) > MAX_TAG:
            raise ConfigError(f"The tag {tag[:20]}… is too long; use at most {MAX_TAG} characters.")
    return tags
