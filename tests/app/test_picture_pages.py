"""The Data section's pages about the pictures, in the real window."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from app import texts
from app.pictures.browser import PictureBrowser
from app.pictures.pages import PicturePages
from app.sections.data import Section
from tests.app.driving import Driver


@pytest.fixture(scope="module")
def folder(shared_home: Path) -> Path:
    """Twelve captioned pictures, and one of each kind of trouble."""
    place = shared_home / "cats"
    place.mkdir()
    for number in range(12):
        size = (96, 64) if number % 3 else (64, 64)
        Image.new("RGB", size, (number * 20, 90, 200 - number * 10)).save(place / f"{number:02}.png")
        (place / f"{number:02}.txt").write_text(f"a cat, number {number}, grey fur", "utf-8")
    shutil.copy(place / "00.png", place / "twin.png")
    Image.new("RGB", (6, 6)).save(place / "tiny.png")
    (place / "broken.png").write_text("no picture")
    return place


@pytest.fixture
def section(shared_driver: Driver, folder: Path) -> Section:
    """The Data section with the folder as its only concept, the pictures read."""
    driver = shared_driver
    driver.draft.new()
    driver.set("resolution", 64)
    driver.draft.insert("concepts", 0, {"path": str(folder)})
    driver.window.show_section("data")
    found = driver.window.sections["data"]
    assert isinstance(found, Section)
    found.turn_to("pictures")
    driver.wait(lambda: len(pages(found).catalogue.problems) >= 5, "the folder is read")
    driver.settle()
    return found


def pages(section: Section) -> PicturePages:
    assert section.pages is not None
    return section.pages


def browser(section: Section) -> PictureBrowser:
    return pages(section).browser


def test_all_pictures_are_shown_with_captions_and_marks(section: Section, shared_driver: Driver) -> None:
    shown = browser(section).shown
    assert [each.file.name for each in shown][:2] == ["00.png", "01.png"]
    assert len(shown) == 14
    assert "14 pictures" in shared_driver.words(section)
    assert browser(section).grid_view.select(shown[1].file)
    assert browser(section).editor.text.get() == "a cat, number 1, grey fur"


def test_the_filter_looks_at_names_and_captions(section: Section, shared_driver: Driver) -> None:
    browser(section).show_only("number 1")
    assert {each.file.stem for each in browser(section).shown} == {"01", "10", "11"}
    browser(section).show_only("")
    browser(section).kind.choose("duplicate")
    shared_driver.settle()
    assert [each.file.name for each in browser(section).shown] == ["twin.png"]
    browser(section).kind.choose("all")


def test_only_what_is_of_use_is_in_sight(section: Section, shared_driver: Driver, folder: Path) -> None:
    found, driver = browser(section), shared_driver
    assert found.bar.winfo_viewable()
    assert found.editor.winfo_viewable()
    found.show_only("no such picture")
    driver.settle()
    assert found.bar.winfo_viewable(), "the filter is what brings them back"
    assert not found.editor.winfo_viewable()
    found.show_only("")
    driver.settle()
    assert found.editor.winfo_viewable()
    driver.draft.remove("concepts", 0)
    driver.wait(lambda: not found.shown and pages(section).is_complete, "the folder is gone")
    driver.settle()
    assert not found.bar.winfo_viewable()
    assert not found.editor.winfo_viewable()
    assert not found.replacing.winfo_viewable()
    assert found.grid_view.winfo_viewable()
    driver.draft.insert("concepts", 0, {"path": str(folder)})
    driver.wait(lambda: len(found.shown) >= 12, "the pictures")
    driver.settle()
    assert found.bar.winfo_viewable()
    assert found.bar.winfo_rooty() < found.editor.winfo_rooty(), "the filter stands above"
    assert found.editor.winfo_rootx() > found.grid_view.winfo_rootx()


def test_keys_move_through_the_grid_and_into_the_caption(section: Section, shared_driver: Driver) -> None:
    grid = browser(section).grid_view
    grid.canvas.focus_force()
    shared_driver.press("Home", "Right", "Right")
    assert grid.picture is not None
    assert grid.picture.file.name == "02.png"
    shared_driver.press("End")
    assert grid.picture.file.name == "twin.png"
    shared_driver.press("Home", "Return")
    shared_driver.type(", typed")
    shared_driver.press("ctrl+Return")
    assert grid.picture.file.with_suffix(".txt").read_text("utf-8") == "a cat, number 0, grey fur, typed\n"
    browser(section).editor.undo()
    assert grid.picture.file.with_suffix(".txt").read_text("utf-8") == "a cat, number 0, grey fur"


def test_search_and_replace_writes_all_captions_and_takes_them_back(section: Section, folder: Path) -> None:
    browser(section).show_only("")
    bar = browser(section).replacing
    bar.search.show("grey")
    bar.replace.show("black")
    bar.count()
    assert bar.button.cget("text") == texts.REPLACE_COUNT.format(count=12)
    bar.button.invoke()
    assert (folder / "07.txt").read_text("utf-8") == "a cat, number 7, black fur\n"
    for _ in range(12):
        browser(section).editor.undo()
    assert (folder / "07.txt").read_text("utf-8") == "a cat, number 7, grey fur"


def test_captions_that_are_no_text_files_say_why_they_are_fixed(section: Section, shared_driver: Driver) -> None:
    shared_driver.draft.set("concepts.0.caption_source", "file_name")
    picture = browser(section).shown[0]
    browser(section).editor.show(picture, [])
    assert texts.CAPTION_FIXED["file_name"] in shared_driver.words(section)


def test_a_caption_that_cannot_be_written_is_told_and_not_lost(section: Section, shared_driver: Driver) -> None:
    shared_driver.draft.set("concepts.0.caption_source", "txt")
    browser(section).show_only("")
    picture = next(each for each in browser(section).shown if each.file.name == "03.png")
    file = picture.file.with_suffix(".txt")
    file.unlink()
    file.mkdir()  # a folder in its place: nobody can write that
    try:
        browser(section).grid_view.select(picture.file)
        browser(section).editor.text.show("something new")
        browser(section).editor.save()
        shared_driver.settle()
        assert "cannot be written" in shared_driver.words(section)
        assert browser(section).editor.text.get() == "something new"
    finally:
        browser(section).editor.text.show(picture.caption)
        file.rmdir()
        file.write_text("a cat, number 3, grey fur", "utf-8")


def test_a_tag_leads_to_its_pictures(section: Section, shared_driver: Driver) -> None:
    section.turn_to("tags")
    tree = pages(section).tags.tree
    assert tree.item("0", "values") == ("a cat", "12")
    row = next(item for item in tree.get_children() if tree.item(item, "values")[0] == "number 5")
    tree.selection_set(row)
    tree.focus_force()
    tree.focus(row)
    shared_driver.settle()
    shared_driver.press("Return")
    assert section.page == "pictures"
    assert [each.file.stem for each in browser(section).shown] == ["05"]


def test_a_problem_leads_to_its_picture(section: Section, shared_driver: Driver) -> None:
    section.turn_to("problems")
    tree = pages(section).problems.tree
    kinds = {tree.item(item, "values")[1]: tree.item(item, "values")[0] for item in tree.get_children()}
    assert kinds["broken.png"] == texts.PROBLEM_KINDS["broken"]
    row = next(item for item in tree.get_children() if "twin.png" in str(tree.item(item, "values")[2]) or
               tree.item(item, "values")[1] == "twin.png")  # fmt: skip
    tree.selection_set(row)
    tree.focus_force()
    tree.focus(row)
    shared_driver.settle()
    shared_driver.press("Return")
    assert section.page == "pictures"
    assert browser(section).grid_view.picture is not None


def test_sizes_are_drawn_and_a_folder_that_is_gone_is_told(section: Section, shared_driver: Driver) -> None:
    section.turn_to("buckets")
    shared_driver.settle()
    assert dict(pages(section).catalogue.buckets)
    shared_driver.draft.set("concepts.0.path", "nowhere/at/all")
    section.show()
    shared_driver.wait(lambda: "does not exist" in shared_driver.words(section), "the missing folder is told")


def test_the_card_of_a_concept_has_a_cover_and_counts(section: Section, shared_driver: Driver, folder: Path) -> None:
    driver = shared_driver
    section.turn_to("folders")
    driver.draft.set("concepts.0.enabled", True)
    driver.set("concepts.0.repeats", 3)
    driver.set("concepts.0.kind", "validation")
    driver.wait(lambda: pages(section).is_complete, "the folder read again")
    item, is_on, is_wrong = section.list._items[0]
    assert (item.title, item.place, is_on, is_wrong) == ("cats", str(folder), True, False)
    assert item.detail == "14 pictures, 5 problems  ·  3 × an epoch  ·  for validation"
    assert item.cover == folder / "00.png"
    driver.wait(lambda: item.cover in section.list._covers, "the cover")
    canvas = section.list.canvas
    canvas.event_generate("<ButtonPress-1>", x=canvas.winfo_width() - 30, y=30)  # the switch
    driver.settle()
    assert driver.draft.get("concepts.0.enabled") is False


def test_sizes_are_the_familys(section: Section, shared_driver: Driver) -> None:
    driver = shared_driver
    driver.wait(lambda: driver.window.state_.family.described is not None, "the family's answer")
    family = driver.window.state_.family.described
    assert family is not None
    driver.draft.describe_family(replace(family, size_step=32))
    driver.window.state_.notify("family")
    driver.wait(lambda: pages(section).is_complete and pages(section)._size_step == 32, "the folder read again")
    assert all(side % 32 == 0 for name, _ in pages(section).catalogue.buckets for side in map(int, name.split("x")))
