"""Which images of a folder are asked about, and reading them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from pydantic import ValidationError

from modules.annotation import Header, Proposal
from modules.config import Concept, ConfigError, DataError, explain
from modules.config.captions import CaptionState
from modules.data.index.captions import Captions
from modules.data.index.images import (
    IMAGE_ERRORS,
    decode_image,
    describe_image_error,
    read_image_size,
    suppress_pillow_warnings,
)
from modules.data.index.scan import FolderScan, scan_concept
from modules.files import FileFault, printable, read_bytes
from modules.files.addresses import is_in_copy
from modules.files.videos import VIDEO_SUFFIXES

_LARGEST_FILE = 2 << 30  # bytes
_CAPTION, _MASK = 1, 2  # columns of FolderScan.stamps


@dataclass(frozen=True)
class FoundImage:
    """An image file: its path below the folder, size in bytes and time of modification."""

    relative: str
    path: str
    bytes: int
    mtime_ns: int


@dataclass
class Selection:
    """The images to ask about, those that have the same caption file as one of these, and what else to know."""

    images: list[FoundImage] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    present: int = 0  # images that have what is to be made


def select_images(header: Header, *, subfolders: bool = True) -> Selection:
    """The images of the header's folder, without those that have a caption or mask already, if only missing ones are
    wanted; found as for training. Raises DataError if the folder cannot be read, ConfigError for its name."""
    if is_in_copy(header.folder):
        raise DataError(
            f"{printable(header.folder)} is the copy of an address, which is only read: nothing can be written beside "
            "its images.",
            "Copy them into another folder first.",
        )
    try:
        concept = Concept(path=header.folder, caption_source="txt", include_subfolders=subfolders)
    except ValidationError as error:
        raise ConfigError.from_faults("The folder of the images", explain(error, Concept)) from None
    what = "mask_suffix" if header.task == "mask" else "caption_extension"
    concept = concept.model_copy(update={what: header.ending})
    scan = scan_concept(concept, with_masks=header.task == "mask")
    if scan.shards:
        raise DataError(
            f"{printable(header.folder)} holds its images in archives or tables (*.tar, *.zip, *.arrow, *.parquet), "
            "which are only read: nothing can be written beside them.",
            "Unpack them into a folder first.",
        )
    found = Selection(faults={_below(scan, problem.path): problem.what for problem in scan.problems})
    captions = Captions(concept, scan)
    in_metadata = Captions(concept.model_copy(update={"caption_source": "metadata"}), scan)
    taken: dict[str, str] = {}
    overruled = 0
    for path, stamps in zip(scan.paths, scan.stamps.tolist(), strict=True):
        relative = os.fsdecode(path)
        if not _can_be_named(relative):
            found.faults[printable(relative)] = "skipped: its name cannot be written as text; rename it"
            continue
        has_entry = header.task != "mask" and in_metadata.find(relative, False)[1] is CaptionState.FOUND
        if header.mode == "missing":
            has_file = stamps[_MASK if header.task == "mask" else _CAPTION][0] >= 0
            if has_entry or (has_file and (header.task == "mask" or not _is_empty(captions, relative))):
                found.present += 1
                continue
        overruled += has_entry
        stem = os.path.splitext(relative)[0]
        if stem in taken:
            found.faults[relative] = f"skipped: {taken[stem]} has the same name, and so the same file"
            continue
        taken[stem] = relative
        size, mtime_ns = stamps[0]
        found.images.append(FoundImage(relative, os.path.join(scan.root, relative), size, mtime_ns))
    if videos := sum(scan.other_files[suffix] for suffix in VIDEO_SUFFIXES - {".gif"}):  # which are faults
        are = "1 video is" if videos == 1 else f"{videos:,} videos are"
        by_hand = f"write NAME{header.ending} for {'it' if videos == 1 else 'each'} by hand"
        found.notes.append(f"{are} passed over, as only images are looked at: {by_hand}.")
    if overruled:
        found.notes.append(
            f"{overruled} images have a caption in a metadata file, which comes before caption files: set "
            "caption_source to txt to train with what is written now."
        )
    return found


def _is_empty(captions: Captions, relative: str) -> bool:
    return captions.find(relative, True)[1] is CaptionState.EMPTY


def _can_be_named(relative: str) -> bool:
    try:
        Proposal(image=relative)
    except ValueError:  # not UTF-8, or a name that leads elsewhere on Windows
        return False
    return True


def _below(scan: FolderScan, path: str) -> str:
    return printable(os.path.relpath(path, scan.root).replace(os.sep, "/"))


@contextmanager
def image_faults() -> Iterator[None]:
    """Turns what a damaged image raises into FileFault with a phrase for its owner."""
    try:
        with suppress_pillow_warnings():
            yield
    except IMAGE_ERRORS as error:
        raise FileFault(describe_image_error(error)) from None


def read_image(path: str, longest: int | None = None) -> Image.Image:
    """The image as for training: upright, 8-bit RGB, transparent parts white; with `longest`, scaled down so that its
    longer side has at most that many pixels. Raises FileFault."""
    with image_faults():
        size = read_image_size(path)
        wanted = size if longest is None else (longest, longest)
        image = decode_image(read_bytes(Path(path), _LARGEST_FILE), size, min_size=wanted)
        if longest is not None and max(image.size) > longest:
            image.thumbnail((longest, longest), Image.Resampling.LANCZOS)
    return image
