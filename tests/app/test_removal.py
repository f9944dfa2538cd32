"""Images go to the trash with their own captions; where nothing can be moved, they stay and the reason is given."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.images.captions import CaptionFiles
from app.images.removal import trash_images

FILES = CaptionFiles(extensions=(".txt", ".caption"))


@pytest.fixture(autouse=True)
def trash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "Trash" / "files"


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A file system that may only be read, with one image."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, check=False).returncode:
        pytest.skip("a file system cannot be mounted here: it needs root")
    (folder / "cat.png").touch()
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_captions_go_with_the_last_image_that_has_them(tmp_path: Path, trash: Path) -> None:
    for name in ("cat.png", "cat.jpg", "cat.txt", "cat.caption", "dog.png", "dog.JPG", "dog.txt", "cat2.txt"):
        (tmp_path / name).touch()
    removal = trash_images([(tmp_path / name, FILES) for name in ("cat.png", "cat.jpg", "dog.png", "gone.png")])
    assert [each.original.name for each in removal.files] == ["cat.png", "cat.jpg", "cat.txt", "cat.caption", "dog.png"]
    assert removal.faults == []
    assert {each.name for each in removal.images} == {"cat.png", "cat.jpg", "dog.png", "gone.png"}
    assert {each.name for each in tmp_path.iterdir()} == {"dog.JPG", "dog.txt", "cat2.txt", "data"}


def test_folders_stay(tmp_path: Path, trash: Path) -> None:
    (tmp_path / "album.png").mkdir()
    assert trash_images([(tmp_path / "album.png", FILES)]).images == set()
    assert (tmp_path / "album.png").is_dir()


def test_others_are_moved_if_a_folder_is_read_only(tmp_path: Path, trash: Path, read_only: Path) -> None:
    (tmp_path / "dog.png").touch()
    removal = trash_images([(read_only / "cat.png", FILES), (tmp_path / "dog.png", FILES)])
    assert removal.images == {tmp_path / "dog.png"}
    assert removal.faults == [f"{read_only} is read-only: nothing can be moved out of it."]
    assert (read_only / "cat.png").exists()
