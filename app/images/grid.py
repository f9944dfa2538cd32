"""A grid of thousands of thumbnails on one canvas that draws only the visible ones."""

from __future__ import annotations

import tkinter as tk
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path

from PIL import Image, ImageTk

from app.images.image_index import IndexedImage
from app.images.thumbnails import SIDE, Thumbnails
from app.widgets import theme
from app.widgets.scrollbar import Scrollbar
from modules.files import printable

GAP = 1.5 * theme.UNIT
NAME_HEIGHT = 3 * theme.UNIT
NONE_FOUND = "No images to show."
_KEPT_PHOTOS = 400
_POLL_MS = 60


class ImageGrid(tk.Frame):
    """One image is selected, by mouse or keyboard; `selected` is called with it, `activated` on Return.

    Arrows, Page Up and Down, Home and End move the selection.
    """

    def __init__(
        self,
        parent: tk.Misc,
        thumbnails: Thumbnails,
        selected: Callable[[IndexedImage], object],
        activated: Callable[[], object],
    ) -> None:
        super().__init__(parent)
        self._thumbnails, self._selected, self._activated = thumbnails, selected, activated
        self._images: Sequence[IndexedImage] = ()
        self.empty = NONE_FOUND  # what stands in place of the images if there are none
        self._marked: set[Path] = set()
        self._photos: OrderedDict[Path, ImageTk.PhotoImage] = OrderedDict()
        self._broken: set[Path] = set()  # unreadable, drawn with a cross
        self._columns = 1
        self._index = -1
        self._draw_job = ""
        self._poll_job = ""
        self.canvas = theme.paint(tk.Canvas(self, highlightthickness=2, borderwidth=0, takefocus=True), bg=theme.CARD)
        theme.paint(self.canvas, highlightbackground=theme.CARD, highlightcolor=theme.ACCENT)
        self._bar = Scrollbar(self, self._scroll)
        self.canvas.configure(yscrollcommand=self._bar.show, yscrollincrement=theme.px(theme.UNIT))
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
        self.bind("<Destroy>", lambda _: self._cancel_poll(), add="+")

    def mark(self, files: set[Path]) -> None:
        """Put the warning sign on these files."""
        self._marked = files
        self._draw()

    def show(self, images: Sequence[IndexedImage], marked: set[Path]) -> None:
        """Show these images, with a warning sign on `marked` files; keeps the selection if possible."""
        previous = self.selected_image.file if self.selected_image is not None else None
        self._images, self._marked = images, marked
        self._index = next((n for n, each in enumerate(images) if each.file == previous), -1)
        if self._index < 0 and images:
            self._index = 0
            self._selected(images[0])
        self._lay_out()

    @property
    def selected_image(self) -> IndexedImage | None:
        """The selected image, if any."""
        return self._images[self._index] if 0 <= self._index < len(self._images) else None

    def select(self, file: Path) -> bool:
        """Select an image and scroll to it; False if it is not shown."""
        for number, each in enumerate(self._images):
            if each.file == file:
                self._select(number)
                return True
        return False

    def redraw(self) -> None:
        """Schedule drawing of the visible cells."""
        if not self._draw_job:
            self._draw_job = self.after_idle(self._draw)

    # Geometry

    def _cell(self) -> tuple[int, int]:
        """Cell width and height in pixels; the columns share the available width."""
        width = max(1, self.canvas.winfo_width() - theme.px(GAP))
        return max(theme.px(SIDE + GAP), width // self._columns), theme.px(SIDE + NAME_HEIGHT + GAP)

    def _lay_out(self) -> None:
        self._columns = max(1, (self.canvas.winfo_width() - theme.px(GAP)) // theme.px(SIDE + GAP))
        _, height = self._cell()
        rows = -(-len(self._images) // self._columns)
        self.canvas.configure(scrollregion=(0, 0, 1, rows * height + theme.px(GAP)))
        self._bar.show(*self.canvas.yview())  # Tk does not call yscrollcommand for a list that was always empty
        self.redraw()

    def _visible(self) -> range:
        _, height = self._cell()
        top = self.canvas.canvasy(0)
        first = max(0, int(top // height)) * self._columns
        rows = self.canvas.winfo_height() // height + 2
        return range(first, min(len(self._images), first + rows * self._columns))

    def _cell_origin(self, number: int) -> tuple[int, int]:
        width, height = self._cell()
        row, column = divmod(number, self._columns)
        centred = (width - theme.px(SIDE + GAP)) // 2
        return theme.px(GAP) + column * width + centred, theme.px(GAP) + row * height

    # Drawing

    def _draw(self) -> None:
        self._draw_job = ""
        self._thumbnails.cancel_pending()
        self.canvas.delete("all")
        if not self._images:
            self._draw_empty()
            return
        for number in reversed(self._visible()):  # the latest request is served first
            self._draw_cell(number)
        self._poll()

    def _draw_empty(self) -> None:
        middle = self.canvas.winfo_width() // 2, max(theme.px(60), self.canvas.winfo_height() // 3)
        self.canvas.create_text(*middle, text=self.empty, fill=theme.resolve(theme.MUTED), font=theme.tk_font("body"))

    def _draw_cell(self, number: int) -> None:
        image = self._images[number]
        left, top = self._cell_origin(number)
        side = theme.px(SIDE)
        is_selected = number == self._index
        if is_selected:
            edge = theme.px(theme.UNIT / 2)
            box = (left - edge, top - edge, left + side + edge, top + side + theme.px(NAME_HEIGHT))
            self.canvas.create_rectangle(
                *box, fill=theme.resolve(theme.ACCENT_SOFT), outline=theme.resolve(theme.ACCENT), width=2
            )
        photo = self._photo(image.file)
        if photo is not None:
            self.canvas.create_image(left + side // 2, top + side // 2, image=photo)
            frame_image(self.canvas, (left + side // 2, top + side // 2), photo)
        else:
            broken = self._thumbnails.is_broken(image.file)
            self.canvas.create_rectangle(left, top, left + side, top + side, fill=theme.resolve(theme.HOVER), width=0)
            symbol = "✕" if broken else "…"
            colour = theme.BAD if broken else theme.FAINT
            centre = left + side // 2, top + side // 2
            self.canvas.create_text(*centre, text=symbol, fill=theme.resolve(colour), font=theme.tk_font("large"))
        if image.file in self._marked:
            self._draw_mark(left + side, top)
        self._draw_name(image, left, top + side, is_selected)

    def _draw_mark(self, right: int, top: int) -> None:
        radius, inset = theme.px(8), theme.px(12)
        x, y = right - inset, top + inset
        self.canvas.create_oval(
            x - radius, y - radius, x + radius, y + radius, fill=theme.resolve(theme.WARN_SOFT), width=0
        )
        self.canvas.create_text(x, y, text="!", fill=theme.resolve(theme.WARN), font=theme.tk_font("strong"))

    def _draw_name(self, image: IndexedImage, left: int, top: int, is_selected: bool) -> None:
        name = printable(image.file.name, mask=False)
        most = theme.px(SIDE) // max(1, theme.px(7)) - (8 if image.seconds else 0)
        short = name if len(name) <= most else f"{name[: most - 8]}…{name[-7:]}"
        short += f" · {image.seconds:.3g} s" if image.seconds else ""
        colour = theme.TEXT if is_selected else theme.MUTED
        centre = left + theme.px(SIDE) // 2, top + theme.px(NAME_HEIGHT) // 2
        self.canvas.create_text(*centre, text=short, fill=theme.resolve(colour), font=theme.tk_font("small"))

    def _photo(self, file: Path) -> ImageTk.PhotoImage | None:
        if file in self._photos:
            self._photos.move_to_end(file)
            return self._photos[file]
        image = self._thumbnails.get(file)
        if image is None:
            return None
        side = theme.px(SIDE)
        if max(image.size) > side or theme.scale() > 1:
            scale = side / max(image.size) if max(image.size) >= SIDE else theme.scale()
            size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
            image = image.resize(size, Image.Resampling.BILINEAR)
        self._photos[file] = photo = ImageTk.PhotoImage(image, master=self)
        while len(self._photos) > _KEPT_PHOTOS:
            self._photos.popitem(last=False)
        return photo

    def _poll(self) -> None:
        """Draw finished thumbnails until no visible one is missing."""
        self._cancel_poll()
        self._thumbnails.poll(lambda _: None)
        missing = [self._images[n].file for n in self._visible() if self._images[n].file not in self._photos]
        missing = [file for file in missing if file not in self._broken]
        if any(self._thumbnails.is_done(file) for file in missing):
            self._broken.update(file for file in missing if self._thumbnails.is_broken(file))
            self.redraw()
        elif missing:
            self._poll_job = self.after(_POLL_MS, self._poll)

    def _cancel_poll(self) -> None:
        if self._poll_job:
            self.after_cancel(self._poll_job)
            self._poll_job = ""

    # Selection and scrolling

    def _scroll(self, *arguments: str) -> None:
        self.canvas.yview(*arguments)
        self.redraw()

    def _wheel(self, direction: int) -> None:
        self.canvas.yview_scroll(direction * 8, "units")
        self.redraw()

    def _click(self, event: tk.Event[tk.Canvas]) -> None:
        self.canvas.focus_set()
        width, height = self._cell()
        column = int(event.x - theme.px(GAP)) // width
        row = int(self.canvas.canvasy(event.y) - theme.px(GAP)) // height
        number = row * self._columns + column
        if 0 <= column < self._columns and 0 <= number < len(self._images):
            self._select(number)

    def _move(self, key: str) -> str:
        page = max(1, self.canvas.winfo_height() // self._cell()[1]) * self._columns
        last = len(self._images) - 1
        steps = {"Left": -1, "Right": 1, "Up": -self._columns, "Down": self._columns, "Prior": -page, "Next": page}
        target = {"Home": 0, "End": last}.get(key, self._index + steps.get(key, 0))
        if self._images:
            self._select(min(max(target, 0), last))
        return "break"

    def _select(self, number: int) -> None:
        self._index = number
        _, top = self._cell_origin(number)
        _, height = self._cell()
        total = max(1, -(-len(self._images) // self._columns) * height + theme.px(GAP))
        above, below = self.canvas.canvasy(0), self.canvas.canvasy(self.canvas.winfo_height())
        if top - theme.px(GAP) < above:
            self.canvas.yview_moveto((top - theme.px(GAP)) / total)
        elif top + height > below:
            self.canvas.yview_moveto((top + height - self.canvas.winfo_height()) / total)
        self.redraw()
        if self.selected_image is not None:
            self._selected(self.selected_image)


def frame_image(canvas: tk.Canvas, middle: tuple[int, int], image: ImageTk.PhotoImage) -> None:
    """A hairline around an image: a white one has no edge on a white card."""
    left, top = middle[0] - image.width() // 2, middle[1] - image.height() // 2
    right, bottom = left + image.width() - 1, top + image.height() - 1
    canvas.create_rectangle(left, top, right, bottom, outline=theme.resolve(theme.LINE), width=1)
