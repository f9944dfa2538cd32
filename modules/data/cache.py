"""The cache of encoded pictures: what is there, what is missing; which rank of which run wrote it does not
matter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from modules.config import TrainConfig
from modules.data.encoding import Encode, Encoder, Warn
from modules.data.groups import Groups, Rows, make_groups
from modules.data.hashing import Words, hash_path, hash_words
from modules.data.index import Index, ProgressCallback, silent
from modules.data.index_part import mask_file
from modules.data.keys import NO_MASK, WHOLE_MASK, ViewKeys
from modules.data.ledger import Ledger
from modules.data.problems import Problem
from modules.data.reading import CachedExamples, Slots
from modules.data.shards import ShardWriter


class Cache:
    """The cache of one index. Rank N writes in `cache_dir`/rank-N only; every rank reads all of them.

    `captions_in_key` is for families whose `encode` looks at the captions: then a new caption is a new entry.
    """

    def __init__(
        self,
        cache_dir: Path,
        fingerprint: str,
        index: Index,
        config: TrainConfig,
        captions_in_key: bool = False,
    ) -> None:
        self._cache_dir = cache_dir
        self._index = index
        self._config = config
        self._keys = ViewKeys(index, config, fingerprint, captions_in_key)

    def missing(self) -> Rows:
        """Index rows that are not wholly cached, but for files known as bad; the same on every rank."""
        ledger = Ledger(self._cache_dir)
        known = set(self._index_rows_known(ledger))
        return np.array([row for row in range(len(self._index)) if row not in known], dtype=np.int64)

    def groups(self, work: Rows, size: int) -> Groups:
        """The rows of `work` in groups of at most `size` pictures that are encoded together."""
        return make_groups(work, self._index.bucket, size)

    def encode(
        self,
        groups: Groups,
        encode: Encode,
        rank: int,
        progress: ProgressCallback = silent,
        warn: Warn = lambda text: None,
    ) -> None:
        """Encode the rows of `groups` into this rank's folder; `progress` is called after each group.

        Where memory runs out the rest is encoded in smaller groups, of which `warn` is told. Raises TandemError where
        the folder cannot be written or one picture alone is too large; what `encode` raises otherwise passes through.
        """
        if not len(groups):
            return
        encoder = Encoder(self._index, self._config, self._keys, Ledger(self._cache_dir))
        with ShardWriter(self._cache_dir / f"rank-{rank}") as writer:
            encoder.run(groups, encode, writer, progress, warn)

    def load(self) -> CachedExamples:
        """Read the ledgers of all ranks: where every view lies, which rows are usable, and what was wrong
        with others."""
        ledger = Ledger(self._cache_dir)
        keys = self._keys
        count = int(keys.first_slot[-1])
        found = np.full((count, 3), -1, dtype=np.int64)
        first = keys.first_slot.tolist()
        for row, content, mask in self._contents(ledger):
            for view in range(first[row + 1] - first[row]):
                entry = ledger.entries.get(keys.key(row, view, content, mask))
                if entry is not None:
                    found[first[row] + view] = entry
        slots = Slots(
            keys.first_slot,
            found[:, 0].astype(np.int32),
            found[:, 1].astype(np.int32),
            found[:, 2].astype(np.uint32),
        )
        cached = CachedExamples(slots, ledger.shards, [])
        cached.problems.extend(self._reason(row, ledger) for row in np.flatnonzero(~cached.usable).tolist())
        return cached

    def words(self) -> Words:
        """[rows]: 64 bits for each row over path, contents, caption and use; 0 where it cannot be used.

        Two machines train on the same pictures where these are the same, whatever the dates of their files.
        """
        index, ledger = self._index, Ledger(self._cache_dir)
        usable = self.load().usable
        contents = np.zeros(len(index), dtype=np.uint64)
        for row, content, mask in self._contents(ledger):
            text = index.caption_texts[row]
            contents[row] = hash_path(content + mask + text) if usable[row] else 0
        use = index.concept.astype(np.int64) * 2 + index.validation
        return np.where(contents, hash_words(index.path_hash, use, contents), np.uint64(0))

    def _index_rows_known(self, ledger: Ledger) -> Iterator[int]:
        """Rows with nothing left to do: all views cached, or a file that was bad and has not changed
        since."""
        first = self._keys.first_slot.tolist()
        for row, content, mask in self._contents(ledger):
            views = range(first[row + 1] - first[row])
            if all(self._keys.key(row, view, content, mask) in ledger.entries for view in views):
                yield row
        if ledger.bad:
            for row, path in enumerate(self._index.files()):
                _, for_good = ledger.bad.get((path, self._keys.stamps(row)), ("", False))
                if for_good:
                    yield row

    def _contents(self, ledger: Ledger) -> Iterator[tuple[int, bytes, bytes]]:
        """(row, sha256 of the picture, of its mask) of all rows whose files have been read and not changed
        since."""
        index = self._index
        sizes, dates = index.size.tolist(), index.mtime_ns.tolist()
        for row, path in enumerate(index.files()):
            content = ledger.contents.get((path, sizes[row], dates[row]))
            mask = self._mask_content(row, path, ledger) if content is not None else None
            if content is not None and mask is not None:
                yield row, content, mask

    def _mask_content(self, row: int, path: str, ledger: Ledger) -> bytes | None:
        if not self._config.masked_training:
            return NO_MASK
        if not self._index.has_mask(row):
            return WHOLE_MASK
        size, mtime_ns = self._index.mask_file[row].tolist()
        concept = self._config.concepts[self._index.concept[row]]
        return ledger.contents.get((mask_file(path, concept), size, mtime_ns))

    def _reason(self, row: int, ledger: Ledger) -> Problem:
        path = self._index.file(row)
        unknown = "skipped: it was not encoded; the next start takes it up"
        reason, _ = ledger.bad.get((path, self._keys.stamps(row)), (unknown, False))
        return Problem(path, reason)
