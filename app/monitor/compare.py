"""Several runs in one plot, and the settings in which they differ."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, cast

from app import look, texts
from app.controls import Menu, Segments, Slider, card, frame, text
from app.monitor.chart import Line
from app.monitor.curves import SPANS
from app.monitor.plot import Plot
from app.monitor.points import Axis, points_of
from app.monitor.run_list import differences, read_view
from app.run_view import RunView
from app.series import Curve
from app.state import AppState
from app.table import table
from modules.config import TrainConfig, find_option
from modules.run import RunFolder

MOST: Final = len(look.SERIES)
_REDRAW_S: Final = 0.5
FIGURES: Final[Mapping[str, str]] = {
    "loss": texts.CURVE_LOSS,
    "validation": texts.CURVE_VALIDATION,
    "lr": texts.CURVE_LR,
    "grad_norm": texts.CURVE_NORM,
    "samples_per_s": texts.CURVE_SPEED,
}


class Comparison(tk.Frame):
    """Reads each run in a thread when it is first wanted, and again when its file has grown."""

    def __init__(self, parent: tk.Misc, state: AppState) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        look.paint(self, bg=look.WINDOW)
        self._state = state
        self.paths: tuple[Path, ...] = ()
        self.figure, self.axis, self.span = "loss", "steps", 20.0
        self._curves: dict[Path, tuple[int, dict[str, Curve], float]] = {}
        self._reading: set[Path] = set()
        self._build()

    def show(self, paths: Sequence[Path]) -> None:
        """Compare these runs."""
        chosen = tuple(paths[:MOST])
        if chosen != self.paths:
            self.paths = chosen
            self._state.background.run(
                lambda: differences(list(chosen)), lambda rows: self._show_differences(chosen, rows)
            )
        self._read()
        self._redraw()

    def refresh(self) -> None:
        """Draw what is due, and read runs that have grown."""
        self._read()
        if self.plot.is_due and time.monotonic() - self.plot.drawn_at > _REDRAW_S:
            self.plot.draw()

    @property
    def is_complete(self) -> bool:
        """Whether every run has been read."""
        return all(path in self._curves for path in self.paths)

    def _build(self) -> None:
        bar = frame(self, look.WINDOW)
        bar.pack(fill="x", padx=look.px(6), pady=look.px(6))
        choose = Menu(bar, list(FIGURES), self._choose_figure, on=look.WINDOW, width=170, titles=dict(FIGURES))
        choose.show("loss")
        choose.pack(side="left", padx=(0, look.px(8)))
        axes = {texts.OVER_STEPS: "steps", texts.OVER_TIME: "time"}
        segments = Segments(bar, list(axes), lambda word: self._choose_axis(axes[word]))
        segments.set(texts.OVER_STEPS)
        segments.pack(side="left")
        text(bar, texts.SMOOTHING, "small", colour=look.MUTED, on=look.WINDOW).pack(
            side="left", padx=(look.px(18), look.px(8))
        )
        last = len(SPANS) - 1
        slider = Slider(bar, 0, last, last, self._smooth, on=look.WINDOW, width=110)
        slider.show(SPANS.index(20))
        slider.pack(side="left")
        body = frame(self, look.WINDOW)
        body.pack(fill="both", expand=True)
        body.columnconfigure(0, weight=3, uniform="halves")
        body.columnconfigure(1, weight=2, uniform="halves")
        body.rowconfigure(0, weight=1)
        left, right = card(body), card(body)
        left.grid(row=0, column=0, sticky="nsew", padx=6, pady=(0, 6))
        right.grid(row=0, column=1, sticky="nsew", padx=6, pady=(0, 6))
        self.plot = Plot(left, texts.COMPARISON, self._zoomed)
        self.plot.pack(fill="both", expand=True, padx=2, pady=2)
        self._table_room = frame(right)
        self._table_room.pack(fill="both", expand=True, padx=look.px(4), pady=look.px(4))

    def _show_differences(self, paths: tuple[Path, ...], rows: list[tuple[str, list[str]]]) -> None:
        if paths != self.paths:
            return
        for child in self._table_room.winfo_children():
            child.destroy()
        if not rows:
            text(self._table_room, texts.NO_DIFFERENCES, colour=look.FAINT).pack(expand=True)
            return
        room = max(300, self._table_room.winfo_width() / look.scale() - 20)
        wide = round((room - 140) / len(paths))
        columns = {"setting": (texts.SETTING, 140)}
        columns |= {f"run{place}": (path.name, max(70, wide)) for place, path in enumerate(paths)}
        self.differences = table(self._table_room, columns)
        for name, values in rows:
            option = find_option(TrainConfig, name)
            title = option.title if option is not None and "." not in name else name
            self.differences.insert("", "end", values=(title, *values))

    def _read(self) -> None:
        for path in self.paths:
            size = _size(path)
            known = self._curves.get(path)
            if path not in self._reading and (known is None or known[0] != size):
                self._reading.add(path)
                self._state.background.run(
                    lambda path=path: read_view(RunFolder(path)),  # type: ignore[misc]
                    lambda view, path=path, size=size: self._take(path, size, view),  # type: ignore[misc]
                )

    def _take(self, path: Path, size: int, view: RunView) -> None:
        self._reading.discard(path)
        curves = {name: series.curve() for name, series in {**view.figures, **view.measured}.items()}
        self._curves[path] = size, curves, view.first_time or 0.0
        if self.winfo_exists():
            self._redraw()

    def _redraw(self) -> None:
        lines = []
        for place, path in enumerate(self.paths):
            if path in self._curves:
                _, curves, origin = self._curves[path]
                curve = curves.get(self.figure)
                if curve is not None:
                    points = points_of(curve, cast(Axis, self.axis), origin)
                    lines.append(
                        Line(
                            path.name,
                            points,
                            look.SERIES[place],
                            dotted=self.figure == "validation",
                            smooth=self.figure == "lr",
                        )
                    )
        self.plot.show(lines, cast(Axis, self.axis), self.span, self.plot.wanted)

    def _choose_figure(self, name: str) -> None:
        self.figure = name
        self._redraw()

    def _choose_axis(self, axis: str) -> None:
        self.axis, self.plot.wanted = axis, None
        self._redraw()

    def _smooth(self, place: float) -> None:
        self.span = float(SPANS[round(place)])
        self._redraw()

    def _zoomed(self, wanted: tuple[float, float] | None) -> None:
        self.plot.wanted = wanted
        self._redraw()


def _size(path: Path) -> int:
    try:
        return RunFolder(path).events_file.stat().st_size
    except OSError:
        return 0
