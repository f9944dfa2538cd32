"""The window's knowledge of pictures, without a window: catalogue, captions, thumbnails."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from PIL import Image

from app.pictures.captions import Replacement, apply, plan_replacement, read_caption, write_caption
from app.pictures.catalogue import Catalogue, Picture, survey, tag_counts
from app.pictures.thumbnails import Thumbnails, tidy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pictures"
    place.mkdir()
    for number, (width, height) in enumerate([(64, 64), (128, 64), (64, 64)]):
        Image.new("RGB", (width, height), (number * 90, 20, 30)).save(place / f"{number}.png")
        (place / f"{number}.txt").write_text(f"cat, number {number}", "utf-8")
    return place


def ask(folder: Path) -> Catalogue:
    seen: list[int] = []
    settings = {"concepts": [{"path": str(folder)}], "resolution": 64, "learning_rate": "no number yet"}
    catalogue = survey(settings, 8, lambda: True, lambda grown: seen.append(len(grown.pictures)))
    assert seen, "it grows before it is complete"
    return catalogue


def test_the_catalogue_knows_sizes_buckets_captions(folder: Path) -> None:
    catalogue = ask(folder)
    assert [(p.relative, p.width, p.bucket, p.caption) for p in catalogue.pictures] == [
        ("0.png", 64, "64x64", "cat, number 0"),
        ("1.png", 128, "88x48", "cat, number 1"),
        ("2.png", 64, "64x64", "cat, number 2"),
    ]
    assert catalogue.pictures[0].file == folder / "0.png"
    assert dict(catalogue.buckets) == {"64x64": 2, "88x48": 1}
    assert catalogue.fault == ""


def test_a_folder_that_is_gone_is_an_error_of_its_own(tmp_path: Path) -> None:
    catalogue = ask(tmp_path / "gone")
    assert "does not exist" in catalogue.folders[0].error


def test_settings_that_cannot_be_asked_about_give_a_sentence() -> None:
    catalogue = survey({"concepts": [{"path": ""}]}, 8, lambda: True, lambda _: None)
    assert "path" in catalogue.fault


def test_an_unwanted_survey_ends_early(folder: Path) -> None:
    catalogue = survey({"concepts": [{"path": str(folder)}]}, 8, lambda: False, lambda _: None)
    assert not catalogue.pictures
    assert catalogue.fault == ""


def test_records_that_are_none_are_refused() -> None:
    catalogue = Catalogue()
    for record in ({"type": "pictures"}, {"type": "concept", "concept": "x"}):
        with pytest.raises((KeyError, TypeError)):
            catalogue.add(record, {})


def test_tags_are_counted_once_a_picture(folder: Path) -> None:
    assert tag_counts(ask(folder).pictures) == [("cat", 3), ("number 0", 1), ("number 1", 1), ("number 2", 1)]


def test_a_caption_is_written_whole_and_taken_back(folder: Path) -> None:
    change = write_caption(folder / "0.png", "a dog\n")
    assert read_caption(folder / "0.png") == "a dog\n"
    apply(change.reverse())
    assert read_caption(folder / "0.png") == "cat, number 0"
    new = write_caption(folder / "new.png", "born")
    apply(new.reverse())
    assert read_caption(folder / "new.png") is None
    assert not list(folder.glob(".*")), "nothing half-written is left"


def picture(caption: str) -> Picture:
    return Picture(0, "x.png", Path("x.png"), 1, 1, "1x1", caption, "found")


@pytest.mark.parametrize(
    ("caption", "wanted", "after"),
    [
        ("a cat, cats, Cat", Replacement("cat", "dog"), "a dog, dogs, dog"),
        ("a cat, cats, Cat", Replacement("cat", "dog", whole_words=True), "a dog, cats, dog"),
        ("a cat, cats, Cat", Replacement("cat", "dog", match_case=True), "a dog, dogs, Cat"),
        ("one, two, three", Replacement("two", ""), "one, three"),
        ("a+b", Replacement("a+", "c"), "cb"),
        ("first\nsecond cat", Replacement("cat", r"\1"), "first\nsecond \\1"),
    ],
)
def test_search_and_replace_is_plain_text(caption: str, wanted: Replacement, after: str) -> None:
    ((_, planned),) = plan_replacement([picture(caption), picture("nothing here")], wanted)
    assert planned == after


def test_an_empty_search_changes_nothing() -> None:
    assert plan_replacement([picture("cat")], Replacement("", "dog")) == []


def test_thumbnails_are_made_once_and_kept_on_disk(folder: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = wait_for(Thumbnails(cache), folder / "1.png")
    assert made is not None
    assert made.size == (128, 64)
    (stored,) = cache.glob("*/*.jpg")
    stored.write_bytes(b"torn")
    assert wait_for(Thumbnails(cache), folder / "1.png") is not None, "a torn file is made anew"
    tidy(cache, keep=0)
    assert not list(cache.glob("*/*.jpg"))


def test_a_broken_picture_has_no_thumbnail_and_is_not_tried_again(tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    thumbnails = Thumbnails(tmp_path / "cache")
    assert wait_for(thumbnails, tmp_path / "broken.png") is None
    assert thumbnails.is_broken(tmp_path / "broken.png")


def wait_for(thumbnails: Thumbnails, file: Path) -> Image.Image | None:
    ready: list[Path] = []
    deadline = time.monotonic() + 60
    while file not in ready:
        assert time.monotonic() < deadline, "no thumbnail came"
        if thumbnails.get(file) is None:
            thumbnails.poll(ready.append)
            time.sleep(0.01)
    found = thumbnails.get(file)
    thumbnails.close()
    return found
