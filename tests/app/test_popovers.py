"""Menus: with the keyboard alone and with the pointer, on the screen, closed when something else is used."""

from __future__ import annotations

import tkinter as tk
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.form.choice_fields import MenuField
from app.form.family_method import method_for
from app.form.setting_text import choice_details, help_text
from app.widgets.button import Button
from app.widgets.popover import PopupMenu
from app.widgets.popover_rows import PopoverRows
from app.widgets.tooltip import Tooltip
from app.windows.own_presets import OwnPresetsWindow
from modules.config import TrainConfig, find_option, load_preset, preset_names
from modules.config.family_about import family_about
from modules.config.io.presets import preset_summary, save_preset
from modules.facts import family_names
from tests.app.driver import Driver


def popover(driver: Driver) -> tk.Toplevel | None:
    """The open popover."""
    found: PopupMenu | None = driver.window.__dict__.get("open_popover_")
    return None if found is None else found.window


def rows(driver: Driver) -> PopoverRows:
    window = popover(driver)
    assert window is not None
    (drawn,) = window.winfo_children()
    assert isinstance(drawn, PopoverRows)
    return drawn


def selected(driver: Driver) -> str:
    row = rows(driver).selected
    return "" if row is None else row.label


@pytest.mark.slow
def test_choice_by_keyboard_alone(driver: Driver) -> None:
    field = driver.field("scheduler")
    assert isinstance(field, MenuField)
    field.control.focus_set()
    driver.press("space")
    assert selected(driver) == "Constant", "the chosen value is highlighted"
    driver.press("Down")
    assert selected(driver) == "Linear"
    driver.press("End", "Up", "Up", "Up")
    assert selected(driver) == "Cosine with restarts"
    assert "cosine_with_restarts" in [row.shortcut for row in rows(driver)._rows], "as files have it"
    assert rows(driver).select_start("cosine_w"), "by its name in files, too"
    driver.type("lin")
    assert selected(driver) == "Linear"
    driver.press("Home", "c")
    driver.press("Return")
    assert popover(driver) is None
    assert driver.window.focus_get() == field.control, "the keyboard is back"
    assert driver.draft.get("scheduler") in ("constant", "cosine")
    driver.press("space", "Down", "Escape")
    assert popover(driver) is None
    assert driver.window.focus_get() == field.control


def test_choice_by_pointer_and_its_descriptions(driver: Driver) -> None:
    option = find_option(TrainConfig, "scheduler")
    assert option is not None
    assert choice_details(option)["linear"] == "Falls evenly."
    field = driver.field("scheduler")
    driver.click_really(field.control)
    drawn = rows(driver)
    assert [row.detail for row in drawn._rows] == list(choice_details(option).values())
    x, y = drawn.winfo_rootx() + 40, drawn.winfo_rooty() + drawn._tops[2] + 8
    driver._xdotool("mousemove", str(x), str(y), "click", "1")
    assert popover(driver) is None
    assert driver.draft.get("scheduler") == "cosine"


@pytest.mark.slow
def test_it_closes_when_something_else_is_used(driver: Driver) -> None:
    field = driver.field("scheduler")
    driver.click_really(field.control)
    assert popover(driver) is not None
    driver.click_really(driver.window.header.undo)
    assert popover(driver) is None
    driver.click_really(field.control)
    driver.window.geometry("1000x700+40+20")
    driver.wait(lambda: popover(driver) is None, "it to close when the window moves")
    driver.window.state_.jump_to("precision")
    driver.click_really(driver.window.header.save_more)  # whose menu is short: it covers no field
    first = popover(driver)
    driver.click_really(driver.field("precision").control)
    assert popover(driver) is not first
    assert selected(driver) == driver.draft.get("precision"), "one at a time"
    driver.press("Tab")
    assert popover(driver) is None


def test_all_of_it_is_on_the_screen(driver: Driver) -> None:
    for place in [(0, 0), (5000, 5000), (-50, 300), (1270, 790)]:
        check_on_screen(driver, place)


def check_on_screen(driver: Driver, place: tuple[int, int]) -> None:
    menu = PopupMenu(driver.window)
    for number in range(60):
        menu.add_command(f"Entry {number}", detail="A description of what it does.", accelerator="Ctrl+X")
    menu.tk_popup(*place)
    driver.settle()
    window = menu.window
    assert window is not None
    left, top, width, height = window.winfo_rootx(), window.winfo_rooty(), window.winfo_width(), window.winfo_height()
    assert left >= 0
    assert top >= 0
    assert left + width <= window.winfo_screenwidth()
    assert top + height <= window.winfo_screenheight()
    driver.press("End")
    drawn = rows(driver)
    assert selected(driver) == "Entry 59"
    assert drawn._tops[60] <= drawn.canvasy(height), "the highlighted entry is scrolled into view"
    menu.close()


def test_a_list_that_is_scrolled_shows_how_far(driver: Driver) -> None:
    driver.click_really(driver.window.header.presets)
    drawn = rows(driver)
    assert drawn.itemcget(drawn._thumb, "state") == "normal"
    first = drawn.coords(drawn._thumb)[1] - drawn.canvasy(0)
    drawn.select_end(-1)
    end = drawn.coords(drawn._thumb)[3] - drawn.canvasy(0)
    assert first < drawn.extent[1] / 4
    assert drawn.extent[1] * 0.9 < end < drawn.extent[1], "the last entry is in sight"
    driver.press("Escape")


def test_disabled_entries_are_skipped_and_modal_dialogs_keep_working(driver: Driver) -> None:
    ran = []
    menu = PopupMenu(driver.window)
    menu.add_separator()
    menu.add_command("First", lambda: ran.append("first"), state="disabled")
    menu.add_command("Second", lambda: ran.append("second"))
    menu.add_separator()
    menu.tk_popup(200, 200)
    driver.settle()
    driver.press("Down")
    assert selected(driver) == "Second"
    driver.press("Down", "Return")
    assert ran == ["second"]
    assert not [row for row in menu.rows if row.is_separator], "no line at an end"
    with pytest.raises(KeyError):
        menu.choose("First")


def test_menus_of_the_header_show_shortcuts(driver: Driver) -> None:
    driver.click_really(driver.window.header.open)
    shortcuts = {row.label: row.shortcut for row in rows(driver)._rows}
    assert shortcuts["Open a config…"] == "Ctrl+O"
    driver.press("Escape")
    driver.click_really(driver.window.header.presets)
    driver.type("demo")
    driver.press("Return")
    driver.wait(lambda: driver.draft.preset == "demo", "the preset")


def test_families_are_found_by_the_names_that_people_know(driver: Driver) -> None:
    field = driver.field("family")
    field.choose_button.focus_set()
    driver.press("space")
    shown = {row.label: (row.shortcut, row.detail) for row in rows(driver)._rows}
    assert shown["Stable Diffusion XL"] == (
        "stable_diffusion_xl",
        "2.6 B parameters, 5 GB in bf16. CreativeML Open RAIL++ licence.",
    )
    driver.type("qwen")
    driver.press("Return")
    assert driver.draft.get("family") == "qwen_image"
    card = driver.window.sections["model"].family_card
    driver.wait(lambda: card.title.cget("text") == "Qwen-Image", "the card")
    # its lines appear when Tk has laid them out, after the title has changed
    driver.wait(lambda: all(words in driver.text(card.frame) for words in ("41 GB", "Apache 2.0")), "its facts")
    driver.wait(lambda: field.control.get() == "Qwen-Image", "the name that people know in the field")
    choose_tiles_by_keys_and_search(driver)


def test_settings_are_kept_as_a_preset_by_the_menu(driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = home / "presets"
    monkeypatch.setattr("app.draft.save_preset", partial(save_preset, folder=folder))
    monkeypatch.setattr("app.shell.presets_menu.preset_names", lambda: [*preset_names(), *preset_names(folder)])
    monkeypatch.setattr(
        "app.shell.presets_menu.preset_summary",
        lambda name: preset_summary(name, folder) if name.startswith("mine/") else preset_summary(name),
    )
    driver.set("max_steps", 77)
    driver.click_button("Presets")
    driver.press("End")
    assert selected(driver) == "Save as preset…"
    driver.press("Return")
    assert driver.dialogs(), "the question for its name"
    driver.press("ctrl+a")
    driver.type("xyz")
    driver.press("Return")
    assert driver.dialogs() == []
    assert load_preset("mine/xyz", folder).max_steps == 77
    assert "Saved as the preset “xyz”" in driver.text(driver.window.run_bar)

    driver.set("max_steps", 78)
    driver.save(home / "lora.yaml")
    driver.window.files.save_as_preset()
    driver.settle()
    driver.press("Return")
    assert (folder / "mine" / "lora.yaml").is_file(), "the file's name is suggested"
    driver.window.files.save_as_preset()
    driver.settle()
    driver.type("xyz")
    driver.press("Return")
    assert "Save again to replace it" in driver.text(driver.dialogs()[0])
    assert load_preset("mine/xyz", folder).max_steps == 77
    driver.press("Return")
    assert driver.dialogs() == []
    assert load_preset("mine/xyz", folder).max_steps == 78

    driver.window.open_presets()
    driver.settle()
    shown = [(row.label, row.detail) for row in rows(driver)._rows]
    assert shown[:3] == [("Your presets", ""), *((name, "Pixel diffusion, Fine-tune") for name in ("lora", "xyz"))]
    driver.press("End")
    assert selected(driver) == "Rename or remove yours…"
    driver.press("Escape")
    rename_and_remove_presets(driver, folder)


def rename_and_remove_presets(driver: Driver, folder: Path) -> None:
    """`lora` gets another name and is removed and taken back; `xyz` stays."""
    window = OwnPresetsWindow(driver.window, driver.window.state_, folder)
    window.show()
    driver.settle()
    assert str(folder / "mine") in driver.text(window.dialog.window)
    driver.draft.open(folder / "mine" / "lora.yaml")
    driver.draft.file, driver.draft.preset = None, "mine/lora"
    window.rename("mine/lora")
    driver.settle()
    driver.press("ctrl+a")
    driver.type("xyz")
    driver.press("Return")
    assert "already exists" in driver.text()
    driver.press("ctrl+a")
    driver.type("cats")
    driver.press("Return")
    assert preset_names(folder) == ["mine/cats", "mine/xyz"]
    assert driver.draft.preset == "mine/cats"
    driver.click_button("Move to trash")
    assert preset_names(folder) == ["mine/xyz"]
    driver.click_button("Undo")
    assert preset_names(folder) == ["mine/cats", "mine/xyz"]
    driver.press("Escape")


def test_presets_are_found_by_any_of_their_words(driver: Driver) -> None:
    driver.draft.open_preset("sdxl_lora_12gb")
    driver.window.open_presets()
    driver.settle()
    drawn: Any = rows(driver)
    assert selected(driver) == "SDXL LoRA, 12 GB"
    assert driver.window.header._file.cget("text") == "SDXL LoRA, 12 GB"
    border = next(item for item in drawn.find_withtag("frame") if drawn.type(item) == "rectangle")
    assert drawn.canvasy(0) > 0, "scrolled"
    assert drawn.coords(border)[1] == drawn.canvasy(0), "the border stands still at the edge"
    driver.type("turbo qwen")
    assert [row.label for row in drawn._rows] == ["Nothing found"]
    driver.press("ctrl+a")
    driver.type("xl 12 gb")
    assert [row.label for row in drawn._rows] == ["Stable Diffusion XL", "SDXL LoRA, 12 GB"]
    driver.press("ctrl+a")
    driver.type("12 gb")
    found = [row for row in drawn._rows if not row.is_heading]
    assert found
    assert all("12\xa0GB" in row.detail for row in found), [row.detail for row in found]
    driver.press("Escape")
    assert popover(driver) is None


def test_method_that_comes_with_a_family() -> None:
    for name, before, expected in (
        ("flux", "fine_tune", "lora"),
        ("flux", "embedding", "lora"),
        ("stable_diffusion_xl", "embedding", "embedding"),
        ("classifier", "lora", "fine_tune"),
        ("my_file.py", "lora", "lora"),
    ):
        assert method_for(family_about(name), before) == expected, (name, before)


def choose_tiles_by_keys_and_search(driver: Driver) -> None:
    chooser = driver.window.sections["model"].families
    if not chooser.is_open:
        driver.click_really(chooser.fold_button)
    driver.wait(lambda: len(chooser.tiles.titles) == len(family_names()) + 1, "the families")
    assert chooser.tiles.titles[0] == "Stable Diffusion XL", "the usual ones come first"
    assert chooser.tiles.titles[-1] == "A model of your own"
    driver.draft.set("family", "pixel_diffusion")
    chooser.tiles.focus_set()
    driver.press("Home", "Return")
    assert driver.draft.get("family") == "stable_diffusion_xl"
    driver.type("alibaba")
    assert chooser.tiles.titles == ["Qwen-Image", "Qwen-Image-Edit", "Wan 2.1", "Wan 2.2 TI2V", "A model of your own"]
    driver.press("Return")
    assert driver.draft.get("family") == "qwen_image"
    driver.press("Escape", "Home", "Right", "space")
    assert driver.draft.get("family") == "flux"
    assert driver.draft.get("method") == "lora", "what people expect of a large model"
    driver.press("ctrl+z")
    assert (driver.draft.get("family"), driver.draft.get("method")) == ("qwen_image", "lora")
    x, y, *_ = chooser.tiles.box(chooser.tiles.titles.index("Z-Image"))
    chooser.tiles.event_generate("<Button-1>", x=x + 5, y=y + 5)
    assert driver.draft.get("family") == "z_image"
    assert Tooltip.of(chooser.tiles)._showing is None
    driver.click_really(chooser.fold_button)
    assert not chooser.tiles.winfo_viewable()


def test_help_has_a_line_for_each_choice(driver: Driver) -> None:
    option = find_option(TrainConfig, "scheduler")
    assert option is not None
    lines = help_text(option).split("\n")
    assert "Linear: falls evenly." in lines
    assert all(any(line.startswith(f"{title}: ") for line in lines) for title in option.choice_titles)


def test_no_tooltip_covers_what_a_key_has_opened(driver: Driver) -> None:
    field = driver.field("max_steps")
    for key in ("F1", "ctrl+p"):
        field.show_help()
        driver.settle()
        assert Tooltip.of(driver.window)._showing is not None
        driver.press(key)
        assert driver.dialogs() or popover(driver)
        assert Tooltip.of(driver.window)._showing is None
        driver.press("Escape")


def test_click_shows_no_tooltip_until_the_pointer_moves(driver: Driver) -> None:
    """A click may move the button, or put another one, under the resting pointer."""
    window = driver.window
    button = Button(window, "Generate", tooltip="Generates the images")
    button.place(x=0, y=0)
    tooltip = Tooltip.of(button)
    driver.settle()
    button.event_generate("<Enter>", x=5, y=5, rootx=205, rooty=205)
    assert tooltip._pending is not None
    button.event_generate("<ButtonPress>", button=1, x=5, y=5, rootx=205, rooty=205)
    assert tooltip._pending is None
    button.event_generate("<Enter>", x=5, y=9, rootx=205, rooty=205)
    assert tooltip._pending is None, "it would cover what the click shows"
    button.event_generate("<Enter>", x=9, y=9, rootx=209, rooty=209)
    assert tooltip._pending is not None
    tooltip.hide()
    button.destroy()
