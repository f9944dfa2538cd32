"""Runs are renamed and moved to the trash, with what refers to them; active ones are refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modules.config import Concept, ConfigError, TrainConfig, load_config, save_config
from modules.files.trash import restore
from modules.run import RunFolder
from modules.run.folder.manage import rename_run, trash_run
from modules.run.queue.folder import RunQueue
from tests.full_disk import FULL, full_disk
from tests.runs import ROOT


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config = TrainConfig(run_name="cats", runs_dir=str(tmp_path / "runs"))
    folder = RunFolder.create(config)
    save_config(config, folder.path / "machine-1.json")
    return folder


@pytest.fixture
def active(run: RunFolder) -> Iterator[RunFolder]:
    """Another process holds the lock of a training."""
    program = (
        "import sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from modules.run import RunFolder\n"
        "from modules.run.folder.run_lock import training_lock\n"
        "with training_lock(RunFolder(Path(sys.argv[2]))):\n"
        "    print('held', flush=True); time.sleep(600)\n"
    )
    argv = [sys.executable, "-c", program, str(ROOT), str(run.path)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield run
    process.kill()
    process.wait()
    process.stdout.close()


def test_rename_changes_the_folder_and_its_configs(run: RunFolder) -> None:
    renamed = rename_run(run, "cats-large")
    assert not run.path.exists()
    assert load_config(renamed.config_file).run_name == "cats-large"
    assert json.loads((renamed.path / "machine-1.json").read_text())["run_name"] == "cats-large"
    assert RunFolder.open(renamed.path.parent, "cats-large").config_file.is_file()


def test_a_run_that_cannot_be_renamed_whole_keeps_its_name(run: RunFolder) -> None:
    with full_disk(), pytest.raises(ConfigError, match=FULL):
        rename_run(run, "cats-large")
    assert [each.name for each in run.path.parent.iterdir()] == ["cats"]
    assert load_config(run.config_file).run_name == "cats"


def test_the_queue_names_a_renamed_run_as_it_is_now(run: RunFolder) -> None:
    queue = RunQueue(run.path.parent)
    config = TrainConfig(family="classifier", run_name="dogs", concepts=(Concept(path=str(run.path)),))
    added = queue.add(config)
    queue.edit(lambda found: found.with_entry(added.changed(name="cats", state="failed")))
    rename_run(run, "cats-large")
    assert queue.run_folder(queue.read().entry(added.number)).config_file.is_file()
    queue.path.joinpath("queue.json").write_text("{")
    assert rename_run(RunFolder.open(run.path.parent, "cats-large"), "cats").config_file.is_file()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a/b", "may contain only"),
        ("../up", "may contain only"),
        ("", "may contain only"),
        ("con", "Try run-con"),
        ("dogs", "already has something named dogs"),
    ],
)
def test_names_that_cannot_be_are_refused(run: RunFolder, name: str, words: str) -> None:
    (run.path.parent / "dogs").mkdir()
    with pytest.raises(ConfigError, match=words):
        rename_run(run, name)
    assert run.config_file.is_file()


def test_damaged_config_does_not_stop_a_rename(run: RunFolder) -> None:
    run.config_file.write_text("{")
    assert rename_run(run, "other").config_file.read_text() == "{"


def test_active_run_is_refused(active: RunFolder) -> None:
    with pytest.raises(ConfigError, match="cats is active; it can be renamed once it has ended"):
        rename_run(active, "other")
    with pytest.raises(ConfigError, match="cats is active; it can be deleted once it has ended"):
        trash_run(active)
    assert active.config_file.is_file()


def test_trash_and_back(run: RunFolder, tmp_path: Path) -> None:
    moved = trash_run(run)
    assert moved.place == tmp_path / "data" / "Trash" / "files" / "cats"
    assert not run.path.exists()
    restore(moved)
    assert load_config(run.config_file).run_name == "cats"
