"""Two runs with one cache folder, started at the same time: the second waits until the first has cached its images."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from modules.data.cache.stored import stored_shards
from modules.monitoring import SilentReport
from modules.training.data import cache_locks as module
from modules.training.data.cache_locks import (
    LOCK,
    Unmarked,
    cache_lock,
    hold_choosing,
    lock_order,
    remove_beyond,
)
from modules.training.loop.generic_trainer import GenericTrainer
from modules.training.state.requests import Outcome
from scripts import cache
from tests.runs import ROOT, tiny_config, train_alone

CACHES = """
import sys
from pathlib import Path
from modules.run.folder.run_lock import file_lock
with file_lock(Path(sys.argv[1])) as is_held:
    print(is_held, flush=True)
    sys.stdin.read()
"""


class Notes(SilentReport):
    """What was said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def test_another_runs_caching_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_EVERY_S", 0.05)
    report, looks = Notes(), 0
    other = subprocess.Popen(
        [sys.executable, "-c", CACHES, str(tmp_path / LOCK)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            other.kill()

    def stop() -> None:
        raise KeyboardInterrupt

    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"True\n"
        with pytest.raises(KeyboardInterrupt), cache_lock(tmp_path, SilentReport(), stop):
            pytest.fail("the other one still caches")
        lock, kept = tmp_path / LOCK, tmp_path / "kept"
        with cache_lock(tmp_path, SilentReport(), lambda: os.rename(lock, kept)) as has_waited:
            assert has_waited, "who removes the lock, as told, waits no longer"
        kept.replace(lock)
        with cache_lock(tmp_path, report, look) as has_waited:
            assert has_waited
    assert looks >= 3
    assert len(report.said) == 1
    assert f"remove {tmp_path / LOCK}." in report.said[0]
    with cache_lock(tmp_path, report, look) as has_waited:
        assert not has_waited
    with cache_lock(tmp_path / "missing", report, look) as has_waited:
        assert not has_waited, "the writer says what is wrong with the folder"


def test_two_runs_on_the_same_machines_lock_in_the_same_order() -> None:
    one, other = ["a /cache", "", "b /cache", ""], ["b /cache", "a /cache"]
    assert [one[rank] for rank in lock_order(one)] == [other[rank] for rank in lock_order(other)] == one[::2]
    assert lock_order(["", ""]) == []


def test_nothing_is_removed_while_a_run_trains_from_it(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cache"
    command = [sys.executable, "scripts/cache.py", "prune", str(place), "--limit", "0", "--yes"]
    begin = GenericTrainer.train

    def prune_and_train(trainer: GenericTrainer) -> Outcome:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert "A run trains from" in done.stderr
        assert done.returncode == 3
        return begin(trainer)

    config = tiny_config(images, tmp_path, max_steps=1)
    assert train_alone(config)[0] == 0
    for shard in stored_shards(place):
        os.utime(shard.path, (0, 0))
    monkeypatch.setattr(GenericTrainer, "train", prune_and_train)
    code, run = train_alone(config.model_copy(update={"run_name": "second"}))
    assert code == 0, run.failure(0)
    assert all(shard.used > 0 for shard in stored_shards(place)), "a run's start counts as use"
    assert not list(place.glob("in-use*"))
    (place / "in-use-left-by-a-killed-run.lock").touch()
    assert cache.main(command[2:]) == 0
    assert stored_shards(place) == []
    assert not list(place.glob("in-use*"))


def test_a_run_keeps_the_limit_of_its_cache_and_what_runs_use(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, begin, kept = tmp_path / "cache", GenericTrainer.train, list[set[Path]]()

    def remove_and_train(trainer: GenericTrainer) -> Outcome:
        freed, used = remove_beyond(place, 0)
        kept.append({shard.path for shard in stored_shards(place)})
        assert freed > 0
        assert used == sum(shard.size for shard in stored_shards(place)), "what this run has marked as used stays"
        return begin(trainer)

    config = tiny_config(images, tmp_path, max_steps=1)
    assert train_alone(config)[0] == 0
    former = {shard.path for shard in stored_shards(place)}
    for file in former:
        os.utime(file, (10**9, 10**9))
    with ExitStack() as held, hold_choosing(place, 0, held):
        assert remove_beyond(place, 0)[0] == 0, "a run that finds out what it uses may use all of it"
    with ExitStack() as held:
        with hold_choosing(place, 0, held):
            raise Unmarked
        assert remove_beyond(place, 0)[0] == 0
    monkeypatch.setattr(GenericTrainer, "train", remove_and_train)
    others = [{"path": str(images), "fixed_hue": 0.5, "caption_source": "none"}]
    assert train_alone(tiny_config(images, tmp_path, max_steps=1, concepts=others, run_name="others"))[0] == 0
    assert len(kept) == 1
    assert kept[0]
    assert kept[0].isdisjoint(former)

    monkeypatch.undo()
    for file in kept[0]:
        os.utime(file, (10**9, 10**9))
    code, run = train_alone(config.model_copy(update={"run_name": "limited", "cache_limit": 1e-6}))
    assert code == 0
    assert "cache_limit is 1e-06 GB, but what running runs use" in run.warnings
    assert {shard.path for shard in stored_shards(place)}.isdisjoint(kept[0])
    assert sorted(file.name for file in place.glob("*.lock")) == ["caching.lock", "removing.lock"]
