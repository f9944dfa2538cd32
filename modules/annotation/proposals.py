"""Proposed captions, tags and masks of a folder of images: a folder of their own, never among the images.

`set.json` says how they were made, `proposals.jsonl` has a line for each image (the last one counts), `masks/` the
proposed masks. Once they are written, `journal.jsonl` and `before/` hold what was there before. All of it may come from
somebody else: it is checked when it is read, and it leads nowhere but to files beside images of the folder in set.json.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from modules.annotation.messages import MOST_CHARACTERS
from modules.config import Concept, ConfigError
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import (
    FileFault,
    Record,
    decode_json,
    is_link,
    is_plain_name,
    open_for_writing,
    printable,
    read_json,
    read_lines,
    replacing,
    validate_record,
    whole_path,
)
from modules.run.folder.run_lock import file_lock

Task = Literal["caption", "tag", "mask"]
Mode = Literal["missing", "replace", "append"]
State = Literal["proposed", "written"]

DEFAULT_FOLDER: Final = "annotations"
JOURNAL: Final = "journal.jsonl"
BEFORE: Final = "before"
MASKS: Final = "masks"
_SET: Final = "set.json"
_PROPOSALS: Final = "proposals.jsonl"
_MASK_ENDING: Final = re.compile(r"[\w.+-]{1,60}\.png", re.ASCII)
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")
_RUN: Final = re.compile(  # endings of what other programs run or obey: proposals may come from somebody else
    r"\.(ba(sh|t)|cfg|cmd|com|conf|cpp|css|csv|desktop|env|exe|fish|html?|inc|ini|ipynb|jar|jsx?|json[l]?|ksh|lnk|lua|m4"
    r"|md|mjs|php|pl|plist|ps1|psm1|pth|py[ciw]?|rb|rc|reg|rst|scr|service|sh|sql|svg|toml|tsx?|vbs|wsf|xml|ya?ml|zsh)",
    re.IGNORECASE,
)


class Header(Record):
    """How the proposals of a set were made. `ending` takes the place of an image's suffix in the file to write."""

    version: Literal[1] = 1
    task: Task
    folder: Annotated[str, Field(min_length=1, max_length=4096)]  # absolute
    model: Annotated[str, Field(max_length=4096)]
    mode: Mode
    ending: Annotated[str, Field(min_length=2, max_length=64)]
    settings: Annotated[dict[str, str | int | float | bool | list[str] | None], Field(max_length=50)]
    made: Annotated[float, Field(ge=0, lt=1e11)] = 0.0

    @field_validator("folder")
    @classmethod
    def _is_absolute(cls, folder: str) -> str:
        if not os.path.isabs(folder) or "\0" in folder:
            raise ValueError("no absolute path")
        return folder

    @model_validator(mode="after")
    def _check_ending(self) -> Self:
        check_ending(self.task, self.ending)
        return self

    @property
    def key(self) -> str:
        """The same for sets that are made in the same way."""
        told = self.model_dump(exclude={"made"})
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode("utf-8")).hexdigest()[:10]


class Proposal(Record):
    """What is proposed for an image: a text, a mask (a name in `masks/`), or why there is none.

    `bytes` and `mtime_ns` are of the image that was looked at.
    """

    image: Annotated[str, Field(min_length=1, max_length=4096)]  # relative, `/` between folders
    text: Annotated[str, Field(max_length=MOST_CHARACTERS)] | None = None
    mask: str | None = None
    error: Annotated[str, Field(max_length=2000)] | None = None
    skip: bool = False  # somebody does not want it
    bytes: Annotated[int, Field(ge=0)] = 0
    mtime_ns: int = 0

    @field_validator("image")
    @classmethod
    def _is_below(cls, image: str) -> str:
        check_below(image)
        if os.path.splitext(image)[1].lower() not in IMAGE_SUFFIXES:
            raise ValueError("no image")
        return image

    @field_validator("mask")
    @classmethod
    def _is_name(cls, mask: str | None) -> str | None:
        if mask is not None and not (is_plain_name(mask) and mask.endswith(".png")):
            raise ValueError("no name of a PNG")
        return mask

    @property
    def is_wanted(self) -> bool:
        """Whether there is something to write."""
        return not self.skip and self.error is None and (self.text is not None or self.mask is not None)


class ProposalSet:
    """One set of proposals; constructing it touches no disk."""

    def __init__(self, path: str | Path) -> None:
        path = whole_path(path)
        self.path = path.parent if path.name in (_PROPOSALS, _SET) else path

    @classmethod
    def create(cls, folder: Path, header: Header) -> ProposalSet:
        """The set in `folder` that the same command began and nobody has written yet, else a new one. Raises OSError
        or ConfigError."""
        stem = f"{header.task}-{_NAME.sub('-', Path(header.folder).name)[:60].strip('-') or 'images'}-{header.key}"
        number = 1
        while True:
            found = cls(folder / (stem if number == 1 else f"{stem}-{number}"))
            if not (found.path / _SET).exists():  # new, or its program was killed before the first proposal
                found._make(header.model_copy(update={"made": time.time()}))
                return found
            with suppress(ConfigError):  # of a damaged one, which stays
                if found.state == "proposed" and found.header().key == header.key:
                    return found
            number += 1

    def header(self) -> Header:
        """How it was made. Raises ConfigError if it is no set of proposals."""
        try:
            if is_link(self.path) or is_link(self.path / _SET):
                raise FileFault("is a link, or in a folder that is one")
            return validate_record(Header, read_json(self.path / _SET))
        except FileNotFoundError:
            raise ConfigError(
                f"{printable(self.path)} holds no proposals: it has no {_SET}.",
                "`python scripts/annotate.py list` shows the sets that there are.",
            ) from None
        except OSError as error:
            raise ConfigError(f"{printable(self.path / _SET)} cannot be read: {error.strerror or error}.") from None
        except FileFault as fault:
            raise ConfigError(f"{printable(self.path / _SET)} {fault}.") from None

    @property
    def state(self) -> State:
        """Whether the proposals are only proposed, or (perhaps partly) written."""
        return "written" if (self.path / JOURNAL).exists() else "proposed"

    def read(self) -> dict[str, Proposal]:
        """The proposals by image, in the order they were made. Raises ConfigError."""
        found: dict[str, Proposal] = {}
        file = self.path / _PROPOSALS
        try:
            for number, line in enumerate(read_lines(file), start=1):
                try:
                    proposal = validate_record(Proposal, decode_json(line))
                except FileFault as fault:
                    raise ConfigError(f"{printable(file)}: line {number} {fault}.", "Remove that line.") from None
                found[proposal.image] = proposal
        except FileNotFoundError:
            pass  # none yet
        except OSError as error:
            raise ConfigError(f"{printable(file)} cannot be read: {error.strerror or error}.") from None
        except FileFault as fault:
            raise ConfigError(f"{printable(file)} {fault}.") from None
        return found

    def mask_file(self, proposal: Proposal) -> Path:
        """The PNG of a proposed mask."""
        assert proposal.mask is not None
        return self.path / MASKS / proposal.mask

    def add(self, proposal: Proposal) -> None:
        """Add a proposal, or replace that of the same image. Raises OSError or ConfigError."""
        line = json.dumps(proposal.model_dump(exclude_none=True, exclude_defaults=True)) + "\n"
        with os.fdopen(open_for_writing(self.path / _PROPOSALS, append=True), "ab") as file:
            file.write(line.encode("ascii"))

    def change(self, image: str, *, text: str | None = None, skip: bool = False) -> Proposal:
        """Give the proposal of an image another text, or leave it out. Raises ConfigError, OSError or KeyError."""
        former = self.read()[image]
        wanted = former.text if text is None else clean_text(text)
        new = former.model_copy(update={"text": wanted, "skip": skip})
        self.add(new)
        return new

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other programs from the set. Raises ConfigError if one is busy with it, or OSError."""
        with file_lock(self.path / "set.lock") as is_mine:
            if not is_mine:
                raise ConfigError(f"Another program is busy with {printable(self.path)}.", "Wait until it has ended.")
            self._cut_torn_line()
            yield

    def _make(self, header: Header) -> None:
        (self.path / MASKS).mkdir(parents=True, exist_ok=True)
        with (
            replacing(self.path / _SET) as partial,
            os.fdopen(open_for_writing(partial), "w", encoding="utf-8") as file,
        ):
            json.dump(header.model_dump(), file, indent=1)

    def _cut_torn_line(self) -> None:
        """A program that was killed may have written a part of a line, to which the next one must not be added."""
        with os.fdopen(open_for_writing(self.path / _PROPOSALS, append=True), "rb+") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - (1 << 20))
            file.seek(start)
            whole = file.read().rfind(b"\n") + 1
            if start + whole < end:
                file.truncate(start + whole)


def proposal_sets(folder: Path) -> list[ProposalSet]:
    """The sets in a folder, by name; what is none of Tandem's is left out."""
    try:
        found = [ProposalSet(each) for each in sorted(folder.iterdir()) if (each / _SET).is_file()]
    except OSError:
        return []
    return found


def check_ending(task: Task, ending: str) -> None:
    """Raises ValueError unless files with this ending are captions, or masks, and never images themselves."""
    if task == "mask":
        if _MASK_ENDING.fullmatch(ending) is None:
            raise ValueError(f"{ending!r} is no ending of masks; use one as -masklabel.png")
        return
    try:
        extensions = Concept(path=".", caption_extension=ending).caption_extensions
    except ValidationError:
        extensions = ()
    if len(extensions) != 1 or _RUN.fullmatch(ending):
        raise ValueError(f"{ending!r} is no ending of caption files; use one as .txt or .caption")


def check_below(relative: str) -> None:
    """Raises ValueError for a path that is absolute, or may lead out of a folder, here or on Windows."""
    is_drive = os.name == "nt" and ":" in relative  # elsewhere it may be a part of a name
    parts = relative.replace("\\", "/").split("/")
    if any(part in ("", ".", "..") for part in parts) or is_drive or "\0" in relative:
        raise ValueError("no relative path of a file in the folder")


def clean_text(text: str) -> str:
    """What a model or a person has written, as one line without control characters."""
    shown = "".join(character if character.isprintable() else " " for character in text[: 4 * MOST_CHARACTERS])
    return " ".join(shown.split())[:MOST_CHARACTERS]
