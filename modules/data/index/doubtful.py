"""Images and captions that are probably not meant to be trained on, as their folders, names or texts say."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept
from modules.config.captions import CaptionPlace
from modules.data.index.concept_summary import count_of
from modules.data.index.expand import KOHYA_FOLDER, may_repeat
from modules.files import printable
from modules.files.videos import VIDEO_SUFFIXES

IntegerArray: TypeAlias = NDArray[np.integer]
_REGULARIZATION: Final = frozenset({"reg", "regularization", "regularisation"})  # folders of kohya's GUI
_OF_CLASS: Final = _REGULARIZATION | {"class_images", "class_data", "class_dir", "reg_images", "regularization_images"}
_SHARD: Final = r"(20\d\d|-\d{5}-of-\d{5}\.\w+)?"  # COCO's train2017, train-00000-of-00003.parquet of the hub
_TRAIN: Final = re.compile(f"(train|training){_SHARD}", re.IGNORECASE)
_HELD_OUT: Final = re.compile(f"(test|testing|val|valid|validation|eval){_SHARD}", re.IGNORECASE)
_MASK: Final = re.compile(r"(.+)[-_ ](?:masks?|masklabel)[-_ ]?\d*", re.IGNORECASE)
_MASK_FOLDER: Final = re.compile(r"(?:(.*)[-_ ])?masks?", re.IGNORECASE)
_FRAME: Final = re.compile(r"(.+/)?([^/]*?)(\d{3,})(\.\w+)")
_MOST_STILLS: Final = 16  # numbered without a gap, which are then probably frames
_NO_CAPTIONS: Final = {
    re.compile(r"\d+( -?\d*\.\d+){4,}"): "boxes of objects (YOLO): move these files away, or set caption_source",
    re.compile(r"\{\\rtf\d"): "rich text (RTF): save them as plain text",
    re.compile(r"(?:.*\n)*(Negative prompt: |Steps: \d+, Sampler: )"): (
        "settings of an image generator: set caption_lines to first, so that the line of the prompt is the caption"
    ),
}
_IN_FILES: Final = (CaptionPlace.FILE, CaptionPlace.OTHER_FILE)
_MOST_LOOKED_AT: Final = 10_000  # paths of a concept
_MOST_READ: Final = 1_000  # captions of a concept


def doubtful_images(
    concept: Concept,
    name: str,
    places: IntegerArray,
    files: Sequence[bytes],
    captions_of: Callable[[int], tuple[str, ...]],
    *,
    clips: bool,
) -> Iterator[str]:
    """A sentence for each kind of them in a concept, of whose images `places` [images] says where captions come from.

    `files`: their paths below the concept's folder, sorted. `clips`: videos are trained on as such.
    """
    paths = [os.fsdecode(files[row]) for row in _some(np.arange(len(files)), _MOST_LOOKED_AT)]
    folders = list(dict.fromkeys(map(os.path.dirname, paths)))
    if concept.kind == "train":
        yield from _splits(name, folders)
    yield from _numbered_folders(name, concept, folders)
    if clips:
        yield from _frames(name, files[:_MOST_LOOKED_AT])  # side by side, to see that no number is missing
    yield from _masks(name, files)
    in_files = np.flatnonzero(np.isin(places, _IN_FILES))
    read = {os.fsdecode(files[row]): captions_of(row) for row in _some(in_files, _MOST_READ)}
    yield from _no_captions(name, read, len(in_files))


def _some(rows: IntegerArray, number: int) -> list[int]:
    """At most so many of the rows, evenly from the first to the last."""
    places = np.linspace(0, len(rows) - 1, min(number, len(rows))).astype(np.int64)
    return [int(row) for row in rows[places]]


def _splits(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Sets with parts that are not for training, all of which are trained on."""
    parts = sorted({part for folder in folders for part in folder.split("/")})
    held_out = [part for part in parts if _HELD_OUT.fullmatch(part)]
    trained = [part for part in parts if _TRAIN.fullmatch(part)]
    if held_out and trained:
        yield (
            f"{name} has images in folders called {printable(trained[0], 60)} and {printable(held_out[0], 60)}, all of "
            "which are trained on. Make each folder a concept of its own, those to hold out of kind validation or test."
        )


def _numbered_folders(name: str, concept: Concept, folders: Sequence[str]) -> Iterator[str]:
    """Some of kohya's folders, whose numbers do not count, and folders of regularization images."""
    numbered = [each.rpartition("/") for each in folders if KOHYA_FOLDER.fullmatch(os.path.basename(each))]
    numbered = numbered if may_repeat(concept) else []
    beside = {above for above, *_ in numbered}
    of_class = {part for folder in folders for part in folder.split("/") if part.lower() in _OF_CLASS}
    if regular := next((each for each in beside if each.lower() in _REGULARIZATION), ""):
        yield (
            f"{name} has images in {regular}, where kohya's scripts have those of the class in general: here they are "
            "trained on as all others. Make that folder a concept of its own, with prior, and the folder of the others "
            "another one, both with folder_repeats."
        )
    elif numbered:
        yield (
            f"{name} has folders such as {printable(numbered[0][2], 100)}, as kohya's scripts name them for repeats. "
            + (
                "They count only where all images and texts of a concept are in such folders: give it the folder "
                "that holds them alone."
                if concept.folder_repeats
                else "Here the numbers mean nothing, unless folder_repeats is on."
            )
        )
    elif of_class and not concept.prior and len(folders) > 1:
        yield (
            f"{name} has images in {min(of_class)}, where scripts for DreamBooth have those of the class in general: "
            "here they are trained on as all others. Make that folder a concept of its own, with prior."
        )


def _frames(name: str, files: Sequence[bytes]) -> Iterator[str]:
    """Folders whose images are the frames of a video."""
    numbers: dict[tuple[str, str], list[int]] = {}  # by folder, and the pattern of the names in it
    for path in map(os.fsdecode, files):
        match = _FRAME.fullmatch(path)
        if match and match[4].lower() not in VIDEO_SUFFIXES:
            names = f"{match[2].replace('%', '%%')}%0{len(match[3])}d{match[4]}"
            numbers.setdefault((match[1] or "", names), []).append(int(match[3]))
    found = [key for key, each in numbers.items() if len(each) >= _MOST_STILLS and max(each) - min(each) < len(each)]
    if found:
        first = min(numbers[found[0]])
        folder, names = (printable(part, 100) for part in found[0])
        yield (
            f"{name} has {count_of(len(found), 'folder')} of numbered images, such as {folder}{names}: they are "
            "trained on as images, not as the frames of a video. To make one of FPS frames per second: ffmpeg "
            f"-framerate FPS -start_number {first} -i '{folder}{names}' '{folder.rstrip('/') or 'video'}.mp4'."
        )


def _masks(name: str, files: Sequence[bytes]) -> Iterator[str]:
    """Images with the names of masks of others, which lie where no masks are looked for."""
    named = (path for path in files if b"mask" in path.lower())  # there may be a million
    masked = {path: image for path in map(os.fsdecode, named) if (image := _masked(path))}
    wanted, images = set(masked.values()), set[str]()
    for path in map(os.fsdecode, files if wanted else ()):
        if path not in masked:
            stem = posixpath.splitext(path)[0]
            images.update(wanted.intersection((f"/{stem}", posixpath.basename(stem))))
    masks = [path for path, image in masked.items() if image in images]
    if masks:
        are, have = ("image that is", "has") if len(masks) == 1 else ("images that are", "have")
        yield (
            f"{name}: {len(masks):,} {are} trained on, such as {printable(masks[0], 200)}, {have} the name of a mask "
            "of another. A mask is NAME-masklabel.png or NAME_mask.png beside NAME.jpg, or NAME.png in a folder masks."
        )


def _masked(path: str) -> str:
    """The image that this one may be the mask of, without suffix: its name, wherever it is, if the name of this one
    says so; if only that of the folder does, which may be a class of masks that are worn, its path after a slash."""
    folder, name = posixpath.split(path)
    stem = posixpath.splitext(name)[0]
    if match := _MASK.fullmatch(stem):
        return match[1]
    above, folder = posixpath.split(folder)
    match = _MASK_FOLDER.fullmatch(folder)
    return posixpath.join("/", above, match[1] or "", stem) if match else ""


def _no_captions(name: str, texts: Mapping[str, tuple[str, ...]], number: int) -> Iterator[str]:
    """Texts beside images that hold something else: `texts` are those of some of a `number` of images."""
    for pattern, what in _NO_CAPTIONS.items():
        found = [path for path, lines in texts.items() if any(map(pattern.match, lines))]
        if found:
            of = f" (of {len(texts):,} that were looked at)" if len(texts) < number else ""
            example = printable(found[0], 200)
            yield f"The captions of {count_of(len(found), 'image')}{of} in {name}, such as {example}, are {what}."
