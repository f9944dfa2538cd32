"""A themed table of any length; Tk draws only the visible rows."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Collection, Mapping
from tkinter import ttk
from typing import Any, Final, Literal

from app.widgets import theme
from app.widgets.ellipsis import fit
from app.widgets.scrollbar import Scrollbar
from app.widgets.text_width import text_width

_STYLE = "Tandem.Treeview"
_END: Final = "end of the row"  # an empty column under the scrollbar, so that the header is as wide as the table
_END_WIDTH: Final = 14
_PADDING: Final = 14  # unscaled pixels of a cell that its text cannot use
_TEXTS_FROM: Final = 150  # unscaled width of columns with texts of any length, which become narrower first


class Table(ttk.Treeview):
    """Texts that are too long for their column end in an ellipsis; `item` and `values` have them whole."""

    def __init__(self, parent: tk.Misc, columns: Mapping[str, tuple[str, int]], numbers: Collection[str]) -> None:
        super().__init__(parent, columns=[*columns, _END], show="headings", style=_STYLE, selectmode="browse")
        self._names = list(columns)
        self._whole: dict[str, tuple[str, ...]] = {}
        self._job = ""
        self._message: tk.Label | None = None
        for name, (title, width) in columns.items():
            anchor: Literal["e", "w"] = "e" if name in numbers else "w"
            self.heading(name, text=title, anchor=anchor)
            least = theme.px(min(width, 60))
            self.column(name, width=theme.px(width), minwidth=least, stretch=True, anchor=anchor)
        self.column(_END, width=theme.px(_END_WIDTH), minwidth=theme.px(_END_WIDTH), stretch=False)

    def insert(self, parent: str, index: Any, iid: Any = None, **options: Any) -> str:
        made = super().insert(parent, index, iid, **options)
        self._keep(made, options)
        return made

    def item(self, item: Any, option: Any = None, **options: Any) -> Any:
        if option == "values" and str(item) in self._whole:
            return self._whole[str(item)]
        found = super().item(item, option, **options)
        self._keep(str(item), options)
        if option is None and not options and str(item) in self._whole:
            found["values"] = list(self._whole[str(item)])
        return found

    def delete(self, *items: Any) -> None:
        super().delete(*items)
        for item in items:
            self._whole.pop(str(item), None)

    def say(self, message: str) -> None:
        """Show a message in the middle of the empty table; none if it is empty."""
        if self._message is None and message:
            self._message = tk.Label(self, font=theme.tk_font(), borderwidth=0, justify="center")
            theme.paint(self._message, bg=theme.CARD, fg=theme.FAINT)
        if self._message is not None and message:
            self._message.configure(text=message, wraplength=max(self.winfo_width() - theme.px(60), theme.px(200)))
            self._message.place(relx=0.5, rely=0.45, anchor="center")
        elif self._message is not None:
            self._message.configure(text="")
            self._message.place_forget()

    def schedule(self) -> None:
        """Shorten what is in sight, once everything else is done."""
        if not self._job:
            self._job = self.after_idle(self._shorten)

    def _keep(self, item: str, options: Mapping[str, Any]) -> None:
        if "values" in options:
            self._whole[item] = tuple(map(str, options["values"]))
            self.schedule()

    def _shorten(self) -> None:
        """Write the cells in sight as they fit; the others are when they come into sight."""
        self._job = ""
        font = theme.tk_font("body")
        room = [int(self.column(name, "width")) - theme.px(_PADDING) for name in self._names]
        step = max(theme.px(8), 1)
        seen = {self.identify_row(y) for y in range(0, self.winfo_height(), step)} - {""}
        for item in seen:
            whole = self._whole.get(item, ())
            fitted = tuple(fit(self, text, font, width) for text, width in zip(whole, room, strict=False))
            if fitted != tuple(map(str, super().item(item, "values"))):
                super().item(item, values=fitted)


def table(
    parent: tk.Misc, columns: Mapping[str, tuple[str, int]], numbers: Collection[str] = (), *, stretch: bool = True
) -> Table:
    """A table that fills `parent`, with a scrollbar; `columns` maps names to (title, width in unscaled pixels).

    The columns share the available width in proportion, but none is narrower than its title; unless they `stretch`,
    what they do not need stays free. Those of `numbers` are aligned at the right.
    """
    restyle(parent)  # the style must exist before its first table
    tree = Table(parent, columns, numbers)
    theme.follow(tree, "style", lambda: restyle(tree))
    total, previous = sum(width for _, width in columns.values()), 0
    font = theme.tk_font("strong")
    titles = {name: text_width(tree, title, font) for name, (title, _) in columns.items()}

    def fit_columns(event: tk.Event[tk.Misc]) -> None:
        """Resize all columns; Tk itself would keep their widths and cut off the last."""
        nonlocal previous
        if event.width != previous:
            previous = event.width
            room = event.width - theme.px(_END_WIDTH)
            if not stretch:
                room = min(room, theme.px(total))
            least = {name: width + theme.px(_PADDING + 6) for name, width in titles.items()}
            widths = {name: max(room * width // total, least[name]) for name, (_, width) in columns.items()}
            fixed = {name: theme.px(width) for name, (_, width) in columns.items() if width < _TEXTS_FROM}
            texts = {name: width for name, (_, width) in columns.items() if name not in fixed}
            left = room - sum(fixed.values())
            if room < theme.px(total) and texts and left >= sum(least[name] for name in texts):
                share = sum(texts.values())
                widths = fixed | {name: max(left * width // share, least[name]) for name, width in texts.items()}
            widest = max(widths, key=lambda name: widths[name])
            widths[widest] = max(widths[widest] - max(sum(widths.values()) - room, 0), least[widest])
            for name, width in widths.items():
                tree.column(name, width=width)
            tree.column(_END, width=max(event.width - sum(widths.values()), theme.px(_END_WIDTH)))
        tree.schedule()

    bar = Scrollbar(parent, tree.yview)

    def scrolled(first: float, last: float) -> None:
        bar.show(first, last)
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed and not bar.winfo_manager():
            bar.place(in_=tree, relx=1.0, rely=1.0, anchor="se", relheight=1.0)
        elif not is_needed and bar.winfo_manager():
            bar.place_forget()
        tree.schedule()

    tree.bind("<Configure>", fit_columns, add="+")
    tree.configure(yscrollcommand=scrolled)
    tree.pack(fill="both", expand=True)
    return tree


def restyle(widget: tk.Misc) -> None:
    """Apply the current colours, fonts and row height to all tables."""
    style = ttk.Style(widget)
    style.configure(
        _STYLE,
        background=theme.resolve(theme.CARD),
        fieldbackground=theme.resolve(theme.CARD),
        foreground=theme.resolve(theme.TEXT),
        font=theme.tk_font("body"),
        rowheight=theme.px(28),
        borderwidth=0,
        relief="flat",
    )
    style.map(
        _STYLE,
        background=[("selected", theme.resolve(theme.ACCENT_SOFT))],
        foreground=[("selected", theme.resolve(theme.TEXT))],
    )
    heading = theme.px(6)
    # Tk adds 4 pixels to a cell and 1 to a heading: texts of both begin at the same place
    style.configure(f"{_STYLE}.Cell", padding=(heading - 3, 0))
    style.configure(
        f"{_STYLE}.Heading",
        background=theme.resolve(theme.HOVER),
        foreground=theme.resolve(theme.MUTED),
        font=theme.tk_font("strong"),
        relief="flat",
        padding=heading,
    )
    style.map(f"{_STYLE}.Heading", background=[("active", theme.resolve(theme.PRESSED))])
    style.layout(_STYLE, [("Treeview.treearea", {"sticky": "nswe"})])
