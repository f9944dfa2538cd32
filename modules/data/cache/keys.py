"""Keys of cached views: a hash over everything that affects the encoding, and nothing else."""

from __future__ import annotations

import hashlib

import numpy as np

from modules.config.sections.data import DataSettings
from modules.data.cache.augmentation import UNCHANGED, Augmentation, augmentation
from modules.data.cache.crops import Crop, compute_crops, count_views, split_view
from modules.data.captions import plain_caption
from modules.data.index.captions import pack_captions
from modules.data.index.clips import clip_start
from modules.data.index.index import Index
from modules.data.rng import SampleRng, hash_uint64, to_unit_interval

NO_MASK = bytes(32)  # masked_training is off
WHOLE_MASK = b"\xff" * 32  # the image has no mask and counts fully

_FORMAT = "view 1"
_TEXT_FORMAT = "caption 1"
_KEY_BYTES = 16
_NUMBERS_BYTES = 24


def text_key(fingerprint: str, caption: str) -> bytes:
    """The 16-byte key of a caption, encoded as `Family.text_fingerprint` says."""
    return hashlib.sha256(f"{_TEXT_FORMAT}\0{fingerprint}\0{caption}".encode()).digest()[:_KEY_BYTES]


def alpha_digest(content: bytes) -> bytes:
    """The digest of an image's transparency as its mask, from that of the image: a mask file may have its bytes."""
    return hashlib.sha256(b"alpha\0" + content).digest()


class ViewKeys:
    """The views of every row and their keys. A row's views are numbered from 0; slots count the views of all rows."""

    def __init__(self, index: Index, settings: DataSettings, fingerprint: str, captions_in_key: bool) -> None:
        self._index = index
        self._concepts = concepts = settings.concepts
        self._clips = settings.clips
        self._captions_in_key = captions_in_key
        self._start = hashlib.sha256(f"{_FORMAT}\0{fingerprint}\0".encode())
        self._bucket_sizes = np.array([(b.height, b.width) for b in index.buckets], dtype=np.int32).reshape(-1, 2)
        self._changes = [augmentation(each, SampleRng(0)) != UNCHANGED for each in concepts]  # any view of a concept
        self._geometry: dict[int, bytes] = {}  # of `_numbers` of all rows
        self._concept = index.concept.data  # ten times as quick as numpy for a single number
        self._has_videos = bool((index.fps > 0).any())
        self._has_references = any(bucket.references for bucket in index.buckets)
        per_concept = np.array([[count_views(c, False), count_views(c, True)] for c in concepts]).reshape(-1, 2)
        self.views = per_concept[index.concept, index.validation.astype(np.int64)]  # [rows]
        for row in np.flatnonzero(index.fps > 0).tolist() if self._clips != "start" else ():
            several = index.spare_moments(row) > 0
            self.views[row] = count_views(concepts[index.concept[row]], bool(index.validation[row]), several)
        self.first_slot = np.concatenate([[0], np.cumsum(self.views)]).astype(np.int64)  # [rows + 1]

    def key(self, row: int, view: int, content: bytes, others: bytes) -> bytes:
        """The 16-byte key of one view; `content` is the sha256 digest of the image file, `others` has those of its mask
        and references."""
        variation, flipped = self._split(row, view)
        hasher = self._start.copy()
        hasher.update(content + others + self._numbers(row, variation) + (b"\1" if flipped else b"\0"))
        if self._changes[self._concept[row]] and (change := self._change(row, variation)) != UNCHANGED:
            hasher.update(f"{change}".encode())
        if self._has_references and (sizes := self._index.reference_sizes(row)):
            pictures = self._index.buckets[self._index.bucket[row]].pictures
            hasher.update(f"{sizes}{pictures or ''}".encode())
        if self._has_videos and self._index.is_video(row):
            hasher.update(f"{self._index.clip_times(row, self._start_of(row, variation))}".encode())
        if self._captions_in_key:
            hasher.update(pack_captions(self.captions(row)))
        return hasher.digest()[:_KEY_BYTES]

    def crop(self, row: int, view: int) -> Crop:
        """The geometry of one view."""
        variation, flipped = self._split(row, view)
        height, width, top, left, *_ = np.frombuffer(self._numbers(row, variation), dtype=np.int32).tolist()
        bucket = self._index.buckets[self._index.bucket[row]]
        start = self._start_of(row, variation) if self._has_videos and self._index.is_video(row) else 0
        return Crop((height, width), top, left, bucket, flipped, self._change(row, variation), start)

    def captions(self, row: int) -> tuple[str, ...]:
        """The row's captions with their prefix, before tags are shuffled or dropped."""
        concept = self._concepts[self._concept[row]]
        return tuple(plain_caption(caption, concept) for caption in self._index.captions(row))

    def stamps(self, row: int) -> tuple[int, ...]:
        """Size and mtime_ns of the image, of its mask and its references: while they are unchanged, a bad file is still
        bad."""
        index = self._index
        references = (stamp for file in index.references(row) for stamp in (file.size, file.mtime_ns))
        return (int(index.size[row]), int(index.mtime_ns[row]), *index.mask_file[row].tolist(), *references)

    def _split(self, row: int, view: int) -> tuple[int, bool]:
        return (0, False) if view == 0 else split_view(view, self._concepts[self._concept[row]])

    def _start_of(self, row: int, variation: int) -> int:
        """The moment at which the clip of a video begins: see `clip_start`; drawn as crops are."""
        variations = self._concepts[self._concept[row]].clip_variations
        drawn = float(to_unit_interval(hash_uint64(int(self._index.path_hash[row]), variation, 3))[0])
        return clip_start(self._clips, self._index.spare_moments(row), variation, variations, drawn)

    def _change(self, row: int, variation: int) -> Augmentation:
        """Variation 0 has only what all images of its concept have; others are a hash of the path, as crops are."""
        number = self._concept[row]
        if not self._changes[number]:
            return UNCHANGED
        seed = int(hash_uint64(int(self._index.path_hash[row]), variation, 2)[0])
        return augmentation(self._concepts[number], SampleRng(seed) if variation else None)

    def _numbers(self, row: int, variation: int) -> bytes:
        """Six int32: the crop of `compute_crops`, then the bucket's height and width."""
        place = variation if variation and self._concepts[self._concept[row]].crop_jitter else 0
        if place not in self._geometry:
            index = self._index
            target = self._bucket_sizes[index.bucket]
            crop = compute_crops(index.width, index.height, target, index.path_hash, place)
            self._geometry[place] = np.concatenate([crop, target], axis=1).tobytes()
        return self._geometry[place][row * _NUMBERS_BYTES : (row + 1) * _NUMBERS_BYTES]
