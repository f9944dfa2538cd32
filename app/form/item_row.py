"""Draws one row of a list: a card with a cover, text and a switch."""

from __future__ import annotations

import tkinter as tk
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import ImageTk

from app.widgets import icons, rounded_images, theme
from app.widgets.ellipsis import fit
from app.widgets.inputs import Switch
from app.widgets.text_width import text_width

GAP: Final = 6  # below each card
EDGE: Final = 12  # between a card's border and its content
COVER: Final = 56
SWITCH_ROOM: Final = Switch.SIZE[0] + 2 * EDGE


@dataclass(frozen=True)
class ItemContent:
    """The text and cover of an item. `path` is shortened at its start if it does not fit, `detail` gives way to
    `short_detail`; `warns`: of `detail`."""

    title: str
    detail: str = ""
    short_detail: str = ""
    path: str = ""
    cover: Path | None = None
    warns: bool = False


@dataclass(frozen=True)
class RowState:
    """The current state of an item."""

    is_on: bool
    is_invalid: bool
    is_selected: bool
    is_focused: bool


def draw_row(
    canvas: tk.Canvas,
    item: ItemContent,
    state: RowState,
    top: int,
    height: int,
    *,
    covers: bool,
    photo: ImageTk.PhotoImage | None,
) -> list[object]:
    """Draw the row at `top`, `height` pixels high. Returns its images, which the caller must keep referenced."""
    px, width = theme.px, canvas.winfo_width()
    images: list[object] = [_draw_card(canvas, state, top, height)]
    left, middle = px(EDGE), top + height // 2
    if covers:
        _draw_cover(canvas, photo, left, middle)
        left += px(COVER + EDGE)
    images.append(_draw_switch(canvas, state, width - px(EDGE), middle))
    room = width - left - px(SWITCH_ROOM)
    warns = item.warns and state.is_on
    if state.is_invalid or warns:
        room -= px(26)
        warning = icons.image("warning", 18, theme.BAD if state.is_invalid else theme.WARN)
        canvas.create_image(width - px(SWITCH_ROOM + 12), middle, image=warning)
        images.append(warning)
    lines: list[tuple[str, theme.FontName, theme.Colour]] = [
        (item.title, "strong", theme.TEXT if state.is_on else theme.FAINT),
        (_detail_of(canvas, item, room), "small", theme.WARN if warns else theme.MUTED if state.is_on else theme.FAINT),
        (item.path, "small", theme.MUTED),
    ]
    shown = [line for line in lines if line[0]]
    for number, (line_text, name, colour) in enumerate(shown):
        y = middle + round((number - (len(shown) - 1) / 2) * px(18))
        font = theme.tk_font(name)
        fitted = fit(canvas, line_text, font, room, cut="start" if line_text is item.path else "end")
        canvas.create_text(left, y, text=fitted, anchor="w", font=font, fill=theme.resolve(colour))
    return images


def _detail_of(canvas: tk.Canvas, item: ItemContent, room: int) -> str:
    fits = text_width(canvas, " ".join(item.detail.split()), theme.tk_font("small")) <= room
    return item.detail if fits or not item.short_detail else item.short_detail


def is_on_switch(x: int, width: int) -> bool:
    """Whether a click at `x` hits the switch."""
    return x > width - theme.px(SWITCH_ROOM)


def _draw_card(canvas: tk.Canvas, state: RowState, top: int, height: int) -> object:
    line = theme.ACCENT if state.is_selected and state.is_focused else theme.LINE
    image = rounded_images.rounded(
        canvas,
        canvas.winfo_width(),
        height,
        theme.px(theme.RADIUS + 2),
        fill=theme.resolve(theme.ACCENT_SOFT if state.is_selected else theme.FIELD),
        line=theme.resolve(theme.ACCENT_SOFT if state.is_selected and not state.is_focused else line),
        bg=theme.resolve(theme.CARD),
        line_width=max(theme.px(2 if state.is_selected and state.is_focused else 1), 1),
    )
    canvas.create_image(0, top, anchor="nw", image=image)
    return image


def _draw_cover(canvas: tk.Canvas, photo: ImageTk.PhotoImage | None, left: int, middle: int) -> None:
    side = theme.px(COVER)
    if photo is None:
        box = (left, middle - side // 2, left + side, middle - side // 2 + side)
        canvas.create_rectangle(*box, fill=theme.resolve(theme.HOVER), width=0)
    else:
        canvas.create_image(left + side // 2, middle, image=photo)


def _draw_switch(canvas: tk.Canvas, state: RowState, right: int, middle: int) -> object:
    back = theme.resolve(theme.ACCENT_SOFT if state.is_selected else theme.FIELD)
    width, height = (theme.px(side) for side in Switch.SIZE)
    track = theme.resolve(theme.ACCENT if state.is_on else theme.SWITCH_OFF)
    image = rounded_images.switch(
        canvas, width, height, is_on=state.is_on, track=track, knob=theme.resolve(theme.KNOB), bg=back, ring=back
    )
    canvas.create_image(right, middle, anchor="e", image=image)
    return image
