"""A backup is complete or absent, and the newest valid one is found again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.checkpoint import Backups, find_damage, hashed_files, read_backup, verified_write
from modules.config import ResumeError
from modules.run.folder import backup_manifest
from modules.run.folder.backup_list import list_backups
from tests.checkpoint.states import state_at

KILLER = Path(__file__).with_name("backup_killer.py")


def test_a_backup_comes_back_as_it_was(tmp_path: Path) -> None:
    state = state_at(3)
    folder = Backups(tmp_path / "backup", keep=3).write(state, '{"seed": 1}')
    read = read_backup(folder)
    assert folder.name == "step-000003"
    assert read.position == state.position
    assert read.optimizer.values == state.optimizer.values
    assert read.optimizer.groups == state.optimizer.groups
    assert read.scaler == state.scaler
    assert torch.equal(read.weights["layer.weight"], state.weights["layer.weight"])
    assert read.ema is not None
    assert json.loads((folder / "config.json").read_text()) == {"seed": 1}


def test_without_an_average_there_is_none_after_reading(tmp_path: Path) -> None:
    assert read_backup(Backups(tmp_path, keep=1).write(state_at(1, ema=False), "{}")).ema is None


def test_nothing_in_a_backup_is_pickled(tmp_path: Path) -> None:
    folder = Backups(tmp_path, keep=1).write(state_at(1), "{}")
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


def test_only_so_many_backups_are_kept_and_they_are_the_newest(tmp_path: Path) -> None:
    backups = Backups(tmp_path, keep=2)
    for step in (5, 10, 999_999, 1_000_000):
        backups.write(state_at(step), "{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1000000", "step-999999"]
    assert backups.newest_valid()[0] == tmp_path / "step-1000000"


def test_certain_steps_and_young_backups_stay(tmp_path: Path) -> None:
    for step in (10, 15, 20, 25, 30, 35):
        Backups(tmp_path, keep=1, every=20, days=1.0).write(state_at(step), "{}")
        if step != 30:
            os.utime(tmp_path / f"step-{step:06d}" / "manifest.json", times=(0, 0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000020", "step-000030", "step-000035"]


def test_a_backup_just_written_is_never_the_one_that_is_removed(tmp_path: Path) -> None:
    for step in (30, 40, 50):
        Backups(tmp_path, keep=3).write(state_at(step), "{}")
    # somebody went back to an earlier backup and trains on from there
    written = Backups(tmp_path, keep=3).write(state_at(20), "{}")
    assert written.is_dir()
    assert find_damage(written) is None


def test_after_going_back_the_newest_is_what_was_written_last(tmp_path: Path) -> None:
    for step in (30, 40, 20):
        written = Backups(tmp_path, keep=3).write(state_at(step), "{}")
    assert Backups(tmp_path, keep=3).newest_valid()[0] == written


def test_the_same_step_again_replaces_the_former_backup(tmp_path: Path) -> None:
    backups = Backups(tmp_path, keep=3)
    backups.write(state_at(5), "{}")
    backups.write(state_at(5), '{"again": true}')
    assert [path.name for path in tmp_path.iterdir()] == ["step-000005"]
    assert "again" in (tmp_path / "step-000005" / "config.json").read_text()


@pytest.mark.parametrize(
    "name", ["weights.safetensors", "optimizer.safetensors", "ema.safetensors", "progress.json", "optimizer.json"]
)
def test_one_damaged_byte_in_any_file_is_detected(tmp_path: Path, name: str) -> None:
    folder = Backups(tmp_path, keep=1).write(state_at(1), "{}")
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 0x10
    (folder / name).write_bytes(bytes(data))
    assert f"the checksum of {name} does not match" in str(find_damage(folder))
    with pytest.raises(ResumeError, match=r"checksum of .* does not match"):
        read_backup(folder)


def test_missing_files_and_manifests_are_found(tmp_path: Path) -> None:
    backups = Backups(tmp_path, keep=9)
    (backups.write(state_at(1), "{}") / "ema.safetensors").unlink()
    (backups.write(state_at(2), "{}") / "manifest.json").unlink()
    (backups.write(state_at(3), "{}") / "manifest.json").write_text("[]")
    newest, damaged = backups.newest_valid()
    assert newest is None
    assert ["no manifest" in damaged[1], "manifest.json is damaged" in damaged[0], "is missing" in damaged[2]] == [
        True
    ] * 3
    with pytest.raises(ResumeError, match="is not a complete backup"):
        read_backup(tmp_path / "step-000009")


@pytest.mark.parametrize("block", [4096, 1 << 20])  # the first is written and read back by threads
@pytest.mark.parametrize("is_direct", [True, False])
def test_a_disk_that_returns_other_bytes_costs_no_older_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, is_direct: bool
) -> None:
    written = Backups(tmp_path, keep=1).write(state_at(1), "{}")

    def damage(descriptor: int, start: int, end: int) -> None:
        if end > 8000:
            with open(f"/proc/self/fd/{descriptor}", "r+b", buffering=0) as file:
                file.seek(end - 1)
                file.write(b"x")

    if not is_direct:
        monkeypatch.delattr(os, "O_DIRECT")
    monkeypatch.setattr(verified_write, "drop_from_cache", damage)
    monkeypatch.setattr(verified_write, "BLOCK_BYTES", block)
    monkeypatch.setattr(hashed_files, "BLOCK_BYTES", block)
    with pytest.raises(OSError, match=r"the disk does not return what was written: .*\.safetensors"):
        Backups(tmp_path, keep=1).write(state_at(2, size=10_000), "{}")
    assert [*tmp_path.iterdir()] == [written]
    assert find_damage(written) is None


def test_a_backup_of_a_newer_version_says_so(tmp_path: Path) -> None:
    folder = Backups(tmp_path, keep=1).write(state_at(1), "{}")
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "version": 99}))
    assert "newer Tandem" in str(find_damage(folder))


def test_a_half_written_backup_is_not_taken_for_one(tmp_path: Path) -> None:
    backups = Backups(tmp_path, keep=2)
    backups.write(state_at(1), "{}")
    half = tmp_path / ".partial-step-000002"
    half.mkdir()
    (half / "weights.safetensors").write_bytes(b"half")
    assert backups.newest_valid()[0] == tmp_path / "step-000001"
    backups.write(state_at(2), "{}")
    assert not half.exists()


@pytest.mark.timeout(60)
def test_what_lies_in_the_place_of_a_backup_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "kept" / "manifest.json").mkdir(parents=True)
    backups = tmp_path / "backup"
    backups.mkdir()
    for name in (".partial-x", "step-000003", ".partial-step-000002", "step-000002"):
        os.mkfifo(backups / name)
    (backups / ".partial-y").symlink_to(tmp_path / "kept")
    (backups / ".partial-step-000001").symlink_to(tmp_path / "kept")
    for step in (1, 2):
        assert find_damage(Backups(backups, keep=1).write(state_at(step), "{}")) is None
    assert [path.name for path in backups.iterdir()] == ["step-000002"]
    assert (tmp_path / "kept" / "manifest.json").is_dir()
    weights = backups / "step-000002" / "weights.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    assert "weights.safetensors is a named pipe" in str(find_damage(weights.parent))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["counting", "same"])
def test_whenever_the_writer_is_killed_a_valid_backup_is_left(tmp_path: Path, mode: str) -> None:
    argv = [sys.executable, str(KILLER), str(tmp_path / "backup"), mode, "20"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    steps = [int(line) for line in done.stdout.split()]
    assert len(steps) == 20
    assert steps == sorted(steps)
    newest, _ = Backups(tmp_path / "backup", keep=2).newest_valid()
    assert newest is not None


def interrupted_writes(target: Path) -> Iterator[Path]:
    """Every state of the folder in which a kill could leave it while step 1 is written a second time."""
    backups = Backups(target, keep=1)
    backups.write(state_at(1), "{}")
    yield target
    (target / "step-000001").rename(target / ".partial-former-step-000001")
    yield target


def test_kill_during_replacement_loses_nothing(tmp_path: Path) -> None:
    for folder in interrupted_writes(tmp_path / "backup"):
        newest, _ = Backups(folder, keep=1).newest_valid()
        assert newest is not None
        assert read_backup(newest).position.step == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here: it needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_full_disk_leaves_the_older_backup_intact(small_disk: Path) -> None:
    backups = Backups(small_disk / "backup", keep=3)
    backups.write(state_at(1), "{}")
    with pytest.raises(OSError, match="partial"):
        backups.write(state_at(2, size=400_000), "{}")
    assert [path.name for path in (small_disk / "backup").iterdir()] == ["step-000001"]
    assert backups.newest_valid()[0] == small_disk / "backup" / "step-000001"
    backups.write(state_at(3), "{}")
    assert backups.newest_valid()[0] == small_disk / "backup" / "step-000003"


def test_a_replacement_that_cannot_be_renamed_leaves_the_former_one_in_its_place(tmp_path: Path) -> None:
    backups = Backups(tmp_path, keep=1)
    written = backups.write(state_at(1), "{}")
    with pytest.raises(FileNotFoundError):
        backups.put_in_place(tmp_path / ".partial-that is gone", written)
    assert [*tmp_path.iterdir()] == [written]
    assert find_damage(written) is None


def test_a_backup_is_hashed_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backups, hashed = Backups(tmp_path, keep=1), list[str]()
    folder, sha256 = backups.write(state_at(1), "{}"), backup_manifest.file_sha256
    monkeypatch.setattr(backup_manifest, "file_sha256", lambda path: hashed.append(path.name) or sha256(path))
    assert backups.newest_valid()[0] == folder
    read_backup(folder)
    assert len(hashed) == len(set(hashed)) == 6
    weights = folder / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ResumeError, match="the checksum of weights"):
        read_backup(folder)


def test_a_list_says_what_lies_in_the_place_of_weights(tmp_path: Path) -> None:
    for step, (replace, said) in enumerate(
        ((os.mkfifo, "is a named pipe"), (os.mkdir, "is a folder"), (lambda _: None, "is missing"))
    ):
        weights = Backups(tmp_path, keep=9).write(state_at(step), "{}") / "weights.safetensors"
        weights.unlink()
        replace(weights)
        assert f"weights.safetensors {said}" in list_backups(tmp_path)[0].fault
