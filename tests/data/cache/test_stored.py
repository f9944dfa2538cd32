"""A cache folder kept small: what is there and when it was used, removing the oldest, and what runs make of it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from modules.data.cache import shards as module
from modules.data.cache.stored import mark_used, outdated, remove_shards, stored_shards
from scripts import cache
from tests.data.helpers import config_for, fill, indexed

DAY_S = 86400.0


@pytest.fixture
def stored(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of ten images in two rank folders and six shards of at most two each, the first is the oldest."""
    monkeypatch.setattr(module, "_SHARD_ENTRIES", 2)
    place = tmp_path / "c"
    config = config_for(folder, cache=place)
    fill(config, indexed(config), world=2)
    for age, shard in enumerate(sorted(stored_shards(place), key=lambda each: each.path)):
        then = time.time() - (10 - age) * DAY_S
        os.utime(shard.path, (then, then))
    return place


def test_what_was_removed_and_nothing_else_is_encoded_again(stored: Path, folder: Path) -> None:
    config = config_for(folder, cache=stored)
    before = stored_shards(stored)
    assert sum(shard.entries for shard in before) == 10
    gone = outdated(before, None, 8.5)
    assert [shard.path for shard in gone] == sorted(shard.path for shard in before)[:2]
    remove_shards(gone)
    assert not any(shard.path.exists() for shard in gone)
    cached, count = fill(config, indexed(config))
    assert count == sum(shard.entries for shard in gone)
    assert cached.usable.all()
    assert len(set(cached.files())) == len(stored_shards(stored))


def test_the_limit_keeps_what_was_used_last(stored: Path) -> None:
    before = stored_shards(stored)
    mark_used([before[0].path])
    again = stored_shards(stored)
    assert [shard.path for shard in again] == [shard.path for shard in (*before[1:], before[0])]
    two = again[-1].size + again[-2].size
    assert outdated(again, two, None) == again[:-2]
    assert outdated(again, two - 1, None) == again[:-1]
    assert outdated(again, 10 * two, None) == []


def test_nothing_is_used_after_today(stored: Path) -> None:
    """A file system keeps any time, and the calendar of prune's message ends."""
    shard = stored_shards(stored)[0].path
    later = time.time() + 9 * DAY_S
    os.utime(shard, (later, later))
    assert stored_shards(stored)[-1].path == shard
    assert stored_shards(stored)[-1].used <= time.time()


def test_damage_is_found_and_removed(stored: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main(["verify", str(stored)]) == 0
    hurt = stored_shards(stored)[1]
    data = bytearray(hurt.path.read_bytes())
    data[-1] ^= 1
    hurt.path.write_bytes(data)
    assert cache.main(["verify", str(stored)]) == 3
    assert f"{hurt.path}: checksum mismatch" in capsys.readouterr().out
    assert cache.main(["verify", str(stored), "--remove"]) == 0
    assert cache.main(["verify", str(stored)]) == 0
    config = config_for(folder, cache=stored)
    assert fill(config, indexed(config))[1] == hurt.entries


def test_the_command_lists_and_prunes(stored: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cache.main(["list", str(stored)]) == 0
    assert [line.split()[-3:] for line in capsys.readouterr().out.splitlines()][-1][0] == "10"
    assert cache.main(["prune", str(stored)]) == 2
    assert "--limit" in capsys.readouterr().err
    assert cache.main(["prune", str(stored), "--limit", "nan"]) == 2
    assert cache.main(["prune", str(tmp_path / "none"), "--limit", "1"]) == 2
    assert cache.main(["prune", str(stored), "--unused", "8.5", "--dry_run"]) == 0
    assert cache.main(["prune", str(stored), "--unused", "8.5"]) == 130, "nobody can be asked"
    assert len(stored_shards(stored)) == 6
    assert cache.main(["prune", str(stored), "--unused", "8.5", "--yes"]) == 0
    assert len(stored_shards(stored)) == 4
    assert cache.main(["prune", str(stored), "--limit", "0", "--yes"]) == 0
    assert not [*stored.glob("rank-*/*.safetensors")]


def test_a_folder_that_is_a_link_is_left_alone(stored: Path, tmp_path: Path) -> None:
    (stored / "rank-1").rename(tmp_path / "elsewhere")
    (stored / "rank-1").symlink_to(tmp_path / "elsewhere")
    assert {shard.path.parent.name for shard in stored_shards(stored)} == {"rank-0"}
