"""What a concept's folder holds besides images with captions: JSON in the index, so names are part of the format."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from dataclasses import dataclass, field

from modules.data.index.scan import FolderScan
from modules.files import printable

IN_TABLE = "the table of the images"  # where captions are, in the place of the name of a list
_SHOWN = 200  # characters of a path


@dataclass(frozen=True)
class CaptionFindings:
    """What the search for captions has found besides them; examples are relative paths."""

    unnamed: int = 0  # entries of metadata files and lists that name no image
    unnamed_example: str = ""
    alike: int = 0  # images whose entry has other capitals or another Unicode form
    alike_example: str = ""
    twice: int = 0  # images with captions in two places, of which the first counts
    compared: int = 0  # of these
    differing: int = 0  # of the compared ones
    differing_example: str = ""


@dataclass(frozen=True)
class Findings:
    """What the scan has found, and the search for captions."""

    captions: CaptionFindings = CaptionFindings()
    encoding: str = ""  # of the caption files that are not UTF-8
    caption_files: dict[str, int] = field(default_factory=dict)  # "NAME.caption" -> images, for OTHER_FILE
    lists: tuple[str, ...] = ()  # files with the captions of many images
    masks: int = 0  # files
    mask_example: str = ""
    conditioning: int = 0
    conditioning_example: str = ""
    lost_masks: int = 0  # masks of no image
    lost_mask_example: str = ""
    orphans: int = 0  # texts that belong to no image
    orphan_example: str = ""
    references: int = 0  # images that have some
    reference_example: str = ""
    lost_references: int = 0  # images that lack theirs, and are left out
    lost_reference_example: str = ""
    shards: int = 0  # archives and tables that images are read from
    unread_shards: int = 0  # archives that their images seem to lie beside
    unread_shard_example: str = ""

    @classmethod
    def of(cls, scan: FolderScan, captions: CaptionFindings, encoding: str) -> Findings:
        """What a scan has found, and the search for captions in it."""
        orphans = [each for each in scan.spare_texts if not each.lower().endswith(".json")]
        files = Counter(_pattern(os.fsdecode(image), file) for image, file in scan.caption_at.items())
        return cls(
            captions=captions,
            encoding=encoding,
            caption_files=dict(files.most_common()),
            lists=tuple(
                dict.fromkeys(
                    IN_TABLE if each in scan.shards else posixpath.basename(each)
                    for each, _ in (*scan.metadata, *scan.lists)
                )
            ),
            masks=scan.masks - len(scan.lost_masks),
            mask_example=printable(scan.mask_example, _SHOWN),
            conditioning=len(scan.conditioning),
            conditioning_example=printable(scan.conditioning[0], _SHOWN) if scan.conditioning else "",
            lost_masks=len(scan.lost_masks),
            lost_mask_example=printable(scan.lost_masks[0], _SHOWN) if scan.lost_masks else "",
            orphans=len(orphans),
            orphan_example=printable(orphans[0], _SHOWN) if orphans else "",
            shards=len(scan.shards),
            unread_shards=len(scan.unread_shards),
            unread_shard_example=printable(scan.unread_shards[0], _SHOWN) if scan.unread_shards else "",
        )


def _pattern(image: str, file: str) -> str:
    """Where a caption file lies: NAME.caption, NAME.jpg.txt, captions/NAME.txt."""
    folder, name = posixpath.split(image)
    beside, text = posixpath.split(file)
    whole = text.startswith(name)
    ending = text.removeprefix(name if whole else posixpath.splitext(name)[0])
    place = "" if beside == folder else f"{posixpath.basename(beside)}/"
    return printable(f"{place}NAME{posixpath.splitext(name)[1] if whole else ''}{ending}", _SHOWN)
