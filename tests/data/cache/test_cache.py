"""The cache: reused if nothing relevant changed, never otherwise."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config import TandemError
from modules.data.cache import shards
from modules.data.cache.cache import Cache
from tests.data.helpers import (
    RecordingEncode,
    config_for,
    encode_missing,
    fill,
    indexed,
    one_by_one,
    write_image,
)


def test_cached_images_are_not_encoded_again(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    cached, count = fill(config, indexed(config), world=3)
    assert count == 10
    assert cached.usable.all()
    assert sorted(path.name for path in (tmp_path / "c").iterdir() if path.is_dir()) == [
        "rank-0",
        "rank-1",
        "rank-2",
    ]
    again, count = fill(config, indexed(config), world=1)
    assert count == 0
    for row in range(10):
        assert again.read(row, 0)["pixels"].shape[0] == 3
        assert again.read(row, 0)["pixels"].equal(cached.read(row, 0)["pixels"])


@pytest.mark.parametrize("change", [{"resolution": 64}, {"aspect_ratio_bucketing": False}, {"masked_training": True}])
def test_changed_settings_never_reuse_old_entries(folder: Path, tmp_path: Path, change: dict[str, object]) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    before = indexed(config)
    fill(config, before)
    changed = config_for(folder, cache=tmp_path / "c", **change)
    index = indexed(changed)
    cached, count = fill(changed, index)
    # Without buckets, images that were square before are cropped as before, and only those may be reused.
    squares = sum(before.buckets[n].width == before.buckets[n].height for n in before.bucket)
    assert count == (10 - squares if "aspect_ratio_bucketing" in change else 10)
    assert count > 0
    for row in range(10):
        bucket = index.buckets[index.bucket[row]]
        assert cached.read(row, 0)["pixels"].shape == (3, bucket.height, bucket.width)
        assert ("mask" in cached.read(row, 0)) == ("masked_training" in change)


def test_families_do_not_share_entries(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    assert [fill(config, index, fingerprint=name)[1] for name in ("a", "b", "a")] == [10, 10, 0]


def test_moved_and_renamed_files_are_not_encoded_again(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    fill(config, indexed(config))
    (folder / "3.png").rename(folder / "z.png")
    folder.rename(tmp_path / "moved")
    os.utime(tmp_path / "moved/4.png", (1, 1))
    write_image(tmp_path / "moved/5.png", 40, 40, seed=99)
    moved = config_for(tmp_path / "moved", cache=tmp_path / "c")
    index = indexed(moved)
    cached, count = fill(moved, index)
    assert count == 1
    assert cached.usable.all()
    assert len(Cache(tmp_path / "c", "f", index, moved).missing()) == 0


def test_older_record_of_another_rank_hides_nothing(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    fill(config, indexed(config), world=2)
    for n in range(10):
        write_image(folder / f"{n}.png", 40, 48, seed=100 + n)
    index = indexed(config)
    encoding = RecordingEncode()
    cache = Cache(tmp_path / "c", "f", index, config)
    encode_missing(cache, encoding)
    assert len(encoding.examples) == 10
    assert cache.load().usable.all()
    assert len(cache.missing()) == 0


def test_captions_in_key_is_optional(folder: Path, tmp_path: Path) -> None:
    for prefix, on_request, count in [
        ("a", False, 10),
        ("b", False, 0),
        ("b", True, 10),
        ("b", True, 0),
        ("c", True, 10),
    ]:
        config = config_for(folder, cache=tmp_path / "c", prompt_prefix=prefix)
        encoding = RecordingEncode()
        cache = Cache(tmp_path / "c", "f", indexed(config), config, captions_in_key=on_request)
        encode_missing(cache, encoding)
        assert len(encoding.examples) == count
    assert encoding.examples[0].captions == ("c0",)


def test_views_are_encoded_and_differ(folder: Path, tmp_path: Path) -> None:
    options = {"crop_jitter": True, "image_variations": 3, "horizontal_flip": True}
    config = config_for(folder, cache=tmp_path / "c", aspect_ratio_bucketing=False, **options)
    index = indexed(config)
    cached, count = fill(config, index)
    assert cached.views.tolist() == [6] * 10
    wide = int(index.width.argmax())
    views = [cached.read(wide, view)["pixels"] for view in range(6)]
    assert views[1].equal(views[0].flip(-1))
    assert not views[2].equal(views[0])
    assert count >= 20


def test_the_crop_of_a_mirrored_image_counts_from_its_own_left_edge(tmp_path: Path) -> None:
    """The left of the mirrored crop is its former distance from the right edge.

    Formulas: kohya-ss/sd-scripts, library/train_util.py, "crop_ltrb[2] is right, so target_size[0] - crop_ltrb[2] is
    left in flipped image"; huggingface/diffusers, examples/text_to_image/train_text_to_image_sdxl.py, x1 = width - x1.
    """
    whole = {}
    for width in (56, 71, 32):
        with Image.open(write_image(tmp_path / f"d/{width}.png", width, 32, seed=width)) as image:
            whole[width] = np.asarray(image)
    options = {"crop_jitter": True, "image_variations": 4, "horizontal_flip": True}
    config = config_for(tmp_path / "d", cache=tmp_path / "c", aspect_ratio_bucketing=False, **options)
    encoding = RecordingEncode()
    encode_missing(Cache(tmp_path / "c", "f", indexed(config), config), encoding)
    assert {example.flipped for example in encoding.examples} == {False, True}
    lefts: dict[bool, set[tuple[int, int]]] = {False: set(), True: set()}
    for example in encoding.examples:
        width = example.original_size[1]
        seen = whole[width][:, ::-1] if example.flipped else whole[width]
        top, left = example.crop
        assert np.array_equal(example.pixels.permute(1, 2, 0).numpy(), seen[top : top + 32, left : left + 32])
        lefts[example.flipped].add((width, left))
    assert {(width, width - 32 - left) for width, left in lefts[False]} == lefts[True]
    assert len(lefts[True]) > 4


def test_tensors_of_every_kind_are_read_back(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    base = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    entry = {
        "bf16": base.to(torch.bfloat16),
        "turned": base.t(),
        "shared": base[1:],
        "number": torch.tensor(3.5),
        "empty": torch.zeros(0, 2),
        "flag": torch.tensor([True]),
        "a.b": base.to(torch.int64),
    }
    cache = Cache(tmp_path / "c", "f", index, config)
    encode_missing(cache, one_by_one(lambda example: entry))
    read = cache.load().read(4, 0)
    assert set(read) == set(entry)
    assert all(read[name].equal(entry[name]) and read[name].dtype == entry[name].dtype for name in entry)


def test_two_runs_cannot_write_to_one_folder(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cache = Cache(tmp_path / "c", "f", index, config)
    with shards.ShardWriter(tmp_path / "c/rank-0"), pytest.raises(TandemError, match="another run"):
        encode_missing(cache, RecordingEncode())
    encode_missing(cache, RecordingEncode())


def test_a_file_system_without_locks_is_used_with_a_warning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # what flock(2) returns on NFS without lockd, and where a file system does not implement it
    for number, code in enumerate((errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)):

        def no_locks(handle: int, operation: int, code: int = code) -> None:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr("fcntl.flock", no_locks)
        config = config_for(folder, cache=tmp_path / f"{number}")
        cache = Cache(tmp_path / f"{number}", "f", indexed(config), config)
        warnings: list[str] = []
        cache.encode(cache.batches(cache.missing(), 4), RecordingEncode(), 0, warn=warnings.append)
        assert len(warnings) == 1
        assert f"has no locks ({os.strerror(code)})" in warnings[0]
        assert cache.load().usable.all()


def test_manifest_is_plain_json(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    fill(config, indexed(config))
    lines = (tmp_path / "c/rank-0/index.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["keys"]) for line in lines] == [10]
