"""A run folder that somebody prepared with links: nothing is written or removed where they lead."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from app.draft import Draft
from app.monitor.tensorboard import TensorBoard
from app.runs.control import launch
from modules.checkpoint import Backups
from modules.config import ConfigError, TandemError, TrainConfig, load_config, save_config
from modules.run import RunFolder, request_command
from modules.run.folder.folder_guard import FolderGuard
from modules.run.folder.resume import check_resume, folder_to_resume
from modules.run.join.same_run import own_folder
from tests.checkpoint.states import state_at

pytestmark = pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
PLACES = (
    "backup", "samples", "log", "commands", "model", "saves", "tensorboard", "received", "config.json", "events.jsonl",
    "join_keys.json", "machine-1.json", ".partial-model", "x.safetensors", "log/rank-0.txt", "commands/.stop-1",
    "samples/step-000001-00.png", "received/0123456789abcdef", "tensorboard/old/events",
)  # fmt: skip


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """What the links lead to: another run with three backups, and files of every other kind."""
    other = RunFolder.create(config(tmp_path, "other"))
    for step in (1, 2, 3):
        add_backup(other, step)
    for name in ("stop", "start.error.json", "tensorboard.txt", "kept"):
        for folder in (other.path, other.log_dir, other.commands_dir):
            (folder / name).write_text("kept")
    return other.path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run that could be resumed."""
    folder = RunFolder.create(config(tmp_path, "x"))
    add_backup(folder, 1)
    return folder


def config(tmp_path: Path, name: str) -> TrainConfig:
    return TrainConfig(runs_dir=str(tmp_path / "runs"), run_name=name, backups_kept=1)


def add_backup(folder: RunFolder, step: int) -> None:
    """What passes for a backup until it is read."""
    backup = folder.backup_dir / f"step-{step:06d}"
    backup.mkdir()
    manifest = {"version": 1, "number": step, "step": step, "files": {}}
    (backup / "manifest.json").write_text(json.dumps(manifest))


def put_link(folder: RunFolder, place: str, target: Path) -> None:
    link = folder.path / place
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("place", PLACES)
def test_a_link_where_a_run_writes_is_refused(place: str, folder: RunFolder, other: Path, tmp_path: Path) -> None:
    put_link(folder, place, other / place if (other / place).exists() else other)
    before = contents(other)
    with pytest.raises(ConfigError, match=rf"{place} is a link.*outside.*set runs_dir"):
        RunFolder.open(tmp_path / "runs", "x")
    with pytest.raises(ConfigError, match="is a link"):
        folder_to_resume(config(tmp_path, "x"), "latest")
    with pytest.raises(ConfigError, match="is a link"):
        RunFolder.for_machine(config(tmp_path, "x"), "x")
    assert contents(other) == before


def test_the_backup_of_a_linked_folder_is_refused(folder: RunFolder, other: Path, tmp_path: Path) -> None:
    put_link(folder, "backup", other / "backup")
    backup = str(folder.backup_dir / "step-000002")
    for resume in (folder_to_resume, check_resume):
        with pytest.raises(ConfigError, match="backup is a link"):
            resume(TrainConfig(runs_dir=str(tmp_path / "runs")), backup)


def test_links_that_users_make_go_on(folder: RunFolder, other: Path, tmp_path: Path) -> None:
    """The run folder and runs_dir on another disk, an older backup and the newest one under another name."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").rename(tmp_path / "disk" / "runs")
    (tmp_path / "disk" / "runs" / "x").rename(tmp_path / "disk" / "x")
    (tmp_path / "runs").symlink_to(tmp_path / "disk" / "runs")
    (tmp_path / "disk" / "runs" / "x").symlink_to(tmp_path / "disk" / "x")
    (folder.backup_dir / "step-000009").symlink_to(other / "backup" / "step-000002")
    (folder.backup_dir / "latest").symlink_to("step-000001")
    assert RunFolder.open(tmp_path / "runs", "x") == folder
    assert folder_to_resume(TrainConfig(), str(folder.backup_dir / "latest")).path == tmp_path / "disk" / "x"
    before = contents(other)
    Backups(folder.backup_dir, keep=1).write(state_at(12), "{}")
    assert [path.name for path in folder.backup_dir.glob("step-*")] == ["step-000012"]
    assert contents(other) == before


def test_backups_of_a_linked_folder_are_left_alone(folder: RunFolder, other: Path) -> None:
    (other / "backup" / "step-000001").rename(other / "backup" / ".partial-former-step-000001")
    put_link(folder, "backup", other / "backup")
    before = contents(other)
    backups = Backups(folder.backup_dir, keep=1)
    backups.newest_valid()
    with pytest.raises(OSError, match="is a link"):
        backups.write(state_at(12), "{}")
    assert contents(other) == before


def _joined(folder: RunFolder) -> object:
    """Into a folder without files, which counts as its own."""
    for file in (folder.config_file, *folder.backup_dir.glob("*/*")):
        file.unlink()
    return own_folder(config(folder.path.parent.parent, folder.name), folder.name, "0" * 32, [])


def _tensorboard(folder: RunFolder) -> None:
    told: list[str] = []
    owner = type("Owner", (), {"bind": lambda *_, **__: None, "after": lambda *_: None})()
    board = TensorBoard(owner, lambda text: told.append(str(text)), browse=print)
    board.start(folder)
    board.stop()
    raise ConfigError(told[0])


@pytest.mark.parametrize(
    ("place", "write"),
    [
        ("log", launch),
        ("commands", launch),
        ("log", _joined),
        ("log", _tensorboard),
        ("commands", lambda folder: request_command(folder, "stop", "x")),
        ("config.json", lambda folder: Draft(print).save(folder.config_file)),
    ],
)
def test_the_window_and_joining_machines_follow_no_link(
    place: str, write: Callable[[RunFolder], object], folder: RunFolder, other: Path
) -> None:
    put_link(folder, place, other / place)
    before = contents(other)
    with pytest.raises((TandemError, OSError), match="is a link"):
        write(folder)
    assert contents(other) == before


def test_a_command_is_not_written_through_a_link(
    folder: RunFolder, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 12)
    (folder.commands_dir / ".stop-12").symlink_to(other / "kept")
    (folder.path / ".partial-12-config.json").symlink_to(other / "kept")
    before = contents(other)
    with pytest.raises(OSError, match="is a link"):
        request_command(folder, "stop", "x")
    save_config(TrainConfig(seed=7), folder.config_file)  # in the place of the link, which is removed
    assert load_config(folder.config_file).seed == 7
    assert contents(other) == before


def test_a_folder_deleted_during_the_run_is_not_made_anew_around_a_link(folder: RunFolder, other: Path) -> None:
    guard = FolderGuard(folder)
    shutil.rmtree(folder.log_dir)
    put_link(folder, "samples", other)
    assert guard.restore() is False


def test_a_config_that_the_user_has_linked_is_written_through_the_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    save_config(TrainConfig(), tmp_path / "kept" / "cats.json")
    (tmp_path / "config.json").symlink_to(tmp_path / "kept" / "cats.json")
    Draft(print).save(tmp_path / "config.json")
    save_config(TrainConfig(resolution=256), tmp_path / "config.json")
    assert (tmp_path / "config.json").is_symlink()
    assert load_config(tmp_path / "kept" / "cats.json").resolution == 256
