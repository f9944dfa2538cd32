"""Examples that are not cached: an image is read, decoded, cropped and augmented each time it is sampled."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from modules.config import Concept, DataError
from modules.config.sections.data import DataSettings
from modules.data.batch import Example, ExampleTransform
from modules.data.cache.augmentation import augmentation
from modules.data.cache.crops import (
    Crop,
    clip_example,
    compute_crops,
    crop_example,
    decode_references,
    with_references,
)
from modules.data.captions import plain_caption
from modules.data.index.clips import clip_start, read_clip
from modules.data.index.images import (
    IMAGE_ERRORS,
    decode_image,
    decode_mask,
    describe_image_error,
    suppress_pillow_warnings,
)
from modules.data.index.index import Index
from modules.data.index.problems import Problem
from modules.data.index.references import unpack_references
from modules.data.index.scan import concept_root
from modules.data.rng import SampleRng, UInt64Array, hash_bytes, hash_uint64
from modules.files import file_size, open_regular

_CHANGED = "it has changed since the run was started"


class UnreadableImage(DataError):
    """A file of the data set that cannot be read any more, and the tensors that fill its place in the batch."""

    def __init__(self, problem: Problem, blank: dict[str, Tensor]) -> None:
        super().__init__(f"{problem.path!r} cannot be trained on ({problem.what}).")
        self.problem, self.blank = problem, blank


class OnTheFlyExamples:
    """The examples of an index, straight from its files; all are usable until one turns out to be damaged."""

    def __init__(self, index: Index, settings: DataSettings, transform: ExampleTransform) -> None:
        self.problems: list[Problem] = []
        self.usable: NDArray[np.bool_] = np.ones(len(index), dtype=np.bool_)
        sides = index.width.astype(np.int64), index.height.astype(np.int64)
        # what is known without reading the files
        self.contents = hash_uint64(index.size, *sides, *_reference_hashes(index))
        self._index, self._transform = index, transform
        self._concepts, self._masked, self._clips = settings.concepts, settings.masked_training, settings.clips

    def with_memory(self, memory_bytes: int) -> Self:
        """Nothing is kept in memory: the operating system keeps the files that it has room for."""
        return self

    def sample(self, row: int, rng: SampleRng | None) -> dict[str, Tensor]:
        """The tensors of a row with crop, mirroring, rotation and colours drawn from `rng`; without it the centre.

        Raises UnreadableImage if its file cannot be decoded, is not the one that was indexed, or has disappeared, and
        DataError if the whole folder has.
        """
        concept = self._concepts[self._index.concept[row]]
        crop = self._crop(row, concept, rng)
        try:
            with suppress_pillow_warnings():
                example = self._example(row, concept, crop)
                files = [_read(each.path, each.size) for each in self._index.references(row)]
                references = decode_references(self._index, row, files)
        except IMAGE_ERRORS as error:
            if isinstance(error, OSError) and not os.path.exists(concept_root(concept)):
                raise DataError(
                    f"The folder {concept.path!r} with the images has disappeared.",
                    "Bring it back, then --resume latest.",
                ) from error
            problem = Problem(self._index.file(row), describe_image_error(error))
            raise UnreadableImage(problem, self._blank(concept, crop)) from error
        return self._transform(with_references(example, *references, crop.change))

    def text(self, caption: str) -> dict[str, Tensor]:
        """Captions are encoded in each step."""
        return {}

    def _blank(self, concept: Concept, crop: Crop) -> dict[str, Tensor]:
        """What stands for an image that cannot be read: grey, of the size that the others of its batch have."""
        image = Image.new("RGB", (crop.bucket.width, crop.bucket.height), "grey")
        size = crop.bucket.height, crop.bucket.width
        whole = Crop(size, 0, 0, crop.bucket, flipped=False)
        example = crop_example(image, None, self._masked, (concept.prompt_prefix,), size, whole)
        if (frames := crop.bucket.frames) > 1:
            example = replace(example, pixels=example.pixels[:, None].repeat(1, frames, 1, 1))
        references, pictures = (
            [Image.new("RGB", (width, height), "grey") for height, width in sizes]
            for sizes in (crop.bucket.references, crop.bucket.pictures)
        )
        return self._transform(with_references(example, references, pictures, whole.change))

    def _crop(self, row: int, concept: Concept, rng: SampleRng | None) -> Crop:
        height, width, top, left = self._centre_crops[row].tolist()
        bucket = self._index.buckets[self._index.bucket[row]]
        if rng is not None and concept.crop_jitter:
            top, left = rng.integer(height - bucket.height + 1), rng.integer(width - bucket.width + 1)
        flipped = rng is not None and concept.horizontal_flip and rng.integer(2) == 1
        change = augmentation(concept, rng)
        return Crop((height, width), top, left, bucket, flipped, change, self._start(row, concept, rng))

    def _start(self, row: int, concept: Concept, rng: SampleRng | None) -> int:
        """The moment at which the clip of a video begins: see `clip_start`."""
        if rng is None or self._clips == "start" or not self._index.is_video(row):
            return 0
        variations, drawn = concept.clip_variations, rng.uniform()
        variation = int(drawn * variations) if self._clips == "uniform" else 1
        return clip_start(self._clips, self._index.spare_moments(row), variation, variations, drawn)

    @cached_property
    def _centre_crops(self) -> NDArray[np.int32]:
        """int32 [rows, 4]: `compute_crops`, once in each process that needs it."""
        index = self._index
        sizes = np.array([(b.height, b.width) for b in index.buckets], dtype=np.int32)[index.bucket]
        return compute_crops(index.width, index.height, sizes, index.path_hash, 0)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_centre_crops"}

    def _example(self, row: int, concept: Concept, crop: Crop) -> Example:
        """Without references."""
        index, path = self._index, self._index.file(row)
        width, height, size = (int(column[row]) for column in (index.width, index.height, index.size))
        mask = None
        if self._masked and index.has_mask(row):
            data = _read(index.mask(row, concept.mask_suffix), int(index.mask_file[row, 0]))
            mask = decode_mask(data, is_alpha=index.is_alpha_mask(row))
        captions = tuple(plain_caption(caption, concept) for caption in index.captions(row))
        if index.is_video(row):
            if file_size(path) != size:
                raise ValueError(_CHANGED)
            frames = read_clip(path, index.clip_times(row, crop.start))
            return clip_example(frames, mask, self._masked, captions, (height, width), crop)
        image = decode_image(_read(path, size), (width, height), min_size=(crop.resized[1], crop.resized[0]))
        return crop_example(image, mask, self._masked, captions, (height, width), crop)


def file_hashes(index: Index) -> UInt64Array:
    """uint64 [rows]: a hash of each row's path, file size, caption and use, for machines to compare."""
    captions = np.array([hash_bytes(text) for text in index.caption_texts.unpack()], dtype=np.uint64)
    use = index.concept.astype(np.int64) * 2 + index.validation
    return hash_uint64(index.path_hash, use, index.size, captions, *_reference_hashes(index))


def _reference_hashes(index: Index) -> list[UInt64Array]:
    """One array [rows] of hashes of the files of references, if there are any."""
    if not len(index.reference_files.blob):
        return []
    files = (unpack_references(text) for text in index.reference_files.unpack())
    known = ([(os.path.basename(each.path), each.size, each.width, each.height) for each in row] for row in files)
    return [np.array([hash_bytes(repr(row).encode()) for row in known], dtype=np.uint64)]


def _read(path: str, size: int) -> bytes:
    with open_regular(path) as file:
        data = file.read(size + 1)
    if len(data) != size:
        raise ValueError(_CHANGED)
    return data
