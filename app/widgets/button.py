"""A button: an image, an icon and a text on a canvas.

customtkinter's button takes ten times as long to create, and draws itself anew at each change and each size.
"""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from typing import Any, Final, Literal

from PIL import ImageTk

from app.widgets import icons, rounded_images, theme
from app.widgets.inputs.focus import handler, make_focusable
from app.widgets.padding import UnscaledPadding
from app.widgets.text_width import text_width
from app.widgets.tooltip import Tooltip
from modules.files import printable

Style = Literal["accent", "plain", "quiet", "danger"]

_ICON: Final = 18
_AROUND_ICON: Final = 1  # real pixels
_GAP: Final = 6  # between icon and text
_BESIDE_TEXT: Final = 9  # of a button without icon, at each side
_CURSOR: Final = {"win32": "hand2", "darwin": "pointinghand"}.get(sys.platform, "")

_STYLES: Final[dict[Style, dict[str, theme.Colour]]] = {
    "accent": {"fg_color": theme.ACCENT, "hover_color": theme.ACCENT_HOVER, "text_color": theme.ON_ACCENT},
    "plain": {"fg_color": theme.HOVER, "hover_color": theme.PRESSED, "text_color": theme.TEXT},
    "quiet": {"hover_color": theme.HOVER, "text_color": theme.TEXT},
    "danger": {"fg_color": theme.BAD_SOFT, "hover_color": theme.HOVER, "text_color": theme.BAD},
}
_HELD: Final[dict[Style, theme.Colour]] = {  # while the mouse button is down on it
    "accent": theme.ACCENT_PRESSED,
    "plain": theme.EDGE,
    "quiet": theme.PRESSED,
    "danger": theme.PRESSED,
}


class Button(UnscaledPadding, tk.Canvas):
    """A button with text, an icon or both; Space and Return press it. `bg` is the colour behind it.

    Sizes are in unscaled pixels; the text and the icon need at least their own width. `icon_color` is that of the text
    if it is None.
    """

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
        anchor: Literal["center", "w"] = "center",
        radius: int = theme.RADIUS,
    ) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0, cursor=_CURSOR)
        self._style = style
        self._radius = radius
        self._values: dict[str, Any] = {
            "text": text,
            "command": command,
            "icon": icon,
            "icon_color": None,
            "width": width or (height if not text else 64),
            "height": height,
            "anchor": anchor,
            "state": "normal",
            "bg_color": bg,
            "fg_color": bg,
            **_STYLES[style],
        }
        self._is_under_pointer = self._is_pressed = self._has_ring = False
        self._panel, self._icon = self.create_image(0, 0, anchor="nw"), self.create_image(0, 0, anchor="w")
        self._label = self.create_text(0, 0, anchor="w", font=theme.tk_font())
        self._photo: ImageTk.PhotoImage | None = None
        self._drawn_icon: tuple[object, ...] = ()
        self._drawn_size = self._requested_size = (0, 0)
        self._request_size()
        make_focusable(self, self._show_ring)
        for key in ("<space>", "<Return>", "<KP_Enter>"):
            self.bind(key, handler(self.invoke))
        self.bind("<Enter>", lambda event: self._point(True))
        self.bind("<Leave>", lambda event: self._point(False))
        self.bind("<Button-1>", lambda event: self._press(), add="+")
        self.bind("<ButtonRelease-1>", self._release)
        self.bind("<Configure>", lambda event: self._resized())
        theme.follow(self, "button", self.draw)
        if tooltip:
            Tooltip.attach(self, tooltip)

    def configure(self, **options: Any) -> None:  # type: ignore[override]
        """Set some of: text, command, icon, width, height, anchor, state ("normal" or "disabled") and the colours."""
        if unknown := options.keys() - self._values.keys():
            raise ValueError(f"A button has no {', '.join(sorted(unknown))}.")
        if all(self._values[name] == value for name, value in options.items()):
            return
        self._values |= options
        if "state" in options:
            is_enabled = options["state"] != "disabled"
            tk.Misc.configure(self, {"takefocus": int(is_enabled), "cursor": _CURSOR if is_enabled else ""})
        self._request_size()
        self.draw()

    def restyle(self, style: Style) -> None:
        """Give it another style, as the main action of the moment changes."""
        self._style = style
        self.configure(**{"fg_color": self._values["bg_color"], **_STYLES[style]})

    def cget(self, key: str) -> Any:
        """One of the options."""
        return self._values[key] if key in self._values else super().cget(key)

    def invoke(self) -> object:
        """Press it, unless it is disabled."""
        command = self._values["command"]
        return command() if command is not None and self._values["state"] != "disabled" else None

    def draw(self) -> None:
        """Redraw it."""
        options, is_enabled = self._values, self._values["state"] != "disabled"
        fill = options["hover_color"] if self._is_under_pointer and is_enabled else options["fg_color"]
        if self._is_pressed and fill != options["fg_color"]:
            fill = _HELD[self._style]
        if self._style == "accent" and not is_enabled:
            fill = theme.HOVER
        self._draw_panel(theme.resolve(fill), theme.resolve(options["bg_color"]))
        ink = options["text_color"] if is_enabled else theme.FAINT
        self._draw_icon((options["icon_color"] or ink) if is_enabled else ink)
        self.itemconfigure(self._label, text=printable(options["text"], mask=False), fill=theme.resolve(ink))
        self._arrange()

    def _draw_panel(self, fill: str, bg: str) -> None:
        self._drawn_size = width, height = self._size()
        tk.Misc.configure(self, {"bg": bg})
        if fill == bg and not self._has_ring:
            self.itemconfigure(self._panel, state="hidden")
            return
        self._shape = rounded_images.rounded(
            self,
            width,
            height,
            theme.px(self._radius),
            fill=fill,
            line=theme.resolve(theme.TEXT if self._style == "accent" else theme.ACCENT) if self._has_ring else fill,
            bg=bg,
            line_width=max(theme.px(2), 1),
        )
        self.itemconfigure(self._panel, image=self._shape, state="normal")

    def _draw_icon(self, colour: theme.Colour) -> None:
        wanted = (self._values["icon"], theme.resolve(colour))
        if wanted != self._drawn_icon:
            self._drawn_icon = wanted
            self._photo = icons.image(self._values["icon"], _ICON, colour) if self._values["icon"] else None
            self.itemconfigure(self._icon, image=self._photo or "")

    def _arrange(self) -> None:
        """Put icon and text side by side, in the middle or at the left."""
        width, height = self._drawn_size
        icon, gap, text = self._widths()
        left = theme.px(self._radius) if self._values["anchor"] == "w" else (width - icon - gap - text) // 2
        self.coords(self._icon, left + _AROUND_ICON, height // 2)
        self.coords(self._label, left + icon + gap + 1, height // 2)

    def _request_size(self) -> None:
        icon, gap, text = self._widths()
        side = theme.px(_BESIDE_TEXT if text and not icon else self._radius)
        least = 2 * side + icon + gap + text
        width, height = max(theme.px(self._values["width"]), least), theme.px(self._values["height"])
        if (width, height) != self._requested_size:
            self._requested_size = width, height
            tk.Misc.configure(self, {"width": width, "height": height})

    def _widths(self) -> tuple[int, int, int]:
        """Of the icon, of the gap, and of the text, in pixels."""
        icon = theme.px(_ICON) + 2 * _AROUND_ICON if self._values["icon"] else 0
        label = printable(self._values["text"], mask=False)
        text = text_width(self, label, theme.tk_font()) + 2 if label else 0
        return icon, theme.px(_GAP) if icon and text else 0, text

    def _size(self) -> tuple[int, int]:
        width, height = self.winfo_width(), self.winfo_height()
        return (width, height) if width > 1 else self._requested_size

    def _resized(self) -> None:
        if self._size() != self._drawn_size:
            self.draw()

    def _show_ring(self, shown: bool) -> None:
        self._has_ring = shown
        self.draw()

    def _point(self, inside: bool) -> None:
        self._is_under_pointer = inside
        self.draw()

    def _press(self) -> None:
        self._is_pressed = True
        self.draw()

    def _release(self, event: tk.Event[tk.Misc]) -> None:
        width, height = self._size()
        is_click = self._is_pressed and 0 <= event.x < width and 0 <= event.y < height
        self._is_pressed = False
        self.draw()
        if is_click:
            self.invoke()
