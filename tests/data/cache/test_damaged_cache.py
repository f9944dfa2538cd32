"""A cache that is damaged, or was interrupted at any moment, is completed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modules.config import DataError, TandemError
from modules.data.cache import shards
from modules.data.cache.cache import Cache
from modules.data.cache.manifest import read_lines
from tests.data.helpers import (
    RecordingEncode,
    config_for,
    damage,
    encode_missing,
    fill,
    indexed,
    write_image,
)


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
    for change in (shard.unlink, lambda: shard.with_name("000001.safetensors").write_bytes(b"short")):
        change()
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
    leftovers = [tmp_path / f"c/rank-0/{name}" for name in (".000009.safetensors.tmp", ".partial-7-000009.safetensors")]
    for leftover in leftovers:
        leftover.write_bytes(b"half")
    (tmp_path / "c/rank-0/000008.safetensors").write_bytes(b"orphan")
    cached, count = fill(config, index)
    assert 0 < count <= 3
    assert cached.usable.all()
    assert not any(leftover.exists() for leftover in leftovers)
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
    for change in (lambda: os.truncate(manifest, 1 << 40), lambda: (manifest.unlink(), os.mkfifo(manifest))):
        for shard in manifest.parent.glob("*.safetensors"):
            shard.unlink()
        change()
        cached, count = fill(config, index)
        assert count == 10
        assert cached.usable.all()


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
