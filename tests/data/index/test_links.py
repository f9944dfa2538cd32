"""Links of a data set: those that lead to other files of the person who trains are not read, all others are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modules.data.index.index import Index
from tests.data.helpers import config_for, index_of, write_image

SECRET = "my secret"


def index_and_problems(folder: Path, **settings: object) -> tuple[Index, list[str]]:
    cache = folder.parent / "cache"
    config = config_for(folder, cache=cache, mask_suffix="-mask.png", masked_training=True, **settings)
    index_of(config, cache)
    index = index_of(config, cache)  # from the stored one
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in cache.rglob("*") if file.is_file())
    return index, [f"{Path(each.path).name}: {each.what}" for each in index.problems()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "images" / name)
    (tmp_path / "images/b.txt").write_text("a cat")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/secret.txt").write_text(SECRET)
    return tmp_path / "images"


def test_a_caption_that_leads_out_of_the_folder_is_listed_and_not_read(folder: Path) -> None:
    (folder / "a.txt").symlink_to(folder.parent / "home/secret.txt")
    index, problems = index_and_problems(folder)
    assert [index.captions(row) for row in range(2)] == [("",), ("a cat",)]
    (problem,) = problems
    assert problem.startswith("a.png: its caption file a.txt is a link to ")
    assert "secret.txt', outside" in problem
    assert "copy it here" in problem


def test_captions_of_an_index_that_was_made_before_are_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a.txt").symlink_to(folder.parent / "home/secret.txt")
    with monkeypatch.context() as before:
        before.setattr("modules.data.index.captions.is_foreign_link", lambda *_: False)
        before.setattr("modules.data.index.captions._RULES", 1)
        config = config_for(folder, cache=folder.parent / "cache")
        assert index_of(config, folder.parent / "cache").captions(0) == (SECRET,)
    assert index_of(config, folder.parent / "cache").captions(0) == ("",)


def test_metadata_that_leads_out_of_the_folder_is_listed_and_not_read(folder: Path) -> None:
    secret = folder.parent / "home/notes.jsonl"
    secret.write_text(json.dumps({"file_name": "a.png", "text": SECRET}))
    (folder / "metadata.jsonl").symlink_to(secret)
    index, problems = index_and_problems(folder)
    assert [index.captions(row) for row in range(2)] == [("",), ("a cat",)]
    assert any(each.startswith("metadata.jsonl: not read: it is a link to ") for each in problems), problems


def test_an_image_whose_mask_leads_out_of_the_folder_is_listed_and_skipped(folder: Path) -> None:
    write_image(folder.parent / "home/photo.png")
    (folder / "a-mask.png").symlink_to("../home/photo.png")
    index, problems = index_and_problems(folder)
    assert [index.relative_path(row) for row in range(len(index))] == ["b.png"]
    assert [each.split(" to ")[0] for each in problems] == ["a.png: skipped: its mask a-mask.png is a link"]


@pytest.mark.parametrize("layout", ["hub", "store", "disk", "inside", "folder"])
def test_data_sets_made_of_links_are_read(tmp_path: Path, layout: str) -> None:
    """The Hugging Face cache, where all files lie in one folder; DVC, where each has its own; another disk, with the
    same folders; links within."""
    folder, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    (folder / "sub").mkdir(parents=True)
    files = {"sub/a.png": "a.png", "sub/a.txt": "a.txt", "sub/a-mask.png": "a-mask.png", "metadata.jsonl": "m.jsonl"}
    if layout == "folder":
        (folder / "sub").rmdir()
        (folder / "sub").symlink_to(elsewhere / "sub")
        del files["metadata.jsonl"]
    for number, name in enumerate(files):
        file = {
            "hub": elsewhere / f"{number:08x}",
            "store": elsewhere / f".dvc/cache/files/md5/{number:02x}/{number:08x}",
            "inside": folder / f".data/{number}/{name}",
        }.get(layout, elsewhere / name)
        file.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".png"):
            write_image(file.with_suffix(".png")).rename(file)
        else:
            file.write_text("a dog" if name.endswith(".txt") else json.dumps({"file_name": "sub/b.png", "text": "b"}))
        if layout != "folder":
            (folder / name).symlink_to(file)
    if layout != "folder":
        write_image(folder / "sub/b.png")
    index, problems = index_and_problems(folder)
    found = {index.relative_path(row): index.captions(row) for row in range(len(index))}
    assert found == {"sub/a.png": ("a dog",)} | ({} if layout == "folder" else {"sub/b.png": ("b",)})
    assert index.has_mask(0)
    assert not problems
