"""The trash: layout and .trashinfo as the freedesktop.org specification says, undone, and never across disks."""

from __future__ import annotations

import os
import urllib.parse
from pathlib import Path

import pytest

from modules.files import trash
from modules.files.trash import move_to_trash, restore
from tests.full_disk import FULL, full_disk

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the trash of other systems than freedesktop.org's")


@pytest.fixture
def home_trash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "Trash"


def make(folder: Path, text: str = "x") -> Path:
    folder.mkdir(parents=True)
    (folder / "file.txt").write_text(text)
    return folder


def test_folder_goes_to_the_trash_of_the_home_and_back(home_trash: Path, tmp_path: Path) -> None:
    run = make(tmp_path / "runs" / "Katzen ä 100%")
    moved = move_to_trash(run)
    assert not run.exists()
    assert moved.place == home_trash / "files" / run.name
    head, path, date = moved.info.read_text().splitlines()
    assert (head, moved.info) == ("[Trash Info]", home_trash / "info" / f"{run.name}.trashinfo")
    assert urllib.parse.unquote(path.removeprefix("Path=")) == str(run)
    assert "%25" in path
    assert len(date.removeprefix("DeletionDate=")) == len("2026-01-01T00:00:00")
    assert home_trash.stat().st_mode & 0o077 == 0, "for this user alone"
    restore(moved)
    assert (run / "file.txt").read_text() == "x"
    assert not list(home_trash.rglob("*.trashinfo"))


def test_equal_names_are_kept_apart(home_trash: Path, tmp_path: Path) -> None:
    first = move_to_trash(make(tmp_path / "cats", "first"))
    (home_trash / "files" / "cats.2").mkdir()  # of another program, without its info
    second = move_to_trash(make(tmp_path / "cats", "second"))
    assert [first.place.name, second.place.name] == ["cats", "cats.3"]
    restore(second)
    with pytest.raises(FileExistsError):
        restore(first)
    assert (first.place / "file.txt").read_text() == "first", "still there"


def test_link_itself_is_moved(home_trash: Path, tmp_path: Path) -> None:
    target = make(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(target)
    moved = move_to_trash(tmp_path / "link")
    assert moved.place.is_symlink()
    assert (target / "file.txt").is_file()


def test_other_disk_is_not_copied(home_trash: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home on another file system: /dev/shm, where there is one."""
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second file system")
    place = shared / f"tandem-trash-{os.getpid()}"
    monkeypatch.setenv("XDG_DATA_HOME", str(place))
    try:
        run = make(tmp_path / "cats")
        moved = move_to_trash(run)
        assert moved.place.stat().st_dev == tmp_path.stat().st_dev
        assert not place.exists(), "no trash is created that is not used"
        restore(moved)
        assert run.is_dir()
    finally:
        mount = trash._mount_point(tmp_path / "cats") / f".Trash-{os.getuid()}"
        if mount.is_dir() and not any((mount / "files").iterdir()):
            for name in ("files", "info"):
                (mount / name).rmdir()
            mount.rmdir()


def test_a_full_disk_leaves_nothing(home_trash: Path, tmp_path: Path) -> None:
    run = make(tmp_path / "runs" / "cats")
    with full_disk(), pytest.raises(OSError, match=FULL) as failed:
        move_to_trash(run)
    assert failed.value.filename == str(run)
    assert (run / "file.txt").is_file()
    assert not list((home_trash / "info").iterdir())


@pytest.mark.parametrize("name", [f"{'x' * 251}.png", f"{'ä' * 125}.png"])
def test_names_as_long_as_may_be(home_trash: Path, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    for text in ("first", "second"):
        file.write_text(text)
        moved = move_to_trash(file)
        assert moved.place.suffix in (".png", ".2")
    restore(moved)
    assert file.read_text() == "second"


def test_without_a_trash_it_is_kept_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "_trashes", lambda path: iter(()))
    moved = move_to_trash(make(tmp_path / "runs" / "cats"))
    assert moved.place == tmp_path / "runs" / ".trash" / "files" / "cats"


@pytest.mark.parametrize("folder", ["", "files", "info"])
@pytest.mark.parametrize("change", ["mode", "owner"])
def test_trash_that_others_can_use_is_not_used(home_trash: Path, tmp_path: Path, folder: str, change: str) -> None:
    for name in ("", "files", "info"):
        (home_trash / name).mkdir(mode=0o700, parents=True)
    if change == "mode":
        (home_trash / folder).chmod(0o770)
    elif os.getuid() == 0:
        os.chown(home_trash / folder, 1001, 1001)
    else:
        pytest.skip("only root can give a folder away")
    moved = move_to_trash(make(tmp_path / "private"))
    assert home_trash not in moved.place.parents
    restore(moved)


def test_fallback_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trash, "_trashes", lambda path: iter(()))
    run = make(tmp_path / "runs" / "private")
    planted = make(tmp_path / "runs" / ".trash" / "files").parent
    planted.chmod(0o777)
    with pytest.raises(OSError, match="open to other users"):
        move_to_trash(run)
    assert (run / "file.txt").is_file()
    run.parent.chmod(0o777)  # as on a disk without permissions: they can read it where it is
    (planted / "files").chmod(0o755)
    restore(move_to_trash(run))


def test_trash_that_is_a_link_is_not_used(home_trash: Path, tmp_path: Path) -> None:
    home_trash.parent.mkdir()
    make(tmp_path / "foreign")
    home_trash.symlink_to(tmp_path / "foreign")
    moved = move_to_trash(make(tmp_path / "cats"))
    assert tmp_path / "foreign" not in moved.place.parents
    restore(moved)
