"""The theme: colours, fonts, spacing and scale. No other module defines a colour or a font size."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable, Collection
from typing import Final, Literal, TypeVar

from app.toolkit import ctk

W = TypeVar("W", bound=tk.Misc)
Mode = Literal["system", "light", "dark"]
Font = str | tuple[str, int, str]
Colour = tuple[str, str]  # (light, dark); customtkinter accepts such pairs

WINDOW: Final = ("#F3F4F7", "#15171C")
SIDEBAR: Final = ("#E9EBF0", "#101216")
CARD: Final = ("#FFFFFF", "#1D2026")
LINE: Final = ("#E0E3E9", "#2C3038")
FIELD: Final = ("#FAFBFC", "#15171C")
FIELD_LINE: Final = ("#7B8391", "#717988")
HOVER: Final = ("#E4E7ED", "#282C34")
PRESSED: Final = ("#D8DCE4", "#30353F")
TEXT: Final = ("#1A1E26", "#E9EBEF")
MUTED: Final = ("#505969", "#A3ABBA")
FAINT: Final = ("#606774", "#8D96A4")
ACCENT: Final = ("#3D5FE0", "#4E6CE9")
ACCENT_HOVER: Final = ("#3350C8", "#4560DB")
ACCENT_PRESSED: Final = ("#2A44B0", "#3A53C6")
ACCENT_TEXT: Final = ("#3453D1", "#93A9FF")
ACCENT_SOFT: Final = ("#DFE6FC", "#252C47")
ON_ACCENT: Final = ("#FFFFFF", "#FFFFFF")
BAD: Final = ("#B62626", "#FF8B85")
BAD_SOFT: Final = ("#FBE4E4", "#43242A")
WARN: Final = ("#8B5C00", "#EDBB4D")
WARN_SOFT: Final = ("#FFF1D0", "#3B3120")
GOOD: Final = ("#157347", "#5CCB8D")
TROUGH: Final = ("#D3D8E1", "#3A404B")
SWITCH_OFF: Final = ("#7B8391", "#717988")
EDGE: Final = ("#C3C9D3", "#434955")  # of windows, popovers and lists
SELECTED: Final = ("#FFFFFF", "#434A58")  # the selected segment
KNOB: Final = ("#FFFFFF", "#FFFFFF")
TOOLTIP: Final = ("#262B36", "#3A404C")
ON_TOOLTIP: Final = ("#F4F5F7", "#F4F5F7")

# Line colours of plots, distinguishable with red-green colour blindness (after Okabe and Ito).
SERIES: Final = (
    ("#3D5FE0", "#7C96FF"),
    ("#D55E00", "#F08A3C"),
    ("#00805F", "#3CC79E"),
    ("#A3478C", "#DD8CC6"),
    ("#8F6B00", "#E3C04A"),
    ("#0077A8", "#56B4E9"),
    ("#6B6B6B", "#B5B5B5"),
    ("#B02A37", "#FF8B95"),
)

UNIT: Final = 8  # gaps are multiples or halves of it
RADIUS: Final = 6
CARD_RADIUS: Final = 10
CONTROL_HEIGHT: Final = 30

SCALES: Final = (100, 110, 125, 150, 175, 200)

_SIZES: Final = {
    "small": 12,
    "body": 13,
    "strong": 13,
    "heading": 14,
    "title": 22,
    "brand": 17,
    "mono": 12,
    "large": 16,
}
_BOLD: Final = {"strong", "heading", "title", "brand", "large"}

FontName = Literal["small", "body", "strong", "heading", "title", "brand", "mono", "large"]


def family(mono: bool = False) -> str:
    """The font family; Roboto comes with customtkinter, and Tk replaces a missing family by its default."""
    if mono:
        return {"win32": "Consolas", "darwin": "Menlo"}.get(sys.platform, "DejaVu Sans Mono")
    return {"win32": "Segoe UI", "darwin": "SF Pro Text"}.get(sys.platform, "Roboto")


def font(name: FontName = "body") -> tuple[str, int, str]:
    """A font for a customtkinter widget, which scales it itself."""
    return family(name == "mono"), _SIZES[name], "bold" if name in _BOLD else "normal"


def tk_font(name: FontName = "body") -> Font:
    """A font for a plain tk widget, in pixels at the current scale."""
    face, size, weight = font(name)
    if face != "Roboto" or not _has_roboto():
        return face if face != "Roboto" else "DejaVu Sans", -px(size), weight
    # Tk on X11 draws normal weight as medium; only an X logical font description selects the right one.
    return f"-*-roboto-{'medium' if weight == 'bold' else 'light'}-r-normal-*-{px(size)}-*-*-*-*-*-*-*"


def _has_roboto() -> bool:
    """Whether customtkinter could install Roboto; checked once per Tk root."""
    root = tk._get_default_root("query fonts")  # type: ignore[attr-defined]
    if not hasattr(root, "has_roboto"):
        root.has_roboto = "Roboto" in root.tk.splitlist(root.tk.call("font", "families"))
    return bool(root.has_roboto)


def scale() -> float:
    """The scale factor, 1.0 at 100 %."""
    return float(ctk.ScalingTracker.widget_scaling)


def set_scale(percent: int) -> None:
    """Set the scale for widgets that are built afterwards."""
    ctk.set_widget_scaling(percent / 100)


def px(size: float) -> int:
    """Unscaled pixels as pixels at the current scale, for plain tk widgets."""
    return round(size * scale())


def is_dark() -> bool:
    """Whether the dark theme is active."""
    return bool(ctk.get_appearance_mode() == "Dark")


def set_dark(dark: bool) -> None:
    """Switch the theme; `recolour` is to be called for what exists."""
    ctk.set_appearance_mode("dark" if dark else "light")


def recolour(widget: tk.Misc, but: Collection[tk.Misc] = ()) -> None:
    """Give the widget and all inside, without those in `but`, the colours of the current theme."""
    for draw in widget.__dict__.get(_FOLLOWS, {}).values():
        draw()
    for child in list(widget.children.values()):
        if child not in but:
            recolour(child, but)


def resolve(colour: Colour) -> str:
    """The colour in the current theme."""
    return colour[is_dark()]


def paint(widget: W, **colours: Colour) -> W:
    """Set colour options of a plain tk widget (bg=CARD, fg=TEXT); they follow the theme from now on."""
    # not widget.configure, which customtkinter overrides in the parents of its widgets
    follow(widget, "|".join(colours), lambda: tk.Misc.configure(widget, {n: resolve(c) for n, c in colours.items()}))
    return widget


def follow(widget: tk.Misc, name: str, draw: Callable[[], object]) -> None:
    """Call `draw` now and at every theme change while the widget exists; `name` replaces an earlier callback."""
    widget.__dict__.setdefault(_FOLLOWS, {})[name] = draw
    draw()


_FOLLOWS: Final = "follows_theme_"  # attribute of a widget: what is to be called, by name
