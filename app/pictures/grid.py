"""Thousands of pictures as a grid that draws only what is in sight, on one canvas."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageTk

from app import look, texts
from app.bar import Bar
from app.pictures.catalogue import Picture
from app.pictures.thumbnails import SIDE, Thumbnails

GAP = 1.5 * look.UNIT
NAME_HEIGHT = 3 * look.UNIT
_KEPT_PHOTOS = 400
_POLL_MS = 60


class PictureGrid(tk.Frame):
    """Shows `pictures`; one is selected, by mouse or keys, and told to `selected`.

    Arrows, Page Up and Down, Home and End move; Return tells `activated`.
    """

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        selected: Callable[[Picture], object],
        activated: Callable[[], object],
    ) -> None:
        super().__init__(parent)
        self._thumbnails, self._tell, self._activated = thumbnails, selected, activated
        self._pictures: Sequence[Picture] = ()
        self._marked: set[Path] = set()
        self._photos: OrderedDict[Path, ImageTk.PhotoImage] = OrderedDict()
        self._given_up: set[Path] = set()  # broken ones, drawn as such
        self._columns = 1
        self._number = -1
        self._drawing = ""
        self._polling = ""
        self.canvas = look.paint(tk.Canvas(self, highlightthickness=2, borderwidth=0, takefocus=True), bg=look.CARD)
        look.paint(self.canvas, highlightbackground=look.CARD, highlightcolor=look.ACCENT)
        self._bar = Bar(self, self._scroll)
        self.canvas.configure(yscrollcommand=self._bar.show, yscrollincrement=look.px(look.UNIT))
        self._bar.pack(side="right", fill="y")
        self.canvas.pack(side="left", fill="both", expand=True)
        self.canvas.bind("<Configure>", lambda _: self._lay_out())
        self.canvas.bind("<Button-1>", self._click)
        self.canvas.bind("<Double-Button-1>", lambda _: self._activated())
        self.canvas.bind("<Return>", lambda _: self._activated())
        for event, lines in (("<Button-4>", -1), ("<Button-5>", 1)):
            self.canvas.bind(event, lambda _, lines=lines: self._wheel(lines))  # type: ignore[misc]
        self.canvas.bind("<MouseWheel>", lambda event: self._wheel(-1 if event.delta > 0 else 1))
        for key in ("Left", "Right", "Up", "Down", "Prior", "Next", "Home", "End"):
            self.canvas.bind(f"<{key}>", lambda _, key=key: self._move(key))  # type: ignore[misc]
        self.bind("<Destroy>", lambda _: self._stop_polling(), add="+")

    def show(self, pictures: Sequence[Picture], marked: set[Path]) -> None:
        """Show these; `marked` files carry a sign that something is wrong with them. The selection stays if it can."""
        former = self.picture.file if self.picture is not None else None
        self._pictures, self._marked = pictures, marked
        self._number = next((n for n, each in enumerate(pictures) if each.file == former), -1)
        if former is None and pictures:
            self._number = 0
            self._tell(pictures[0])
        self._lay_out()

    @property
    def picture(self) -> Picture | None:
        """The selected one."""
        return self._pictures[self._number] if 0 <= self._number < len(self._pictures) else None

    def select(self, file: Path) -> bool:
        """Select the picture of a file and bring it into sight; False where it is not shown."""
        for number, each in enumerate(self._pictures):
            if each.file == file:
                self._select(number)
                return True
        return False

    def redraw(self) -> None:
        """Draw what is in sight, soon."""
        if not self._drawing:
            self._drawing = self.after_idle(self._draw)

    # Geometry

    def _cell(self) -> tuple[int, int]:
        """Width and height; the columns share the room there is."""
        room = max(1, self.canvas.winfo_width() - look.px(GAP))
        return max(look.px(SIDE + GAP), room // self._columns), look.px(SIDE + NAME_HEIGHT + GAP)

    def _lay_out(self) -> None:
        self._columns = max(1, (self.canvas.winfo_width() - look.px(GAP)) // look.px(SIDE + GAP))
        _, height = self._cell()
        rows = -(-len(self._pictures) // self._columns)
        self.canvas.configure(scrollregion=(0, 0, 1, rows * height + look.px(GAP)))
        self._bar.show(*self.canvas.yview())  # Tk itself says nothing of a list that is empty from the beginning
        self.redraw()

    def _in_sight(self) -> range:
        _, height = self._cell()
        top = self.canvas.canvasy(0)
        first = max(0, int(top // height)) * self._columns
        rows = self.canvas.winfo_height() // height + 2
        return range(first, min(len(self._pictures), first + rows * self._columns))

    def _place(self, number: int) -> tuple[int, int]:
        width, height = self._cell()
        row, column = divmod(number, self._columns)
        centred = (width - look.px(SIDE + GAP)) // 2
        return look.px(GAP) + column * width + centred, look.px(GAP) + row * height

    # Drawing

    def _draw(self) -> None:
        self._drawing = ""
        self._thumbnails.forget_wishes()
        self.canvas.delete("all")
        if not self._pictures:
            self._draw_nothing()
            return
        for number in reversed(self._in_sight()):  # the last asked for is made first
            self._draw_cell(number)
        self._poll()

    def _draw_nothing(self) -> None:
        middle = self.canvas.winfo_width() // 2, max(look.px(60), self.canvas.winfo_height() // 3)
        self.canvas.create_text(*middle, text=texts.NO_PICTURES, fill=look.now(look.MUTED), font=look.tk_font("body"))

    def _draw_cell(self, number: int) -> None:
        picture = self._pictures[number]
        left, top = self._place(number)
        side = look.px(SIDE)
        chosen = number == self._number
        if chosen:
            edge = look.px(look.UNIT / 2)
            box = (left - edge, top - edge, left + side + edge, top + side + look.px(NAME_HEIGHT))
            self.canvas.create_rectangle(*box, fill=look.now(look.ACCENT_SOFT), outline=look.now(look.ACCENT), width=2)
        photo = self._photo(picture.file)
        if photo is not None:
            self.canvas.create_image(left + side // 2, top + side // 2, image=photo)
        else:
            broken = self._thumbnails.is_broken(picture.file)
            self.canvas.create_rectangle(left, top, left + side, top + side, fill=look.now(look.HOVER), width=0)
            sign = "✕" if broken else "…"
            colour = look.BAD if broken else look.FAINT
            place = left + side // 2, top + side // 2
            self.canvas.create_text(*place, text=sign, fill=look.now(colour), font=look.tk_font("large"))
        if picture.file in self._marked:
            self._draw_mark(left + side, top)
        self._draw_name(picture, left, top + side, chosen)

    def _draw_mark(self, right: int, top: int) -> None:
        radius, inset = look.px(8), look.px(12)
        x, y = right - inset, top + inset
        self.canvas.create_oval(x - radius, y - radius, x + radius, y + radius, fill=look.now(look.WARN_SOFT), width=0)
        self.canvas.create_text(x, y, text="!", fill=look.now(look.WARN), font=look.tk_font("strong"))

    def _draw_name(self, picture: Picture, left: int, top: int, chosen: bool) -> None:
        name = picture.file.name
        most = look.px(SIDE) // max(1, look.px(7))
        short = name if len(name) <= most else f"{name[: most - 8]}…{name[-7:]}"
        colour = look.TEXT if chosen else look.MUTED
        place = left + look.px(SIDE) // 2, top + look.px(NAME_HEIGHT) // 2
        self.canvas.create_text(*place, text=short, fill=look.now(colour), font=look.tk_font("small"))

    def _photo(self, file: Path) -> ImageTk.PhotoImage | None:
        if file in self._photos:
            self._photos.move_to_end(file)
            return self._photos[file]
        picture = self._thumbnails.get(file)
        if picture is None:
            return None
        side = look.px(SIDE)
        if max(picture.size) > side or look.scale() > 1:
            scale = side / max(picture.size) if max(picture.size) >= SIDE else look.scale()
            size = max(1, round(picture.width * scale)), max(1, round(picture.height * scale))
            picture = picture.resize(size, Image.Resampling.BILINEAR)
        self._photos[file] = photo = ImageTk.PhotoImage(picture, master=self)
        while len(self._photos) > _KEPT_PHOTOS:
            self._photos.popitem(last=False)
        return photo

    def _poll(self) -> None:
        """Draw thumbnails that have become ready, until none in sight is missing."""
        self._stop_polling()
        self._thumbnails.poll(lambda _: None)
        missing = [self._pictures[n].file for n in self._in_sight() if self._pictures[n].file not in self._photos]
        missing = [file for file in missing if file not in self._given_up]
        if any(self._thumbnails.has(file) for file in missing):
            self._given_up.update(file for file in missing if self._thumbnails.is_broken(file))
            self.redraw()
        elif missing:
            self._polling = self.after(_POLL_MS, self._poll)

    def _stop_polling(self) -> None:
        if self._polling:
            self.after_cancel(self._polling)
            self._polling = ""

    # Moving

    def _scroll(self, *arguments: str) -> None:
        self.canvas.yview(*arguments)
        self.redraw()

    def _wheel(self, direction: int) -> None:
        self.canvas.yview_scroll(direction * 8, "units")
        self.redraw()

    def _click(self, event: tk.Event[tk.Canvas]) -> None:
        self.canvas.focus_set()
        width, height = self._cell()
        column = int(event.x - look.px(GAP)) // width
        row = int(self.canvas.canvasy(event.y) - look.px(GAP)) // height
        number = row * self._columns + column
        if 0 <= column < self._columns and 0 <= number < len(self._pictures):
            self._select(number)

    def _move(self, key: str) -> str:
        page = max(1, self.canvas.winfo_height() // self._cell()[1]) * self._columns
        last = len(self._pictures) - 1
        steps = {"Left": -1, "Right": 1, "Up": -self._columns, "Down": self._columns, "Prior": -page, "Next": page}
        wanted = {"Home": 0, "End": last}.get(key, self._number + steps.get(key, 0))
        if self._pictures:
            self._select(min(max(wanted, 0), last))
        return "break"

    def _select(self, number: int) -> None:
        self._number = number
        _, top = self._place(number)
        _, height = self._cell()
        total = max(1, -(-len(self._pictures) // self._columns) * height + look.px(GAP))
        above, below = self.canvas.canvasy(0), self.canvas.canvasy(self.canvas.winfo_height())
        if top - look.px(GAP) < above:
            self.canvas.yview_moveto((top - look.px(GAP)) / total)
        elif top + height > below:
            self.canvas.yview_moveto((top + height - self.canvas.winfo_height()) / total)
        self.redraw()
        if self.picture is not None:
            self._tell(self.picture)
