"""Padding in unscaled pixels, as customtkinter's widgets take it."""

from __future__ import annotations

import tkinter as tk
from typing import Any, Final

from app.widgets import theme

_SCALED: Final = ("padx", "pady", "x", "y")


class UnscaledPadding(tk.Widget):
    """`pack`, `grid` and `place` scale distances; `pack_configure` and its like take pixels."""

    def pack(self, **options: Any) -> None:  # type: ignore[override]
        super().pack(**_scaled(options))

    def grid(self, **options: Any) -> None:  # type: ignore[override]
        super().grid(**_scaled(options))

    def place(self, **options: Any) -> None:  # type: ignore[override]
        super().place(**_scaled(options))


def _scaled(options: dict[str, Any]) -> dict[str, Any]:
    for name in options.keys() & _SCALED:
        value = options[name]
        options[name] = tuple(map(theme.px, value)) if isinstance(value, tuple) else theme.px(value)
    return options
