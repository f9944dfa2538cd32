"""Images are encoded in batches that fit, and a stop or an error keeps what is done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from modules.config import TrainingError
from modules.data.cache.cache import Cache
from modules.data.cache.encode import decoding_threads
from modules.data.cache.encode_batches import EncodeBatches, encode_batch_size
from tests.data.helpers import (
    RecordingEncode,
    config_for,
    damage,
    encode_missing,
    fill,
    indexed,
)


def test_failing_encode_raises_and_keeps_what_was_done(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    encoding = RecordingEncode()

    def fails_at_the_sixth(examples: Any, size: int) -> Any:
        if len(encoding.examples) == 5:
            raise RuntimeError("the image is odd")
        return encoding(examples, size)

    cache = Cache(tmp_path / "c", "f", index, config)
    with pytest.raises(RuntimeError, match="odd") as caught:
        encode_missing(cache, fails_at_the_sixth)
    assert "5.png" in caught.value.__notes__[0]
    assert fill(config, index)[1] == 5


def test_encode_batches_do_not_depend_on_the_rank_count(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cache = Cache(tmp_path / "c", "f", index, config)
    batches = list(cache.batches(cache.missing(), 3))
    assert sorted(row for batch in batches for row in batch) == list(range(10))
    assert all(len({int(index.bucket[row]) for row in batch}) == 1 for batch in batches)
    in_buckets = np.bincount(index.bucket)
    assert len(batches) == sum(-(-count // 3) for count in in_buckets.tolist())
    whole = cache.batches(cache.missing(), 3)
    assert sorted(batch for rank in range(2) for batch in whole.for_rank(rank, 2)) == sorted(batches)
    assert len(whole.for_rank(0, 2)) + len(whole.for_rank(1, 2)) == len(whole) == 10
    one_by_one = cache.batches(cache.missing(), 1)
    assert list(one_by_one) == [[row] for row in range(10)]
    assert list(cache.batches(cache.missing()[:0], 3)) == []


def test_the_images_to_encode_are_counted_once(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting takes a millisecond at a million images."""
    config = config_for(folder, cache=tmp_path / "c")
    counted, count = list[EncodeBatches](), EncodeBatches.__len__

    def counting(batches: EncodeBatches) -> int:
        counted.append(batches)
        return count(batches)

    monkeypatch.setattr(EncodeBatches, "__len__", counting)
    encode_missing(Cache(tmp_path / "c", "f", indexed(config), config), RecordingEncode())
    assert len(counted) < 5


def test_the_cores_of_a_machine_are_divided_among_those_that_decode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.data.cache.encode.cpu_count", lambda: 64)
    assert [decoding_threads(encoders) for encoders in (1, 8, 64)] == [32, 8, 4]


def test_batch_is_encoded_without_its_broken_image(folder: Path, tmp_path: Path) -> None:
    damage(folder / "4.png")
    config = config_for(folder, cache=tmp_path / "c", aspect_ratio_bucketing=False, horizontal_flip=True)
    index = indexed(config)
    encoding = RecordingEncode()
    reported: list[tuple[int, int]] = []
    cache = Cache(tmp_path / "c", "f", index, config)
    work = cache.batches(cache.missing(), 4)
    cache.encode(work, encoding, 0, lambda done, total: reported.append((done, total)))
    assert encoding.batches == [(4, 4), (4, 4), (4, 4), (2, 4), (4, 4)]  # two views of 4, of 3 and of 2 images
    assert reported == [(4, 10), (8, 10), (10, 10)]
    loaded = cache.load()
    assert loaded.usable.tolist() == [row != 4 for row in range(10)]
    again, _ = fill(config, index, fingerprint="g")
    for row in np.flatnonzero(loaded.usable).tolist():
        assert all(loaded.read(row, view)["pixels"].equal(again.read(row, view)["pixels"]) for view in range(2))


def test_batches_are_halved_until_they_fit_into_memory(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c", aspect_ratio_bucketing=False)
    index = indexed(config)
    encoding = RecordingEncode()
    reported: list[str] = []

    def fits_two(examples: Any, size: int) -> Any:
        if size > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return encoding(examples, size)

    cache = Cache(tmp_path / "c", "f", index, config)
    cache.encode(cache.batches(cache.missing(), 8), fits_two, 0, warn=reported.append)
    assert encoding.batches == [(2, 2)] * 5
    assert ["4 images at a time" in reported[0], "Set cache_batch_size to 2" in reported[1]] == [True, True]
    assert len(reported) == 2
    assert cache.load().usable.all()


def test_single_image_too_large_for_memory_raises(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    encoding = RecordingEncode()

    def fails_at_the_fifth(examples: Any, size: int) -> Any:
        if len(encoding.examples) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return encoding(examples, size)

    cache = Cache(tmp_path / "c", "f", index, config)
    with pytest.raises(TrainingError, match=r"4\.png'?.*one image at a time: CUDA out of memory") as caught:
        encode_missing(cache, fails_at_the_fifth)
    assert "vae_tiling" in caught.value.advice
    assert "batch_size" not in caught.value.advice
    assert len(cache.missing()) == 6  # what was done before is kept


def test_stop_between_batches_keeps_what_is_done(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c", aspect_ratio_bucketing=False)
    index = indexed(config)
    cache = Cache(tmp_path / "c", "f", index, config)

    def stop(done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.encode(cache.batches(cache.missing(), 3), RecordingEncode(), 0, stop)
    assert cache.missing().tolist() == [6, 7, 8, 9]
    assert fill(config, index, size=3)[1] == 4


def test_encode_batch_size_depends_on_device_and_resolution() -> None:
    assert [encode_batch_size(None, side, "cuda") for side in (64, 256, 512, 768, 1024, 2048)] == [16, 16, 4, 1, 1, 1]
    assert encode_batch_size(None, 256, "cpu") == 1
    assert encode_batch_size(3, 2048, "cpu") == 3
