"""The cache of encoded images: what it holds and what is missing, whichever rank of whichever run wrote it."""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modules.config.sections.data import DataSettings
from modules.data.cache.encode import Encode, EncodeCaptions, Encoder, Warn, decoding_threads
from modules.data.cache.encode_batches import EncodeBatches, RowIndices, make_encode_batches
from modules.data.cache.keys import NO_MASK, WHOLE_MASK, ViewKeys, alpha_digest, text_key
from modules.data.cache.manifest import CacheManifest, cache_files
from modules.data.cache.reader import MEMORY_BYTES, CachedExamples
from modules.data.cache.shards import ShardWriter
from modules.data.cache.table import CacheTable, TableHeader, split_key
from modules.data.index.index import Index, ProgressCallback, no_progress
from modules.data.index.problems import Problem
from modules.data.rng import UInt64Array, hash_bytes, hash_uint64

_FORMAT = 1  # of what is made of the manifests
_SAMPLED_ROWS = 256


class Cache:
    """The cache of one index. Rank N writes to `cache_dir`/rank-N only; every rank reads all of these folders.

    `captions_in_key` is for families that encode captions together with their image: a new caption is then a new entry.
    With `text_fingerprint`, captions have entries of their own, one for each different text.
    """

    def __init__(
        self,
        cache_dir: Path,
        fingerprint: str,
        index: Index,
        settings: DataSettings,
        captions_in_key: bool = False,
        text_fingerprint: str = "",
    ) -> None:
        self._cache_dir = cache_dir
        self._index = index
        self._settings = settings
        self._keys = ViewKeys(index, settings, fingerprint, captions_in_key)
        self._text_fingerprint = text_fingerprint
        self._made_from = (fingerprint, text_fingerprint, captions_in_key, settings.masked_training)
        self._table: CacheTable | None = None
        self.former_entries = 0  # rows that an earlier version has cached together with their captions

    def update(self) -> str:
        """Find out what is cached, and store it for other processes, unless that was done and nothing has changed.

        Returns the name of the file for their `follow`, or "" if none can be written.
        """
        path = self._cache_dir / CacheTable.name(self._state())
        try:
            self._table = self._mapped(path)
        except (OSError, ValueError):
            self._table = self._build()
            try:
                self._table.store(path)
                self._table = self._mapped(path)  # the memory of what it was built from is free again
            except (OSError, ValueError):  # a read-only or full disk
                return ""
        return path.name

    def follow(self, name: str) -> None:
        """Map what another process has found out by `update`, or find it out here."""
        try:
            self._table = self._mapped(self._cache_dir / Path(name).name)
        except (OSError, ValueError):
            self._table = self._build()

    def missing(self) -> RowIndices:
        """int64 [missing]: index rows not fully cached, apart from files known to be bad; the same on every rank."""
        return np.flatnonzero(~self._known().done)

    def missing_captions(self, rows: RowIndices | None = None) -> list[str]:
        """The captions, of all rows or of some, that are to be cached by themselves and are not."""
        if not self._text_fingerprint:
            return []
        table = self._known()
        found = []
        for place in np.flatnonzero(table.text_shard < 0).tolist():
            high, low = int(table.text_high[place]), int(table.text_low[place])
            captions = self._keys.captions(int(table.text_row[place]))
            found += [each for each in captions if split_key(text_key(self._text_fingerprint, each)) == (high, low)][:1]
        if rows is not None:
            wanted = {caption for row in rows.tolist() for caption in self._keys.captions(row)}
            found = [caption for caption in found if caption in wanted]
        return found

    def batches(self, rows: RowIndices, size: int) -> EncodeBatches:
        """The given rows in batches of at most `size` images that are encoded together."""
        return make_encode_batches(rows, self._index.bucket, size, [bucket.frames for bucket in self._index.buckets])

    def encode(
        self,
        batches: EncodeBatches,
        encode: Encode,
        rank: int,
        progress: ProgressCallback = no_progress,
        warn: Warn = lambda text: None,
        encoders: int = 1,
    ) -> None:
        """Encode these batches into this rank's folder; `progress` is called after each with the images done. So many
        `encoders` of this machine share its processors.

        If memory runs out, the rest is encoded in smaller batches, which is passed to `warn`. Raises TandemError if the
        folder cannot be written or a single image is too large; other errors of `encode` pass through.
        """
        if not len(batches):
            return
        self._table = None
        manifest, threads = CacheManifest(self._cache_dir), decoding_threads(encoders)
        encoder = Encoder(self._index, self._settings, self._keys, manifest, threads)
        with ShardWriter(self._cache_dir / f"rank-{rank}", warn) as writer:
            encoder.run(batches, encode, writer, progress, warn)

    def encode_captions(
        self,
        captions: Sequence[str],
        size: int,
        encode: EncodeCaptions,
        rank: int,
        progress: ProgressCallback = no_progress,
        warn: Warn = lambda text: None,
    ) -> None:
        """Encode captions into this rank's folder, at most `size` at once. Raises as `encode`."""
        if not captions:
            return
        self._table = None
        with ShardWriter(self._cache_dir / f"rank-{rank}", warn) as writer:
            for start in range(0, len(captions), size):
                some = captions[start : start + size]
                for caption, entry in zip(some, encode(some, size), strict=True):
                    writer.add(text_key(self._text_fingerprint, caption), entry)
                writer.record([])
                progress(min(start + size, len(captions)), len(captions))

    def load(self) -> CachedExamples:
        """Where every view and caption is stored, and why rows are not usable."""
        table = self._known()
        rows = np.flatnonzero(~table.usable).tolist()
        problems = [Problem(self._index.file(row), table.reason(row)) for row in rows]
        return CachedExamples(self._cache_dir, table, problems, self._text_fingerprint, MEMORY_BYTES)

    def content_hashes(self) -> UInt64Array:
        """uint64 [rows]: a hash of each row's path, contents, caption and use; 0 if the row is not usable.

        Machines with equal hashes train on the same images, whatever the mtimes of their files.
        """
        return self._known().hashes

    def _known(self) -> CacheTable:
        if self._table is None:
            self._table = self._build()
        return self._table

    def _mapped(self, path: Path) -> CacheTable:
        table = CacheTable.map(path)
        if table.header.index != self._index.digest or not np.array_equal(table.first, self._keys.first_slot):
            raise ValueError("of another index")
        return table

    def _state(self) -> bytes:
        """What the table depends on: settings, index, the files of the cache, and how keys are made of them."""
        keys, rows = self._keys, range(0, len(self._index), max(1, len(self._index) // _SAMPLED_ROWS))
        some = hashlib.sha256()
        for row in rows:
            for view in range(int(keys.views[row])):
                some.update(keys.key(row, view, NO_MASK, NO_MASK))
            for caption in keys.captions(row):
                some.update(text_key(self._text_fingerprint, caption))
        concepts = [concept.model_dump(mode="json") for concept in self._settings.concepts]
        files = cache_files(self._cache_dir)
        return json.dumps([_FORMAT, *self._made_from, concepts, some.hexdigest(), self._index.digest, files]).encode()

    def _build(self) -> CacheTable:
        """By reading the manifests of all ranks."""
        manifest, keys, index = CacheManifest(self._cache_dir), self._keys, self._index
        first, places, entries = keys.first_slot.tolist(), manifest.places, manifest.entries
        # arrays of Python, which is as quick as a list to write one by one and keeps no objects
        found_at = array("q", [-1]) * first[-1]  # the rows of `places`
        content_of, hash_of = (array("Q", bytes(8 * len(index))) for _ in range(2))
        has_references = any(bucket.references for bucket in index.buckets)
        captions, caption_starts = index.caption_texts.blob.data, index.caption_texts.starts.data
        for row, content, others in self._contents(manifest):
            whole = (
                hashlib.sha256(content + others).digest() if has_references and index.reference_sizes(row) else content
            )
            content_of[row] = int.from_bytes(whole[:8], "little")
            caption = captions[caption_starts[row] : caption_starts[row + 1]]
            hash_of[row] = hash_bytes(content + others + caption)
            for view in range(first[row + 1] - first[row]):
                found_at[first[row] + view] = entries.get(keys.key(row, view, content, others), -1)
        contents, hashes = (np.frombuffer(each, dtype=np.uint64) for each in (content_of, hash_of))
        found = places[np.frombuffer(found_at, dtype=np.int64)]
        lacking = np.concatenate([[0], np.cumsum(found[:, 0] < 0)])
        done = lacking[keys.first_slot[1:]] == lacking[keys.first_slot[:-1]]
        self.former_entries = (
            int((~done & (contents > 0)).sum()) if manifest.has_former and self._text_fingerprint else 0
        )
        usable = done.copy()
        texts, text_rows, text_found = self._find_texts(manifest, usable)
        use = index.concept.astype(np.int64) * 2 + index.validation
        reasons = {}
        for row, path in enumerate(index.files()) if manifest.bad and not done.all() else ():
            if not done[row] and (bad := manifest.bad.get((path, keys.stamps(row)))) is not None:
                reasons[row], done[row] = bad
        shards = tuple(f"{shard.parent.name}/{shard.name}" for shard in manifest.shards)
        return CacheTable(
            TableHeader(shards, reasons, index.digest),
            keys.first_slot,
            found[:, 0].astype(np.int32),
            found[:, 1].astype(np.int32),
            found[:, 2].astype(np.uint32),
            usable,
            done,
            contents,
            np.where(usable & (contents > 0), hash_uint64(index.path_hash, use, hashes), np.uint64(0)),
            np.ascontiguousarray(texts[:, 0]),
            np.ascontiguousarray(texts[:, 1]),
            text_rows,
            text_found[:, 0].astype(np.int32),
            text_found[:, 1].astype(np.int32),
            text_found[:, 2].astype(np.uint32),
        )

    def _find_texts(
        self, manifest: CacheManifest, usable: NDArray[np.bool_]
    ) -> tuple[UInt64Array, RowIndices, RowIndices]:
        """Of each different caption, sorted by key: the halves of its key [captions, 2], the first row that has it
        [captions], and where it is [captions, 3]. Rows that lack one become unusable."""
        rows: dict[bytes, int] = {}
        for row in range(len(self._index)) if self._text_fingerprint else ():
            for caption in self._keys.captions(row):
                key = text_key(self._text_fingerprint, caption)
                rows.setdefault(key, row)
                usable[row] &= key in manifest.entries
        keys = sorted(rows)
        halves = np.array([split_key(key) for key in keys], dtype=np.uint64).reshape(-1, 2)
        found = manifest.places[np.array([manifest.entries.get(key, -1) for key in keys], dtype=np.int64)]
        return halves, np.array([rows[key] for key in keys], dtype=np.int64), found

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
        content = manifest.contents.get((self._index.mask(row, concept.mask_suffix), size, mtime_ns))
        return alpha_digest(content) if content is not None and self._index.is_alpha_mask(row) else content
