"""What a concept's folder holds and what of it is trained on: one record for terminal, events, report and window."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept
from modules.config.captions import CaptionPlace, CaptionState
from modules.config.sections.concept import METADATA_NAMES
from modules.data.index.buckets import Bucket
from modules.data.index.column_store import Column
from modules.data.index.findings import IN_TABLE, CaptionFindings, Findings
from modules.data.index.index import TRANSPARENT, Index
from modules.files import printable
from modules.files.videos import VIDEO_SUFFIXES

_EXTREME: Final = 0.25  # of an image's area, cropped away
_SHOWN: Final = 100  # characters of a caption or name
_MOST_SUFFIXES: Final = 6
_VIDEOS: Final = VIDEO_SUFFIXES - {".gif"}  # which may be stills
_NO_FILES: Final = frozenset({"unreadable"})  # entries of other_files that are not suffixes, as those with a blank


@dataclass(frozen=True)
class ConceptSummary:
    """One concept in numbers; examples are relative paths unless they are captions."""

    number: int  # position in config.concepts
    name: str
    images: int  # usable ones, with those that are held out
    held_out: int
    captions: dict[str, int]  # where captions come from -> images
    without_caption: int
    caption: str  # of the first image that has one
    caption_of: str
    masked: int  # images with a mask, if masks are used
    small: int  # images that are enlarged
    smallest: str  # "WxH" of the one that is enlarged the most
    smallest_name: str
    extreme: int  # images of which more than a quarter is cropped away
    cropped: float  # the largest share that is
    cropped_name: str
    passed_over: dict[str, int]  # suffix -> files that are neither images nor captions
    findings: Findings
    uses_masks: bool
    repeats: float = 1.0
    median: tuple[int, int] = (0, 0)  # width and height in pixels
    videos: int = 0  # of `images`
    seconds: float = 0.0  # of all videos
    short: int = 0  # videos that are shorter than the shortest clip, of which one frame is trained on
    uneven: int = 0  # and of variable rate
    own_masks: int = 0  # of `masked`, those whose mask is their transparency
    transparent: int = 0  # images with transparency that is no mask, where no image has one

    def lines(self) -> list[str]:
        """As text; the first line names the concept."""
        return [f"{self.name}: {self._images()}", *(f"  {line}" for line in (*self._captions(), *self._others()))]

    def _images(self) -> str:
        stills = self.images - self.videos
        found = [count_of(stills, "image")] if stills or not self.videos else []
        if self.videos:
            notes = [f"{self.short:,} too short for a clip"] if self.short else []
            notes += [f"{self.uneven:,} of variable rate"] if self.uneven else []
            found.append(f"{count_of(self.videos, 'video')} of {self.seconds:,.3g} s in all{_in_brackets(notes)}")
        if self.repeats != 1:
            found.append(f"each {self.repeats:g} times per epoch")
        if self.held_out:
            found.append(f"{self.held_out:,} held out")
        if self.uses_masks:
            own = f", {self.own_masks:,} of them from transparency" if self.own_masks else ""
            found.append(f"{self.masked:,} with a mask{own}")
        if self.small:
            small = f"the smallest {self.smallest}, {self.smallest_name}"
            found.append(f"{self.small:,} smaller than trained at ({small})")
        if self.extreme:
            most = f"up to {self.cropped:.0%}, {self.cropped_name}"
            found.append(f"{self.extreme:,} of extreme shape, more than a quarter cropped away ({most})")
        return ", ".join(found)

    def _captions(self) -> Iterator[str]:
        found = self.findings.captions
        places = [f"{count:,} from {place}" for place, count in self.captions.items() if count]
        places += [f"{self.without_caption:,} without"] if self.without_caption else []
        of = f" ({self.caption_of})" if self.caption_of else ""
        example = f", such as {self.caption!r}{of}" if self.caption else ""
        if places:
            yield f"captions: {', '.join(places)}{example}"
        if found.alike:
            yield (
                f"{count_of(found.alike, 'image')} named in other capitals or another Unicode form by the captions, "
                f"such as {found.alike_example}: used"
            )

    def _others(self) -> Iterator[str]:
        found = self.findings
        if found.shards:
            yield f"read in place from {count_of(found.shards, 'shard')}"
        if found.references or found.lost_references:
            such = f", such as {found.reference_example}" if found.references else ""
            yield f"reference images: of {count_of(found.references, 'image')}{such}"
        if found.lost_references:
            yield (
                f"{count_of(found.lost_references, 'image')} left out without a reference image, such as "
                f"{found.lost_reference_example}"
            )
        if found.masks and not self.uses_masks:
            yield (
                f"{count_of(found.masks, 'mask')}, such as {found.mask_example}: not trained on as images, and not "
                "used because masked_training is off"
            )
        if self.transparent:
            yield f"{count_of(self.transparent, 'image')} with transparency, which is a mask only with alpha_mask"
        if found.conditioning:
            yield (
                f"{count_of(found.conditioning, 'conditioning image')}, such as {found.conditioning_example}: not "
                "trained on, and no masks; a folder called masks would hold masks"
            )
        if found.lost_masks:
            yield f"{count_of(found.lost_masks, 'mask')} of no image, such as {found.lost_mask_example}"
        if found.orphans:
            yield f"{count_of(found.orphans, 'text')} of no image, such as {found.orphan_example}"
        videos = sum(count for suffix, count in self.passed_over.items() if suffix in _VIDEOS)
        if videos:
            yield f"{count_of(videos, 'video')} passed over: this family trains on images"
        others = [(suffix, count) for suffix, count in self.passed_over.items() if suffix not in _VIDEOS]
        if others:
            shown = others[:_MOST_SUFFIXES]
            said = ", ".join(f"{count:,} {suffix or 'without suffix'}" for suffix, count in shown)
            yield f"passed over, being no images that Tandem reads: {printable(said, 300)}"


def _in_brackets(notes: Sequence[str]) -> str:
    return f" ({', '.join(notes)})" if notes else ""


def median_size(width: NDArray[np.int32], height: NDArray[np.int32]) -> tuple[int, int]:
    """Width and height of the image of which half the others have no more pixels; (0, 0) without images."""
    if not len(width):
        return 0, 0
    middle = np.argsort(width.astype(np.int64) * height, kind="stable")[(len(width) - 1) // 2]
    return int(width[middle]), int(height[middle])


def count_of(count: int, noun: str) -> str:
    """Such as "1 image" and "2,000 images"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def summarize_concept(
    number: int,
    concept: Concept,
    columns: Mapping[str, Column],
    buckets: tuple[Bucket, ...],
    text_of: Callable[[int], tuple[str, str]],
    findings: Findings,
    other_files: Mapping[str, int],
    *,
    uses_masks: bool,
    most_frames: int = 1,
) -> ConceptSummary:
    """The summary of a concept's rows: `columns` are those of an index, and `text_of` is (path, caption) of a row."""
    width, height = (columns[name].astype(np.float64) for name in ("width", "height"))
    sizes = np.array([[b.width, b.height] for b in buckets], dtype=np.float64)[columns["bucket"].astype(np.int64)]
    scale = np.maximum(sizes[:, 0] / width, sizes[:, 1] / height) if len(width) else np.zeros(0)
    cropped = 1 - sizes[:, 0] * sizes[:, 1] / (width * scale * height * scale) if len(width) else scale
    most_enlarged, most_cropped = (int(values.argmax()) if len(values) else -1 for values in (scale, cropped))
    state = columns["caption_state"]
    is_used = (state == CaptionState.FOUND) | (state == CaptionState.CONTROL) | (state == CaptionState.OTHER_ENCODING)
    place = columns["caption_place"].astype(np.int64)
    with_caption = np.flatnonzero(is_used & (place > 0))
    first = int(with_caption[0]) if len(with_caption) else -1
    masks = cast("NDArray[np.int64]", columns["mask_file"])[:, 0] >= 0
    is_transparent = columns["transparency"] == TRANSPARENT
    frames, fps = (columns[name].astype(np.float64) for name in ("frames", "fps"))
    trained = np.array([bucket.frames for bucket in buckets])[columns["bucket"].astype(np.int64)]
    videos = np.flatnonzero(fps)
    prefix = concept.prompt_prefix if concept.caption_source == "none" else ""
    places = _places(concept, np.bincount(place[is_used], minlength=len(CaptionPlace)).tolist(), findings)

    def name(row: int) -> str:
        return printable(text_of(row)[0], _SHOWN) if row >= 0 else ""

    return ConceptSummary(
        number=number,
        name=printable(concept.name or concept.path, 2 * _SHOWN),
        images=len(width),
        held_out=int(columns["validation"].sum()),
        captions={"the caption prefix": len(width)} if prefix else places,
        without_caption=0 if concept.caption_source == "none" else int((~is_used).sum()),
        caption=printable(text_of(first)[1] if first >= 0 else prefix, _SHOWN),
        caption_of=name(first),
        masked=int(masks.sum()),
        small=int((scale > 1).sum()),
        smallest=f"{width[most_enlarged]:.0f}x{height[most_enlarged]:.0f}" if len(width) else "",
        smallest_name=name(most_enlarged),
        extreme=int((cropped > _EXTREME).sum()),
        cropped=float(cropped[most_cropped]) if len(width) else 0.0,
        cropped_name=name(most_cropped),
        passed_over=_passed_over(concept, other_files),
        findings=findings,
        uses_masks=uses_masks,
        repeats=concept.repeats,
        median=median_size(*(columns[name].astype(np.int32) for name in ("width", "height"))),
        videos=len(videos),
        seconds=float((frames[videos] / fps[videos]).sum()),
        short=int(((trained[videos] == 1) & (np.minimum(frames[videos], most_frames) > 1)).sum()),
        uneven=int((~columns["is_steady"].astype(np.bool_)).sum()),
        own_masks=int((masks & is_transparent).sum()),
        transparent=int((~masks & is_transparent).sum()),
    )


def summarize_concepts(concepts: tuple[Concept, ...], index: Index, *, uses_masks: bool) -> list[ConceptSummary]:
    """The summaries of all concepts that are switched on."""
    header, found = index.header, list[ConceptSummary]()
    for number, concept in enumerate(concepts):
        if not concept.enabled:
            continue
        first, last = np.searchsorted(index.concept, [number, number + 1]).tolist()
        columns: dict[str, Column] = {name: getattr(index, name)[first:last] for name in _COLUMNS}

        def text_of(row: int, first: int = first) -> tuple[str, str]:
            return index.relative_path(first + row), index.captions(first + row)[0]

        findings = header.findings[number] if header.findings else Findings()
        others = header.other_files[number] if header.other_files else {}
        given = number, concept, columns, index.buckets, text_of, findings, others
        summary = summarize_concept(*given, uses_masks=uses_masks, most_frames=header.most_frames)
        found.append(summary)
    return found


_COLUMNS: Final = (
    *("width", "height", "bucket", "validation", "caption_state", "caption_place", "mask_file", "transparency"),
    *("frames", "fps", "is_steady"),
)


def caption_warnings(summary: ConceptSummary) -> Iterator[str]:
    """What about the captions of a concept somebody should look at before training."""
    found: CaptionFindings = summary.findings.captions
    if encoding := summary.findings.encoding:
        yield (
            f"Caption files in {summary.name} are not UTF-8: they are read as {encoding}, the encoding that they seem "
            "to have. Look at some in the window's Images, and save them as UTF-8 if they are wrong."
        )
    if found.differing:
        some = "" if found.compared == found.twice else f" of the first {found.compared:,}"
        yield (
            f"{count_of(found.twice, 'image')} in {summary.name} have captions in two places, and {found.differing:,}"
            f"{some} differ, such as those of {found.differing_example}. The first place counts: metadata.jsonl or "
            "metadata.csv, caption_extension, other texts, NAME.json, other lists."
        )
    if shards := summary.findings.unread_shards:
        yield (
            f"{count_of(shards, 'archive')} in {summary.name}, such as {summary.findings.unread_shard_example}, "
            f"{'is' if shards == 1 else 'are'} not read: images, or a folder of that name, lie beside it, or "
            "most of its images in folders there. Give archives a folder of their own to train on them."
        )
    if found.unnamed:
        entries = "1 entry names" if found.unnamed == 1 else f"{found.unnamed:,} entries name"
        lists = " and ".join(summary.findings.lists)
        yield f"{entries} no image of {summary.name}, such as {found.unnamed_example} (in {lists})."


def _places(concept: Concept, counts: list[int], findings: Findings) -> dict[str, int]:
    """The places in words, in order of precedence."""
    metadata = [each for each in findings.lists if each in (*METADATA_NAMES, IN_TABLE)]
    lists = [each for each in findings.lists if each not in metadata]
    others = counts[CaptionPlace.OTHER_FILE]
    is_exact = sum(findings.caption_files.values()) == others  # no image is left out, or captioned by metadata
    found = {
        " and ".join(metadata): counts[CaptionPlace.METADATA],
        " or ".join(f"NAME{each}" for each in concept.caption_extensions): counts[CaptionPlace.FILE],
        **(findings.caption_files if is_exact else {" or ".join(findings.caption_files): others}),
        " and ".join(lists): counts[CaptionPlace.LIST],
        "file names": counts[CaptionPlace.FILE_NAME],
        "folder names": counts[CaptionPlace.FOLDER_NAME],
    }
    return {place: count for place, count in found.items() if count}


def _passed_over(concept: Concept, other_files: Mapping[str, int]) -> dict[str, int]:
    texts = {".caption", ".txt", ".json", ".jsonl", ".csv", ".tsv", ".parquet", ".tags", ".token"}
    texts.update(concept.caption_extensions)
    return {
        suffix: count
        for suffix, count in other_files.items()
        if suffix not in texts and " " not in suffix and suffix not in _NO_FILES
    }
