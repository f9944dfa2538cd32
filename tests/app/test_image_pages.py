"""The image pages of the Data section, in the real window."""

from __future__ import annotations

import copy
import re
import shutil
import stat
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tkinter import ttk
from typing import Any, Literal

import pytest
from PIL import Image

from app.images.browser import ImageBrowser
from app.images.captions import Replacement
from app.images.grid import NONE_FOUND
from app.images.image_index import ImageProblem, tag_counts
from app.images.pages import ImagePages
from app.repair import new_item
from app.sections.data import Section
from app.widgets import theme
from tests.app.driver import Driver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(shared_home: Path) -> Path:
    """Twelve captioned images, and one of each kind of problem."""
    place = shared_home / "cats"
    place.mkdir()
    for number in range(12):
        size = (96, 64) if number % 3 else (64, 64)
        Image.new("RGB", size, (number * 20, 90, 200 - number * 10)).save(place / f"{number:02}.png")
        (place / f"{number:02}.txt").write_text(f"a cat, number {number}, grey fur", "utf-8")
    shutil.copy(place / "00.png", place / "twin.png")
    Image.new("RGB", (6, 6)).save(place / "tiny.png")
    (place / "broken.png").write_text("no image")
    return place


@pytest.fixture
def section(shared_driver: Driver, folder: Path) -> Section:
    """The Data section with the folder as its only concept, the images read."""
    driver = shared_driver
    driver.draft.new()
    driver.set("resolution", 64)
    driver.draft.insert("concepts", 0, {"path": str(folder)})
    driver.window.show_section("data")
    found = driver.window.sections["data"]
    assert isinstance(found, Section)
    found.turn_to("images")
    driver.wait(lambda: len(pages(found).image_index.problems) >= 5 and pages(found).is_complete, "the folder is read")
    driver.settle()
    return found


def pages(section: Section) -> ImagePages:
    assert section.pages is not None
    return section.pages


def browser(section: Section) -> ImageBrowser:
    return pages(section).browser


def undo(section: Section, driver: Driver) -> None:
    """Press Undo below the caption."""
    editor, before = browser(section).editor, len(driver.window.state_.written_captions)
    editor.undo()
    assert len(driver.window.state_.written_captions) == before - 1
    driver.wait(lambda: not editor.is_undoing, "what was written before")


def test_images_are_shown_with_captions_and_marks(section: Section, shared_driver: Driver) -> None:
    shown = browser(section).shown
    assert [each.file.name for each in shown][:2] == ["00.png", "01.png"]
    assert len(shown) == 14
    assert "14 images" in shared_driver.text(section)
    assert browser(section).grid_view.select(shown[1].file)
    assert browser(section).editor.text.get() == "a cat, number 1, grey fur"
    assert pages(section)._none_found() == NONE_FOUND
    pages(section).reload()
    assert pages(section)._none_found() == ""
    assert "Reading the folders…" in shared_driver.text(pages(section))
    shared_driver.wait(lambda: pages(section).is_complete, "the folder read again")


def test_an_image_that_another_program_moves_is_no_longer_shown(
    section: Section, shared_driver: Driver, folder: Path, tmp_path: Path
) -> None:
    driver, moved = shared_driver, folder / "05.png"
    count = len(browser(section).shown)
    assert browser(section).open(moved)
    moved.rename(tmp_path / "05.png")
    driver.window.event_generate("<FocusIn>")  # the user comes back from the file manager
    driver.wait(lambda: len(browser(section).shown) == count - 1 and pages(section).is_complete, "that it is gone")
    assert moved not in [each.file for each in browser(section).shown]
    selected = browser(section).grid_view.selected_image
    assert selected is not None
    assert browser(section).editor._name.cget("text") == selected.file.name != "05.png"
    (tmp_path / "05.png").rename(moved)
    driver.window.event_generate("<FocusIn>")
    driver.wait(lambda: len(browser(section).shown) == count and pages(section).is_complete, "that it is back")


def test_filter_matches_names_and_captions(section: Section, shared_driver: Driver) -> None:
    browser(section).show_only("number 1")
    assert {each.file.stem for each in browser(section).shown} == {"01", "10", "11"}
    browser(section).show_only("")
    browser(section).kind.choose("duplicate")
    shared_driver.settle()
    assert [each.file.name for each in browser(section).shown] == ["twin.png"]
    browser(section).kind.choose("all")


def test_filter_and_replacement_stay_at_a_change_of_scale(section: Section, shared_driver: Driver) -> None:
    driver, window = shared_driver, shared_driver.window
    browser(section).filter.line.focus_force()
    driver.type("number 1")
    driver.wait(lambda: len(browser(section).shown) == 3, "the filter")
    driver.click_button("Find and replace")
    driver.type("grey")
    browser(section).replacing.whole_words.toggle()
    for scale in (110, 100):
        window.set_scale(scale)
        section = window.sections["data"]
        found = browser(section)
        assert found.filter.get() == "number 1"
        assert found.replacing.replacement == Replacement("grey", "", whole_words=True)
        driver.wait(lambda found=found: len(found.shown) == 3, "the filtered images")  # type: ignore[misc]
        driver.settle()
        assert {each.file.stem for each in found.shown} == {"01", "10", "11"}
        assert found.replacing.winfo_viewable()
    driver.click_button("Find and replace")
    browser(section).show_only("")
    window.set_scale(110)
    assert not browser(window.sections["data"]).replacing.winfo_manager()
    assert not browser(window.sections["data"]).filter.get()
    window.set_scale(100)


def test_unusable_controls_are_hidden(section: Section, shared_driver: Driver, folder: Path) -> None:
    found, driver = browser(section), shared_driver
    assert found.bar.winfo_viewable()
    assert found.editor.winfo_viewable()
    found.show_only("no such image")
    driver.settle()
    assert found.bar.winfo_viewable(), "the filter stays to be cleared"
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
    driver.wait(lambda: len(found.shown) >= 12, "the images")
    driver.settle()
    assert found.bar.winfo_viewable()
    assert found.bar.winfo_rooty() < found.editor.winfo_rooty(), "the filter is above"
    assert found.editor.winfo_rootx() > found.grid_view.winfo_rootx()


def test_the_caption_box_is_whole_whatever_is_said_of_the_image(section: Section, shared_driver: Driver) -> None:
    driver, found = shared_driver, browser(section)
    before = driver.window.geometry()
    try:
        image = next(each for each in found.shown if each.file.name == "twin.png")
        for size in ("1280x800", "1280x460"):  # the latter is as low as 690 pixels at 150 %
            driver.window.geometry(size)
            driver.settle()
            for problems in ([], ["first"], ["first", "second", "third", "fourth"][: 4 if size == "1280x800" else 2]):
                found.editor.show(image, problems)
                driver.settle()
                assert found.editor.text.winfo_height() >= found.editor.text.winfo_reqheight(), (size, problems)
                assert found._count.winfo_width() >= found._count.winfo_reqwidth(), "the count is whole, too"
    finally:
        driver.window.geometry(before)
        driver.settle()


def test_problems_are_counted_at_their_tab(section: Section, shared_driver: Driver) -> None:
    count = len(pages(section).image_index.problems)
    assert section.tabs.buttons["Problems"].cget("text") == f"Problems ({count})"
    browser(section).kind.choose("broken")
    assert browser(section).grid_view.empty.startswith("1 file cannot be shown: see Problems")
    browser(section).kind.choose("all")
    assert browser(section).grid_view.empty == NONE_FOUND


def test_keys_navigate_the_grid_and_the_caption(section: Section, shared_driver: Driver) -> None:
    grid = browser(section).grid_view
    shared_driver.click_button("Find and replace")
    shared_driver.press("Escape")
    assert not browser(section).replacing.winfo_manager()
    grid.canvas.focus_force()
    shared_driver.press("Home", "Tab")
    assert shared_driver.window.focus_get() is browser(section).editor.text.text, "the caption of the selected image"
    grid.canvas.focus_force()
    shared_driver.press("Home", "Right", "Right")
    assert grid.selected_image is not None
    assert grid.selected_image.file.name == "02.png"
    shared_driver.press("End")
    assert grid.selected_image.file.name == "twin.png"
    shared_driver.press("Home", "Return")
    shared_driver.type(", typed")
    shared_driver.press("ctrl+Return")
    assert grid.selected_image.file.with_suffix(".txt").read_text("utf-8") == "a cat, number 0, grey fur, typed\n"
    undo(section, shared_driver)
    assert grid.selected_image.file.with_suffix(".txt").read_text("utf-8") == "a cat, number 0, grey fur"
    grid.canvas.focus_force()
    shared_driver.press("Home", "Right", "Return")
    shared_driver.type(", seen")
    file = grid.selected_image.file.with_suffix(".txt")
    shared_driver.press("ctrl+plus", "ctrl+minus")
    assert file.read_text("utf-8") == "a cat, number 1, grey fur, seen\n", "a change of scale loses no caption"
    file.write_text("a cat, number 1, grey fur", "utf-8")


def test_details_follow_the_resolution(section: Section, shared_driver: Driver) -> None:
    driver = shared_driver
    assert browser(section).grid_view.select(browser(section).shown[0].file)
    assert "trained at 64 × 64" in driver.text(section)
    driver.search_and_type("resolution", "128")
    driver.go_to("data", "Images")
    driver.wait(lambda: "trained at 128 × 128" in driver.text(section), "the size of the new resolution")
    driver.go_to("data", "Sizes")
    drawn = pages(section).buckets
    assert {name for name, *_ in drawn._buckets} == {each.bucket for each in browser(section).shown}
    images = drawn._buckets[0][1]
    driver.draft.set("batch_size", 2)
    driver.draft.set("concepts.0.repeats", 3)
    driver.wait(lambda: drawn._buckets[0][2] == 3 * images, "the repeats")
    shown = drawn.columns(2000)
    assert list(shown) == ["Images", "Samples/epoch", "Batches of 2"]
    assert [samples for samples in map(int, shown["Samples/epoch"]) if samples % 3] == []
    assert shown["Batches of 2"][0] == {0: f"{3 * images // 2}"}.get(images % 2, f"{3 * images // 2} + 1")
    driver.draft.set("batch_size", 100)
    assert drawn.columns(2000)["Batches of 100"] == [f"{samples} of 100" for *_, samples in drawn._buckets]
    assert "do not fill one" in driver.text(drawn)
    driver.draft.set("concepts.0.repeats", 1)
    driver.go_to("data", "Images")


def test_replace_writes_all_captions_and_undoes_them(section: Section, folder: Path, shared_driver: Driver) -> None:
    browser(section).show_only("")
    bar = browser(section).replacing
    bar.search.show("grey")
    bar.replace.show("black")
    for _ in range(3):
        bar.count()
    shared_driver.wait(lambda: bar.button.cget("text") == "Replace in 12 captions", "the count")
    bar.button.invoke()
    shared_driver.wait(lambda: bar.button.cget("text") == "12 captions replaced", "the end")
    for number in range(12):
        assert (folder / f"{number:02}.txt").read_text("utf-8") == f"a cat, number {number}, black fur\n"
    undo(section, shared_driver)
    for number in range(12):
        assert (folder / f"{number:02}.txt").read_text("utf-8") == f"a cat, number {number}, grey fur"
    assert all("grey" in image.caption for image in browser(section).shown if image.caption)


def test_a_replacement_and_its_undo_outlast_a_change_of_scale(
    section: Section, folder: Path, shared_driver: Driver
) -> None:
    driver, window = shared_driver, shared_driver.window
    window.state_.written_captions.clear()

    def shown() -> list[str]:
        return [image.caption for image in browser(window.sections["data"]).shown if "number" in image.caption]

    bar = browser(section).replacing
    bar.search.show("grey")
    bar.replace.show("black")
    bar.count()
    driver.wait(lambda: bar.button.cget("text") == "Replace in 12 captions", "the count")
    for scale, colour in ((110, "black"), (100, "grey")):
        made = browser(window.sections["data"])
        if colour == "black":
            made.replacing.button.invoke()
        else:
            made.editor.undo()
        window.set_scale(scale)
        made = browser(window.sections["data"])
        is_written = colour == "black"
        driver.wait(lambda due=is_written: bool(window.state_.written_captions) == due, "the end")  # type: ignore[misc]
        driver.wait(
            lambda colour=colour: len(shown()) == 12 and all(colour in each for each in shown()),  # type: ignore[misc]
            colour,
        )
        assert made.editor._undo.cget("state") == ("normal" if is_written else "disabled")
        assert all(colour in (folder / f"{number:02}.txt").read_text("utf-8") for number in range(12))


def test_the_preview_shows_what_an_image_is_made_from_and_its_mask(section: Section, shared_driver: Driver) -> None:
    first, second, third, *_ = browser(section).shown
    editor = browser(section).editor
    editor.show(replace(first, references=(second.file,), mask=third.file), [])
    shared_driver.settle()
    shared_driver.wait(lambda: len(editor._canvas.find_all()) == 7, "three pictures with their frames and an arrow")
    boxes = [editor._canvas.bbox(each) for each in editor._canvas.find_withtag("picture")]
    assert all(box[0] >= 0 and box[2] <= editor._canvas.winfo_reqwidth() for box in boxes), boxes
    assert boxes == sorted(boxes, key=lambda box: (box[1] // 100, box[0])), "from left to right, line by line"
    assert [one[2] <= other[0] or one[3] <= other[1] for one, other in pairwise(boxes)] == [True, True], boxes
    assert f"From {second.file.name}" in shared_driver.text(section)
    editor.show(replace(first, mask=first.file), [])
    shared_driver.wait(lambda: len(editor._canvas.find_all()) == 4, "the image and its transparency")
    editor.show(first, [])
    shared_driver.wait(lambda: len(editor._canvas.find_all()) == 2, "the image alone")


def test_read_only_captions_give_the_reason(section: Section, shared_driver: Driver) -> None:
    shared_driver.draft.set("concepts.0.caption_source", "file_name")
    pages(section).reload_if_changed()
    shared_driver.wait(lambda: pages(section).is_complete, "the folder is read")
    image = browser(section).shown[0]
    browser(section).editor.show(image, [])
    assert "The folder's settings use the file name as the caption." in shared_driver.text(section)


def test_a_typed_caption_is_counted_and_readable_as_its_folder(
    section: Section, folder: Path, shared_driver: Driver
) -> None:
    folder.chmod(0o755)
    file = folder / "tiny.txt"

    def said() -> str:
        return shared_driver.text(section)

    assert browser(section).open(folder / "tiny.png")
    shared_driver.settle()
    before = said()
    assert "no caption found" in before
    browser(section).editor.text.show("a tiny cat")
    browser(section).editor.save()
    assert "no caption found" not in said()
    counted = [int(re.search(r"(\d+) with a caption", each).group(1)) for each in (before, said())]  # type: ignore[union-attr]
    assert counted[1] == counted[0] + 1
    kinds = [Counter(each.kind for each in pages(section).image_index.problems)["caption"]]
    assert f"{kinds[0]} without a caption" in said() or not kinds[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o644, "others may read it as they may read the image"
    file.chmod(0o640)
    browser(section).editor.text.show("a tiny grey cat")
    browser(section).editor.save()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640, "what it had"
    undo(section, shared_driver)
    undo(section, shared_driver)
    assert not file.exists()
    assert said() == before


def test_a_caption_written_while_the_folder_is_read_stays(
    section: Section, folder: Path, shared_driver: Driver
) -> None:
    found, editor = pages(section), browser(section).editor
    assert browser(section).open(folder / "02.png")
    read_before = copy.deepcopy(found.image_index)
    found.reload()
    editor.text.show("a dog")
    editor.save()
    found._reader._results.put((found._reader._survey_number, True, read_before))  # it was read before that
    shared_driver.wait(lambda: found.is_complete, "what was read")
    shared_driver.settle()
    assert editor.text.get() == "a dog"
    assert next(each.caption for each in found.image_index.images if each.file.name == "02.png") == "a dog"
    undo(section, shared_driver)
    assert editor.text.get() == "a cat, number 2, grey fur"


def test_captions_are_edited_as_the_settings_read_them(section: Section, folder: Path, shared_driver: Driver) -> None:
    file = folder / "05.caption"
    file.write_text("a cat, first line\nsecond line\n", "utf-8")

    def wait_for(caption: str) -> None:
        pages(section).reload_if_changed()
        found = lambda: {each.file.name: each.caption for each in browser(section).shown}  # noqa: E731
        shared_driver.wait(
            lambda: pages(section).is_complete and found().get("05.png") == caption, "the folder is read"
        )

    try:
        shared_driver.draft.set("concepts.0.caption_source", "txt")
        shared_driver.draft.set("concepts.0.caption_extension", ".caption .txt")
        shared_driver.draft.set("concepts.0.caption_lines", "first")
        wait_for("a cat, first line")
        browser(section).grid_view.select(folder / "05.png")
        shared_driver.settle()
        assert "the others are not used" in shared_driver.text(section)
        browser(section).editor.text.show("a dog")
        browser(section).editor.save()
        assert file.read_text("utf-8") == "a dog\nsecond line\n"
        assert (folder / "05.txt").read_text("utf-8") == "a cat, number 5, grey fur"
    finally:
        file.unlink()
        shared_driver.draft.set("concepts.0.caption_extension", ".txt")
        shared_driver.draft.set("concepts.0.caption_lines", "random")
        wait_for("a cat, number 5, grey fur")


def test_a_caption_goes_where_it_was_read_from(section: Section, folder: Path, shared_driver: Driver) -> None:
    """Other settings name other caption files: the box shows theirs, and writes no former caption into them."""
    files = folder / "07.txt", folder / "07.caption"
    files[1].write_text("a dog, number 7", "utf-8")
    editor = browser(section).editor

    def read_with(extension: str) -> None:
        shared_driver.draft.set("concepts.0.caption_extension", extension)
        pages(section).reload_if_changed()
        shared_driver.wait(lambda: pages(section).is_complete, "the folder is read")

    try:
        shared_driver.draft.set("concepts.0.caption_source", "txt")
        read_with(".txt")
        browser(section).grid_view.select(folder / "07.png")
        assert editor.text.get() == "a cat, number 7, grey fur"
        read_with(".caption")
        assert editor.text.get() == "a dog, number 7"
        read_with(".words")
        assert editor.text.get() == ""
        editor.text.show("a bird")
        read_with(".txt")
        assert (folder / "07.words").read_text("utf-8") == "a bird\n", "typed before"
        assert editor.text.get() == "a cat, number 7, grey fur"
        undo(section, shared_driver)
        assert not (folder / "07.words").exists()
        assert [file.read_text("utf-8") for file in files] == ["a cat, number 7, grey fur", "a dog, number 7"]
        assert editor.text.get() == "a cat, number 7, grey fur"
        editor.text.show("a hen")
        shared_driver.draft.set("concepts.0.caption_extension", ".caption")
        editor.save()  # before the folder is read
        assert [file.read_text("utf-8") for file in files] == ["a hen\n", "a dog, number 7"]
        undo(section, shared_driver)
    finally:
        files[0].write_text("a cat, number 7, grey fur", "utf-8")
        files[1].unlink()
        read_with(".txt")


def test_unwritable_caption_is_reported_and_kept(section: Section, shared_driver: Driver) -> None:
    shared_driver.draft.set("concepts.0.caption_source", "txt")
    pages(section).reload_if_changed()
    shared_driver.wait(lambda: pages(section).is_complete, "the folder is read")
    browser(section).show_only("")
    image = next(each for each in browser(section).shown if each.file.name == "03.png")
    file = image.file.with_suffix(".txt")
    file.unlink()
    file.mkdir()  # a directory in its place cannot be written
    try:
        browser(section).grid_view.select(image.file)
        browser(section).editor.text.show("something new")
        browser(section).editor.save()
        shared_driver.settle()
        assert "cannot be written" in shared_driver.text(section)
        assert browser(section).editor.text.get() == "something new"
    finally:
        browser(section).editor.text.show(image.caption)
        file.rmdir()
        file.write_text("a cat, number 3, grey fur", "utf-8")


def test_tag_opens_its_images(section: Section, shared_driver: Driver) -> None:
    section.turn_to("tags")
    tags = pages(section).tags
    table, counts = tags.table, tag_counts(pages(section).image_index.images)
    tags.show([])
    shared_driver.settle()
    assert "no image has a caption" in shared_driver.text(tags)
    tags.show(counts)
    assert "double-click" in shared_driver.text(tags)
    shared_driver.settle()
    assert table.winfo_width() > theme.px(700)
    assert sum(table.column(name, "width") for name in ("tag", "count")) <= theme.px(500), "numbers beside their tags"
    assert table.item("0", "values") == ("a cat", "12")
    row = next(item for item in table.get_children() if table.item(item, "values")[0] == "number 5")
    table.selection_set(row)
    table.focus_force()
    table.focus(row)
    shared_driver.settle()
    shared_driver.press("Return")
    assert section.page == "images"
    assert [each.file.stem for each in browser(section).shown] == ["05"]


def test_problem_opens_its_image(section: Section, shared_driver: Driver) -> None:
    section.turn_to("problems")
    table = pages(section).problems.table
    kinds = {table.item(item, "values")[1]: table.item(item, "values")[0] for item in table.get_children()}
    assert kinds["broken.png"] == "unreadable"
    row = next(item for item in table.get_children() if "twin.png" in str(table.item(item, "values")[2]) or
               table.item(item, "values")[1] == "twin.png")  # fmt: skip
    table.selection_set(row)
    table.focus_force()
    table.focus(row)
    shared_driver.settle()
    shared_driver.press("Return")
    assert section.page == "images"
    assert browser(section).grid_view.selected_image is not None


def test_problems_are_counted_by_kind_and_captions_are_a_click_away(
    section: Section, shared_driver: Driver, folder: Path
) -> None:
    section.turn_to("problems")
    kinds = "1 unreadable, 2 without a caption, 1 too small, 1 duplicate."
    assert kinds in shared_driver.text(pages(section))
    shared_driver.settle()
    assert "\n  captions: " in shared_driver.text(pages(section)), "what a run says before training"
    assert pages(section).problems.annotate.winfo_manager()
    assert pages(section).folder_of_problem == folder
    table = pages(section).problems.table
    table.selection_set([row for row in table.get_children() if table.item(row, "values")[0] == "duplicate"])
    shared_driver.settle()
    assert "Near-duplicates, under Tools" in shared_driver.text(pages(section))
    pages(section).problems.annotate.invoke()
    shared_driver.settle()
    assert shared_driver.window.section == "tools"


def test_unreadable_images_go_to_the_trash_and_back(
    section: Section, shared_driver: Driver, shared_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, place = shared_driver, shared_home / "torn"
    monkeypatch.setenv("XDG_DATA_HOME", str(shared_home / "data"))
    place.mkdir()
    shutil.copy(shared_home / "cats" / "00.png", place / "good.png")
    for name in ("a", "b", "c"):
        (place / f"{name}.png").write_text("no image")
        (place / f"{name}.txt").write_text(name)
    (place / "d.gif").write_text("another format, perhaps a good image")
    driver.draft.set("concepts", [{"path": str(place)}])
    section.turn_to("problems")
    found = pages(section).problems
    rows = found.table.get_children
    driver.wait(lambda: len(rows()) == 5 and pages(section).is_complete, "the folder read")
    driver.settle()
    assert found.trash.cget("text") == "Move all 3 unreadable to the trash…"
    found.table.focus_force()
    found.table.selection_set([row for row in rows() if found.table.item(row, "values")[1] in ("b.png", "good.png")])
    driver.settle()
    driver.press("Delete")
    assert "b.png, with captions. “Undo” takes it back." in driver.text(driver.dialogs()[0])
    driver.press("Return")
    assert (place / "b.png").exists(), "Return keeps it"
    driver.press("Delete")
    driver.answer("Move to the trash")
    driver.wait(lambda: len(rows()) == 4, "one gone")
    assert sorted(each.name for each in (shared_home / "data/Trash/files").iterdir()) == ["b.png", "b.txt"]
    assert "3 unreadable, 1 without a caption" in driver.text(pages(section))
    driver.click_button("Move all 2 unreadable to the trash…")
    driver.answer("Move to the trash")
    driver.wait(lambda: len(rows()) == 2, "all gone")
    assert sorted(each.name for each in place.iterdir()) == ["d.gif", "good.png"]
    assert f"Moved 2 images to {shared_home / 'data/Trash/files'}. “Undo” takes them back." == found._message.said
    for count in (4, 5):
        driver.click_button("Undo")
        driver.wait(lambda count=count: len(rows()) == count, "them back")  # type: ignore[misc]
    assert (place / "b.txt").read_text() == "b"
    assert not found.undo.winfo_ismapped()


def test_a_long_list_of_problems_comes_in_parts(section: Section, shared_driver: Driver, folder: Path) -> None:
    section.turn_to("problems")
    found = pages(section).problems
    many = [ImageProblem(0, folder / f"{number}.png", "tiny", "small") for number in range(2500)]
    found.show(many, is_reading=False, was_read=True)
    assert len(found.table.get_children()) == 1000, "the window answers between two parts"
    shared_driver.wait(lambda: len(found.table.get_children()) == 2500, "the others")
    found.show(many, is_reading=False, was_read=True)
    assert len(found.table.get_children()) == 2500, "what is unchanged stays"
    found.show(many[:1], is_reading=False, was_read=True)
    shared_driver.settle()
    assert len(found.table.get_children()) == 1


def test_tables_follow_the_colour_mode(section: Section, shared_driver: Driver) -> None:
    section.turn_to("problems")
    shared_driver.settle()
    table = pages(section).problems.table
    modes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for place, mode in enumerate(modes):
        shared_driver.window.set_mode(mode)
        shared_driver.settle()
        style = ttk.Style(table)
        assert style.lookup(table.cget("style"), "fieldbackground") == theme.CARD[place]
        assert style.lookup(table.cget("style"), "foreground") == theme.TEXT[place]


def test_sizes_are_drawn_and_a_missing_folder_reported(section: Section, shared_driver: Driver) -> None:
    section.turn_to("buckets")
    shared_driver.settle()
    assert pages(section).image_index.buckets
    shared_driver.draft.set("concepts.0.path", "nowhere/at/all")
    section.show()
    shared_driver.wait(lambda: "does not exist" in shared_driver.text(section), "the missing folder reported")


def test_concept_card_has_a_cover_and_counts(section: Section, shared_driver: Driver, folder: Path) -> None:
    driver = shared_driver
    section.turn_to("folders")
    driver.draft.set("concepts.0.enabled", True)
    driver.set("concepts.0.repeats", 3)
    driver.set("concepts.0.kind", "validation")
    driver.wait(lambda: pages(section).is_complete, "the folder read again")
    item, is_on, is_wrong = section.list._items[0]
    assert (item.title, item.path, is_on, is_wrong) == ("cats", str(folder), True, False)
    assert item.detail == (
        "14 images  ·  3× per epoch  ·  for validation  ·  1 unreadable, 2 without a caption, 1 too small, 1 duplicate"
    )
    assert item.cover == folder / "00.png"
    assert not item.warns
    driver.wait(lambda: item.cover in section.list._covers, "the cover")
    canvas = section.list.canvas
    canvas.event_generate("<ButtonPress-1>", x=canvas.winfo_width() - 30, y=30)  # the switch
    driver.settle()
    assert driver.draft.get("concepts.0.enabled") is False
    name: Any = section.find("concepts.0.name")
    assert driver.text(name.control.line) == "the folder's name"
    (empty := folder.parent / "empty").mkdir()
    driver.draft.set("concepts.0.path", str(empty))
    driver.wait(lambda: section.list._items[0][0].warns, "a warning of the empty folder")
    assert section.list._items[0][0].detail.startswith("no images  ·  ")


def test_findings_and_suggestions_are_a_click_away_and_undone(
    section: Section, shared_driver: Driver, folder: Path
) -> None:
    driver = shared_driver
    for name in ("10_sks dog/a.png", "10_sks dog/masks/a.png", "2_cat/b.png"):
        (place := folder.parent / "numbered" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64), (len(name), 90, 90)).save(place)
    section.turn_to("folders")
    driver.draft.set("resolution", 512)
    driver.draft.insert("concepts", 1, {**new_item("concepts"), "path": str(folder.parent / "numbered")})
    driver.wait(lambda: pages(section).is_complete, "the folders are read")
    shown = driver.text(section.findings.frame)
    assert "cats  ·  15 files: 14 usable, 1 unreadable, 2 without a caption, median 96 × 64" in shown
    assert "numbered  ·  2 files: 2 usable, median 64 × 64" in shown
    driver.draft.set("resolution", 16)
    driver.settle()
    assert "Set it to" not in driver.text(section.findings.frame), "from scratch, less is a choice"
    driver.draft.set("resolution", 512)
    driver.settle()
    before = driver.draft.data

    def click(label: str) -> None:
        driver.wait(lambda: pages(section).is_complete, "the folders are read, which draws the findings again")
        section.scroll.see(section.findings.frame)
        driver.click_button(label)

    for label, path, value in (
        ("Set it to 64", "resolution", 64),
        ("Use the masks", "masked_training", True),
        ("Use these repeats", "concepts.1.folder_repeats", True),
    ):
        click(label)
        driver.wait(lambda path=path, value=value: driver.draft.get(path) == value, path)  # type: ignore[misc]
        driver.settle()
        assert label not in driver.text(section.findings.frame)
    click("Suggest settings…")
    driver.wait(driver.dialogs, "the suggestions")
    (dialog,) = driver.dialogs()
    assert "1e-4 → 0.001" in driver.text(dialog)
    driver.click_button("Apply")
    driver.wait(lambda: not driver.dialogs(), "the end of the dialog")
    batch = driver.draft.get("global_batch_size")
    assert (driver.draft.get("learning_rate"), batch) == (1e-3, 16), "of 14 + 10 + 2 samples"
    driver.press("ctrl+z", "ctrl+z", "ctrl+z", "ctrl+z")
    driver.wait(lambda: driver.draft.data == before, "the settings of before")
    driver.wait(lambda: "Use these repeats" in driver.text(section.findings.frame), "the findings of before")
    click("Show problems")
    driver.wait(lambda: section.page == "problems", "the problems")
    section.turn_to("folders")
    driver.settle()
    click("Write captions")
    driver.wait(lambda: driver.window.section == "tools", "the page that writes captions")


def test_sizes_follow_the_family(section: Section, shared_driver: Driver) -> None:
    driver = shared_driver
    driver.wait(lambda: driver.window.state_.family.declaration is not None, "the family's answer")
    family = driver.window.state_.family.declaration
    assert family is not None
    driver.draft.set_family(replace(family, size_step=32))
    driver.window.state_.notify("family")
    driver.wait(lambda: pages(section).is_complete and pages(section).size_step == 32, "the folder read again")
    assert all(side % 32 == 0 for name, *_ in pages(section).image_index.buckets for side in map(int, name.split("x")))


def test_nothing_is_said_of_a_folder_that_does_not_exist(section: Section, shared_driver: Driver) -> None:
    driver = shared_driver
    section.turn_to("problems")
    driver.draft.set("concepts", [{"path": "no/such/folder"}])
    driver.wait(lambda: pages(section)._errors(), "the error")
    driver.wait(lambda: pages(section).is_complete, "the end of reading")
    driver.settle()
    assert "No problems found." not in driver.text(pages(section).problems)
    good = Path(str(driver.draft.get("runs_dir"))).absolute().parent / "good"
    good.mkdir()
    Image.effect_noise((96, 96), 40).convert("RGB").save(good / "one.png")
    (good / "one.txt").write_text("one", "utf-8")
    driver.draft.set("concepts", [{"path": str(good)}])
    driver.wait(lambda: "No problems found." in driver.text(pages(section).problems), "a folder without problems")
