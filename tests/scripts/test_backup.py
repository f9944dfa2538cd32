"""scripts/backup.py: a person sees the backups of a run, checks them, goes back to one and removes old ones."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from modules.checkpoint import Backups, find_damage, read_backup
from modules.config import TrainConfig, save_config
from modules.run.folder.run_folder import RunFolder
from scripts import backup
from tests.checkpoint.states import state_at
from tests.run.folder.test_run_lock import HOLDER
from tests.runs import ROOT

STEPS = (500, 1000, 1500, 2000)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "runs" / "cats")
    folder.log_dir.mkdir(parents=True)
    save_config(TrainConfig(backups_kept=3), folder.config_file)
    for step in STEPS:
        Backups(folder.backup_dir, keep=9).write(state_at(step), "{}")
    return folder


def damage(folder: Path) -> None:
    """Turn a byte of the weights, so that the size stays."""
    file = folder / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def newest(run: RunFolder) -> str:
    found, _ = Backups(run.backup_dir, keep=1).newest_valid()
    assert found is not None
    return found.name


def test_list_names_the_newest_first_and_says_what_is_incomplete(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert backup.main(["list", str(run.path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["step", "2000", "1500", "1000", "500"]
    assert all("best validation loss so far 0.5" in line for line in lines[1:])
    (run.backup_dir / "step-001500" / "ema.safetensors").unlink()
    (run.backup_dir / "step-001000" / "manifest.json").write_text("[]")
    found = tmp_path / "found.json"
    assert backup.main(["list", str(run.path), "--json", str(found)]) == 3
    by_step = {Path(each["folder"]).name: each for each in json.loads(found.read_text())}
    assert "ema.safetensors is missing" in by_step["step-001500"]["fault"]
    assert "manifest.json" in by_step["step-001000"]["fault"]
    assert (by_step["step-002000"]["step"], by_step["step-002000"]["fault"]) == (2000, "")
    assert by_step["step-002000"]["bytes"] == sum(
        file.stat().st_size for file in (run.backup_dir / "step-002000").iterdir()
    )


def test_list_counts_the_epochs_of_changed_data_as_they_were(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = state_at(6)  # 48 samples; the first epoch had 40, and the present one has 80
    position = replace(state.position, epoch=1, epoch_size=80, epochs=1.1)
    folder = RunFolder(tmp_path / "cats")
    Backups(folder.backup_dir, keep=1).write(replace(state, position=position), "{}")
    found = tmp_path / "found.json"
    assert backup.main(["list", str(folder.path), "--json", str(found)]) == 0
    assert json.loads(found.read_text())[0]["epochs"] == 1.1
    assert backup.main(["list", str(folder.path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["6", "1.10"]


def test_verify_reads_every_file(run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert backup.main(["verify", str(run.path)]) == 0
    assert capsys.readouterr().out.count("is undamaged") == len(STEPS)
    damage(run.backup_dir / "step-001000")
    assert backup.main(["verify", str(run.path), "500"]) == 0
    assert backup.main(["verify", str(run.path), "1000", "2000"]) == 3
    assert "the checksum of weights.safetensors does not match" in capsys.readouterr().out
    found = tmp_path / "found.json"
    assert backup.main(["verify", str(run.path), "--json", str(found)]) == 3
    assert [each["step"] for each in json.loads(found.read_text()) if each["fault"]] == [1000]
    assert backup.main(["verify", str(run.path), "--json", str(tmp_path)]) == 3
    assert f"{tmp_path} cannot be read or written" in capsys.readouterr().err


def test_what_the_run_removes_meanwhile_is_not_damaged(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rotates(folder: Path) -> str | None:
        shutil.rmtree(run.backup_dir / "step-000500", ignore_errors=True)
        return find_damage(folder)

    monkeypatch.setattr("scripts.backup.find_damage", rotates)
    assert backup.main(["verify", str(run.path)]) == 0
    assert "step-000500 has been removed meanwhile by the run" in capsys.readouterr().out

    numbers = iter(range(1, 9))

    def rotates_while_listed(folder: Path) -> int:
        shutil.rmtree(run.backup_dir / "step-001000", ignore_errors=True)
        return next(numbers)

    monkeypatch.setattr("modules.run.folder.backup_list.backup_number", rotates_while_listed)
    assert backup.main(["list", str(run.path)]) == 0
    assert "1000" not in capsys.readouterr().out


def test_an_interrupted_prune_leaves_no_half_of_a_backup(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def is_interrupted(folder: Path) -> None:
        (folder / "weights.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("modules.checkpoint.manage_backups.remove_tree", is_interrupted)
        assert backup.main(["prune", str(run.path), "--keep", "1", "--yes"]) == 130
    assert backup.main(["verify", str(run.path)]) == 0
    assert backup.main(["prune", str(run.path), "--keep", "1", "--yes"]) == 0
    assert os.listdir(run.backup_dir) == ["step-002000"]


def test_restore_goes_back_and_removes_nothing(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert newest(run) == "step-002000"
    assert backup.main(["restore", str(run.path), "1000"]) == 0
    assert "--resume latest --run_name cats" in capsys.readouterr().out
    assert newest(run) == "step-001000"
    assert sorted(path.name for path in run.backup_dir.iterdir()) == [f"step-{step:06d}" for step in STEPS]
    written = Backups(run.backup_dir, keep=9).write(state_at(1200), "{}")
    assert newest(run) == written.name


def test_restore_takes_a_copy_from_elsewhere(run: RunFolder, tmp_path: Path) -> None:
    kept = shutil.copytree(run.backup_dir / "step-000500", tmp_path / "usb" / "copy of 500")
    shutil.rmtree(run.backup_dir / "step-000500")
    damage(run.backup_dir / "step-002000")
    assert backup.main(["restore", str(run.path), str(kept)]) == 0
    assert newest(run) == "step-000500"
    assert read_backup(run.backup_dir / "step-000500").position.step == 500
    (good,) = (tmp_path / "usb").iterdir()
    assert find_damage(good) is None
    # one of the same step is replaced by the undamaged copy
    damage(run.backup_dir / "step-000500")
    assert backup.main(["restore", str(run.path), str(kept)]) == 0
    assert find_damage(run.backup_dir / "step-000500") is None
    assert not list(run.backup_dir.glob(".partial-*"))


def test_restore_refuses_a_damaged_backup_and_changes_nothing(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = shutil.copytree(run.backup_dir / "step-000500", tmp_path / "copy")
    damage(kept)
    assert backup.main(["restore", str(run.path), str(kept)]) == 2
    assert "the checksum of weights.safetensors does not match" in capsys.readouterr().err
    assert newest(run) == "step-002000"


def test_prune_keeps_the_newest_undamaged_one_whatever_is_asked(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run.backup_dir / "step-002000")
    assert backup.main(["prune", str(run.path), "--keep", "1", "--every", "1000", "--yes"]) == 0
    printed = capsys.readouterr()
    assert "step-002000 is damaged" in printed.err
    assert "1 of 4 backups" in printed.out
    assert sorted(path.name for path in run.backup_dir.iterdir()) == ["step-001000", "step-001500", "step-002000"]


def test_prune_by_age_and_by_the_settings_of_the_run(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert backup.main(["prune", str(run.path), "--older_than", "1", "--keep", "1", "--yes"]) == 0
    assert "Nothing to remove." in capsys.readouterr().out
    manifest = run.backup_dir / "step-001000" / "manifest.json"
    os.utime(manifest, (time.time() - 2 * 86400,) * 2)
    assert backup.main(["prune", str(run.path), "--older_than", "1", "--keep", "1", "--dry_run"]) == 0
    assert "step-001000" in capsys.readouterr().out
    assert manifest.exists()
    assert backup.main(["prune", str(run.path), "--yes"]) == 0  # backups_kept is 3
    assert [path.name for path in run.backup_dir.iterdir() if path.name == "step-000500"] == []


def test_prune_asks_and_nobody_answers(
    run: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))  # a pipe is no person
    assert backup.main(["prune", str(run.path), "--keep", "1"]) == 130
    assert "--yes" in capsys.readouterr().err
    assert len(list(run.backup_dir.iterdir())) == len(STEPS)


def test_a_run_that_is_being_trained_is_left_alone(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert backup.main(["prune", str(run.path), "--keep", "1", "--yes"]) == 2
        assert backup.main(["restore", str(run.path), "500"]) == 2
        assert backup.main(["list", str(run.path)]) == 0
        holder.communicate()
    assert "still" in capsys.readouterr().err
    assert newest(run) == "step-002000"


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["list", "nowhere"], "'nowhere' does not exist"),
        (["list", "empty"], "has no backup folder"),
        (["verify", "RUN", "7"], "has no backup of step 7. It has those of 2000, 1500, 1000, 500"),
        (["restore", "RUN", "nowhere"], "There is no backup at 'nowhere'"),
        (["restore", "RUN", "empty"], "it has no manifest.json"),
        (["prune", "RUN", "--keep", "0"], "--keep is 0; use 1 or more"),
        (["prune", "RUN", "--older_than", "nan"], "--older_than is nan"),
    ],
)
def test_mistakes_get_a_sentence(
    arguments: list[str], part: str, run: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(run.path.parent)
    Path("empty").mkdir()
    assert backup.main([each.replace("RUN", "cats") for each in arguments]) == 2
    printed = capsys.readouterr()
    assert part in printed.err
    assert len(printed.err.splitlines()) == 1


def test_a_linked_backup_folder_is_not_followed(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    other = RunFolder(run.path.parent / "other")
    other.path.mkdir()
    other.backup_dir.symlink_to(run.backup_dir)
    assert backup.main(["prune", str(other.path), "--keep", "1", "--yes"]) == 2
    assert "is a link" in capsys.readouterr().err
    assert len(list(run.backup_dir.iterdir())) == len(STEPS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_under_the_json_is_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert backup.main(["list", str(run.path), "--json", "/dev/full"]) == 3
    assert "/dev/full cannot be read or written: No space left on device." in capsys.readouterr().err
