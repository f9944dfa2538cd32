"""Contrast of the colours, and icons that are not empty."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from PIL import Image, ImageGrab

from app.sections import SECTIONS
from app.widgets import icons, theme
from app.widgets.inputs import Switch
from app.widgets.inputs.box import Box
from tests.app.driver import Driver
from tests.app.in_sight import Area, common, in_sight, inside, place

READABLE = 4.5  # WCAG 2.2, level AA, for text of this size
PERCEPTIBLE = 3.0  # the same, 1.4.11, for the borders and marks of controls
INKS = (theme.TEXT, theme.MUTED, theme.FAINT, theme.ACCENT_TEXT, theme.BAD, theme.WARN, theme.GOOD)
STATES = [  # what a section shows only under the pointer, pressed, chosen, or when something went wrong
    *((ink, ground) for ink in INKS for ground in (theme.HOVER, theme.ACCENT_SOFT)),
    (theme.TEXT, theme.PRESSED),
    (theme.MUTED, theme.PRESSED),  # a table's heading
    (theme.BAD, theme.PRESSED),
    (theme.TEXT, theme.EDGE),
    (theme.TEXT, theme.SELECTED),
    (theme.TEXT, theme.BAD_SOFT),
    (theme.MUTED, theme.BAD_SOFT),
    (theme.FAINT, theme.BAD_SOFT),
    (theme.BAD, theme.BAD_SOFT),
    (theme.WARN, theme.WARN_SOFT),
    (theme.ON_TOOLTIP, theme.TOOLTIP),
    *((theme.ON_ACCENT, ground) for ground in (theme.ACCENT, theme.ACCENT_HOVER, theme.ACCENT_PRESSED)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("pair", STATES, ids=lambda pair: f"{pair[0][0]} on {pair[1][0]}")
def test_text_has_contrast_in_every_state(pair: tuple[theme.Colour, theme.Colour], mode: int) -> None:
    ink, ground = pair
    assert contrast(ink[mode], ground[mode]) >= READABLE


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_controls_have_contrast_in_every_state(mode: int) -> None:
    for ground in (theme.CARD, theme.WINDOW, theme.SIDEBAR, theme.HOVER, theme.ACCENT_SOFT):
        for line in (theme.ACCENT, theme.FIELD_LINE, theme.SWITCH_OFF):  # ACCENT: the focus ring
            assert contrast(line[mode], ground[mode]) >= PERCEPTIBLE
    for track in (theme.ACCENT, theme.SWITCH_OFF):
        assert contrast(theme.KNOB[mode], track[mode]) >= PERCEPTIBLE


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["light", "dark"])
def test_all_that_the_sections_show_has_contrast(shared_driver: Driver, mode: Literal["light", "dark"]) -> None:
    """Measured on the screen: whatever lies behind a text, it is compared with that."""
    window = shared_driver.window
    window.geometry("1280x800+0+0")
    window.set_mode(mode)
    poor, seen = set(), {"text": 0, "border": 0}
    for name in SECTIONS:
        window.show_section(name)
        shared_driver.settle()
        screen = ImageGrab.grab(xdisplay=window.winfo_screen())
        for what, colour, area in texts(window):
            seen["text"] += 1
            ratio = contrast(colour, ground(screen, area))
            if ratio < READABLE:
                poor.add(f"{name}: {what!r} is {colour} on {ground(screen, area)}: {ratio:.2f}")
        for what, line, behind in borders(window, screen):
            seen["border"] += 1
            if contrast(line, behind) < PERCEPTIBLE:
                poor.add(f"{name}: {what} is {line} on {behind}: {contrast(line, behind):.2f}")
    assert poor == set()
    assert seen["text"] > 200, "the walk saw the window"
    assert seen["border"] > 30, "the walk saw the window"


def texts(window: tk.Misc) -> Iterator[tuple[str, str, Area]]:
    """Each text in sight, its colour and where it stands."""
    for widget in inside(window):
        room = in_sight(widget)
        if room is None:
            continue
        if isinstance(widget, tk.Label) and widget.cget("text"):
            yield str(widget.cget("text")), as_hex(widget, "foreground"), room
        elif isinstance(widget, tk.Entry) and widget.get():
            is_off = widget.cget("state") == "disabled"
            yield widget.get(), as_hex(widget, "disabledforeground" if is_off else "foreground"), room
        elif isinstance(widget, tk.Text) and widget.get("1.0", "end").strip():
            yield widget.get("1.0", "end").strip(), as_hex(widget, "foreground"), room
        elif isinstance(widget, tk.Canvas):
            yield from drawn_texts(widget, room)


def drawn_texts(canvas: Any, room: Area) -> Iterator[tuple[str, str, Area]]:
    left, top = canvas.winfo_rootx() - int(canvas.canvasx(0)), canvas.winfo_rooty() - int(canvas.canvasy(0))
    for item in canvas.find_all():
        words = canvas.itemcget(item, "text") if canvas.type(item) == "text" else ""
        box = canvas.bbox(item) if words.strip() and canvas.itemcget(item, "state") != "hidden" else None
        area = box and common(room, (left + box[0], top + box[1], left + box[2], top + box[3]))
        if area:
            yield words, canvas.itemcget(item, "fill"), area


def borders(window: tk.Misc, screen: Image.Image) -> Iterator[tuple[str, str, str]]:
    """The border of each entry, menu and text box that can be used, and the track of each switch; what lies around."""
    for widget in inside(window):
        room, whole = in_sight(widget), place(widget)
        if room != whole:
            continue
        left, top, right, bottom = whole
        middle = (top + bottom) // 2
        if isinstance(widget, Box) and widget._enabled:
            yield f"the border of {widget}", pixel(screen, left, middle), pixel(screen, left - 2, middle)
        elif isinstance(widget, Switch) and widget._enabled:
            side = right - (right - left) // 4 if not widget.get() else left + (right - left) // 4
            yield f"the track of {widget}", pixel(screen, side, middle), pixel(screen, left, top)


def ground(screen: Image.Image, area: Area) -> str:
    """The colour that covers most of an area: text covers less than what lies behind it."""
    part = screen.crop(area).convert("RGB")
    counted = part.getcolors(part.width * part.height)
    assert counted
    return "#{:02X}{:02X}{:02X}".format(*max(counted)[1])  # type: ignore[misc]


def pixel(screen: Image.Image, x: int, y: int) -> str:
    return ground(screen, (x, y, x + 1, y + 1))


def as_hex(widget: tk.Misc, option: str) -> str:
    return "#{:02X}{:02X}{:02X}".format(*(part >> 8 for part in widget.winfo_rgb(widget.cget(option))))


@pytest.mark.parametrize("name", sorted(set(icons.ICONS) - {"blank"}))
def test_every_icon_draws_something(name: str) -> None:
    image = icons._drawn(name, 18, "#ffffff")
    assert image.size == (18, 18)
    alpha: Any = image.getchannel("A")
    assert alpha.getextrema()[1] > 150
