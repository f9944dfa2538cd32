"""Encoding pictures into the cache: files are read, checked and decoded ahead in threads while the model
encodes."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from PIL import Image
from torch import Tensor

from modules.config import TrainConfig
from modules.data.batch import Example
from modules.data.examples import cut_example
from modules.data.index import Index, ProgressCallback
from modules.data.index_part import mask_file
from modules.data.keys import NO_MASK, WHOLE_MASK, ViewKeys
from modules.data.ledger import Bad, FileRecord, Ledger
from modules.data.pictures import BROKEN, decode, decode_mask, explain, quiet_pillow
from modules.data.shards import ShardWriter

Encode: TypeAlias = Callable[[Example], dict[str, Tensor]]

_THREADS = 4
_AHEAD = 8  # pictures decoded and waiting; large photographs take tens of megabytes each while they are cut


@dataclass
class _Prepared:
    """One picture read from disk: what to encode of it, or why nothing can be."""

    row: int
    files: list[FileRecord] = field(default_factory=list)
    examples: list[tuple[bytes, Example]] = field(default_factory=list)
    bad: Bad | None = None


class _Changed(ValueError):
    """The file is not the one that was indexed."""


class Encoder:
    """Encodes rows of the index into one rank's shards."""

    def __init__(self, index: Index, config: TrainConfig, keys: ViewKeys, ledger: Ledger) -> None:
        self._index, self._config, self._keys = index, config, keys
        self._cached = set(ledger.entries)

    def run(self, rows: list[int], encode: Encode, writer: ShardWriter, progress: ProgressCallback) -> None:
        """Encode all views of `rows` that are not cached yet; pictures that cannot be decoded are recorded as
        bad."""
        with quiet_pillow(), ThreadPoolExecutor(_THREADS) as pool:
            for done, prepared in enumerate(self._ahead(rows, pool), start=1):
                for key, example in prepared.examples:
                    if key not in self._cached:
                        writer.add(key, self._encoded(encode, example, prepared.row))
                        self._cached.add(key)
                writer.record(prepared.files, prepared.bad)
                progress(done, len(rows))

    def _encoded(self, encode: Encode, example: Example, row: int) -> dict[str, Tensor]:
        try:
            return encode(example)
        except Exception as error:
            error.add_note(f"while encoding {self._index.file(row)}")
            raise

    def _ahead(self, rows: list[int], pool: ThreadPoolExecutor) -> Iterator[_Prepared]:
        """The prepared pictures in order, a few of them in the making."""
        remaining = iter(rows)
        waiting: deque[Future[_Prepared]] = deque(pool.submit(self._prepare, row) for row in islice(remaining, _AHEAD))
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
            data, content = self._read(path, stamp, prepared)
            mask_data, mask_content = self._read_mask(row, prepared)
            views = range(int(self._keys.views[row]))
            keys = {view: self._keys.key(row, view, content, mask_content) for view in views}
            missing = [view for view in views if keys[view] not in self._cached]
            if missing:
                prepared.examples = [
                    (keys[view], example) for view, example in self._cut(row, missing, data, mask_data)
                ]
        except BROKEN as error:
            # A missing permission or an unplugged drive leaves no trace in the file's date, so those are
            # tried again.
            for_good = not (isinstance(error, OSError) and error.errno is not None) and not isinstance(error, _Changed)
            reason = str(error) if isinstance(error, _Changed) else explain(error)
            prepared.bad = (path, list(self._keys.stamps(row)), reason, for_good)
            prepared.files = []
        return prepared

    def _cut(self, row: int, views: list[int], data: bytes, mask_data: bytes | None) -> list[tuple[int, Example]]:
        index = self._index
        crops = {view: self._keys.crop(row, view) for view in views}
        resized = crops[views[0]].resized
        original = int(index.height[row]), int(index.width[row])
        picture = decode(data, (original[1], original[0]), shortest=(resized[1], resized[0]))
        mask: Image.Image | None = decode_mask(mask_data) if mask_data is not None else None
        captions = self._keys.captions(row)
        with_mask = self._config.masked_training
        return [(view, cut_example(picture, mask, with_mask, captions, original, crop)) for view, crop in crops.items()]

    def _read_mask(self, row: int, prepared: _Prepared) -> tuple[bytes | None, bytes]:
        if not self._config.masked_training:
            return None, NO_MASK
        if not self._index.has_mask(row):
            return None, WHOLE_MASK
        path = mask_file(self._index.file(row), self._config.concepts[self._index.concept[row]])
        size, mtime_ns = self._index.mask_file[row].tolist()
        return self._read(path, (size, mtime_ns), prepared)

    def _read(self, path: str, stamp: tuple[int, int], prepared: _Prepared) -> tuple[bytes, bytes]:
        """The file's bytes and their sha256, which `prepared` notes under the date that the index knows:
        should the file be newer by now, the next start finds another date and reads it again."""
        with open(path, "rb") as file:
            data = file.read()
        if len(data) != stamp[0]:
            raise _Changed("skipped: the file changed after it was indexed; the next start takes it up")
        content = hashlib.sha256(data).digest()
        prepared.files.append((path, *stamp, content.hex()))
        return data, content
