"""The cache of encoded images: what it holds and what is missing, whichever rank of whichever run wrote it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from modules.config.sections.data import DataSettings
from modules.data.cache.encode import Encode, Encoder, Warn
from modules.data.cache.encode_batches import EncodeBatches, RowIndices, make_encode_batches
from modules.data.cache.keys import NO_MASK, WHOLE_MASK, ViewKeys
from modules.data.cache.manifest import CacheManifest
from modules.data.cache.reader import CachedExamples, Slots
from modules.data.cache.shards import ShardWriter
from modules.data.index.index import Index, ProgressCallback, no_progress
from modules.data.index.problems import Problem
from modules.data.rng import UInt64Array, hash_bytes, hash_uint64


class Cache:
    """The cache of one index. Rank N writes to `cache_dir`/rank-N only; every rank reads all of these folders.

    `captions_in_key` is for families that encode the captions as well: a new caption is then a new entry.
    """

    def __init__(
        self,
        cache_dir: Path,
        fingerprint: str,
        index: Index,
        settings: DataSettings,
        captions_in_key: bool = False,
    ) -> None:
        self._cache_dir = cache_dir
        self._index = index
        self._settings = settings
        self._keys = ViewKeys(index, settings.concepts, fingerprint, captions_in_key)

    def missing(self) -> RowIndices:
        """int64 [missing]: index rows not fully cached, apart from files known to be bad; the same on every rank."""
        manifest = CacheManifest(self._cache_dir)
        done = set(self._done_rows(manifest))
        return np.array([row for row in range(len(self._index)) if row not in done], dtype=np.int64)

    def batches(self, rows: RowIndices, size: int) -> EncodeBatches:
        """The given rows in batches of at most `size` images that are encoded together."""
        return make_encode_batches(rows, self._index.bucket, size)

    def encode(
        self,
        batches: EncodeBatches,
        encode: Encode,
        rank: int,
        progress: ProgressCallback = no_progress,
        warn: Warn = lambda text: None,
    ) -> None:
        """Encode these batches into this rank's folder; `progress` is called after each with the images done.

        If memory runs out, the rest is encoded in smaller batches, which is passed to `warn`. Raises TandemError if the
        folder cannot be written or a single image is too large; other errors of `encode` pass through.
        """
        if not len(batches):
            return
        encoder = Encoder(self._index, self._settings, self._keys, CacheManifest(self._cache_dir))
        with ShardWriter(self._cache_dir / f"rank-{rank}", warn) as writer:
            encoder.run(batches, encode, writer, progress, warn)

    def load(self) -> CachedExamples:
        """Read the manifests of all ranks: where every view is stored, and why rows are not usable."""
        manifest = CacheManifest(self._cache_dir)
        keys = self._keys
        count = int(keys.first_slot[-1])
        found = np.full((count, 3), -1, dtype=np.int64)
        first = keys.first_slot.tolist()
        contents = np.zeros(len(self._index), dtype=np.uint64)
        for row, content, others in self._contents(manifest):
            whole = hashlib.sha256(content + others).digest() if self._index.reference_sizes(row) else content
            contents[row] = int.from_bytes(whole[:8], "little")
            for view in range(first[row + 1] - first[row]):
                entry = manifest.entries.get(keys.key(row, view, content, others))
                if entry is not None:
                    found[first[row] + view] = entry
        slots = Slots(
            keys.first_slot,
            found[:, 0].astype(np.int32),
            found[:, 1].astype(np.int32),
            found[:, 2].astype(np.uint32),
        )
        cached = CachedExamples(slots, manifest.shards, [], contents)
        cached.problems.extend(self._reason(row, manifest) for row in np.flatnonzero(~cached.usable).tolist())
        return cached

    def content_hashes(self) -> UInt64Array:
        """uint64 [rows]: a hash of each row's path, contents, caption and use; 0 if the row is not usable.

        Machines with equal hashes train on the same images, whatever the mtimes of their files.
        """
        index, manifest = self._index, CacheManifest(self._cache_dir)
        usable = self.load().usable
        contents = np.zeros(len(index), dtype=np.uint64)
        for row, content, others in self._contents(manifest):
            text = index.caption_texts[row]
            contents[row] = hash_bytes(content + others + text) if usable[row] else 0
        use = index.concept.astype(np.int64) * 2 + index.validation
        return np.where(contents, hash_uint64(index.path_hash, use, contents), np.uint64(0))

    def _done_rows(self, manifest: CacheManifest) -> Iterator[int]:
        """Rows with nothing left to do: all views cached, or a bad file that has not changed since."""
        first = self._keys.first_slot.tolist()
        for row, content, others in self._contents(manifest):
            views = range(first[row + 1] - first[row])
            if all(self._keys.key(row, view, content, others) in manifest.entries for view in views):
                yield row
        if manifest.bad:
            for row, path in enumerate(self._index.files()):
                _, permanent = manifest.bad.get((path, self._keys.stamps(row)), ("", False))
                if permanent:
                    yield row

    def _contents(self, manifest: CacheManifest) -> Iterator[tuple[int, bytes, bytes]]:
        """(row, sha256 of the image, those of its mask and references) of rows whose files were read and have not
        changed."""
        index = self._index
        sizes, mtimes_ns = index.size.tolist(), index.mtime_ns.tolist()
        for row, path in enumerate(index.files()):
            content = manifest.contents.get((path, sizes[row], mtimes_ns[row]))
            mask = self._mask_content(row, path, manifest) if content is not None else None
            if content is None or mask is None:
                continue
            files = index.references(row)
            references = [manifest.contents.get((each.path, each.size, each.mtime_ns)) for each in files]
            if None not in references:
                yield row, content, b"".join([mask, *filter(None, references)])

    def _mask_content(self, row: int, path: str, manifest: CacheManifest) -> bytes | None:
        if not self._settings.masked_training:
            return NO_MASK
        if not self._index.has_mask(row):
            return WHOLE_MASK
        size, mtime_ns = self._index.mask_file[row].tolist()
        concept = self._settings.concepts[self._index.concept[row]]
        return manifest.contents.get((self._index.mask(row, concept.mask_suffix), size, mtime_ns))

    def _reason(self, row: int, manifest: CacheManifest) -> Problem:
        path = self._index.file(row)
        unknown = "skipped: it was not encoded; the next start retries it"
        reason, _ = manifest.bad.get((path, self._keys.stamps(row)), (unknown, False))
        return Problem(path, reason)
