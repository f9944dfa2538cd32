"""A themed table of any length; Tk draws only the visible rows."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Collection, Mapping
from tkinter import ttk
from typing import Any, Final, Literal

from app.widgets import theme
from app.widgets.ellipsis import Cut, fit
from app.widgets.scrollbar import Scrollbar
from app.widgets.text_width import text_width
from modules.files import visible

_STYLE = "Tandem.Treeview"
_END: Final = "end of the row"  # an empty column under the scrollbar, so that the header is as wide as the table
_END_WIDTH: Final = 14
# an icon stands before the title, where Tk has it at the end of the column
_HEADING: Final[Any] = [
    ("Treeheading.cell", {"sticky": "nswe"}),
    (
        "Treeheading.border",
        {
            "sticky": "nswe",
            "children": [
                (
                    "Treeheading.padding",
                    {
                        "sticky": "nswe",
                        "children": [
                            ("Treeheading.image", {"side": "left", "sticky": ""}),
                            ("Treeheading.text", {"sticky": "we"}),
                        ],
                    },
                )
            ],
        },
    ),
]
_PADDING: Final = 14  # unscaled pixels of a cell that its text cannot use
_TEXTS_FROM: Final = 150  # unscaled width of columns with texts of any length, which become narrower first


class Table(ttk.Treeview):
    """Texts that are too long for their column are shortened with an ellipsis; `item` and `values` have them whole.

    `columns` maps names to (title, width in unscaled pixels). They share the room in proportion, unless that cuts a
    text.
    """

    def __init__(
        self,
        parent: tk.Misc,
        columns: Mapping[str, tuple[str, int]],
        numbers: Collection[str],
        *,
        names: Collection[str],
        stretch: bool,
    ) -> None:
        super().__init__(parent, columns=[*columns, _END], show="headings", style=_STYLE, selectmode="browse")
        self._names = list(columns)
        self._cuts: dict[str, Cut] = {name: "middle" if name in names else "end" for name in columns}
        self._widths = {name: width for name, (_, width) in columns.items()}
        self._wanted = dict(self._widths)  # of the columns that are shown
        self._stretch = stretch
        font = theme.tk_font("strong")
        # of each column what its title needs, and what its widest text yet does: a row that changes moves no columns
        self._least = {
            name: text_width(self, title, font) + theme.px(_PADDING + 6) for name, (title, _) in columns.items()
        }
        self._needed = dict(self._least)
        self._whole: dict[str, tuple[str, ...]] = {}
        self._job = ""
        self._message: tk.Label | None = None
        for name, (title, width) in columns.items():
            anchor: Literal["e", "w"] = "e" if name in numbers else "w"
            self.heading(name, text=visible(title), anchor=anchor)  # ttk has functions of its own for this
            least = theme.px(min(width, 60))
            self.column(name, width=theme.px(width), minwidth=least, stretch=False, anchor=anchor)
        self.column(_END, width=theme.px(_END_WIDTH), minwidth=theme.px(_END_WIDTH), stretch=False)
        self.bind("<Configure>", lambda event: self._resized(), add="+")

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

    @property
    def is_narrow(self) -> bool:
        """Whether it has less room than its columns ask for, whatever is in them."""
        return 1 < self.winfo_width() < theme.px(sum(self._widths.values()) + _END_WIDTH)

    def show_columns(self, names: Collection[str]) -> None:
        """Show these columns only; they share the room."""
        if set(names) == set(self._wanted):
            return
        self._wanted = {name: self._widths[name] for name in self._names if name in names}
        self._resized()  # first, because Tk asks for the widths that it finds
        self.configure(displaycolumns=[*self._wanted, _END])

    def widen_heading(self, name: str, width: int) -> None:
        """Let a column be this much wider than its title needs, for an icon; in pixels."""
        self._least[name] += width
        self._needed[name] = max(self._needed[name], self._least[name])
        self._resized()

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
        step = max(theme.px(8), 1)
        seen = {self.identify_row(y) for y in range(0, self.winfo_height(), step)} - {""}
        before = dict(self._needed)
        for item in seen:
            for name, text in zip(self._names, self._whole.get(item, ()), strict=False):
                needed = text_width(self, " ".join(text.split()), font) + theme.px(_PADDING) + 1
                self._needed[name] = max(self._needed[name], needed)
        if self._needed != before:
            self._fit_columns()
        room = [int(self.column(name, "width")) - theme.px(_PADDING) for name in self._names]
        for item in seen:
            whole = self._whole.get(item, ())
            fitted = tuple(
                fit(self, text, font, width, cut=self._cuts[name])
                for name, text, width in zip(self._names, whole, room, strict=False)
            )
            if fitted != tuple(map(str, super().item(item, "values"))):
                super().item(item, values=fitted)

    def _resized(self) -> None:
        self._fit_columns()
        self.schedule()

    def _fit_columns(self) -> None:
        """Resize all columns; Tk itself would keep their widths and cut off the last."""
        if self.winfo_width() <= 1:
            return  # not shown yet
        widths = self._filled(self._shares(self.winfo_width() - theme.px(_END_WIDTH)))
        for name, width in widths.items():
            self.column(name, width=width)
        self.column(_END, width=max(self.winfo_width() - sum(widths.values()), theme.px(_END_WIDTH)))

    def _shares(self, room: int) -> dict[str, int]:
        """The widths of the columns, whatever is in them."""
        total, least = sum(self._wanted.values()), self._least
        if not self._stretch:
            room = min(room, theme.px(total))
        widths = {name: max(room * width // total, least[name]) for name, width in self._wanted.items()}
        fixed = {name: theme.px(width) for name, width in self._wanted.items() if width < _TEXTS_FROM}
        texts = {name: width for name, width in self._wanted.items() if name not in fixed}
        left = room - sum(fixed.values())
        if room < theme.px(total) and texts and left >= sum(least[name] for name in texts):
            share = sum(texts.values())
            widths = fixed | {name: max(left * width // share, least[name]) for name, width in texts.items()}
        widest = max(widths, key=lambda name: widths[name])
        widths[widest] = max(widths[widest] - max(sum(widths.values()) - room, 0), least[widest])
        return widths

    def _filled(self, widths: dict[str, int]) -> dict[str, int]:
        """These widths if no text is cut; else each column has what its texts need, and the longest texts, which are
        cut, share the rest."""
        needed, left = {name: self._needed[name] for name in widths}, sum(widths.values())
        if all(needed[name] <= width for name, width in widths.items()):
            return widths
        free, total = left - sum(needed.values()), sum(self._wanted.values())
        if free >= 0:
            return {name: needed[name] + free * width // total for name, width in self._wanted.items()}
        filled: dict[str, int] = {}
        for name in sorted(needed, key=lambda each: needed[each]):
            share = left // (len(needed) - len(filled))
            filled[name] = max(min(needed[name], share), self._least[name])
            left -= filled[name]
        return filled


def table(
    parent: tk.Misc,
    columns: Mapping[str, tuple[str, int]],
    numbers: Collection[str] = (),
    *,
    names: Collection[str] = (),
    stretch: bool = True,
) -> Table:
    """A table that fills `parent`, with a scrollbar; `columns` as of `Table`.

    None is narrower than its title; unless they `stretch`, what they do not need stays free. Those of `numbers` are
    aligned at the right, those of `names` shortened in the middle, because names often differ at their ends.
    """
    restyle(parent)  # the style must exist before its first table
    tree = Table(parent, columns, numbers, names=names, stretch=stretch)
    theme.follow(tree, "style", lambda: restyle(tree))

    bar = Scrollbar(parent, tree.yview)

    def scrolled(first: float, last: float) -> None:
        bar.show(first, last)
        is_needed = float(first) > 0 or float(last) < 1
        if is_needed and not bar.winfo_manager():
            bar.place(in_=tree, relx=1.0, rely=1.0, anchor="se", relheight=1.0)
        elif not is_needed and bar.winfo_manager():
            bar.place_forget()
        tree.schedule()

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
    style.layout(f"{_STYLE}.Heading", _HEADING)
