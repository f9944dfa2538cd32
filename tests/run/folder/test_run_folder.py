"""Names, collisions and permissions of run folders."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from modules.config import ConfigError, ResumeError, TrainConfig, load_config
from modules.config.explain import faults
from modules.config.run_names import sanitize_run_name
from modules.run import RunFolder
from modules.run.folder import resume
from modules.run.folder.events import EventLog
from modules.run.folder.folder_guard import FolderGuard
from modules.run.folder.resume import folder_to_resume, former_config, newest_run
from modules.run.folder.run_folder import check_run_name
from modules.run.launch.fatal_startup import previous_fatal_exit_code
from modules.run.preflight_report.report import PreflightReport
from modules.run.preflight_report.start import read_report
from tests.full_disk import FULL, full_disk


def config(tmp_path: Path, **settings: object) -> TrainConfig:
    return TrainConfig.model_validate({"runs_dir": str(tmp_path / "runs"), **settings})


def test_create_writes_a_config_that_loads(tmp_path: Path) -> None:
    wanted = config(tmp_path, run_name="cats.v1_a-b", resolution=256)
    folder = RunFolder.create(wanted)
    assert folder.name == "cats.v1_a-b"
    assert load_config(folder.config_file) == wanted
    assert folder.commands_dir.is_dir()
    assert RunFolder.open(tmp_path / "runs", "cats.v1_a-b") == folder


def test_runs_without_a_name_never_collide(tmp_path: Path) -> None:
    folders = [RunFolder.create(config(tmp_path, family="/some/where/my family.py")) for _ in range(3)]
    assert len({folder.path for folder in folders}) == 3
    assert all(folder.name.startswith("my_family-2") for folder in folders)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", ["pipe", "huge"])
def test_what_is_no_small_file_is_neither_waited_for_nor_read_whole(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder(tmp_path / "runs" / "x")
    folder.make_directories()
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "started" / "attempt_0" / "0" / "error.json"))
    (tmp_path / "started").mkdir()
    for file in (folder.config_file, tmp_path / "started" / "refused", folder.log_dir / "report.json"):
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.touch()
            os.truncate(file, 1 << 40)
    with pytest.raises(ResumeError, match=r"resume: .*config.json' is (a named pipe|larger)"):
        former_config(folder)
    guard = FolderGuard(folder)
    folder.log_dir.rename(tmp_path / "log")
    assert guard.restore() is False
    assert previous_fatal_exit_code() is None
    assert read_report(tmp_path / "log" / "report.json") == PreflightReport("Preflight")


def test_existing_run_error_suggests_solutions(tmp_path: Path) -> None:
    RunFolder.create(config(tmp_path, run_name="a"))
    with pytest.raises(ConfigError, match=r"'a' already exists.*--resume latest.*another --run_name"):
        RunFolder.create(config(tmp_path, run_name="a"))


def test_name_of_a_failed_start_is_reusable(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path, run_name="a"))
    log = EventLog(folder.events_file)
    log.write("finished", reason="failed", exit_code=2)
    log.flush()
    assert RunFolder.create(config(tmp_path, run_name="a")) == folder
    log.write("started")
    log.close()
    with pytest.raises(ConfigError, match="already exists"):
        RunFolder.create(config(tmp_path, run_name="a"))


def test_a_start_on_a_full_disk_leaves_the_name_free(tmp_path: Path) -> None:
    named = config(tmp_path, run_name="cats")
    with full_disk(), pytest.raises(ConfigError, match=FULL):
        RunFolder.create(named)
    assert RunFolder.create(named).config_file.is_file()


def test_existing_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    assert RunFolder.create(config(tmp_path, run_name="a")).config_file.is_file()


@pytest.mark.parametrize(
    ("name", "clean"),
    [
        ("a/b", "a_b"),
        ("../up", "up"),
        ("..", "run"),
        ("my cats", "my_cats"),
        ("C:\\x", "C_x"),
        ("-rf", "rf"),
        (".hidden", "hidden"),
        ("nul", "run-nul"),
        ("x" * 300, "x" * 200),
        ("x-" * 400_000, "x-" * 99 + "x"),  # from a foreign file; one letter less at a time would take minutes
    ],
)
def test_invalid_names_get_a_suggestion(tmp_path: Path, name: str, clean: str) -> None:
    assert sanitize_run_name(name) == clean
    assert sanitize_run_name(clean) == clean
    with pytest.raises(ConfigError, match=rf"Use --run_name {re.escape(clean)}\.$"):
        check_run_name(name)
    with pytest.raises(ValidationError) as invalid:
        config(tmp_path, run_name=name)
    (fault,) = faults(invalid.value)
    assert fault.path == "run_name", "the window shows it at its field"
    assert "try " in fault.sentence
    assert len(fault.sentence) < 500


def test_letters_of_any_alphabet_are_valid() -> None:
    assert sanitize_run_name("Кошка-1") == "Кошка-1"


def test_runs_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be written: .*runs: File exists"):
        RunFolder.create(config(tmp_path, run_name="a"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_runs_dir_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        RunFolder.create(config(tmp_path, run_name="a"))


def test_permission_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "mkdir", deny)
    with pytest.raises(ConfigError, match=r"runs: Permission denied\. Set runs_dir"):
        RunFolder.create(config(tmp_path, run_name="a"))


def test_open_error_lists_existing_runs(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contains no runs"):
        RunFolder.open(tmp_path, "cats")
    RunFolder.create(config(tmp_path, run_name="dogs"))
    with pytest.raises(ConfigError, match=r"no run 'cats'.*newest runs are: dogs"):
        RunFolder.open(tmp_path / "runs", "cats")


def test_the_latest_run_is_not_one_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, name in enumerate(("mine", "theirs")):
        os.utime(RunFolder.create(config(tmp_path, run_name=name)).config_file, (0, seconds))
    assert newest_run(tmp_path / "runs") == "theirs"
    monkeypatch.setattr(resume, "other_owner", lambda file: "eve" if "theirs" in str(file) else "")
    assert newest_run(tmp_path / "runs") == "mine"
    assert folder_to_resume(config(tmp_path, run_name="theirs"), "latest").name == "theirs", "it is asked for"
    monkeypatch.setattr(resume, "other_owner", lambda file: "eve")
    with pytest.raises(ResumeError, match=r"belong to other users, the newest, theirs, to eve.*--run_name theirs"):
        newest_run(tmp_path / "runs")


def test_an_endless_event_log_is_not_read_whole(tmp_path: Path) -> None:
    folder = RunFolder.create(config(tmp_path, run_name="x"))
    with folder.events_file.open("wb") as file:
        file.truncate(1 << 42)
    with pytest.raises(ConfigError, match="already exists"):
        RunFolder.create(config(tmp_path, run_name="x"))
