"""The cache: reused if nothing relevant changed, never otherwise, and complete after any interruption."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from modules.config import DataError, TandemError, TrainConfig, TrainingError
from modules.data.cache import shards
from modules.data.cache.cache import Cache
from modules.data.cache.encode_batches import encode_batch_size
from modules.data.cache.manifest import read_lines
from modules.data.index.index import Index
from tests.data.helpers import RecordingEncode, config_for, encode_missing, fill, index_of, one_by_one, write_image


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for n in range(10):
        write_image(tmp_path / f"d/{n}.png", 40 + 8 * (n % 3), 40, seed=n)
    return tmp_path / "d"


def indexed(config: TrainConfig) -> Index:
    return index_of(config, Path(config.cache_dir))


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


def damage(file: Path) -> None:
    """Change one bit of a PNG's pixels, which only decoding notices."""
    whole = file.read_bytes()
    file.write_bytes(whole[:-60] + bytes([whole[-60] ^ 1]) + whole[-59:])


def test_bad_images_are_recorded_and_retried_when_repaired(folder: Path, tmp_path: Path) -> None:
    whole = (folder / "3.png").read_bytes()
    damage(folder / "3.png")
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cached, count = fill(config, index)
    assert count == 9
    assert cached.usable.tolist() == [n != 3 for n in range(10)]
    assert [Path(cached.problems[0].path).name, "damaged" in cached.problems[0].what] == ["3.png", True]
    cache = Cache(tmp_path / "c", "f", index, config)
    assert len(cache.missing()) == 0
    assert cache.load().problems == cached.problems
    (folder / "3.png").write_bytes(whole)
    cached, count = fill(config, indexed(config))
    assert count == 1
    assert cached.usable.all()
    assert cached.problems == []


def test_missing_or_changed_file_is_retried(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    kept = (folder / "1.png").read_bytes()
    (folder / "1.png").unlink()
    (folder / "2.png").write_bytes(kept + b"x")
    cached, count = fill(config, index)
    assert count == 8
    assert ["No such file" in cached.problems[0].what, "changed" in cached.problems[1].what] == [True, True]
    assert Cache(tmp_path / "c", "f", index, config).missing().tolist() == [1, 2]


def test_missing_or_truncated_shard_is_encoded_again(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    fill(config, index)
    shard = tmp_path / "c/rank-0/000000.safetensors"
    for damage in (shard.unlink, lambda: shard.with_name("000001.safetensors").write_bytes(b"short")):
        damage()
        cached, count = fill(config, index)
        assert count == 10
        assert cached.usable.all()


def test_damaged_shard_is_named_with_advice(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cached, _ = fill(config, index)
    shard = tmp_path / "c/rank-0/000000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-10] ^= 0xFF
    shard.write_bytes(data)
    with pytest.raises(DataError, match=r"000000\.safetensors.*checksum") as caught:
        _ = [cached.read(row, 0) for row in range(10)]
    assert "Delete that file" in caught.value.advice
    shard.write_bytes(b"\xff" * len(data))
    with pytest.raises(DataError, match="damaged"):
        Cache(tmp_path / "c", "f", index, config).load().read(0, 0)
    shard.unlink()
    assert fill(config, index)[1] == 10


def test_torn_lines_and_leftovers_are_skipped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_SHARD_ENTRIES", 3)
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    fill(config, index)
    manifest = tmp_path / "c/rank-0/index.jsonl"
    content = manifest.read_bytes()
    manifest.write_bytes(content[: content.rindex(b"\n", 0, -1) + 20])
    (tmp_path / "c/rank-0/.000009.safetensors.tmp").write_bytes(b"half")
    (tmp_path / "c/rank-0/000008.safetensors").write_bytes(b"orphan")
    cached, count = fill(config, index)
    assert 0 < count <= 3
    assert cached.usable.all()
    assert not (tmp_path / "c/rank-0/.000009.safetensors.tmp").exists()
    assert not (tmp_path / "c/rank-0/000008.safetensors").exists()
    assert [line.shard for line in read_lines(manifest.parent)][-1] == "000009.safetensors"
    manifest.write_bytes(manifest.read_bytes() + b'\n{"shard": 3}\n[1]\nnull\n{"unknown": 1}\n')
    assert fill(config, index)[1] == 0


def test_a_manifest_of_somebody_else_is_skipped_line_by_line(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    fill(config, index)
    good = json.loads((tmp_path / "c/rank-0/index.jsonl").read_text())
    other = tmp_path / "c/rank-1"
    other.mkdir()
    lines = [
        {**good, "shard": ["x"]}, {**good, "shard": "../rank-0/000000.safetensors"}, {**good, "keys": ["xyz"]},
        {**good, "checksums": good["checksums"][1:]}, {**good, "checksums": [1 << 40] * 10},
        {**good, "files": [["a", 1, 2, "no hex"]]}, {**good, "files": [[["a"], 1, 2, "00"]]}, {**good, "files": [7]},
        {**good, "bad": [["a", 3, "why", True]]}, {**good, "bad": [["a", [1], {}, True]]}, {**good, "keys": None},
    ]  # fmt: skip
    nested = "[" * 100_000
    (other / "index.jsonl").write_text("\n".join([*map(json.dumps, lines), nested, '{"files": [NaN]}', ""]))
    assert list(read_lines(other)) == []
    cached, count = fill(config, index)
    assert count == 0
    assert cached.usable.all()


@pytest.mark.timeout(60)
def test_what_is_no_file_in_a_cache_folder_is_not_waited_for(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cached, _ = fill(config, index)
    line = json.loads((tmp_path / "c/rank-0/index.jsonl").read_text())
    for name in ("rank-1", "rank-2", "rank-3"):
        (tmp_path / "c" / name).mkdir()
    os.mkfifo(tmp_path / "c/rank-0/000001.safetensors")
    os.mkfifo(tmp_path / "c/rank-1/index.jsonl")
    os.mkfifo(tmp_path / "c/rank-2/000000.safetensors")
    (tmp_path / "c/rank-2/index.jsonl").write_text(json.dumps({**line, "shard_bytes": 0}) + "\n")
    with (tmp_path / "c/rank-3/index.jsonl").open("wb") as sparse:
        sparse.truncate(1 << 40)
    assert fill(config, index)[1] == 0
    (tmp_path / "c/rank-0/000000.safetensors").unlink()
    os.mkfifo(tmp_path / "c/rank-0/000000.safetensors")
    with pytest.raises(DataError, match="a named pipe"):
        cached.read(0, 0)
    manifest = tmp_path / "c/rank-0/index.jsonl"
    for damage in (lambda: os.truncate(manifest, 1 << 40), lambda: (manifest.unlink(), os.mkfifo(manifest))):
        for shard in manifest.parent.glob("*.safetensors"):
            shard.unlink()
        damage()
        cached, count = fill(config, index)
        assert count == 10
        assert cached.usable.all()


def test_failing_encode_raises_and_keeps_what_was_done(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    encoding = RecordingEncode()

    def fails_at_the_sixth(examples, size):
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


def test_batch_is_encoded_without_its_broken_image(folder: Path, tmp_path: Path) -> None:
    damage(folder / "4.png")
    config = config_for(folder, cache=tmp_path / "c", aspect_ratio_bucketing=False, horizontal_flip=True)
    index = indexed(config)
    encoding, reported = RecordingEncode(), []
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
    encoding, reported = RecordingEncode(), []

    def fits_two(examples, size):
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

    def fails_at_the_fifth(examples, size):
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


def test_full_disk_raises_one_sentence(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    index = indexed(config)
    cache = Cache(tmp_path / "c", "f", index, config)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shards, "save_file", full)
    with pytest.raises(TandemError, match=r"rank-0.*No space left") as caught:
        encode_missing(cache, RecordingEncode())
    assert caught.value.advice
    monkeypatch.undo()
    (tmp_path / "c/rank-1").write_text("in the way")
    with pytest.raises(TandemError, match="rank-1"):
        encode_missing(cache, RecordingEncode(), rank=1)


def test_killed_caching_continues(folder: Path, tmp_path: Path) -> None:
    for n in range(10, 40):
        write_image(folder / f"{n}.png", seed=n)
    program = [
        sys.executable,
        str(Path(__file__).with_name("caching_program.py")),
        str(folder),
        str(tmp_path / "c"),
        "0.01",
    ]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=root, env=environment) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 23:
                process.send_signal(signal.SIGKILL)
                break
    done = sum(len(line.keys) for line in read_lines(tmp_path / "c/rank-0"))
    assert done >= 20
    config = config_for(folder, cache=tmp_path / "c")
    cached, count = fill(config, indexed(config))
    assert count == 40 - done
    assert cached.usable.all()
    assert all(cached.read(row, 0)["pixels"].ndim == 3 for row in range(40))


def test_manifest_is_plain_json(folder: Path, tmp_path: Path) -> None:
    config = config_for(folder, cache=tmp_path / "c")
    fill(config, indexed(config))
    lines = (tmp_path / "c/rank-0/index.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["keys"]) for line in lines] == [10]
