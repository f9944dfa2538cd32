"""Which images are asked about."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from modules.annotation import Header, Mode, Task
from modules.annotators.select import Selection, read_image, select_images
from modules.config import DataError
from modules.files import FileFault
from modules.files.addresses import VARIABLE, copy_of


def select(folder: Path, mode: Mode = "missing", task: Task = "caption", *, subfolders: bool = True) -> Selection:
    ending = "-masklabel.png" if task == "mask" else ".txt"
    header = Header(task=task, folder=str(folder), model="m", mode=mode, ending=ending, settings={})
    return select_images(header, subfolders=subfolders)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for name in ("captioned.png", "empty.png", "listed.png", "masked.png", "sub/none.png", "twin.jpg", "twin.png"):
        Image.new("RGB", (6, 4)).save(tmp_path / name)
    (tmp_path / "captioned.txt").write_text("a cat")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "metadata.jsonl").write_text(json.dumps({"file_name": "listed.png", "text": "a dog"}))
    Image.new("L", (6, 4)).save(tmp_path / "masked-masklabel.png")
    (tmp_path / "old.gif").write_bytes(b"GIF")
    return tmp_path


def names(selection: Selection) -> list[str]:
    return [image.relative for image in selection.images]


def test_captions_in_files_and_metadata_count(folder: Path) -> None:
    found = select(folder)
    assert names(found) == ["empty.png", "masked.png", "sub/none.png", "twin.jpg"]
    assert found.present == 2
    assert not found.notes
    assert found.faults["twin.png"] == "skipped: twin.jpg has the same name, and so the same file"
    assert ".gif images are not supported" in found.faults["old.gif"]
    assert "sub/none.png" not in names(select(folder, subfolders=False))


def test_replacing_what_metadata_overrules_is_noted(folder: Path) -> None:
    found = select(folder, "replace")
    assert "captioned.png" in names(found)
    assert found.notes[0].startswith("1 images have a caption in a metadata file")


def test_videos_are_passed_over_with_a_word(folder: Path) -> None:
    for name in ("a.mp4", "b.MOV"):
        (folder / name).write_bytes(b"a video")
    found = select(folder)
    assert found.notes == ["2 videos are passed over, as only images are looked at: write NAME.txt for each by hand."]


def test_masks_count_for_masks(folder: Path) -> None:
    assert "masked.png" not in names(select(folder, task="mask"))
    assert "captioned.png" in names(select(folder, task="mask"))


def test_nothing_is_proposed_for_the_copy_of_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    for folder in (Path(copy_of("s3://b/cats")), tmp_path / "own"):
        folder.mkdir(parents=True)
        Image.new("RGB", (6, 4)).save(folder / "a.png")
    with pytest.raises(DataError, match="is the copy of an address, which is only read"):
        select(Path(copy_of("s3://b/cats")))
    assert names(select(tmp_path / "own")) == ["a.png"], "another folder beside the copies"


@pytest.mark.skipif(os.name == "nt", reason="names are UTF-16")
def test_a_name_that_is_no_text(folder: Path) -> None:
    os.rename(folder / "twin.jpg", os.fsencode(folder) + b"/\xff.jpg")
    found = select(folder)
    assert "skipped: its name cannot be written as text; rename it" in found.faults.values()
    assert "twin.png" in names(found)


def test_images_are_read_as_for_training(tmp_path: Path) -> None:
    image = Image.new("RGBA", (40, 20), (255, 0, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(tmp_path / "a.png", exif=exif)
    shown = read_image(str(tmp_path / "a.png"))
    assert (shown.size, shown.getpixel((0, 0))) == ((20, 40), (255, 255, 255))
    assert read_image(str(tmp_path / "a.png"), longest=10).size == (5, 10)
    (tmp_path / "b.png").write_bytes(b"")
    with pytest.raises(FileFault, match="it is empty"):
        read_image(str(tmp_path / "b.png"))
