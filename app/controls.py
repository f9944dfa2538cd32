"""Controls in the look of the window, all of them usable by keyboard: customtkinter's own take no focus."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Any, Literal

import customtkinter as ctk

from app import icons, look
from app.inputs import Box, Entry, Menu, Slider, Switch, TextBox, take_focus, then

__all__ = [
    "Box",
    "Button",
    "Entry",
    "Menu",
    "Segments",
    "Slider",
    "Style",
    "Switch",
    "TextBox",
    "add_hint",
    "card",
    "frame",
    "popup_menu",
    "text",
    "then",
    "wrap_within",
]

Style = Literal["accent", "plain", "quiet", "danger"]

_STYLES: dict[Style, dict[str, look.Colour]] = {
    "accent": {"fg_color": look.ACCENT, "hover_color": look.ACCENT_HOVER, "text_color": look.ON_ACCENT},
    "plain": {"fg_color": look.HOVER, "hover_color": look.PRESSED, "text_color": look.TEXT},
    "quiet": {"hover_color": look.HOVER, "text_color": look.TEXT},
    "danger": {"fg_color": look.BAD_SOFT, "hover_color": look.PRESSED, "text_color": look.BAD},
}


class Button(ctk.CTkButton):
    """A button with text, an icon or both; Space and Return press it. `on` is the colour of what lies behind it."""

    def __init__(
        self,
        parent: tk.Misc,
        text: str = "",
        command: Callable[[], object] | None = None,
        *,
        icon: str = "",
        style: Style = "plain",
        on: look.Colour = look.WINDOW,
        width: int = 0,
        height: int = look.CONTROL_HEIGHT,
        hint: str = "",
        anchor: str = "center",
    ) -> None:
        colours: dict[str, Any] = {"fg_color": on, **_STYLES[style]}
        picture = icons.ctk_image(icon, 18, colours["text_color"]) if icon else None
        super().__init__(
            parent,
            width=width or (height if not text else 64),
            height=height,
            corner_radius=look.RADIUS,
            bg_color=on,
            text=text,
            image=picture,
            command=command,
            font=look.font(),
            anchor=anchor,
            text_color_disabled=look.FAINT,
            border_spacing=4,
            border_width=0,
            border_color=look.ACCENT,
            **colours,
        )
        self._icon = (icon, colours["text_color"])
        self._fill = colours["fg_color"] if style == "accent" else None
        take_focus(self._canvas, lambda ring: self.configure(border_width=2 * ring))
        for key in ("<space>", "<Return>", "<KP_Enter>"):
            self._canvas.bind(key, then(self.invoke))
        if hint:
            add_hint(self, hint)

    def configure(self, require_redraw: bool = False, **kwargs: Any) -> None:
        """As ever; a disabled button's icon is as faint as its text, its colour is gone, and the focus passes it by."""
        state = kwargs.get("state", self._state)
        name, colour = getattr(self, "_icon", ("", look.TEXT))
        if state != self._state:
            self._canvas.configure(takefocus=int(state != "disabled"))
            if name:
                kwargs.setdefault("image", icons.ctk_image(name, 18, look.FAINT if state == "disabled" else colour))
            if (fill := getattr(self, "_fill", None)) is not None:
                kwargs.setdefault("fg_color", look.HOVER if state == "disabled" else fill)
        super().configure(require_redraw=require_redraw, **kwargs)

    def focus_set(self) -> None:
        """Give it the focus."""
        self._canvas.focus_set()

    def _apply_font_scaling(self, font: object) -> look.Font:
        """customtkinter knows no fonts but its own kind, and takes a medium weight for the normal one."""
        return look.tk_font()


class Segments(ctk.CTkSegmentedButton):
    """Two or three words of which one holds; Left and Right change it."""

    def __init__(
        self, parent: tk.Misc, values: Sequence[str], chosen: Callable[[str], object], *, on: look.Colour = look.WINDOW
    ) -> None:
        super().__init__(
            parent,
            values=list(values),
            command=chosen,
            height=look.CONTROL_HEIGHT,
            corner_radius=look.RADIUS,
            border_width=2,
            bg_color=on,
            fg_color=look.HOVER,
            selected_color=look.CHOSEN,
            selected_hover_color=look.CHOSEN,
            unselected_color=look.HOVER,
            unselected_hover_color=look.PRESSED,
            text_color=look.TEXT,
            font=look.font(),
        )
        for button in self._buttons_dict.values():
            button._apply_font_scaling = lambda font: look.tk_font()
            button._text_label and button._text_label.configure(font=look.tk_font())
        self._chosen = chosen
        self._names = list(values)
        for button in self._buttons_dict.values():
            self._take_focus(button)

    def _take_focus(self, button: ctk.CTkButton) -> None:
        canvas = button._canvas
        take_focus(canvas, lambda ring: button.configure(border_width=2 * ring, border_color=look.ACCENT))
        canvas.bind("<Left>", then(lambda: self._step(-1)))
        canvas.bind("<Right>", then(lambda: self._step(1)))
        for key in ("<space>", "<Return>"):
            canvas.bind(key, then(button.invoke))

    def _step(self, by: int) -> None:
        place = self._names.index(self.get()) + by if self.get() in self._names else 0
        if 0 <= place < len(self._names):
            self.set(self._names[place])
            self._buttons_dict[self._names[place]]._canvas.focus_set()
            self._chosen(self._names[place])


def text(
    parent: tk.Misc,
    words: str = "",
    font: look.FontName = "body",
    *,
    colour: look.Colour = look.TEXT,
    on: look.Colour = look.CARD,
    wrap: int = 0,
) -> tk.Label:
    """Plain words on a plain background: customtkinter's label costs thirty times as much."""
    widget = tk.Label(
        parent,
        text=words,
        font=look.tk_font(font),
        anchor="w",
        justify="left",
        padx=0,
        pady=0,
        borderwidth=0,
        highlightthickness=0,
        wraplength=look.px(wrap),
    )
    return look.paint(widget, bg=on, fg=colour)


def wrap_within(label: tk.Label, panel: tk.Misc, margin: int = 32) -> None:
    """Break the label's words where the panel ends, however wide it becomes; `margin` in unscaled pixels."""
    tk.Misc.bind(
        panel, "<Configure>", lambda event: label.configure(wraplength=max(event.width - look.px(margin), 80)), add="+"
    )


def frame(parent: tk.Misc, on: look.Colour = look.CARD) -> tk.Frame:
    """A plain rectangle to lay things out on."""
    return look.paint(tk.Frame(parent, borderwidth=0, highlightthickness=0), bg=on)


def card(parent: tk.Misc, on: look.Colour = look.WINDOW) -> ctk.CTkFrame:
    """A rounded panel."""
    return ctk.CTkFrame(
        parent, corner_radius=look.CARD_RADIUS, border_width=1, fg_color=look.CARD, border_color=look.LINE, bg_color=on
    )


def popup_menu(parent: tk.Misc) -> tk.Menu:
    """An empty menu in the look of the window."""
    menu = tk.Menu(parent, tearoff=False, relief="flat", borderwidth=1, activeborderwidth=0, font=look.tk_font())
    return look.paint(
        menu,
        bg=look.CARD,
        fg=look.TEXT,
        activebackground=look.ACCENT_SOFT,
        activeforeground=look.TEXT,
        disabledforeground=look.FAINT,
        selectcolor=look.ACCENT_TEXT,
    )


def add_hint(widget: tk.Misc, words: str | Callable[[], str]) -> None:
    """Words that come up where the pointer rests."""
    from app.hint import Hint

    Hint.attach(widget, words)
