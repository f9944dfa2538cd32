"""How the window looks, measured in the real one: nothing is cut off, nothing lies over something else."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from app.sections import SECTIONS, data, tools
from app.widgets import rounded_images, theme
from app.widgets.button import Button
from app.widgets.buttons import text
from app.widgets.clickable import ClickableRow
from app.widgets.ellipsis import fit, fit_parts
from app.widgets.inputs import Switch
from app.widgets.scroll import Scroll
from app.widgets.table import table
from app.windows.dialog import Dialog
from tests.app.driver import Driver
from tests.app.in_sight import has_text, in_sight, inside, name_of, overlapping, place

TABS_OF = {
    "data": data.TABS.values(),
    "monitor": ("Runs", "Queue"),
    "tools": [title for title, *_ in tools.PAGES.values()],
}


def cut_off(place: tk.Misc) -> list[str]:
    """The texts of labels and buttons that have less room than they need."""
    labels = [each for each in inside(place) if isinstance(each, (tk.Label, Button)) and each.winfo_viewable()]
    return [
        each.cget("text")
        for each in labels
        if each.winfo_reqwidth() > each.winfo_width() + 1 or each.winfo_reqheight() > each.winfo_height() + 1
    ]


def test_titles_stand_near_their_fields_in_a_wide_window(shared_driver: Driver) -> None:
    shared_driver.window.geometry("1900x1000+0+0")
    shared_driver.settle()
    for name in ("model", "training", "output"):
        shared_driver.window.show_section(name)
        shared_driver.settle()
        for block in shared_driver.window.sections[name].blocks:
            for field in block.visible_fields():
                end = field.title.winfo_rootx() + field.title.winfo_width()
                assert field.area.winfo_rootx() - end <= 180, field.path


def test_rows_begin_below_their_title_and_switches_below_fields(shared_driver: Driver) -> None:
    section = shared_driver.go_to("data")
    heading = next(each for each in inside(section.list.frame) if has_text(each) and each.cget("text") == "Concepts")
    assert section.list.canvas.winfo_rootx() == heading.winfo_rootx()
    section = shared_driver.go_to("training")
    seen = section.find("gradient_checkpointing").control.winfo_rootx() + Switch.RING
    assert seen == section.find("epochs").control.winfo_rootx()
    fields = shared_driver.go_to("generate").form.fields
    assert fields["random_seed"].control.winfo_rootx() + Switch.RING == fields["count"].control.winfo_rootx()


@pytest.mark.slow
def test_a_row_under_the_pointer_has_round_corners(shared_driver: Driver) -> None:
    window = tk.Toplevel(shared_driver.window)
    row = ClickableRow(window)
    row.pack(fill="both", expand=True)
    label = text(row, "A preset")
    label.pack()
    clicked: list[int] = []
    row.on_click(lambda: clicked.append(1))
    shared_driver.click_really(label)
    assert clicked == [1]
    shared_driver.wait(lambda: str(row.cget("bg")) == theme.resolve(theme.WINDOW), "the highlight")
    assert str(label.cget("bg")) == theme.resolve(theme.WINDOW)
    assert {str(corner.cget("bg")) for corner in row._corners} == {theme.resolve(theme.CARD)}
    window.destroy()


@pytest.mark.slow
def test_tools_keep_their_fields_near_and_their_subtitle_whole(shared_driver: Driver) -> None:
    window = shared_driver.window
    window.show_section("tools")
    section = window.sections["tools"]
    section.open_page("duplicates")
    window.geometry("1900x1000+0+0")
    shared_driver.settle()
    assert section.pages["duplicates"].folder.winfo_width() <= theme.px(720)
    window.geometry("1024x768+0+0")
    shared_driver.settle()
    assert cut_off(section) == []


@pytest.mark.slow
def test_buttons_of_a_dialog_stay_on_the_screen_however_long_its_message(shared_driver: Driver) -> None:
    dialog = Dialog(shared_driver.window, "Not added", "x" * 10_000)
    button = dialog.button("Close", dialog.close)
    dialog.show()
    shared_driver.settle()
    assert button.winfo_rooty() + button.winfo_height() <= shared_driver.window.winfo_screenheight()
    assert button.winfo_rooty() + button.winfo_height() <= dialog.window.winfo_rooty() + dialog.window.winfo_height()
    dialog.close()


def test_table_has_a_whole_header_ellipses_and_numbers_at_the_right(shared_driver: Driver) -> None:
    window = tk.Toplevel(shared_driver.window)
    window.geometry("420x200+0+0")
    made = table(window, {"name": ("Name", 100), "validation": ("Validation loss", 40)}, ("validation",))
    long = "a name that is much longer than its column is wide, and then some more of it"
    for number in range(30):
        made.insert("", "end", iid=str(number), values=(f"{number} {long}", number))
    shared_driver.settle()
    shown = made.tk.call(str(made), "item", "0", "-values")
    assert str(shown[0]).endswith("…")
    assert made.item("0", "values") == (f"0 {long}", "0")
    assert str(made.column("validation", "anchor")) == "e"
    assert str(made.heading("validation", "anchor")) == "e"
    assert sum(int(made.column(name, "width")) for name in made["columns"]) >= made.winfo_width() - 2
    assert made.winfo_width() == window.winfo_width(), "the header is as wide as the table"
    made.yview_moveto(1.0)
    shared_driver.settle()
    assert str(made.tk.call(str(made), "item", "29", "-values")[0]).endswith("…"), "also what comes into sight"
    made.delete("29")
    made.item("0", values=("short", 1))
    made.yview_moveto(0.0)
    shared_driver.settle()
    assert [str(value) for value in made.tk.call(str(made), "item", "0", "-values")] == ["short", "1"]
    window.destroy()


def test_a_column_without_texts_gives_its_room_to_one_whose_texts_are_cut(shared_driver: Driver) -> None:
    window = tk.Toplevel(shared_driver.window)
    window.geometry("600x200+0+0")
    made = table(window, {"state": ("State", 100), "settings": ("Settings", 200), "result": ("Result", 200)})
    said = ("Generating samples 3 of 8", "A sentence of usual length", "")
    made.insert("", "end", iid="1", values=said)
    shared_driver.settle()
    assert made.tk.call(str(made), "item", "1", "-values")[:2] == said[:2]
    assert sum(int(made.column(name, "width")) for name in made["columns"]) <= made.winfo_width()
    made.insert(
        "", "end", iid="2", values=("Failed", "A sentence of usual length", "Why it failed, in many words " * 4)
    )
    shared_driver.settle()
    assert made.tk.call(str(made), "item", "1", "-values")[:2] == said[:2], "the shorter texts first"
    window.destroy()


def test_names_are_cut_in_the_middle_and_parts_are_left_out_whole(shared_driver: Driver) -> None:
    font, window = theme.tk_font(), shared_driver.window
    shown = fit(window, "stable_diffusion_xl-portrait-lora-rank-16", font, 150, cut="middle")
    assert shown.startswith("stable_")
    assert shown.endswith("rank-16")
    parts = ["440 ms per step", "3 % waiting", "mean 440 ms"]
    assert fit_parts(window, parts, font, 200) == "440 ms per step · 3 % waiting"


def test_idle_window_wakes_rarely(shared_driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer of less than a tenth of a second while nothing happens: customtkinter has some of its own."""
    shared_driver.window.show_section("model")
    delays: list[int] = []
    after = tk.Misc.after

    def counted(self: tk.Misc, ms: int, func: Any = None, *args: Any) -> Any:
        delays.append(ms)
        return after(self, ms, func, *args)

    monkeypatch.setattr(tk.Misc, "after", counted)
    shared_driver.wait(lambda: len(delays) >= 8 and min(delays[-8:]) >= 100, "an end of the timers")


@pytest.fixture
def at_150(shared_driver: Driver) -> Iterator[Driver]:
    shared_driver.window.geometry("1280x800+0+0")
    shared_driver.enlarge(150)
    yield shared_driver
    shared_driver.window.set_scale(100)


def title_place(section: tk.Misc, title: str) -> tuple[int, int, int]:
    """Where a section's title stands on the screen, and where its head ends."""
    head = next(each for each in section.winfo_children() if isinstance(each, tk.Frame))
    label = next(each for each in head.winfo_children() if isinstance(each, tk.Label) and each.cget("text") == title)
    return label.winfo_rootx(), label.winfo_rooty(), head.winfo_rooty() + head.winfo_height()


@pytest.mark.slow
@pytest.mark.parametrize("size", ["1280x800", "800x600"])
def test_what_does_not_fit_at_200_percent_is_in_a_menu(shared_driver: Driver, size: str) -> None:
    """And the way back to 100 % is in sight."""
    window = shared_driver.window
    window.tk.call("wm", "geometry", ".", f"{size}+0+0")
    window.set_scale(200)
    try:
        for name, tab in (("model", ""), ("multi_gpu", ""), ("monitor", "runs"), ("data", "")):
            window.show_section(name)
            if tab:
                window.sections[name].open_page(tab)
            shared_driver.settle()
            parts = (window.sidebar, window.header, window.run_bar, window.sections[name].winfo_children()[0])
            assert [cut_off(part) for part in parts] == [[]] * 4, name
            assert [name_of(each) for part in parts for each in inside(part) if is_cut_off(each)] == [], name
            assert window.sidebar.entries[name].winfo_viewable()
        if size == "800x600":
            assert choose(shared_driver, window.sidebar.overflow.more, "Tools")[-3:] == [
                "Theme",
                "Notifications",
                "Keyboard shortcuts",
            ]
            assert window.section == "tools"
            assert window.sidebar.entries["tools"].winfo_viewable(), "the section in sight stays among the entries"
            choose(shared_driver, window.header.overflow.more, "Simple settings")
            assert not window.state_.advanced
            assert choose(shared_driver, window.run_bar.buttons.overflow.more, "Queue")[-1] == "Queue"
            shared_driver.wait(shared_driver.dialogs, "what is missing")
            shared_driver.press("Escape")
        shared_driver.click_really(window._scale_button)
        shared_driver.press("Home", "Return")
        assert window.preferences.scale == 100
        shared_driver.settle()
        assert window.header.overflow.hidden == window.sidebar.overflow.hidden == [], "all of it fits at 100 %"
    finally:
        window.set_scale(100)
        window.tk.call("wm", "geometry", ".", "1280x800+0+0")


def choose(driver: Driver, button: Button, label: str) -> list[str]:
    """Choose an entry of the menu that a button opens; returns all of them."""
    driver.click_really(button)
    menu = driver.window.__dict__["open_popover_"]
    menu.choose(label)
    driver.settle()
    labels: list[str] = menu.labels()
    return labels


def is_cut_off(widget: tk.Misc) -> bool:
    """Whether a part of a button or label is cut off by what it lies in."""
    return (isinstance(widget, Button) or has_text(widget)) and in_sight(widget) != place(widget)


@pytest.mark.slow
def test_nothing_is_cut_off_or_covered_at_150_percent(at_150: Driver) -> None:
    """And the titles stay in place from section to section."""
    places = set()
    for name, (title, _) in SECTIONS.items():
        section = at_150.go_to(name)
        check_that_all_is_seen(at_150, name)
        places.add(title_place(section, title))
        for tab in TABS_OF.get(name, ()):
            at_150.go_to(name, tab)
            check_that_all_is_seen(at_150, f"{name}, {tab}")
    assert len(places) == 1, "the titles jump from section to section"
    at_150.go_to("multi_gpu")
    at_150.click_button("Multiple machines…")
    (dialog,) = at_150.dialogs()
    at_150.wait(lambda: "Ports 12355" in at_150.text(dialog), "the ports")
    assert cut_off(dialog) == []
    assert overlapping(dialog) == []
    assert next(each for each in inside(dialog) if isinstance(each, Scroll)).winfo_height() > 300
    at_150.click_button("Close")


def check_that_all_is_seen(driver: Driver, where: str) -> None:
    driver.settle()
    assert cut_off(driver.window) == [], where
    assert overlapping(driver.window) == [], where


def test_accent_button_shows_its_focus_ring_and_that_it_is_held(shared_driver: Driver) -> None:
    window = tk.Toplevel(shared_driver.window)
    button = Button(window, "Train", style="accent", bg=theme.CARD)
    button.pack()
    shared_driver.settle()

    def colours() -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """At the edge and inside, beside the text."""
        middle = button._shape.height() // 2
        return tuple(window.tk.call(str(button._shape), "get", x, middle) for x in (0, 4))

    edge, inside_it = colours()
    assert edge == inside_it
    button._show_ring(True)
    assert colours()[0] != inside_it
    button._show_ring(False)
    button._point(True)
    hovered = colours()
    button._press()
    assert colours() != hovered
    window.destroy()


def test_unit_is_as_faint_as_its_disabled_field(shared_driver: Driver) -> None:
    field = shared_driver.field("epochs")
    field.enable(False)
    assert str(field._unit.cget("fg")) == theme.resolve(theme.FAINT)
    field.enable(True)
    assert str(field._unit.cget("fg")) == theme.resolve(theme.MUTED)


@pytest.mark.parametrize("size", [4, 6, 9])
def test_disc_of_a_bar_is_symmetric_and_clear_at_its_corners(size: int) -> None:
    image = rounded_images._draw(("disc", size, "#3D5FE0", "#3D5FE0"))
    alpha: Any = image.getchannel("A")
    assert alpha.getpixel((0, 0)) < 128
    assert alpha.getpixel((size // 2, size // 2)) == 255
    assert alpha.tobytes() == alpha.transpose(Image.Transpose.ROTATE_180).tobytes()
