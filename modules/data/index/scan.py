"""Scanning a concept folder: its images, with size and mtime of each image, caption file and mask. Opens only files
whose name does not say what they are, and a few to compare with an archive."""

from __future__ import annotations

import os
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError
from modules.config.sections.concept import IMAGE_SUFFIXES, LIST_NAMES, METADATA_NAMES, OTHER_TEXTS, RAW_SUFFIX
from modules.data.index.images import UNSUPPORTED_SUFFIXES
from modules.data.index.links import describe_foreign_link, is_foreign_link
from modules.data.index.problems import Problem
from modules.data.index.references import reference_roots
from modules.data.index.unpacked import unpacked_archives
from modules.files import FileFault, file_stamp, is_shard, open_regular
from modules.files.addresses import concept_folder, is_address
from modules.files.images import SIGNATURE_BYTES, has_image_signature
from modules.files.shard_paths import COMPRESSED_TARS, SHARD_OF_CACHE, SHARD_SUFFIXES, is_archive
from modules.files.shards import shard_table
from modules.files.videos import VIDEO_SUFFIXES

_CIFAR: Final = re.compile(r"cifar-100?-(python|binary)\.tar\.gz")
_CIFAR_PAGE: Final = "https://www.cs.toronto.edu/~kriz/cifar.html"
_MASK_ENDS: Final = (
    *("-masklabel", "_masklabel", "-mask", "_mask", "-masks", "_masks"),
    *(f"-masklabel{n}" for n in range(1, 10)),  # OneTrainer's variants
)
MASK_FOLDERS: Final = frozenset({"mask", "masks"})
CONDITIONING_FOLDERS: Final = frozenset({"conditioning", "conditioning_data", "conditioning_images", "control"})
_CAPTION_FOLDERS: Final = frozenset({"caption", "captions", "text", "texts", "txt"})
IMAGE_FOLDERS: Final = frozenset({"image", "images", "img", "imgs", "video", "videos"})
_MASKS_AND_MORE: Final = MASK_FOLDERS | CONDITIONING_FOLDERS
_PAIRED_FOLDERS: Final = _MASKS_AND_MORE | _CAPTION_FOLDERS | IMAGE_FOLDERS
_IMAGE_AND_MORE: Final = re.compile(
    r"\.(jpe?g|png|webp|bmp|avif|tiff?|hei[cf]|jxl)[^a-z0-9.]"
)  # as in URLs: .jpg?width=1024, .jpg!d
_DECOMPRESS: Final = "Unpack it to .tar (such as with gunzip), which is read in place, or into a folder."
_NEIGHBOURS = 1000  # images that a metadata file may lie beside, if it is a link
Stamp: TypeAlias = tuple[int, int]  # size in bytes, mtime in ns
NO_FILE: Stamp = (-1, -1)


class _Member:
    """A file in a shard, in place of an entry of a folder; `stat` of it."""

    __slots__ = ("name", "path", "st_mtime_ns", "st_size")

    def __init__(self, name: str, path: str, size: int, mtime_ns: int) -> None:
        self.name, self.path, self.st_size, self.st_mtime_ns = name, path, size, mtime_ns

    def is_file(self) -> bool:
        return True

    def is_dir(self) -> bool:
        return False

    def stat(self) -> _Member:
        return self


_Entry: TypeAlias = os.DirEntry[str] | _Member


@dataclass
class FolderScan:
    """The images of one concept, sorted by relative path (bytes as on disk, `/` between folders)."""

    root: str
    paths: list[bytes] = field(default_factory=list)
    # `stamps`, flat: as Python objects, a million images would be six million integers.
    flat_stamps: array[int] = field(default_factory=lambda: array("q"))
    caption_at: dict[bytes, str] = field(default_factory=dict)  # image -> its caption file, if found elsewhere (below)
    second_captions: dict[bytes, str] = field(default_factory=dict)  # image -> a caption file that is not used
    mask_at: dict[bytes, str] = field(default_factory=dict)  # image -> its mask, if that is not NAME + mask_suffix
    caption_extensions: tuple[str, ...] = (".txt",)  # where captions are expected: NAME + the first that exists
    other_extensions: tuple[str, ...] = ()  # and those that are looked for besides, the first that exists
    suffixes: frozenset[str] = IMAGE_SUFFIXES  # of what is trained on
    metadata: list[tuple[str, Stamp]] = field(default_factory=list)  # relative path, stamp
    lists: list[tuple[str, Stamp]] = field(default_factory=list)  # the same of other files with captions of many images
    spare_texts: list[str] = field(default_factory=list)  # relative paths of caption files that belong to no image
    conditioning: list[str] = field(default_factory=list)  # and of images in conditioning folders
    has_pairs: bool = False  # whether a folder has the name of those with only captions or masks
    problems: list[Problem] = field(default_factory=list)
    other_files: Counter[str] = field(default_factory=Counter)  # suffix -> number of files that are not images
    with_masks: bool = False  # as given to `scan_concept`
    masks: int = 0
    mask_example: str = ""
    lost_masks: list[str] = field(default_factory=list)  # relative paths of masks whose image is missing
    shards: list[str] = field(default_factory=list)  # relative paths of those that images are read from; "" for `root`
    unread_shards: list[str] = field(default_factory=list)  # and of archives that their images seem to lie beside

    @property
    def stamps(self) -> NDArray[np.int64]:
        """int64 [images, 3, 2]: size (bytes) and mtime (ns) of image, caption file and mask; -1 if there is none."""
        return np.array(self.flat_stamps, dtype=np.int64).reshape(-1, 3, 2)

    def sort(self) -> None:
        """Bring images into path order, and metadata files from the top folder down."""
        order = sorted(range(len(self.paths)), key=self.paths.__getitem__)
        self.flat_stamps = array("q", self.stamps[order].tobytes())
        self.paths = [self.paths[row] for row in order]
        for files in (self.metadata, self.lists):
            files.sort(key=lambda found: (found[0].count("/"), found[0]))

    def caption_file(self, relative: str) -> str:
        """The relative path of the caption file that the image has."""
        found = self.caption_at.get(os.fsencode(relative))
        if found is not None:
            return found
        names = [os.path.splitext(relative)[0] + each for each in self.caption_extensions]
        places = {each: os.path.join(self.root, each) for each in names[:-1]}
        is_there = (each for each, at in places.items() if os.path.lexists(at) or _stamp_of(at) != NO_FILE)
        return next(is_there, names[-1])

    def add_mask(self, relative: str) -> None:
        """Count a file that is a mask and no image to train on."""
        self.masks += 1
        self.mask_example = self.mask_example or relative

    @property
    def takes_videos(self) -> bool:
        """Whether videos are among what is trained on."""
        return self.suffixes >= VIDEO_SUFFIXES

    @property
    def files_seen(self) -> int:
        """Number of files of any kind in the folder."""
        return len(self.paths) + sum(self.other_files.values()) + self.masks + len(self.conditioning)


def concept_root(concept: Concept) -> str:
    """The concept's folder as an absolute path: of an address, that of its copy."""
    return concept_folder(concept.path)


def missing(concept: Concept) -> DataError:
    """That the concept's folder, or the archive in its place, is not there."""
    root, name = concept_root(concept), os.path.basename(concept.path)
    if is_address(concept.path):
        return DataError(f"concepts: {concept.path!r} is not downloaded yet.", "It is when a run starts.")
    place = f" ({root})" if root != concept.path else ""
    if _CIFAR.fullmatch(name):
        return DataError(
            f"concepts: the archive {concept.path!r} does not exist{place}.",
            f"Download {name} from {_CIFAR_PAGE} and put it there.",
        )
    return DataError(
        f"concepts: the folder {concept.path!r} does not exist{place}.", "Correct the path or switch this concept off."
    )


def scan_concept(concept: Concept, with_masks: bool, with_videos: bool = False) -> FolderScan:
    """List the images below the concept's folder, and the videos; hidden files and folders are ignored, links are
    followed once.

    Raises DataError if the folder does not exist or cannot be listed.
    """
    others = () if concept.caption_source == "txt" else OTHER_TEXTS
    others = others[::-1] if concept.caption_source == "label" else others  # a record may have one
    scan = FolderScan(
        concept_root(concept),
        caption_extensions=concept.caption_extensions,
        other_extensions=others,
        suffixes=IMAGE_SUFFIXES | VIDEO_SUFFIXES if with_videos else IMAGE_SUFFIXES,
        with_masks=with_masks,
    )
    pending = list[tuple[str, str, os.stat_result]]()
    shards = list[tuple[str, str]]()  # path, and path below the root
    try:
        if is_shard(scan.root) and os.path.isfile(scan.root):
            shards.append((scan.root, ""))
        else:
            pending.append((scan.root, "", os.stat(scan.root)))
            with os.scandir(scan.root):
                pass
    except NotADirectoryError as error:
        if scan.root.lower().endswith(COMPRESSED_TARS):
            raise DataError(f"concepts: {concept.path!r} is a compressed archive.", _DECOMPRESS) from error
        raise DataError(
            f"concepts: {concept.path!r} is a file; give the folder that contains the images, or a .tar, .zip, "
            ".parquet or .arrow file of images."
        ) from error
    except FileNotFoundError as error:
        raise missing(concept) from error
    except OSError as error:
        raise DataError(f"concepts: the folder {scan.root!r} cannot be opened: {error.strerror}.") from error
    visited = _references_in(scan.root, concept)
    while pending:
        folder, prefix, status = pending.pop()
        # A folder is scanned once however many links lead to it: circular links end, and no image counts twice.
        if (status.st_dev, status.st_ino) in visited:
            continue
        visited.add((status.st_dev, status.st_ino))
        below = _scan_folder(scan, folder, prefix, concept, shards)
        if concept.include_subfolders:
            pending.extend(reversed(below))
    unpacked = set[str]()
    if shards:
        images = zip(scan.paths, scan.flat_stamps[::6], strict=True)
        unpacked = unpacked_archives(scan.root, images, shards, partial(_is_mask, concept.mask_suffix))
    for path, relative in shards:
        if relative in unpacked:
            _leave_unread(scan, relative)
        else:
            _scan_shard(scan, path, relative, concept)
    if scan.has_pairs:
        _pair_masks(scan)
        _pair_captions(scan)
    if concept.caption_source == "label":
        scan.second_captions.clear()  # captions, which are no classes
    scan.sort()
    _refuse_foreign_metadata(scan)
    return scan


def _references_in(root: str, concept: Concept) -> set[tuple[int, int]]:
    """The concept's reference folders, in which no images to train on are looked for. Raises DataError if one is
    `root` or cannot be listed."""
    found = set[tuple[int, int]]()
    for folder in reference_roots(concept):
        try:
            status = os.stat(folder)
            with os.scandir(folder):
                pass
        except OSError as error:
            raise DataError(
                f"concepts: the folder of reference images {folder!r} cannot be opened: {error.strerror}.",
                "Correct the path in references, or remove it for a concept without reference images.",
            ) from error
        if os.path.samefile(folder, root):
            raise DataError(
                f"concepts: {concept.path!r} is the folder of the images and that of their references.",
                "Put the reference images into a folder of their own, under the names of the images.",
            )
        found.add((status.st_dev, status.st_ino))
    return found


def _scan_folder(
    scan: FolderScan, folder: str, prefix: str, concept: Concept, shards: list[tuple[str, str]]
) -> list[tuple[str, str, os.stat_result]]:
    """Add the files of one folder to `scan`, and its shards to `shards`; returns its subfolders as (path, prefix of
    relative paths, status)."""
    try:
        with os.scandir(folder) as entries:
            found: dict[str, _Entry] = {entry.name: entry for entry in entries if not entry.name.startswith(".")}
    except OSError as error:
        scan.problems.append(Problem(folder, f"folder skipped: {error.strerror}"))
        return []
    before = len(scan.paths)
    subfolders, packed = _scan_entries(scan, found, prefix, concept)
    for name in packed:
        is_unpacked = len(scan.paths) > before or os.path.splitext(name)[0] in found
        if is_unpacked:
            _leave_unread(scan, prefix + name)
        else:
            shards.append((found[name].path, prefix + name))
    return subfolders


def _is_mask(mask_suffix: str, name: str) -> bool:
    return name.endswith(mask_suffix) or os.path.splitext(name)[0].lower().endswith(_MASK_ENDS)


def _leave_unread(scan: FolderScan, relative: str) -> None:
    scan.other_files[os.path.splitext(relative)[1].lower()] += 1
    if is_archive(relative):
        scan.unread_shards.append(relative)


def _scan_shard(scan: FolderScan, path: str, relative: str, concept: Concept) -> None:
    """Add the files in a shard, as if it were a folder of that name."""
    try:
        if path.lower().endswith(COMPRESSED_TARS):
            raise FileFault(f"is compressed. {_DECOMPRESS}")
        table = shard_table(path)
    except (FileFault, OSError) as error:
        reason = f"it {error}" if isinstance(error, FileFault) else error.strerror
        scan.problems.append(Problem(path, f"not read: {reason}"))
        scan.other_files[os.path.splitext(path)[1].lower()] += 1
        return
    scan.shards.append(relative)
    scan.problems += [Problem(os.path.join(path, name) if name else path, what) for name, what in table.faults]
    if not is_archive(path):
        scan.metadata.append((relative, table.stamp))
    folders: dict[str, dict[str, _Entry]] = {}
    for packed, size in zip(table, table.sizes, strict=True):
        whole = os.fsdecode(packed)
        folder, _, name = whole.rpartition("/")
        if not (whole.startswith(".") or "/." in whole or (folder and not concept.include_subfolders)):
            member = _Member(name, os.path.join(path, whole), size, table.stamp[1])
            folders.setdefault(folder, {})[name] = member
    for folder, found in sorted(folders.items()):
        scan.has_pairs = scan.has_pairs or not _PAIRED_FOLDERS.isdisjoint(folder.lower().split("/"))
        prefix = "".join(f"{each}/" for each in (relative, folder) if each)
        for name in _scan_entries(scan, found, prefix, concept)[1]:
            scan.other_files[os.path.splitext(name)[1].lower()] += 1


def _scan_entries(
    scan: FolderScan, found: dict[str, _Entry], prefix: str, concept: Concept
) -> tuple[list[tuple[str, str, os.stat_result]], list[str]]:
    """Add the files of one folder to `scan`; returns its subfolders as `_scan_folder`, and the names of shards."""
    subfolders: list[tuple[str, str, os.stat_result]] = []
    shards: list[str] = []
    images: list[tuple[str, str]] = []  # name, and the name without its suffix
    texts: list[str] = []
    masks: list[str] = []  # by their suffix
    mask_suffix = concept.mask_suffix
    text_suffixes = {*OTHER_TEXTS, *(os.path.splitext(f"x{e}")[1].lower() for e in scan.caption_extensions)}
    others = ("", *SHARD_SUFFIXES, *(os.path.splitext(each)[1] for each in (*METADATA_NAMES, *COMPRESSED_TARS)))
    only_texts = {
        each
        for each in text_suffixes.difference(others)
        if not each.endswith(mask_suffix.lower()) and not _IMAGE_AND_MORE.match(each)
    }
    for name in sorted(found):
        stem, dot, suffix = name.rpartition(".")
        suffix = dot + suffix.lower() if stem else ""
        entry = found[name]
        if suffix in scan.suffixes and not name.endswith(mask_suffix) and not _is_folder(entry):
            images.append((name, stem))
        elif _is_folder(entry):
            _add_folder(scan, entry, prefix + name, subfolders)
        elif suffix in only_texts:  # first, as there is one beside each image
            scan.other_files[suffix] += 1
            texts.append(name)
        elif name == METADATA_NAMES[-1] and find_spec("pyarrow") is None:
            scan.problems.append(
                Problem(entry.path, "not read: it needs pyarrow: .venv/bin/python -m pip install pyarrow")
            )
            scan.other_files[suffix] += 1
        elif name in METADATA_NAMES:
            scan.metadata.append((prefix + name, _stamp(entry)))
            scan.other_files[suffix] += 1
        elif (is_shard(name) and not name.startswith(SHARD_OF_CACHE)) or name.lower().endswith(COMPRESSED_TARS):
            shards.append(name)
        elif name.endswith(mask_suffix):
            scan.add_mask(prefix + name)
            masks.append(name)
        elif (not suffix or _IMAGE_AND_MORE.match(suffix)) and _is_image(entry.path):
            images.append((name, stem or name))
        else:
            scan.other_files[suffix] += 1
            if suffix in text_suffixes or name.lower() in LIST_NAMES:
                texts.append(name)
            elif suffix in UNSUPPORTED_SUFFIXES:
                what = f"skipped: {suffix} images are not supported; convert this one to PNG, JPEG or WebP"
                scan.problems.append(Problem(entry.path, what))
    pairs = _masks_among(images)
    beside = {stem: found[name] for stem, name in pairs}
    if pairs:
        names = {name for _, name in pairs}
        images = [each for each in images if each[0] not in names]
        for name in sorted(names):
            scan.add_mask(prefix + name)
    images = _without_raw(scan, images, found)
    stems = {stem for _, stem in images}
    scan.lost_masks += [prefix + name for name in masks if name.removesuffix(mask_suffix) not in stems]
    captions = _captions_of(scan, prefix, images, texts, found)
    added, stamps = [], list[int]()  # the stamps flat, and both added at once: there may be a million
    for name, stem in images:
        mask = (found.get(stem + mask_suffix) or beside.get(stem)) if scan.with_masks else None
        if mask is not None and mask.name != stem + mask_suffix:
            scan.mask_at[os.fsencode(prefix + name)] = prefix + mask.name
        if (stamp := _image_stamp(scan, found[name], mask)) is not None:
            added.append(prefix + name)
            caption = captions.get(name)
            stamps += (*stamp, *(_stamp(caption) if caption else NO_FILE), *(_stamp(mask) if mask else NO_FILE))
    if added:
        scan.paths += os.fsencode("\0".join(added)).split(b"\0")
        scan.flat_stamps.fromlist(stamps)
    return subfolders, shards


def _without_raw(scan: FolderScan, images: list[tuple[str, str]], found: Mapping[str, _Entry]) -> list[tuple[str, str]]:
    """Without the raw photos beside an image of their name: cameras store both."""
    raw = [each for each in images if each[0].lower().endswith(RAW_SUFFIX)]
    if not raw:
        return images
    developed = {stem for name, stem in images if not name.lower().endswith(RAW_SUFFIX)}
    left_out = {name for name, stem in raw if stem in developed}
    for name in sorted(left_out):
        scan.problems.append(Problem(found[name].path, "skipped: an image of the same name is beside it"))
        scan.other_files[RAW_SUFFIX] += 1
    return [each for each in images if each[0] not in left_out]


def _masks_among(images: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of images such as NAME_mask.png beside another one of that NAME: (NAME, the mask), the one to use last."""
    named = [(name, stem) for name, stem in images if stem.lower().endswith(_MASK_ENDS)]
    if not named:
        return []
    stems = {stem for _, stem in images}
    ends = _MASK_ENDS[::-1]
    pairs = [(stem[: -len(end)], name) for end in ends for name, stem in named if stem.lower().endswith(end)]
    return [(stem, name) for stem, name in pairs if stem in stems]


def _captions_of(
    scan: FolderScan,
    prefix: str,
    images: list[tuple[str, str]],
    texts: list[str],
    found: Mapping[str, _Entry],
) -> dict[str, _Entry]:
    """The caption file of each image of a folder that has one beside it. What else `texts` are goes into `scan`."""
    extensions = scan.caption_extensions
    captions = dict[str, _Entry]()
    taken = set[str]()
    for name, stem in images:
        for each in extensions:
            if (caption := found.get(stem + each)) is not None:
                captions[name] = caption
                taken.add(stem + each)
                break
    spare = {_with_lower_suffix(text): text for text in texts if text not in taken}
    if not spare:
        return captions
    endings = dict.fromkeys([*(each.lower() for each in extensions), *scan.other_extensions])
    names = {os.path.splitext(text)[0] for text in spare}  # most folders have only a few, such as a README.txt
    for name, stem in [each for each in images if each[0] in names or each[1] in names]:
        others = [place + each for each in endings for place in (stem, name)]
        beside = [spare[each] for each in others if each in spare]
        taken.update(beside)
        path = os.fsencode(prefix + name)
        if beside and name not in captions:
            captions[name] = found[beside[0]]
            scan.caption_at[path] = prefix + beside.pop(0)
        if beside:
            scan.second_captions[path] = prefix + beside[0]
    for text in spare.values():
        if text in taken:
            continue
        if text.lower() in LIST_NAMES:
            scan.lists.append((prefix + text, _stamp(found[text])))
        else:
            scan.spare_texts.append(prefix + text)
    return captions


def _with_lower_suffix(name: str) -> str:
    stem, suffix = os.path.splitext(name)
    return stem + suffix.lower()


def _pair_masks(scan: FolderScan) -> None:
    """Images in folders such as masks/ that have the name of another image are its masks, and no images themselves;
    with masks, those in folders such as conditioning/, too, as kohya's scripts have it."""
    rows = {row: path for row, path in enumerate(map(os.fsdecode, scan.paths)) if _in_folder(path, _MASKS_AND_MORE)}
    if not rows:
        return
    images = _by_pair(path for row, path in enumerate(map(os.fsdecode, scan.paths)) if row not in rows)
    numbers = {path: row for row, path in enumerate(scan.paths)}
    stamps, dropped = scan.stamps, set[int]()
    owned = {row: images[_pair(path)] for row, path in rows.items() if _pair(path) in images}
    holds_masks = any(_in_folder(rows[row], MASK_FOLDERS) for row in owned)
    # Masks first: a conditioning image counts as one only where there is no other.
    for row, path in sorted(rows.items(), key=lambda each: _in_folder(each[1], CONDITIONING_FOLDERS)):
        owners = owned.get(row, [])
        if not owners and holds_masks and _in_folder(path, MASK_FOLDERS):
            scan.lost_masks.append(path)
            dropped.add(row)
        dropped.update([row] if owners else [])
        if owners and _in_folder(path, CONDITIONING_FOLDERS) and not scan.with_masks:
            scan.conditioning.append(path)
            continue
        if owners or row in dropped:
            scan.add_mask(path)
        for owner in owners if scan.with_masks else ():
            number = numbers[os.fsencode(owner)]
            mask, image = os.path.join(scan.root, path), os.path.join(scan.root, owner)
            if stamps[number, 2, 0] >= 0:
                continue  # it has one beside it
            if is_foreign_link(mask, scan.root, [image]):
                scan.problems.append(Problem(image, f"skipped: its mask {path} {describe_foreign_link(mask)}"))
                scan.other_files["with a foreign mask"] += 1
                dropped.add(number)
                continue
            stamps[number, 2] = stamps[row, 0]
            scan.mask_at[scan.paths[number]] = path
    for row in dropped:
        scan.caption_at.pop(scan.paths[row], None)
        scan.second_captions.pop(scan.paths[row], None)
    kept = [row for row in range(len(scan.paths)) if row not in dropped]
    scan.flat_stamps = array("q", stamps[kept].tobytes())
    scan.paths = [scan.paths[row] for row in kept]


def _pair_captions(scan: FolderScan) -> None:
    """Texts in folders such as captions/ that have the name of an image without a caption belong to it."""
    texts = _by_pair(text for text in scan.spare_texts if _in_folder(text, _CAPTION_FOLDERS))
    if not texts:
        return
    stamps, used = scan.stamps, set[str]()
    for row, path in enumerate(scan.paths):
        relative = os.fsdecode(path)
        found = [*texts.get(_pair(relative), ()), *texts.get(_pair(f"{relative}.txt"), ())]
        found.sort(key=lambda text: text.lower().endswith(".json"))
        used.update(found)
        if found and stamps[row, 1, 0] < 0:
            scan.caption_at[path] = found.pop(0)
            stamps[row, 1] = _stamp_of(os.path.join(scan.root, scan.caption_at[path]))
        if found:
            scan.second_captions.setdefault(path, found[0])
    scan.flat_stamps = array("q", stamps.tobytes())
    scan.spare_texts = [text for text in scan.spare_texts if text not in used]


def _pair(path: str) -> str:
    """What images/a/b.jpg, masks/a/b.png and a/captions/b.txt have in common: a/b."""
    *folders, name = path.split("/")
    return "/".join([*(each for each in folders if each.lower() not in _PAIRED_FOLDERS), os.path.splitext(name)[0]])


def _by_pair(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(_pair(path), []).append(path)
    return found


def _in_folder(path: str, names: frozenset[str]) -> bool:
    return not names.isdisjoint(path.lower().split("/")[:-1])


def _refuse_foreign_metadata(scan: FolderScan) -> None:
    images = [os.path.join(scan.root, os.fsdecode(path)) for path in scan.paths[:_NEIGHBOURS]]
    for files in (scan.metadata, scan.lists):
        kept = []
        for relative, stamp in files:
            path = os.path.join(scan.root, relative)
            if relative not in scan.shards and is_foreign_link(path, scan.root, images):
                scan.problems.append(Problem(path, f"not read: it {describe_foreign_link(path)}"))
            else:
                kept.append((relative, stamp))
        files[:] = kept


def _is_image(path: str) -> bool:
    """Whether a file begins as those of the formats that Tandem reads."""
    try:
        with open_regular(path) as file:
            return has_image_signature(file.read(SIGNATURE_BYTES))
    except (OSError, FileFault):
        return False


def _is_folder(entry: _Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _image_stamp(scan: FolderScan, entry: _Entry, mask: _Entry | None) -> Stamp | None:
    """The stamp of an image; None if it cannot be used, which `scan` then says."""
    try:
        if not entry.is_file():
            # opening a named pipe would block forever
            what = "skipped: not a file, or a broken link"
            scan.problems.append(Problem(entry.path, what))
            scan.other_files["not a file"] += 1
            return None
        status = entry.stat()
    except OSError as error:
        scan.problems.append(Problem(entry.path, f"skipped: {error.strerror}"))
        scan.other_files["unreadable"] += 1
        return None
    if mask is not None and is_foreign_link(mask.path, scan.root, [entry.path]):
        what = f"skipped: its mask {mask.name} {describe_foreign_link(mask.path)}"
        scan.problems.append(Problem(entry.path, what))
        scan.other_files["with a foreign mask"] += 1
        return None
    return status.st_size, status.st_mtime_ns


def _add_folder(
    scan: FolderScan,
    entry: _Entry,
    relative: str,
    subfolders: list[tuple[str, str, os.stat_result]],
) -> None:
    try:
        # DirEntry.stat() reports inode 0 on Windows; os.stat() does not.
        subfolders.append((entry.path, relative + "/", os.stat(entry.path)))
        scan.has_pairs = scan.has_pairs or entry.name.lower() in _PAIRED_FOLDERS
    except OSError as error:
        scan.problems.append(Problem(entry.path, f"folder skipped: {error.strerror}"))


def _stamp(entry: _Entry) -> Stamp:
    try:
        status = entry.stat()
    except OSError:
        return NO_FILE
    return status.st_size, status.st_mtime_ns


def _stamp_of(path: str) -> Stamp:
    try:
        return file_stamp(path)
    except (OSError, FileFault):
        return NO_FILE
