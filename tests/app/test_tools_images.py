"""The Tools pages about images: near-duplicates, and images as training will see them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import pytest
from PIL import Image

from app.images.image_index import SURVEY_SETTINGS
from app.tools.duplicates_page import DuplicatesPage
from app.tools.preview_page import SETTINGS, PreviewPage
from app.tools.program_page import ProgramPage
from modules.config import TrainConfig
from modules.data.index.survey import survey
from modules.data.loading.preview import previews
from tests.app.driver import Driver
from tests.data.helpers import write_image

pytestmark = pytest.mark.slow

AnyPage = TypeVar("AnyPage", bound=ProgramPage)


def at_another_scale(driver: Driver, page: AnyPage) -> AnyPage:
    """The page that takes the place of this one when the window is scaled."""
    driver.window.set_scale(110 if driver.window.preferences.scale == 100 else 100)
    made = driver.window.sections["tools"].pages[page.name]
    assert made is not page
    assert isinstance(made, type(page))
    driver.settle()
    return made


def test_near_duplicates_are_reviewed_and_moved_to_the_trash(
    driver: Driver, tmp_path: Path, monkeypatch: object
) -> None:
    folder = tmp_path / "cats"
    for seed in range(6):
        write_image(folder / f"{seed}.png", 160, 120, seed)
    for seed in (1, 4):
        with Image.open(folder / f"{seed}.png") as image:
            image.resize((80, 60)).save(folder / f"small-{seed}.jpg", quality=70)
        (folder / f"small-{seed}.txt").write_text("a cat")
    driver.draft.set("concepts", [{"path": str(folder)}])
    driver.window.show_section("tools")
    section = driver.window.sections["tools"]
    section.open_page("duplicates")
    page = section.pages["duplicates"]
    assert isinstance(page, DuplicatesPage)
    driver.settle()
    assert page.folder.get() == str(folder), "the folder of the settings is offered"
    driver.click_button("Find")
    page = at_another_scale(driver, page)
    driver.wait(lambda: page.found.groups and not page.is_running, "the search, which goes on")
    driver.settle()
    names = [[Path(image["file"]).name for image in group] for group in page.found.groups]
    assert names == [["1.png", "small-1.jpg"], ["4.png", "small-4.jpg"]]
    assert {Path(file).name for file in page.found.marked} == {"small-1.jpg", "small-4.jpg"}, "the largest is kept"
    driver.wait(lambda: len(page._photos) == 2, "the images")

    page = at_another_scale(driver, page)
    driver.wait(lambda: len(page._photos) == 2, "the images again")
    page.go(1)
    driver.click_button("To the trash")
    assert {Path(file).name for file in page.found.marked} == {"small-1.jpg"}
    page = at_another_scale(driver, page)
    driver.click_button("Keep")  # the first image of the group: now the small one is kept
    assert {Path(file).name for file in page.found.marked} == {"small-1.jpg", "4.png"}
    driver.click_button("Move 1 to the trash")
    assert not (folder / "4.png").exists()
    assert (folder / "small-4.jpg").exists()
    driver.click_button("Move 1 to the trash")
    assert not (folder / "small-1.jpg").exists()
    assert not (folder / "small-1.txt").exists(), "its caption goes with it"
    assert page.status.cget("text").startswith("All groups are done.")
    page = at_another_scale(driver, page)
    driver.click_button("Undo")
    assert (folder / "small-1.jpg").exists()
    assert (folder / "small-1.txt").read_text() == "a cat"

    page.folder.show(str(tmp_path / "missing"))
    driver.click_button("Find")
    driver.wait(lambda: "does not exist" in page.status.cget("text"), "the refusal")
    assert "Traceback" not in page.status.cget("text")


def test_images_are_shown_as_training_sees_them(driver: Driver, tmp_path: Path) -> None:
    for number in range(5):
        write_image(tmp_path / "cats" / f"{number}.png", 400 + 100 * (number % 2), 200, number)
        (tmp_path / "cats" / f"{number}.txt").write_text(f"cat {number}, furry")
    driver.window.show_section("tools")
    section = driver.window.sections["tools"]
    section.open_page("preview")
    page = section.pages["preview"]
    assert isinstance(page, PreviewPage)
    driver.click_button("Preview")
    assert page.status.cget("text") == "There are no images yet: add a folder under Data."
    concept = {"path": "cats", "prompt_prefix": "photo of ", "horizontal_flip": True}  # below the current folder
    driver.draft.set("concepts", [concept])
    driver.draft.set("resolution", 64)
    driver.click_button("Preview")
    page = at_another_scale(driver, page)
    driver.wait(lambda: len(page.samples) == 5 and not page.is_running, "the samples, which are drawn on")
    page.epoch.show("7")
    page = at_another_scale(driver, page)
    driver.settle()
    assert page.status.cget("text") == "5 samples of epoch 1."
    shown = driver.text(page.scroll.inside)
    for number in range(5):
        assert f"photo of cat {number}, furry" in shown
    samples: list[Any] = page.samples
    sizes = {tuple(sample["size"]) for sample in samples}
    assert len(sizes) == 2
    assert "file 500 × 200" in shown
    ends = {tile.winfo_x() + tile.winfo_width() for tile in page._tiles}
    assert max(ends) >= page.scroll.inside.winfo_width() - 10, "they fill the width"
    page.epoch.show("0")
    driver.click_button("Preview")
    assert "whole number from 1" in page.status.cget("text")


@pytest.mark.parametrize("cached", [True, False])
def test_preview_and_survey_are_given_all_settings_that_they_read(cached: bool, tmp_path: Path) -> None:
    read = set[str]()

    class Watched(TrainConfig):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    fields, concept = set(TrainConfig.model_fields), {"path": str(tmp_path / "cats"), "kind": "train"}
    write_image(tmp_path / "cats" / "1.png", 90, 60, 1)
    config = Watched.model_validate({"concepts": [concept], "resolution": 64, "cache_latents": cached})
    read.clear()
    list(previews(config, tmp_path, 8, 0, 1, cached=cached))
    assert (read & fields) - {"cache_dir"} <= set(SETTINGS)
    assert {"largest_aspect", "fewer_buckets", "no_upscale"} <= read
    read.clear()
    list(survey(config, 8))
    assert (read & fields) - {"cache_dir"} <= set(SURVEY_SETTINGS)


def test_near_duplicates_that_are_not_shown_stay(driver: Driver, tmp_path: Path) -> None:
    """Only 12 images of a group are shown, and only what was seen may go to the trash."""
    folder = tmp_path / "copies"
    for number in range(15):
        write_image(folder / f"{number:02}.png", 80, 60, 1)
    driver.draft.set("concepts", [{"path": str(folder)}])
    driver.window.show_section("tools")
    section = driver.window.sections["tools"]
    section.open_page("duplicates")
    page = section.pages["duplicates"]
    assert isinstance(page, DuplicatesPage)
    assert page.status.cget("text").startswith("Finds images that look alike")
    driver.settle()
    driver.click_button("Find")
    driver.wait(lambda: page.found.groups and not page.is_running, "the search")
    driver.settle()
    assert len(page.found.groups[0]) == 15
    assert len(page.tiles) == 12
    assert page.found.marked == {str(image["file"]) for image in page.found.groups[0][1:12]}
    said = page.status.cget("text")
    assert said.startswith("1 group of images that look alike.")
    assert "3 more images of this group are kept" in said
    driver.click_button("Move 11 to the trash")
    assert len(list(folder.glob("*.png"))) == 4
    driver.click_button("Undo")
    assert page.status.cget("text").startswith("Back: 11 files.")
