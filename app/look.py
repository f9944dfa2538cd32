"""The look of the window: colours, fonts, spacings and scale; nobody else names a colour or a size."""

from __future__ import annotations

import sys
import tkinter as tk
from collections.abc import Callable
from typing import Final, Literal, TypeVar

import customtkinter as ctk

W = TypeVar("W", bound=tk.Misc)
Mode = Literal["system", "light", "dark"]
Font = str | tuple[str, int, str]
Colour = tuple[str, str]  # in light mode, in dark mode; customtkinter takes such pairs as they are

WINDOW: Final = ("#F3F4F7", "#15171C")
SIDEBAR: Final = ("#E9EBF0", "#101216")
CARD: Final = ("#FFFFFF", "#1D2026")
LINE: Final = ("#E0E3E9", "#2C3038")
FIELD: Final = ("#FAFBFC", "#15171C")
FIELD_LINE: Final = ("#C3C9D3", "#434955")
HOVER: Final = ("#E4E7ED", "#282C34")
PRESSED: Final = ("#D8DCE4", "#30353F")
TEXT: Final = ("#1A1E26", "#E9EBEF")
MUTED: Final = ("#586172", "#9DA5B4")
FAINT: Final = ("#979FAD", "#626A78")
ACCENT: Final = ("#3D5FE0", "#4C6AE9")
ACCENT_HOVER: Final = ("#3350C8", "#4560DB")
ACCENT_TEXT: Final = ("#3453D1", "#93A9FF")
ACCENT_SOFT: Final = ("#DFE6FC", "#252C47")
ON_ACCENT: Final = ("#FFFFFF", "#FFFFFF")
BAD: Final = ("#C42B2B", "#FF8B85")
BAD_SOFT: Final = ("#FBE4E4", "#43242A")
WARN: Final = ("#8F5F00", "#EDBB4D")
WARN_SOFT: Final = ("#FFF1D0", "#3B3120")
GOOD: Final = ("#157347", "#5CCB8D")
TROUGH: Final = ("#D3D8E1", "#3A404B")
CHOSEN: Final = ("#FFFFFF", "#434A58")  # the word of several that holds
KNOB: Final = ("#FFFFFF", "#FFFFFF")
TOOLTIP: Final = ("#262B36", "#3A404C")
ON_TOOLTIP: Final = ("#F4F5F7", "#F4F5F7")

# Categories of a plot, told apart also by people who do not see red and green alike (after Okabe and Ito).
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

UNIT: Final = 8  # the rhythm: every gap is a multiple or half of it
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
    """The typeface; Roboto comes with customtkinter, and where a face is missing Tk takes the system's own."""
    if mono:
        return {"win32": "Consolas", "darwin": "Menlo"}.get(sys.platform, "DejaVu Sans Mono")
    return {"win32": "Segoe UI", "darwin": "SF Pro Text"}.get(sys.platform, "Roboto")


def font(name: FontName = "body") -> tuple[str, int, str]:
    """A font for a customtkinter control, which scales it by itself."""
    return family(name == "mono"), _SIZES[name], "bold" if name in _BOLD else "normal"


def tk_font(name: FontName = "body") -> Font:
    """A font for a plain tk widget, in pixels at the present scale."""
    face, size, weight = font(name)
    if face != "Roboto" or not _has_roboto():
        return face if face != "Roboto" else "DejaVu Sans", -px(size), weight
    # Tk on X11 asks for a medium weight where it is told normal; only this old way of naming fonts says what is meant.
    return f"-*-roboto-{'medium' if weight == 'bold' else 'light'}-r-normal-*-{px(size)}-*-*-*-*-*-*-*"


def _has_roboto() -> bool:
    """Whether customtkinter could install it; asked once for each Tk."""
    root = tk._get_default_root("ask for fonts")  # type: ignore[attr-defined]
    if not hasattr(root, "has_roboto"):
        root.has_roboto = "Roboto" in root.tk.splitlist(root.tk.call("font", "families"))
    return bool(root.has_roboto)


def scale() -> float:
    """1.0 at 100 %."""
    return float(ctk.ScalingTracker.widget_scaling)


def set_scale(percent: int) -> None:
    """Takes effect for widgets that are built afterwards."""
    ctk.set_widget_scaling(percent / 100)


def px(size: float) -> int:
    """A length in pixels at the present scale, for plain tk widgets."""
    return round(size * scale())


def is_dark() -> bool:
    """Whether dark colours are in use now."""
    return bool(ctk.get_appearance_mode() == "Dark")


def set_dark(dark: bool) -> None:
    """Recolour everything: customtkinter's controls by themselves, and whatever follows."""
    ctk.set_appearance_mode("dark" if dark else "light")
    for widget in list(_followers):
        _recolour(widget)


def now(colour: Colour) -> str:
    """The colour in the present mode."""
    return colour[is_dark()]


def paint(widget: W, **colours: Colour) -> W:
    """Give a plain tk widget colours by its own option names (bg=CARD, fg=TEXT); it follows the mode from now on."""
    # not widget.configure, which customtkinter replaces in the parents of its controls
    follow(widget, "|".join(colours), lambda: tk.Misc.configure(widget, {n: now(c) for n, c in colours.items()}))
    return widget


def follow(widget: tk.Misc, name: str, recolour: Callable[[], object]) -> None:
    """Call back now and at every change of the mode, as long as the widget lives; the name replaces a former one."""
    if widget not in _followers:
        _followers[widget] = {}
        widget.bind("<Destroy>", lambda event: _followers.pop(event.widget, None), add="+")
    _followers[widget][name] = recolour
    recolour()


_followers: dict[tk.Misc, dict[str, Callable[[], object]]] = {}


def _recolour(widget: tk.Misc) -> None:
    for recolour in _followers.get(widget, {}).values():
        recolour()
