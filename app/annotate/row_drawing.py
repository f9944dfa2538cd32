"""Draws one row: the decision, the image, and what it has now beside what is proposed."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image, ImageTk

from app.annotate.rows import Row
from app.images.thumbnails import Thumbnails
from app.widgets import icons, theme
from app.widgets.ellipsis import fit, fit_lines
from modules.annotation import Task

GAP: Final = 12  # unscaled pixels, as all below
DECISION: Final = 34  # width of the column with the decision
_SIDES: Final[dict[Task, int]] = {"caption": 88, "tag": 88, "mask": 160}  # of an image
_LEAST_SIDE: Final = 88
_STEP: Final = 16  # pixels: a window being resized need not read all images again at each of its sizes
_NAME: Final = 18  # height of the line with the file name
_LINE: Final = 17
_VERBS: Final = ("is ", "has ", "cannot ")
_KEPT_PHOTOS: Final = 200
_KEPT_TEXTS: Final = 1000
_TINT: Final = (214, 48, 49)
_STRENGTH: Final = 0.65


@dataclass(frozen=True)
class Columns:
    """Where the columns begin, in pixels; `texts` is the width of what is there and of what is proposed."""

    image: int
    present: int
    proposed: int
    texts: int

    @classmethod
    def of(cls, task: Task, side: int, width: int) -> Columns:
        gap, image = theme.px(GAP), theme.px(DECISION)
        present = image + side + 2 * gap
        room = max(theme.px(80), (width - present - 2 * gap) // 2)
        if task == "mask":
            room = min(room, side + 2 * gap)
        return cls(image, present, present + room + gap, room)


class RowDrawing:
    """Draws rows on a canvas; images that are not ready yet are requested, and drawn the next time."""

    def __init__(self, canvas: tk.Canvas, thumbnails: Thumbnails) -> None:
        self.task: Task = "caption"
        self.ending = ".txt"  # of the files that hold what the images have now
        self._canvas, self._thumbnails = canvas, thumbnails
        self._photos: OrderedDict[tuple[Path, Path | None, int], ImageTk.PhotoImage] = OrderedDict()
        self._texts: OrderedDict[tuple[str, int, int], str] = OrderedDict()
        self._marks: dict[bool, ImageTk.PhotoImage] = {}
        self.is_complete = True  # whether everything that was drawn since the last `begin` was ready

    @property
    def side(self) -> int:
        """Of an image, in pixels: less in a low list, so that a whole one is in sight."""
        room = (self._canvas.winfo_height() - theme.px(GAP + _NAME)) // _STEP * _STEP
        return min(theme.px(_SIDES[self.task]), max(theme.px(_LEAST_SIDE), room))

    @property
    def height(self) -> int:
        """Of a row, in pixels."""
        return self.side + theme.px(GAP + (_NAME if self.task == "mask" else 0))

    def columns(self) -> Columns:
        """Where the columns begin."""
        return Columns.of(self.task, self.side, self._canvas.winfo_width())

    def begin(self) -> None:
        """Start with an empty canvas."""
        self._canvas.delete("row")
        self._thumbnails.cancel_pending()
        self.is_complete = True

    def forget(self) -> None:
        """Forget the images: other ones may come under the same names."""
        self._photos.clear()

    def recolour(self) -> None:
        """Draw the decisions in the colours of the theme."""
        colours = {True: theme.GOOD, False: theme.FAINT}
        self._marks = {is_on: icons.image("check" if is_on else "close", 18, colours[is_on]) for is_on in colours}

    def draw(self, row: Row, top: int, width: int, *, is_selected: bool, has_focus: bool) -> None:
        """Draw a row whose upper edge is at `top`."""
        at = self.columns()
        row.read_present(self.ending)
        self._draw_back(top, width, is_selected=is_selected, has_focus=has_focus)
        middle = top + self.height // 2
        if row.has_proposal:
            self._image(theme.px(DECISION) // 2, middle, self._marks[row.is_accepted])
        if self.task == "mask":
            self._draw_masks(row, at, top, width)
            return
        side = self.side
        self._draw_picture(row.image, None, at.image + theme.px(GAP) // 2, top + (self.height - side) // 2)
        inner = top + theme.px(GAP / 2)
        self._text(fit(self._canvas, row.relative, theme.tk_font("small"), at.texts), at.present, inner, "small")
        present = row.present or "no caption"
        colour = theme.MUTED if row.present else theme.FAINT
        self._wrapped(present, at.present, inner + theme.px(_NAME), at.texts, 4, colour)
        self._draw_proposed(row, at, inner)

    def _draw_proposed(self, row: Row, at: Columns, top: int) -> None:
        """The text, and what is wrong with it in the last two lines."""
        below = top
        if row.text:
            colour = theme.TEXT if row.is_accepted else theme.FAINT
            self._wrapped(row.text, at.proposed, top, at.texts, 3 if row.problem else 5, colour)
            below += 3 * theme.px(_LINE)
        if row.problem:
            self._wrapped(_sentence(row.problem), at.proposed, below, at.texts, 2 if row.text else 5, theme.BAD)

    def _draw_back(self, top: int, width: int, *, is_selected: bool, has_focus: bool) -> None:
        bottom = top + self.height
        if is_selected:
            edge = theme.ACCENT if has_focus else theme.ACCENT_SOFT
            self._canvas.create_rectangle(
                1, top + 1, width - 2, bottom - 2,
                fill=theme.resolve(theme.ACCENT_SOFT), outline=theme.resolve(edge), width=theme.px(1), tags="row",
            )  # fmt: skip
        else:
            line = theme.px(GAP)
            self._canvas.create_line(
                line, bottom - 1, width - line, bottom - 1, fill=theme.resolve(theme.LINE), tags="row"
            )

    def _draw_masks(self, row: Row, at: Columns, top: int, width: int) -> None:
        inner, edge = top + theme.px(GAP / 2), at.image + theme.px(GAP) // 2
        room = width - edge - theme.px(GAP)
        self._text(fit(self._canvas, row.relative, theme.tk_font("small"), room), edge, inner, "small")
        below = inner + theme.px(_NAME)
        self._draw_picture(row.image, None, edge, below)
        if row.present_mask is not None:
            self._draw_picture(row.image, row.present_mask, at.present, below)
        else:
            self._text("no mask", at.present, below, colour=theme.FAINT)
        after = at.proposed
        if row.mask is not None:
            self._draw_picture(row.image, row.mask, at.proposed, below)
            after += at.texts + theme.px(GAP)
        if row.problem:
            self._wrapped(_sentence(row.problem), after, below, max(theme.px(80), width - after), 6, theme.BAD)

    def _draw_picture(self, file: Path, mask: Path | None, left: int, top: int) -> None:
        side = self.side
        photo = self._photo(file, mask, side)
        if photo is not None:
            self._image(left + side // 2, top + side // 2, photo)
            return
        self._canvas.create_rectangle(
            left, top, left + side, top + side, fill=theme.resolve(theme.HOVER), width=0, tags="row"
        )
        is_broken = any(self._thumbnails.is_broken(each, side) for each in (file, mask) if each is not None)
        if is_broken:
            self._text("unreadable", left + theme.px(GAP / 2), top + side // 2, "small", theme.BAD)
        else:
            self.is_complete = False

    def _photo(self, file: Path, mask: Path | None, side: int) -> ImageTk.PhotoImage | None:
        key = (file, mask, side)
        if key in self._photos:
            self._photos.move_to_end(key)
            return self._photos[key]
        image = self._thumbnails.get(file, side)
        over = self._thumbnails.get(mask, side) if mask is not None else None
        if image is None or (mask is not None and over is None):
            return None
        shown = _enlarged(image, side)
        photo = ImageTk.PhotoImage(overlay(shown, over) if over is not None else shown, master=self._canvas)
        self._photos[key] = photo
        while len(self._photos) > _KEPT_PHOTOS:
            self._photos.popitem(last=False)
        return photo

    def _image(self, x: int, y: int, photo: ImageTk.PhotoImage) -> None:
        self._canvas.create_image(x, y, image=photo, tags="row")

    def _wrapped(self, content: str, x: int, y: int, width: int, lines: int, colour: theme.Colour) -> None:
        key = (content, width, lines)
        if key not in self._texts:
            self._texts[key] = fit_lines(self._canvas, content, theme.tk_font(), width, lines)
            while len(self._texts) > _KEPT_TEXTS:
                self._texts.popitem(last=False)
        self._text(self._texts[key], x, y, colour=colour)

    def _text(
        self, content: str, x: int, y: int, font: theme.FontName = "body", colour: theme.Colour = theme.MUTED
    ) -> None:
        self._canvas.create_text(
            x, y, anchor="nw", text=content, font=theme.tk_font(font), fill=theme.resolve(colour), tags="row"
        )


def _sentence(reason: str) -> str:
    whole = f"it {reason}" if reason.startswith(_VERBS) else reason  # some go on after the name of the image
    return f"{whole[:1].upper()}{whole[1:]}{'' if whole.endswith('.') else '.'}"


def _enlarged(image: Image.Image, side: int) -> Image.Image:
    """An image that is smaller than its place, as large as that."""
    if max(image.size) >= side:
        return image
    scale = side / max(image.size)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    return image.resize(size, Image.Resampling.BILINEAR)


def overlay(image: Image.Image, mask: Image.Image) -> Image.Image:
    """The image with red over the black parts of the mask, which may have another size."""
    red = Image.blend(image, Image.new("RGB", image.size, _TINT), _STRENGTH)
    fitted = mask.convert("L")
    if fitted.size != image.size:
        fitted = fitted.resize(image.size, Image.Resampling.BILINEAR)
    return Image.composite(image, red, fitted)
