"""Encoding pictures into the cache, group by group: files are read, checked and decoded ahead in threads while
the model encodes, and written in another one."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

import torch
from PIL import Image
from torch import Tensor

from modules.config import TrainConfig, TrainingError
from modules.data.batch import Example
from modules.data.examples import cut_example
from modules.data.groups import Groups
from modules.data.index import Index, ProgressCallback
from modules.data.index_part import mask_file
from modules.data.keys import NO_MASK, WHOLE_MASK, ViewKeys
from modules.data.ledger import Bad, FileRecord, Ledger
from modules.data.pictures import BROKEN, decode, decode_mask, explain, quiet_pillow
from modules.data.shards import ShardWriter

# Examples of one bucket, and how many make up a full batch, to what is cached of each.
Encode: TypeAlias = Callable[[Sequence[Example], int], Sequence[Mapping[str, Tensor]]]
Warn: TypeAlias = Callable[[str], None]

_THREADS = 4
_AHEAD = 8  # pictures decoded and waiting, or two groups; one that is being cut may take tens of megabytes


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

    def run(self, groups: Groups, encode: Encode, writer: ShardWriter, progress: ProgressCallback, warn: Warn) -> None:
        """Encode all views of the groups' rows that are not cached yet; pictures that cannot be decoded are
        recorded as bad, and their groups encoded without them."""
        batches = _Batches(encode, groups.size, warn)
        done = 0
        with (
            quiet_pillow(),
            ThreadPoolExecutor(_THREADS) as pool,
            closing(self._ahead([row for group in groups for row in group], 2 * groups.size, pool)) as ahead,
        ):
            for group in groups:
                prepared = list(islice(ahead, len(group)))
                for key, entry in self._encoded(prepared, batches):
                    writer.add(key, entry)
                    self._cached.add(key)
                for each in prepared:
                    writer.record(each.files, each.bad)
                done += len(group)
                progress(done, len(groups))

    def _encoded(self, prepared: list[_Prepared], batches: _Batches) -> Iterator[tuple[bytes, Mapping[str, Tensor]]]:
        """All new views of a group, those of pictures of the same content once."""
        new = {
            key: (example, self._index.file(each.row))
            for each in prepared
            for key, example in each.examples
            if key not in self._cached
        }
        return zip(new, batches.encoded(list(new.values())), strict=True)

    def _ahead(self, rows: list[int], ahead: int, pool: ThreadPoolExecutor) -> Generator[_Prepared, None, None]:
        """The prepared pictures in order, a few of them in the making."""
        remaining = iter(rows)
        first = islice(remaining, max(_AHEAD, ahead))
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


class _Batches:
    """Encodes as many examples at once as fit into memory: the size asked for, or what is left after halving it."""

    def __init__(self, encode: Encode, size: int, warn: Warn) -> None:
        self._encode, self._size, self._warn = encode, size, warn

    def encoded(self, examples: Sequence[tuple[Example, str]]) -> Iterator[Mapping[str, Tensor]]:
        """What is cached of each example, given with its file, in their order. Raises TrainingError where not even
        one at a time fits."""
        begin = 0
        while begin < len(examples):
            batch = examples[begin : begin + self._size]
            try:
                encoded = self._encode([example for example, _ in batch], self._size)
            except torch.OutOfMemoryError as error:
                if self._size == 1:
                    raise _too_large(batch[0][1], error) from error
                self._halve()
            except Exception as error:
                error.add_note(f"while encoding {', '.join(file for _, file in batch)}")
                raise
            else:
                yield from encoded
                begin += len(batch)

    def _halve(self) -> None:
        self._size = (self._size + 1) // 2
        pictures = "1 picture" if self._size == 1 else f"{self._size} pictures"
        self._warn(
            f"Out of memory while preparing pictures: from now on {pictures} at a time; set cache_batch_size to "
            f"{self._size} to begin like this."
        )


def _too_large(file: str, error: BaseException) -> TrainingError:
    reason = str(error).strip().split("\n")[0]
    return TrainingError(
        f"Out of memory while preparing {file!r}, one picture at a time: {reason}",
        "Set family_options.vae_tiling to true where the family has it, lower resolution, or close other programs that "
        "use this GPU; what is prepared already is kept.",
    )
