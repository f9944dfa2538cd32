"""The proposals as a list of any length on one canvas, which draws only those in sight."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from app.annotate.row_drawing import DECISION, GAP, RowDrawing
from app.annotate.rows import Row
from app.images.thumbnails import Thumbnails
from app.widgets import theme
from app.widgets.buttons import TextBox
from app.widgets.later import later
from app.widgets.scrollbar import Scrollbar
from modules.annotation import Task

_HEADER: Final = 28  # unscaled pixels
_POLL_MS: Final = 40
_TITLES: Final[dict[Task, tuple[str, str]]] = {
    "caption": ("Present caption", "Proposed caption"),
    "tag": ("Present caption", "Proposed tags"),
    "mask": ("Present mask", "Proposed mask"),
}


class ReviewList(tk.Frame):
    """Enter accepts, Delete rejects, F2 or a double click edits; `changed` is called after each of them."""

    def __init__(self, parent: tk.Misc, changed: Callable[[], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.CARD)
        self._changed = changed
        self._all: Sequence[Row] = ()
        self._rows: Sequence[Row] = ()  # of these, those that are shown
        self.only_problems = False
        self.selected = 0
        self.is_enabled = True
        self.empty = ""  # shown while there is no proposal
        self._top = 0
        self._draw_job = self._poll_job = ""
        self.thumbnails = Thumbnails()
        self.header = theme.paint(
            tk.Canvas(self, height=theme.px(_HEADER), borderwidth=0, highlightthickness=0), bg=theme.CARD
        )
        self.header.pack(side="top", fill="x")
        self._bar = Scrollbar(self, self._scroll)
        self._bar.pack(side="right", fill="y")
        self.canvas = theme.paint(tk.Canvas(self, borderwidth=0, highlightthickness=0, takefocus=1), bg=theme.CARD)
        self.canvas.pack(side="left", fill="both", expand=True)
        self.drawing = RowDrawing(self.canvas, self.thumbnails)
        self.editor = TextBox(self.canvas, lambda text: None, height=10)
        self._place = self.canvas.create_window(0, 0, anchor="nw", window=self.editor, state="hidden")
        self._edited: Row | None = None
        self._listen()
        theme.follow(self.canvas, "rows", self._recolour)

    def show(self, rows: Sequence[Row], task: Task, ending: str) -> None:
        """Show these proposals from the top; more may be added to them, followed by `grow`.

        `ending` is that of the files with what the images have now.
        """
        self.close_editor(keep=False)
        self._all = self._rows = rows
        self.only_problems = False
        self.drawing.task, self.drawing.ending = task, ending
        self.selected = self._top = 0
        self.drawing.forget()
        self.draw()

    def grow(self) -> None:
        """Draw again, after proposals were added or changed."""
        if self.only_problems:
            self._rows = [row for row in self._all if row.problem]
            self.selected = max(0, min(self.selected, len(self._rows) - 1))
        self._schedule()

    def filter(self, only_problems: bool) -> None:
        """Show only the proposals with a problem, or all."""
        self.close_editor(keep=True)
        self.only_problems = only_problems
        self._rows = self._all
        self.selected = self._top = 0
        self.grow()

    def select(self, number: int) -> None:
        """Select a row and bring it into sight."""
        if not self._rows:
            return
        self.close_editor(keep=True)
        self.selected = min(max(number, 0), len(self._rows) - 1)
        above, height = self.selected * self.drawing.height, self.canvas.winfo_height()
        self._top = min(above, max(self._top, above + self.drawing.height - height))
        self._schedule()

    def decide(self, is_accepted: bool) -> None:
        """Accept or reject the selected proposal, and go to the next one."""
        if self.is_enabled and self._rows:
            self._rows[self.selected].is_accepted = is_accepted
            self.select(self.selected + 1)
            self._changed()

    def decide_all(self, is_accepted: bool) -> None:
        """Accept or reject all proposals that are shown."""
        for each in self._rows:
            each.is_accepted = is_accepted
        self._schedule()
        self._changed()

    def edit(self) -> None:
        """Edit the selected caption in its place."""
        if self.is_enabled and self._rows and self.drawing.task != "mask":
            self.select(self.selected)
            self._edited = self._rows[self.selected]
            self.editor.show(self._edited.text)
            self.draw()
            self.editor.focus_set()
            self.editor.text.mark_set("insert", "end")

    def close_editor(self, *, keep: bool) -> None:
        """End editing; the text is kept, and accepted, or dropped."""
        edited, self._edited = self._edited, None
        if edited is None:
            return
        self.canvas.itemconfigure(self._place, state="hidden")
        written = self.editor.get().strip()
        if keep and written != edited.text:
            edited.text, edited.is_accepted = written, bool(written)
            self._changed()
        self._schedule()

    def draw(self) -> None:
        """Draw the rows in sight."""
        canvas, height = self.canvas, self.drawing.height
        width, seen, total = canvas.winfo_width(), canvas.winfo_height(), len(self._rows) * height
        self._top = max(0, min(self._top, total - seen))
        self._bar.show(self._top / max(1, total), min(1.0, (self._top + seen) / max(1, total)))
        self.drawing.begin()
        has_focus = self.focus_get() is canvas
        first = self._top // height
        for number in reversed(range(first, min(len(self._rows), (self._top + seen) // height + 1))):
            # the lowest first: of the thumbnails, the latest request is served first
            top, is_selected = number * height - self._top, number == self.selected
            self.drawing.draw(self._rows[number], top, width, is_selected=is_selected, has_focus=has_focus)
        if not self._rows:
            self._draw_empty(width, seen)
        self._place_editor(width, height)
        self._draw_header()
        if not self.drawing.is_complete and not self._poll_job:
            self._poll_job = later(self, _POLL_MS, self._poll)

    def destroy(self) -> None:
        """End the threads of the thumbnails."""
        self.thumbnails.close()
        super().destroy()

    def _draw_empty(self, width: int, height: int) -> None:
        self.canvas.create_text(
            width // 2, height // 2, text=self.empty, width=max(1, width - theme.px(4 * GAP)), justify="center",
            fill=theme.resolve(theme.FAINT), font=theme.tk_font(), tags="row",
        )  # fmt: skip

    def _place_editor(self, width: int, height: int) -> None:
        if self._edited is None:
            return
        at, margin = self.drawing.columns(), theme.px(GAP / 4)
        left = at.proposed - theme.px(8)
        self.editor.configure(width=width - left - margin, height=height - 2 * margin)
        self.canvas.coords(self._place, left, self.selected * height - self._top + margin)
        self.canvas.itemconfigure(self._place, state="normal")

    def _draw_header(self) -> None:
        self.header.delete("all")
        at = self.drawing.columns()
        image = at.image + theme.px(GAP) // 2
        for x, title in zip((image, at.present, at.proposed), ("Image", *_TITLES[self.drawing.task]), strict=True):
            self.header.create_text(
                x, theme.px(_HEADER) // 2, anchor="w", text=title,
                fill=theme.resolve(theme.MUTED), font=theme.tk_font("small"),
            )  # fmt: skip
        bottom = theme.px(_HEADER) - 1
        self.header.create_line(0, bottom, self.winfo_width(), bottom, fill=theme.resolve(theme.LINE))

    def _schedule(self) -> None:
        if not self._draw_job:
            self._draw_job = later(self, 1, self._draw_scheduled)

    def _draw_scheduled(self) -> None:
        self._draw_job = ""
        self.draw()

    def _recolour(self) -> None:
        self.drawing.recolour()
        self.draw()

    def _poll(self) -> None:
        self._poll_job = ""
        done = list[Path]()
        self.thumbnails.poll(done.append)
        if done:
            self.draw()
        elif self.winfo_viewable():
            self._poll_job = later(self, _POLL_MS, self._poll)

    def _listen(self) -> None:
        canvas = self.canvas
        canvas.bind("<Configure>", lambda event: self.draw())
        for sequence in ("<FocusIn>", "<FocusOut>", "<Map>"):
            canvas.bind(sequence, lambda event: self._schedule(), add="+")
        canvas.bind("<Button-4>", lambda event: self._move_view(-1))
        canvas.bind("<Button-5>", lambda event: self._move_view(1))
        canvas.bind("<MouseWheel>", lambda event: self._move_view(-1 if event.delta > 0 else 1))
        canvas.bind("<Button-1>", lambda event: self._click(event.x, event.y))
        canvas.bind("<Double-Button-1>", lambda event: self._double_click(event.x, event.y))
        keys: dict[str, Callable[[], object]] = {
            "<Up>": lambda: self.select(self.selected - 1),
            "<Down>": lambda: self.select(self.selected + 1),
            "<Prior>": lambda: self.select(self.selected - self._page()),
            "<Next>": lambda: self.select(self.selected + self._page()),
            "<Home>": lambda: self.select(0),
            "<End>": lambda: self.select(len(self._rows) - 1),
            "<Return>": lambda: self.decide(True),
            "<KP_Enter>": lambda: self.decide(True),
            "<Delete>": lambda: self.decide(False),
            "<F2>": self.edit,
        }
        for key, action in keys.items():
            canvas.bind(key, lambda event, action=action: _stop(action))  # type: ignore[misc]
        box = self.editor.text
        box.bind("<Return>", lambda event: _stop(self._accept_edited))
        box.bind("<Escape>", lambda event: _stop(self._drop_edited))
        box.bind("<FocusOut>", lambda event: self.close_editor(keep=True), add="+")

    def _accept_edited(self) -> None:
        self.close_editor(keep=True)
        self.canvas.focus_set()
        self.decide(bool(self._rows[self.selected].text))

    def _drop_edited(self) -> None:
        self.close_editor(keep=False)
        self.canvas.focus_set()

    def _page(self) -> int:
        return max(1, self.canvas.winfo_height() // self.drawing.height)

    def _scroll(self, *arguments: str) -> None:
        total, seen = len(self._rows) * self.drawing.height, self.canvas.winfo_height()
        if arguments[0] == "moveto":
            self._top = round(float(arguments[1]) * total)
        else:
            self._top += int(arguments[1]) * (seen if arguments[2] == "pages" else self.drawing.height)
        self._schedule()

    def _move_view(self, steps: int) -> str:
        self._top += steps * theme.px(72)
        self._schedule()
        return "break"

    def _at(self, y: int) -> int | None:
        number = (y + self._top) // self.drawing.height
        return number if 0 <= number < len(self._rows) else None

    def _click(self, x: int, y: int) -> None:
        self.close_editor(keep=True)
        self.canvas.focus_set()
        number = self._at(y)
        if number is None:
            return
        self.select(number)
        if x < theme.px(DECISION) and self.is_enabled:
            self._rows[number].is_accepted ^= True
            self._changed()

    def _double_click(self, x: int, y: int) -> None:
        if self._at(y) is not None and x >= theme.px(DECISION):
            self.edit()


def _stop(action: Callable[[], object]) -> str:
    """Keep the event from the window's own keys."""
    action()
    return "break"
