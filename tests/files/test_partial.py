"""What a killed process leaves: half of something goes, what was to be replaced by it comes back."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from modules.files import check_replaceable, put_back_replaced, remove_partial, replacing


def test_only_complete_things_stay(tmp_path: Path) -> None:
    living = f".partial-{os.getpid()}-report.html"
    for name in (
        ".partial-step-000002", ".partial-former-step-000002", ".partial-old-step-000001",
        ".partial-former-step-000003", "step-000003", ".partial-model", ".former-model", living, ".partial-99999999-x",
    ):  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "written as").write_text(name)
    remove_partial(tmp_path)
    stayed = {each.name: (each / "written as").read_text() for each in tmp_path.iterdir()}
    assert stayed == {
        "step-000002": ".partial-former-step-000002",
        "step-000003": "step-000003",
        "model": ".former-model",
        living: living,
    }


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    with replacing(file) as partial:
        partial.write_text("first")
        assert not file.exists()
    for target, fault in ((file, OSError(errno.ENOSPC, "full")), (tmp_path / "gone" / "x", None)):
        with pytest.raises(OSError, match=r"full|No such file") as raised:
            _fail_to_replace(target, fault)
        assert raised.value.filename == str(target), "which was asked for"
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("notes.txt", "first")]


def test_a_file_is_replaced_where_a_killed_program_had_the_same_pid(tmp_path: Path) -> None:
    """In a container it often has; and a link that somebody has put there is not followed."""
    (tmp_path / "theirs").write_text("theirs")
    (tmp_path / f".partial-{os.getpid()}-notes.txt").symlink_to(tmp_path / "theirs")
    with replacing(tmp_path / "notes.txt") as partial:
        partial.write_text("mine")
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"theirs": "theirs", "notes.txt": "mine"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has neither")
def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """`--output /dev/null` of root would make a file of it, into which all programs write from then on."""
    link = tmp_path / "link"
    link.symlink_to("/dev/null")
    with pytest.raises(OSError, match="is a device"), replacing(link) as partial:
        partial.write_text("x")
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]
    for name in ("null", "stdout"):
        with pytest.raises(OSError, match="is a device"):
            check_replaceable(Path("/dev") / name)


def test_a_file_with_the_longest_name_can_be_replaced(tmp_path: Path) -> None:
    file = tmp_path / f"{'ä' * 125}.txt"
    with replacing(file) as partial:
        partial.write_text("text")
        assert f"-{os.getpid()}-" in partial.name, "or it would stay after a kill"
    assert [each.read_text() for each in tmp_path.iterdir()] == ["text"]


def _fail_to_replace(file: Path, fault: OSError | None) -> None:
    with replacing(file) as partial:
        partial.write_text("sec")
        assert fault is not None, "the folder is missing"
        raise fault


def test_what_another_program_may_be_writing_stays(tmp_path: Path) -> None:
    mine = {".partial-model.safetensors", ".former-config.json", "config.json", ".former-notes.txt"}
    mine.add(".partial-20261123093000-notes.txt")  # no PID
    for name in (".partial-99999999-report.html", ".partial-model", *mine):
        (tmp_path / name).touch()
    remove_partial(tmp_path, only="model")
    assert {each.name for each in tmp_path.iterdir()} == mine


def test_a_disk_that_fails_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bool:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "is_symlink", fail)
    remove_partial(tmp_path)
    put_back_replaced(tmp_path)


def test_nothing_is_touched_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "other" / ".partial-x").mkdir(parents=True)
    (tmp_path / "backup").symlink_to(tmp_path / "other")
    remove_partial(tmp_path / "backup")
    assert (tmp_path / "other" / ".partial-x").is_dir()
