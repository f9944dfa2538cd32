"""Folders that somebody else prepared: what is written or removed in them stays in them, and nothing is waited for."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.data.index.problems import Problem, write_problems
from modules.files import open_for_writing, remove_tree, write_fault
from modules.run import RunFolder
from modules.run.folder.error_help import explain_exception
from modules.run.folder.events import EventLog
from modules.run.folder.failures import Failure, create_reserve, record_failure
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.rank_log import start_rank_log, stop_rank_log
from modules.run.folder.run_lock import supervisor_lock, training_lock
from modules.run.supervise.launcher_log import LauncherLogFile

pytestmark = pytest.mark.timeout(60)


def test_a_disk_without_inodes_is_not_said_to_be_full(tmp_path: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=2", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: it needs root")
    try:
        os.close(open_for_writing(tmp_path / "x"))
        with pytest.raises(OSError, match="No space left") as caught:
            open_for_writing(tmp_path / "y")
        assert "all inodes of the disk are in use" in write_fault(caught.value)
        assert "all inodes" in write_fault(OSError(errno.ENOSPC, "full"), tmp_path / "no" / "such" / "folder")
        assert "all inodes" in explain_exception(caught.value).message
        assert write_fault(OSError(errno.EACCES, "Permission denied"), tmp_path) == "Permission denied"
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)
    assert write_fault(OSError(errno.ENOSPC, "full"), tmp_path) == "full"


def test_a_file_is_emptied_or_appended_to(tmp_path: Path) -> None:
    for append, content in ((False, b"one"), (True, b"onetwo"), (False, b"3")):
        with os.fdopen(open_for_writing(tmp_path / "x", append=append), "ab") as file:
            file.write(content[-3:])
        assert (tmp_path / "x").read_bytes() == content


def test_a_link_or_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "kept").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "new").symlink_to(tmp_path / "made")
    for name, reason in (("pipe", "no file"), ("link", "a link"), ("new", "a link"), (".", "directory")):
        with pytest.raises(OSError, match=reason):
            open_for_writing(tmp_path / name)
    assert (tmp_path / "kept").read_text() == "kept"
    assert not (tmp_path / "made").exists()


def test_whatever_has_the_name_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    os.mkfifo(tmp_path / "folder" / "inner" / "pipe")
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "kept")
    for name in ("link", "pipe", "folder", "nothing"):
        remove_tree(tmp_path / name)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def _write_logs(folder: RunFolder) -> None:
    with training_lock(folder), supervisor_lock(folder), pidfile_held(folder):
        log = EventLog(folder.events_file)
        log.write("phase", phase="loading")
        log.close()
        handler = start_rank_log(folder, 0)
        logging.getLogger("x").warning("careful")
        stop_rank_log(handler)
        create_reserve(folder, 0)
        record_failure(folder, Failure(0, "a", "error", "It failed.", traceback="Traceback\n"))
        for write in (
            lambda: LauncherLogFile(folder.launcher_log).open("started").close(),
            lambda: write_problems([Problem("x.png", "is bad")], folder.path / "problems.txt"),
        ):
            try:
                write()
            except OSError:
                continue


@pytest.mark.parametrize("place", [os.mkfifo, None], ids=["pipes", "links"])
def test_a_run_folder_of_somebody_else_leads_its_logs_nowhere(
    place: Callable[[Path], None] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the logs, locks and events of a resumed run: pipes would be waited for, links led to files outside."""
    good, folder = RunFolder(tmp_path / "good"), RunFolder(tmp_path / "runs" / "x")
    good.make_directories()
    folder.make_directories()
    _write_logs(good)
    written = sorted(file.relative_to(good.path) for file in good.path.rglob("*") if file.is_file())
    assert {file.name for file in written} >= {
        "events.jsonl", "launcher.txt", "problems.txt", "rank-0.reserve", "rank-0.txt", "supervisor.lock",
        "training.lock",
    }  # fmt: skip
    (tmp_path / "outside").mkdir()
    for file in written:
        outside = tmp_path / "outside" / file.name
        outside.write_text("kept")
        if place is None:
            (folder.path / file).symlink_to(outside)
        else:
            place(folder.path / file)
    _write_logs(folder)
    assert {file.read_text() for file in (tmp_path / "outside").iterdir()} == {"kept"}
    assert "cannot be written" in capsys.readouterr().err
