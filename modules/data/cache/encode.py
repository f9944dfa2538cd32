"""Encoding images into the cache, batch by batch: files are read, checked, decoded and cropped ahead in threads while
the model encodes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeAlias

import torch
from PIL import Image
from torch import Tensor

from modules.config import TrainingError
from modules.config.sections.data import DataSettings
from modules.data.batch import Example
from modules.data.cache.crops import Crop, clip_example, crop_example, decode_references, mirrored, with_references
from modules.data.cache.encode_batches import EncodeBatches, clip_batch_size
from modules.data.cache.keys import NO_MASK, WHOLE_MASK, ViewKeys, alpha_digest
from modules.data.cache.manifest import BadFile, CacheManifest, FileRecord
from modules.data.cache.shards import ShardWriter
from modules.data.index.clips import read_clip
from modules.data.index.images import (
    IMAGE_ERRORS,
    decode_image,
    decode_mask,
    describe_image_error,
    suppress_pillow_warnings,
)
from modules.data.index.index import Index, ProgressCallback
from modules.files import open_regular
from modules.machine import cpu_count

# (examples of one bucket, size of a full batch) -> the tensors to cache of each example
Encode: TypeAlias = Callable[[Sequence[Example], int], Sequence[Mapping[str, Tensor]]]
# (captions, size of a full batch) -> the tensors to cache of each caption
EncodeCaptions: TypeAlias = Callable[[Sequence[str], int], Sequence[Mapping[str, Tensor]]]
Warn: TypeAlias = Callable[[str], None]

_MIN_THREADS: Final = 4  # on a network drive the time goes into waiting, not the CPU
_MAX_THREADS: Final = 32  # each may hold an image of hundreds of megabytes
_LEAST_AHEAD = 2  # of long clips, which take as much as all their frames
_CHANGED = "skipped: the file changed after it was indexed; the next start retries it"


@dataclass
class _Prepared:
    """One image read from disk: what to encode of it, or why it cannot be encoded."""

    row: int
    files: list[FileRecord] = field(default_factory=list)
    examples: list[tuple[bytes, Example]] = field(default_factory=list)
    bad: BadFile | None = None


class _FileChanged(ValueError):
    """The file is not the one that was indexed."""


def decoding_threads(encoders: int) -> int:
    """How many threads decode images in each of the processes of this machine that encode, so that all cores do."""
    return max(_MIN_THREADS, min(_MAX_THREADS, cpu_count() // encoders))


class Encoder:
    """Encodes rows of the index into one rank's shards; images are decoded in `threads`."""

    def __init__(
        self, index: Index, settings: DataSettings, keys: ViewKeys, manifest: CacheManifest, threads: int
    ) -> None:
        self._index, self._settings, self._keys, self._threads = index, settings, keys, threads
        self._cached = set(manifest.entries)

    def run(
        self, batches: EncodeBatches, encode: Encode, writer: ShardWriter, progress: ProgressCallback, warn: Warn
    ) -> None:
        """Encode all views of these rows that are not cached yet; images that cannot be decoded are recorded as bad,
        and their batches encoded without them."""
        adaptive = _AdaptiveEncode(encode, batches.size, warn)
        done, total = 0, len(batches)
        rows = [row for batch in batches for row in batch]
        # while a batch is encoded, another one can fill, and no thread waits
        most = 2 * (self._threads + batches.size)
        with (
            suppress_pillow_warnings(),
            ThreadPoolExecutor(self._threads) as pool,
            closing(self._prepare_ahead(rows, most, pool)) as ahead,
        ):
            for batch in batches:
                prepared = list(islice(ahead, len(batch)))
                for key, entry in self._encode_new(prepared, adaptive):
                    writer.add(key, entry)
                    self._cached.add(key)
                for each in prepared:
                    writer.record(each.files, each.bad)
                done += len(batch)
                progress(done, total)

    def _encode_new(
        self, prepared: list[_Prepared], encode: _AdaptiveEncode
    ) -> Iterator[tuple[bytes, Mapping[str, Tensor]]]:
        """(key, entry) of all new views of a batch; images of the same content are encoded once."""
        new = {
            key: (example, self._index.file(each.row))
            for each in prepared
            for key, example in each.examples
            if key not in self._cached
        }
        return zip(new, encode.encode_all(list(new.values())), strict=True)

    def _prepare_ahead(self, rows: list[int], most: int, pool: ThreadPoolExecutor) -> Generator[_Prepared, None, None]:
        """The prepared images in order, at most so many of them in advance."""
        remaining = iter(rows)
        longest = max((bucket.frames for bucket in self._index.buckets), default=1)
        first = islice(remaining, max(_LEAST_AHEAD, most // longest))
        waiting: deque[Future[_Prepared]] = deque(pool.submit(self._prepare, row) for row in first)
        try:
            while waiting:
                yield waiting.popleft().result()
                waiting.extend(pool.submit(self._prepare, row) for row in islice(remaining, 1))
        finally:
            for future in waiting:
                future.cancel()

    def _prepare(self, row: int) -> _Prepared:
        prepared = _Prepared(row)
        path = self._index.file(row)
        try:
            stamp = int(self._index.size[row]), int(self._index.mtime_ns[row])
            is_video = self._index.is_video(row)
            data, content = (b"", self._hash(path, stamp, prepared)) if is_video else self._read(path, stamp, prepared)
            mask_data, mask_content = self._read_mask(row, (data, content), prepared)
            read = [self._read(f.path, (f.size, f.mtime_ns), prepared) for f in self._index.references(row)]
            others = b"".join([mask_content, *(digest for _, digest in read)])
            views = range(int(self._keys.views[row]))
            keys = {view: self._keys.key(row, view, content, others) for view in views}
            missing = [view for view in views if keys[view] not in self._cached]
            if missing:
                references = decode_references(self._index, row, [file for file, _ in read])
                prepared.examples = [
                    (keys[view], with_references(example, *references, self._keys.crop(row, view).change))
                    for view, example in self._crop(row, missing, data, mask_data)
                ]
        except IMAGE_ERRORS as error:
            # A missing permission or an unplugged drive does not show in the file's mtime, so those are retried.
            changed = isinstance(error, _FileChanged)
            permanent = not changed and not (isinstance(error, OSError) and error.errno is not None)
            reason = str(error) if changed else describe_image_error(error)
            prepared.bad = (path, list(self._keys.stamps(row)), reason, permanent)
            prepared.files = []
        return prepared

    def _crop(self, row: int, views: list[int], data: bytes, mask_data: bytes | None) -> list[tuple[int, Example]]:
        index = self._index
        crops = {view: self._keys.crop(row, view) for view in views}
        resized = crops[views[0]].resized
        original = int(index.height[row]), int(index.width[row])
        is_alpha = index.is_alpha_mask(row)
        mask: Image.Image | None = decode_mask(mask_data, is_alpha=is_alpha) if mask_data is not None else None
        captions = self._keys.captions(row)
        masked = self._settings.masked_training
        # Mirrored ones are not resampled, unless they are turned: mirroring comes first.
        sources = {view: crop if crop.change.angle else replace(crop, flipped=False) for view, crop in crops.items()}
        if index.is_video(row):
            made = {
                crop: clip_example(self._frames(row, crop), mask, masked, captions, original, crop)
                for crop in set(sources.values())
            }
        else:
            image = decode_image(data, (original[1], original[0]), min_size=(resized[1], resized[0]))
            made = {crop: crop_example(image, mask, masked, captions, original, crop) for crop in set(sources.values())}
        return [
            (view, made[source] if source == crops[view] else mirrored(made[source], crops[view]))
            for view, source in sources.items()
        ]

    def _frames(self, row: int, crop: Crop) -> Iterator[Image.Image]:
        return read_clip(self._index.file(row), self._index.clip_times(row, crop.start))

    def _read_mask(self, row: int, image: tuple[bytes, bytes], prepared: _Prepared) -> tuple[bytes | None, bytes]:
        """Bytes and digest of its mask; `image` has those of the image."""
        if not self._settings.masked_training:
            return None, NO_MASK
        if not self._index.has_mask(row):
            return None, WHOLE_MASK
        if self._index.is_alpha_mask(row):
            return image[0], alpha_digest(image[1])
        path = self._index.mask(row, self._settings.concepts[self._index.concept[row]].mask_suffix)
        size, mtime_ns = self._index.mask_file[row].tolist()
        return self._read(path, (size, mtime_ns), prepared)

    def _hash(self, path: str, stamp: tuple[int, int], prepared: _Prepared) -> bytes:
        """As `_read`, of a file that may be too large for memory: its sha256 digest."""
        with open_regular(path) as file:
            content, size = hashlib.file_digest(file, "sha256").digest(), file.tell()
        if size != stamp[0]:
            raise _FileChanged(_CHANGED)
        prepared.files.append((path, *stamp, content.hex()))
        return content

    def _read(self, path: str, stamp: tuple[int, int], prepared: _Prepared) -> tuple[bytes, bytes]:
        """The file's bytes and sha256 digest, recorded in `prepared` under the indexed mtime: if the file is newer by
        now, the next start finds another mtime and reads it again."""
        with open_regular(path) as file:
            data = file.read(stamp[0] + 1)
        if len(data) != stamp[0]:
            raise _FileChanged(_CHANGED)
        content = hashlib.sha256(data).digest()
        prepared.files.append((path, *stamp, content.hex()))
        return data, content


class _AdaptiveEncode:
    """Encodes as many examples at once as fit into memory: halves the batch size when memory runs out."""

    def __init__(self, encode: Encode, size: int, warn: Warn) -> None:
        self._encode, self._size, self._warn = encode, size, warn

    def encode_all(self, examples: Sequence[tuple[Example, str]]) -> Iterator[Mapping[str, Tensor]]:
        """The entry of each (example, file), in order. Raises TrainingError if not even one example fits."""
        start = 0
        while start < len(examples):
            size = clip_batch_size(self._size, examples[start][0].frames)
            batch = examples[start : start + size]
            try:
                encoded = self._encode([example for example, _ in batch], size)
            except torch.OutOfMemoryError as error:
                if size == 1:
                    raise _too_large(batch[0][1], error) from error
                self._halve()
            except Exception as error:
                error.add_note(f"while encoding {', '.join(file for _, file in batch)}")
                raise
            else:
                yield from encoded
                start += len(batch)

    def _halve(self) -> None:
        self._size = (self._size + 1) // 2
        images = "1 image" if self._size == 1 else f"{self._size} images"
        self._warn(
            f"Out of memory while encoding images: continuing with {images} at a time. Set cache_batch_size to "
            f"{self._size} to start with this size."
        )


def _too_large(file: str, error: BaseException) -> TrainingError:
    reason = str(error).strip().split("\n")[0]
    return TrainingError(
        f"Out of memory while encoding {file!r}, one image at a time: {reason}",
        "Set family_options.vae_tiling to true if the family has it, lower resolution (or frames), or close other "
        "programs that use this GPU; images encoded so far are kept.",
    )
