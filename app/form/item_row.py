"""One item of a list as it is drawn: a card with a cover, words, and a switch."""

from __future__ import annotations

import tkinter as tk
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import ImageTk

from app import icons, look, shapes
from app.cut import fit
from app.inputs import Switch

GAP: Final = 6  # below each card
EDGE: Final = 12  # between a card's border and what is in it
COVER: Final = 56
SWITCH_ROOM: Final = Switch.SIZE[0] + 2 * EDGE


@dataclass(frozen=True)
class Item:
    """What a list says of an item. `place` is a path, cut at its beginning where it does not fit."""

    title: str
    detail: str = ""
    place: str = ""
    cover: Path | None = None


@dataclass(frozen=True)
class Marks:
    """How an item stands at the moment."""

    is_on: bool
    is_wrong: bool
    is_selected: bool
    is_focused: bool


def draw(
    canvas: tk.Canvas,
    item: Item,
    marks: Marks,
    top: int,
    height: int,
    *,
    covers: bool,
    photo: ImageTk.PhotoImage | None,
) -> list[object]:
    """Draw it at `top`, `height` pixels high; returns the pictures, which must be kept as long as they are shown."""
    px, width = look.px, canvas.winfo_width()
    kept: list[object] = [_draw_card(canvas, marks, top, height)]
    left, middle = px(EDGE), top + height // 2
    if covers:
        _draw_cover(canvas, photo, left, middle)
        left += px(COVER + EDGE)
    kept.append(_draw_switch(canvas, marks, width - px(EDGE), middle))
    room = width - left - px(SWITCH_ROOM)
    if marks.is_wrong:
        room -= px(26)
        warning = icons.image("warning", 18, look.BAD)
        canvas.create_image(width - px(SWITCH_ROOM + 12), middle, image=warning)
        kept.append(warning)
    lines: list[tuple[str, look.FontName, look.Colour]] = [
        (item.title, "strong", look.TEXT if marks.is_on else look.FAINT),
        (item.detail, "small", look.MUTED if marks.is_on else look.FAINT),
        (item.place, "small", look.MUTED),
    ]
    shown = [line for line in lines if line[0]]
    for number, (words, name, colour) in enumerate(shown):
        y = middle + round((number - (len(shown) - 1) / 2) * px(18))
        font = look.tk_font(name)
        fitted = fit(canvas, words, font, room, at_start=words is item.place)
        canvas.create_text(left, y, text=fitted, anchor="w", font=font, fill=look.now(colour))
    return kept


def is_on_switch(x: int, width: int) -> bool:
    """Whether a click there turns the item on or off."""
    return x > width - look.px(SWITCH_ROOM)


def _draw_card(canvas: tk.Canvas, marks: Marks, top: int, height: int) -> object:
    line = look.ACCENT if marks.is_selected and marks.is_focused else look.LINE
    picture = shapes.rounded(
        canvas,
        canvas.winfo_width(),
        height,
        look.px(look.RADIUS + 2),
        fill=look.now(look.ACCENT_SOFT if marks.is_selected else look.FIELD),
        line=look.now(look.ACCENT_SOFT if marks.is_selected and not marks.is_focused else line),
        on=look.now(look.CARD),
        line_width=max(look.px(2 if marks.is_selected and marks.is_focused else 1), 1),
    )
    canvas.create_image(0, top, anchor="nw", image=picture)
    return picture


def _draw_cover(canvas: tk.Canvas, photo: ImageTk.PhotoImage | None, left: int, middle: int) -> None:
    side = look.px(COVER)
    if photo is None:
        box = (left, middle - side // 2, left + side, middle - side // 2 + side)
        canvas.create_rectangle(*box, fill=look.now(look.HOVER), width=0)
    else:
        canvas.create_image(left + side // 2, middle, image=photo)


def _draw_switch(canvas: tk.Canvas, marks: Marks, right: int, middle: int) -> object:
    back = look.now(look.ACCENT_SOFT if marks.is_selected else look.FIELD)
    width, height = (look.px(side) for side in Switch.SIZE)
    track = look.now(look.ACCENT if marks.is_on else look.TROUGH)
    picture = shapes.switch(
        canvas, width, height, turned=marks.is_on, track=track, knob=look.now(look.KNOB), on=back, ring=back
    )
    canvas.create_image(right, middle, anchor="e", image=picture)
    return picture
