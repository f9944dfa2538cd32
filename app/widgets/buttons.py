"""Themed buttons, labels, cards and menus; buttons take keyboard focus, which customtkinter's own do not."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from typing import Any, Literal

from app.toolkit import ctk
from app.widgets import icons, theme
from app.widgets.card import Card
from app.widgets.inputs import Box, Entry, Menu, Slider, Switch, TextBox, handler, make_focusable
from app.widgets.popover import PopupMenu

__all__ = [
    "Box",
    "Button",
    "Entry",
    "Menu",
    "PopupMenu",
    "Segments",
    "Slider",
    "Style",
    "Switch",
    "TextBox",
    "add_tooltip",
    "card",
    "frame",
    "handler",
    "popup_menu",
    "text",
    "wrap_within",
]

Style = Literal["accent", "plain", "quiet", "danger"]

_STYLES: dict[Style, dict[str, theme.Colour]] = {
    "accent": {"fg_color": theme.ACCENT, "hover_color": theme.ACCENT_HOVER, "text_color": theme.ON_ACCENT},
    "plain": {"fg_color": theme.HOVER, "hover_color": theme.PRESSED, "text_color": theme.TEXT},
    "quiet": {"hover_color": theme.HOVER, "text_color": theme.TEXT},
    "danger": {"fg_color": theme.BAD_SOFT, "hover_color": theme.PRESSED, "text_color": theme.BAD},
}


class Button(ctk.CTkButton):
    """A button with text, an icon or both; Space and Return press it. `bg` is the colour behind it."""

    _mouse_inside: bool

    def __init__(
        self,
        parent: tk.Misc,
        text: str = "",
        command: Callable[[], object] | None = None,
        *,
        icon: str = "",
        style: Style = "plain",
        bg: theme.Colour = theme.WINDOW,
        width: int = 0,
        height: int = theme.CONTROL_HEIGHT,
        tooltip: str = "",
        anchor: str = "center",
    ) -> None:
        colours: dict[str, Any] = {"fg_color": bg, **_STYLES[style]}
        image = icons.ctk_image(icon, 18, colours["text_color"]) if icon else None
        super().__init__(
            parent,
            width=width or (height if not text else 64),
            height=height,
            corner_radius=theme.RADIUS,
            bg_color=bg,
            text=text,
            image=image,
            command=command,
            font=theme.font(),
            anchor=anchor,
            text_color_disabled=theme.FAINT,
            border_spacing=4,
            border_width=0,
            border_color=theme.ACCENT,
            **colours,
        )
        self._icon = (icon, colours["text_color"])
        self._fill = colours["fg_color"] if style == "accent" else None
        make_focusable(self._canvas, lambda ring: self.configure(border_width=2 * ring))
        for key in ("<space>", "<Return>", "<KP_Enter>"):
            self._canvas.bind(key, handler(self.invoke))
        if tooltip:
            add_tooltip(self, tooltip)

    def configure(self, require_redraw: bool = False, **kwargs: Any) -> None:
        """Override: a disabled button gets a faint icon, no fill colour and no focus."""
        state = kwargs.get("state", self._state)
        name, colour = getattr(self, "_icon", ("", theme.TEXT))
        if state != self._state:
            self._canvas.configure(takefocus=int(state != "disabled"))
            if name:
                kwargs.setdefault("image", icons.ctk_image(name, 18, theme.FAINT if state == "disabled" else colour))
            if (fill := getattr(self, "_fill", None)) is not None:
                kwargs.setdefault("fg_color", theme.HOVER if state == "disabled" else fill)
        super().configure(require_redraw=require_redraw, **kwargs)

    def _on_leave(self, event: tk.Event[tk.Misc] | None = None) -> None:
        """Override: customtkinter calls it for a click, too, and then ignores clicks until its animation ends."""
        is_inside = self._mouse_inside and event is None
        super()._on_leave(event)
        self._mouse_inside = is_inside

    def focus_set(self) -> None:
        """Focus the button."""
        self._canvas.focus_set()

    def _apply_font_scaling(self, font: object) -> theme.Font:
        """Override: customtkinter accepts only its own font class, and draws normal weight as medium."""
        return theme.tk_font()


class Segments(ctk.CTkSegmentedButton):
    """A choice of two or three labels; Left and Right change it."""

    def __init__(
        self,
        parent: tk.Misc,
        values: Sequence[str],
        chosen: Callable[[str], object],
        *,
        bg: theme.Colour = theme.WINDOW,
    ) -> None:
        super().__init__(
            parent,
            values=list(values),
            command=chosen,
            height=theme.CONTROL_HEIGHT,
            corner_radius=theme.RADIUS,
            border_width=2,
            bg_color=bg,
            fg_color=theme.HOVER,
            selected_color=theme.SELECTED,
            selected_hover_color=theme.SELECTED,
            unselected_color=theme.HOVER,
            unselected_hover_color=theme.PRESSED,
            text_color=theme.TEXT,
            font=theme.font(),
        )
        for button in self._buttons_dict.values():
            button._apply_font_scaling = lambda font: theme.tk_font()
            button._text_label and button._text_label.configure(font=theme.tk_font())
        self._chosen = chosen
        self._names = list(values)
        for button in self._buttons_dict.values():
            self._take_focus(button)

    def _take_focus(self, button: ctk.CTkButton) -> None:
        canvas = button._canvas
        make_focusable(canvas, lambda ring: button.configure(border_width=2 * ring, border_color=theme.ACCENT))
        canvas.bind("<Left>", handler(lambda: self._step(-1)))
        canvas.bind("<Right>", handler(lambda: self._step(1)))
        for key in ("<space>", "<Return>"):
            canvas.bind(key, handler(button.invoke))

    def _step(self, by: int) -> None:
        place = self._names.index(self.get()) + by if self.get() in self._names else 0
        if 0 <= place < len(self._names):
            self.set(self._names[place])
            self._buttons_dict[self._names[place]]._canvas.focus_set()
            self._chosen(self._names[place])


def text(
    parent: tk.Misc,
    content: str = "",
    font: theme.FontName = "body",
    *,
    colour: theme.Colour = theme.TEXT,
    bg: theme.Colour = theme.CARD,
    wrap: int = 0,
) -> tk.Label:
    """A plain label; customtkinter's own takes thirty times as long to create."""
    widget = tk.Label(
        parent,
        text=content,
        font=theme.tk_font(font),
        anchor="w",
        justify="left",
        padx=0,
        pady=0,
        borderwidth=0,
        highlightthickness=0,
        wraplength=theme.px(wrap),
    )
    return theme.paint(widget, bg=bg, fg=colour)


def wrap_within(label: tk.Label, panel: tk.Misc, margin: int = 32) -> None:
    """Wrap the label's text to the width of the panel; `margin` in unscaled pixels."""
    tk.Misc.bind(
        panel, "<Configure>", lambda event: label.configure(wraplength=max(event.width - theme.px(margin), 80)), add="+"
    )


def frame(parent: tk.Misc, bg: theme.Colour = theme.CARD) -> tk.Frame:
    """A plain frame for layout."""
    return theme.paint(tk.Frame(parent, borderwidth=0, highlightthickness=0), bg=bg)


def card(parent: tk.Misc, bg: theme.Colour = theme.WINDOW) -> Card:
    """A rounded panel."""
    return Card(parent, bg_color=bg)


def popup_menu(parent: tk.Misc) -> PopupMenu:
    """An empty menu."""
    return PopupMenu(parent)


def add_tooltip(widget: tk.Misc, content: str | Callable[[], str]) -> None:
    """Show a tooltip while the pointer rests on the widget."""
    from app.widgets.tooltip import Tooltip

    Tooltip.attach(widget, content)
