"""Images go to the trash with their own captions; where nothing can be moved, they stay and the reason is given."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.images.captions import CaptionFiles, write_caption
from app.images.editor import read_only_reason
from app.images.image_index import IndexedImage
from app.images.removal import trash_images
from modules.files.addresses import VARIABLE, copy_of
from tests.data.shards import tar_of

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


def test_nothing_is_changed_in_an_archive_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user_cache"))
    archive = tmp_path / "a.tar"
    archive.write_bytes(tar_of({"1.jpg": b"x", "1.txt": b"text"}))
    removal = trash_images([(archive / "1.jpg", CaptionFiles())])
    assert (removal.files, removal.images) == ([], set())
    assert removal.faults == [f"{archive} is read-only: nothing can be moved out of it."]
    with pytest.raises(OSError, match=r"it is in a\.tar.*unpack it"):
        write_caption(archive / "1.jpg", "other", CaptionFiles("txt"))
    image = IndexedImage(0, "1.jpg", archive / "1.jpg", 1, 1, "1x1", "text", "found")
    assert "cannot be edited: it is in a.tar" in read_only_reason(image, CaptionFiles("txt"))


def test_nothing_is_changed_in_the_copy_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start would download it again."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    file = Path(copy_of("hf://datasets/owner/name")) / "more" / "1.jpg"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x")
    removal = trash_images([(file, CaptionFiles())])
    assert (removal.files, removal.faults) == ([], [f"{file.parent} is read-only: nothing can be moved out of it."])
    with pytest.raises(OSError, match="in the copy of an address"):
        write_caption(file, "other", CaptionFiles("txt"))
    image = IndexedImage(0, "1.jpg", file, 1, 1, "1x1", "text", "found")
    assert "cannot be edited: it is in the copy of an address" in read_only_reason(image, CaptionFiles("txt"))
