"""A row or column of buttons, of which those that do not fit are in a menu."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.widgets import theme
from app.widgets.button import Button
from app.widgets.popover import PopupMenu

Entry = tuple[str, Callable[[], object]]


class Overflow:
    """The buttons that are packed, in this order, and the words for each in the menu, if not its own; the
    last are hidden first.

    `also` are entries of the menu besides.
    """

    def __init__(
        self,
        parent: tk.Misc,
        words: Mapping[Button, str],
        bg: theme.Colour = theme.WINDOW,
        *,
        also: Callable[[], Sequence[Entry]] = lambda: (),
        height: int = theme.CONTROL_HEIGHT,
    ) -> None:
        self._words, self._also = dict(words), also
        self._packing: dict[Button, dict[str, Any]] = {button: {**button.pack_info()} for button in words}
        self._is_column = any(packing["side"] in ("top", "bottom") for packing in self._packing.values())
        self.more = Button(parent, icon="more", command=self._open, style="quiet", bg=bg, height=height, tooltip="More")

    @property
    def hidden(self) -> list[Button]:
        """The buttons that are in the menu."""
        return [button for button in self._words if not button.winfo_manager()]

    def fit(self, room: int, first: Button | None = None, *, menu: bool = False) -> int:
        """Show as many as fit in so many pixels, `first` before all others; returns the pixels that are used.

        `menu`: whether its button is shown even if all of them fit.
        """
        sizes = {button: self._size(button, packing) for button, packing in self._packing.items()}
        shown, used = list(sizes), sum(sizes.values())
        dots = self._size(self.more, next(iter(self._packing.values())))
        menu = menu or used > room
        if menu:
            shown, used = [], dots
            for button in sorted(sizes, key=lambda button: button is not first):  # the others in their order
                if used + sizes[button] > room:
                    break
                shown.append(button)
                used += sizes[button]
        hidden = [button for button in sizes if button not in shown]
        if menu == bool(self.more.winfo_manager()) and hidden == self.hidden:
            return used
        *_, last = self._packing
        if not self.more.winfo_manager():
            self.more.pack_configure(**{**self._packing[last], "expand": False, "after": last})
        for button, packing in self._packing.items():
            if button in hidden:
                button.pack_forget()
            else:
                button.pack_configure(**{**packing, "before": self.more})
        if not menu:
            self.more.pack_forget()
        return used

    def place_of(self, button: Button) -> Button:
        """The button itself, or that of the menu which it is in: where a menu of its own opens."""
        return button if button.winfo_manager() else self.more

    def repack(self, **packing: Any) -> None:
        """Pack them otherwise, in pixels."""
        for button, before in self._packing.items():
            before.update(packing)
            if button.winfo_manager():
                button.pack_configure(**packing)
        if self.more.winfo_manager():
            self.more.pack_configure(**packing)

    def _size(self, button: Button, packing: Mapping[str, Any]) -> int:
        """With what stays free at both sides."""
        beside = packing["pady" if self._is_column else "padx"]
        free = sum(beside) if isinstance(beside, tuple) else 2 * int(beside)
        return free + (button.winfo_reqheight() if self._is_column else button.winfo_reqwidth())

    def _open(self) -> None:
        menu = PopupMenu(self.more)
        for button in self.hidden:
            words, icon = self._words[button] or button.cget("text"), button.cget("icon")
            menu.add_command(words, button.invoke, button.cget("state"), icon=icon)
        menu.add_separator()
        for words, action in self._also():
            menu.add_command(words, action)
        menu.open_below(self.more)
