"""The page of curves: loss large, learning rate, gradient norm and speed below, all over the same range."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, cast

from app import look, texts
from app.controls import Segments, Slider, Switch, card, frame, text
from app.monitor.chart import Line, number_words
from app.monitor.page import Page
from app.monitor.plot import Plot, Range
from app.monitor.points import Axis, Points, points_of
from app.monitor.toolbar import RunTools
from app.run_view import RunView

REDRAW_S: Final = 0.5
SPANS: Final = (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_FIRST_SPAN: Final = 4

# Of each plot: its title, and the series of the view that it shows.
_PLOTS: Final[Mapping[str, str]] = {
    "loss": texts.CURVE_LOSS,
    "lr": texts.CURVE_LR,
    "grad_norm": texts.CURVE_NORM,
    "samples_per_s": texts.CURVE_SPEED,
}
_MEASURED_COLOURS: Final = (look.SERIES[1], look.SERIES[2], look.SERIES[3])


class CurvesPage(Page):
    """Draws one plot at a time, each at most twice a second, and only where its numbers have changed."""

    def build(self) -> None:
        """The tools above, one card with the loss, three below."""
        self.axis: Axis = "steps"
        self.span = float(SPANS[_FIRST_SPAN])
        self.wanted: Range = None
        self._counts: dict[str, object] = {}
        self._build_tools()
        self.plots: dict[str, Plot] = {}
        self.rowconfigure(1, weight=3, uniform="plots")
        self.rowconfigure(2, weight=2, uniform="plots")
        for column in range(3):
            self.columnconfigure(column, weight=1, uniform="plots")
        gap = 6  # of cards, which scale by themselves
        for place, (name, title) in enumerate(_PLOTS.items()):
            holder = card(self)
            plot = Plot(holder, title, self._zoomed)
            plot.pack(fill="both", expand=True, padx=2, pady=2)
            self.plots[name] = plot
            row, column, wide = (1, 0, 3) if name == "loss" else (2, place - 1, 1)
            holder.grid(row=row, column=column, columnspan=wide, sticky="nsew", padx=gap, pady=gap)

    def followed(self) -> None:
        """Another run: all of it again."""
        self.wanted = None
        self._counts.clear()
        self.tools.followed(self.run)
        for plot in self.plots.values():
            plot.show((), self.axis, self.span, None)

    def refresh(self) -> None:
        """Take over new numbers, and draw the plot that has waited longest."""
        if self.run is None:
            return
        view, now = self.run.view, time.monotonic()
        waiting = sorted(self.plots.items(), key=lambda each: each[1].drawn_at)
        for name, plot in waiting:
            if now - plot.drawn_at < REDRAW_S and not plot.is_due:
                continue
            if self._take_over(name, plot, view) or plot.is_due:
                plot.draw()
                return

    def lines(self, name: str) -> list[Line]:
        """The lines of one plot, as they are shown."""
        return list(self.plots[name].lines)

    def _take_over(self, name: str, plot: Plot, view: RunView) -> bool:
        """Copy the numbers of a plot where they have changed."""
        with view.lock:
            measured = view.measured if name == "loss" else {}
            counts = [view.figures[name].count, *(series.count for series in measured.values())]
            count = (counts, view.first_time, self.axis, self.span, self.wanted)
            if self._counts.get(name) == count:
                return False
            self._counts[name] = count
            origin = view.first_time or 0.0
            curve = view.figures[name].curve()
            others = {title: series.curve() for title, series in measured.items()}
        points = points_of(curve, self.axis, origin)
        lines = [Line(texts.LINE_LOSS if name == "loss" else plot.title, points, look.SERIES[0], smooth=name == "lr")]
        for place, (title, each) in enumerate(others.items()):
            colour = _MEASURED_COLOURS[place % len(_MEASURED_COLOURS)]
            lines.append(
                Line(texts.LINE_VALIDATION.get(title, title), points_of(each, self.axis, origin), colour, True)
            )
        plot.show(lines, self.axis, self.span if name in {"loss", "grad_norm"} else 0.0, self.wanted)
        plot.say(_last_value(lines))
        return True

    def _zoomed(self, wanted: Range) -> None:
        self.wanted = _bearable(wanted, self.plots["loss"].lines)

    def _build_tools(self) -> None:
        bar = frame(self, look.WINDOW)
        bar.grid(row=0, column=0, columnspan=3, sticky="ew", padx=look.px(6), pady=(0, look.px(4)))
        axes = {texts.OVER_STEPS: "steps", texts.OVER_TIME: "time"}
        self.axis_choice = Segments(bar, list(axes), lambda word: self._choose_axis(cast(Axis, axes[word])))
        self.axis_choice.set(texts.OVER_STEPS)
        self.axis_choice.pack(side="left")
        text(bar, texts.SMOOTHING, "small", colour=look.MUTED, on=look.WINDOW).pack(
            side="left", padx=(look.px(18), look.px(8))
        )
        last = len(SPANS) - 1
        self.smoothing = Slider(bar, 0, last, last, self._smooth, on=look.WINDOW, width=130)
        self.smoothing.show(_FIRST_SPAN)
        self.smoothing.pack(side="left")
        self._span_words = text(bar, _span_words(self.span), "small", on=look.WINDOW)
        self._span_words.configure(width=11)
        self._span_words.pack(side="left", padx=(look.px(8), look.px(10)))
        text(bar, texts.LOG_SCALE, "small", colour=look.MUTED, on=look.WINDOW).pack(side="left", padx=(0, look.px(6)))
        self.log_scale = Switch(bar, self._scale, on=look.WINDOW)
        self.log_scale.pack(side="left")
        self.tools = RunTools(bar, self.state, self, lambda: self._zoomed(None))
        self.tools.pack(side="right")
        bar.bind("<Configure>", lambda event: self.tools.fit(round(event.width / look.scale())))

    def _choose_axis(self, axis: Axis) -> None:
        self.axis, self.wanted = axis, None

    def _smooth(self, place: float) -> None:
        self.span = float(SPANS[round(place)])
        self._span_words.configure(text=_span_words(self.span))

    def _scale(self, is_log: bool) -> None:
        self.plots["loss"].chart.log_scale = is_log
        self.plots["loss"].is_due = True


def _span_words(span: float) -> str:
    return texts.SMOOTHING_SPAN.format(n=round(span)) if span else texts.SMOOTHING_NONE


def _last_value(lines: list[Line]) -> str:
    """The newest value of the first line, and of the others with their names."""
    told = [line for line in lines if len(line.points)]
    values = [(line.name, number_words(float(line.points.mean[-1]))) for line in told]
    if len(lines) == 1:
        return values[0][1] if values else ""
    return "   ".join(f"{name} {value}" for name, value in values)


def _bearable(wanted: Range, lines: object) -> Range:
    """No zoom into nothing, and none far beyond the run."""
    if wanted is None:
        return None
    shown: list[Points] = [line.points for line in cast("list[Line]", lines) if len(line.points)]
    if not shown:
        return None
    first, last = min(float(each.x[0]) for each in shown), max(float(each.x[-1]) for each in shown)
    low, high = max(wanted[0], first), min(wanted[1], last)
    if high - low < max(1e-3, (last - first) * 1e-6) or (low <= first and high >= last):
        return None
    return low, high
