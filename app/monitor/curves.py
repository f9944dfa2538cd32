"""The Curves page: a large loss plot above learning rate, gradient norm and speed, all over the same x range."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final, cast

from app.monitor.chart import PlotLine, format_number
from app.monitor.page import Page
from app.monitor.plot import Plot, Range
from app.monitor.points import Axis, Points, points_of
from app.monitor.toolbar import Toolbar
from app.runs.view import RunView
from app.widgets import theme
from app.widgets.buttons import Segments, Slider, Switch, card, frame, text

REDRAW_S: Final = 0.5
SPANS: Final = (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_DEFAULT_SPAN_INDEX: Final = 4

# Series of the run view and the title of its plot.
PLOTS: Final[Mapping[str, str]] = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "samples_per_s": "Samples per second",
}
_MEASURED_COLOURS: Final = (theme.SERIES[1], theme.SERIES[2], theme.SERIES[3])


class CurvesPage(Page):
    """Redraws one plot at a time, each at most twice a second and only if its data has changed."""

    def build(self) -> None:
        """Toolbar, the loss card, and three cards below it."""
        self.axis: Axis = "steps"
        self.span = float(SPANS[_DEFAULT_SPAN_INDEX])
        self.x_range: Range = None
        self._counts: dict[str, object] = {}
        self._build_toolbar()
        self.plots: dict[str, Plot] = {}
        self.rowconfigure(1, weight=3, uniform="plots")
        self.rowconfigure(2, weight=2, uniform="plots")
        for column in range(3):
            self.columnconfigure(column, weight=1, uniform="plots")
        gap = 6  # of cards, which scale by themselves
        for index, (name, title) in enumerate(PLOTS.items()):
            holder = card(self)
            plot = Plot(holder, title, self._zoom)
            plot.pack(fill="both", expand=True, padx=2, pady=2)
            self.plots[name] = plot
            row, column, wide = (1, 0, 3) if name == "loss" else (2, index - 1, 1)
            holder.grid(row=row, column=column, columnspan=wide, sticky="nsew", padx=gap, pady=gap)

    def run_changed(self) -> None:
        """Reset the plots for another run."""
        self.x_range = None
        self._counts.clear()
        self.tools.set_run(self.run)
        for plot in self.plots.values():
            plot.show((), self.axis, self.span, None)

    def refresh(self) -> None:
        """Update the data, and draw the plot that was drawn longest ago."""
        if self.run is None:
            return
        view, now = self.run.view, time.monotonic()
        waiting = sorted(self.plots.items(), key=lambda each: each[1].drawn_at)
        for name, plot in waiting:
            if now - plot.drawn_at < REDRAW_S and not plot.is_due:
                continue
            if self._update_plot(name, plot, view) or plot.is_due:
                plot.draw()
                return

    def lines(self, name: str) -> list[PlotLine]:
        """The lines that a plot shows."""
        return list(self.plots[name].lines)

    def _update_plot(self, name: str, plot: Plot, view: RunView) -> bool:
        """Copy a plot's data if it has changed."""
        with view.lock:
            measured = view.eval_losses if name == "loss" else {}
            counts = [view.metrics[name].count, *(series.count for series in measured.values())]
            count = (counts, view.first_time, self.axis, self.span, self.x_range)
            if self._counts.get(name) == count:
                return False
            self._counts[name] = count
            origin = view.first_time or 0.0
            curve = view.metrics[name].curve()
            others = {title: series.curve() for title, series in measured.items()}
        points = points_of(curve, self.axis, origin)
        lines = [PlotLine("training" if name == "loss" else plot.title, points, theme.SERIES[0], smooth=name == "lr")]
        for index, (title, each) in enumerate(others.items()):
            colour = _MEASURED_COLOURS[index % len(_MEASURED_COLOURS)]
            lines.append(PlotLine(title, points_of(each, self.axis, origin), colour, True))
        plot.show(lines, self.axis, self.span if name in {"loss", "grad_norm"} else 0.0, self.x_range)
        plot.show_value(_last_value(lines))
        return True

    def _zoom(self, x_range: Range) -> None:
        self.x_range = _clamp_range(x_range, self.plots["loss"].lines)

    def _build_toolbar(self) -> None:
        bar = frame(self, theme.WINDOW)
        bar.grid(row=0, column=0, columnspan=3, sticky="ew", padx=theme.px(6), pady=(0, theme.px(4)))
        axes = {"Steps": "steps", "Time": "time"}
        self.axis_choice = Segments(bar, list(axes), lambda word: self._choose_axis(cast(Axis, axes[word])))
        self.axis_choice.set("Steps")
        self.axis_choice.pack(side="left")
        text(bar, "Smoothing", "small", colour=theme.MUTED, bg=theme.WINDOW).pack(
            side="left", padx=(theme.px(18), theme.px(8))
        )
        last = len(SPANS) - 1
        self.smoothing = Slider(bar, 0, last, last, self._smooth, bg=theme.WINDOW, width=130)
        self.smoothing.show(_DEFAULT_SPAN_INDEX)
        self.smoothing.pack(side="left")
        self._span_label = text(bar, _span_label(self.span), "small", bg=theme.WINDOW)
        self._span_label.configure(width=11)
        self._span_label.pack(side="left", padx=(theme.px(8), theme.px(10)))
        text(bar, "Log scale", "small", colour=theme.MUTED, bg=theme.WINDOW).pack(side="left", padx=(0, theme.px(6)))
        self.log_scale = Switch(bar, self._scale, bg=theme.WINDOW)
        self.log_scale.pack(side="left")
        self.tools = Toolbar(bar, self.state, self, lambda: self._zoom(None))
        self.tools.pack(side="right")
        bar.bind("<Configure>", lambda event: self.tools.fit(round(event.width / theme.scale())))

    def _choose_axis(self, axis: Axis) -> None:
        self.axis, self.x_range = axis, None

    def _smooth(self, index: float) -> None:
        self.span = float(SPANS[round(index)])
        self._span_label.configure(text=_span_label(self.span))

    def _scale(self, is_log: bool) -> None:
        self.plots["loss"].chart.log_scale = is_log
        self.plots["loss"].is_due = True


def _span_label(span: float) -> str:
    return f"{round(span):,} steps" if span else "off"


def _last_value(lines: list[PlotLine]) -> str:
    """The latest value of each line, with its name if there are several lines."""
    filled = [line for line in lines if len(line.points)]
    values = [(line.name, format_number(float(line.points.mean[-1]))) for line in filled]
    if len(lines) == 1:
        return values[0][1] if values else ""
    return "   ".join(f"{name} {value}" for name, value in values)


def _clamp_range(x_range: Range, lines: object) -> Range:
    """Limit the range to the data; None (show all) if it is empty or covers everything."""
    if x_range is None:
        return None
    shown: list[Points] = [line.points for line in cast("list[PlotLine]", lines) if len(line.points)]
    if not shown:
        return None
    first, last = min(float(each.x[0]) for each in shown), max(float(each.x[-1]) for each in shown)
    low, high = max(x_range[0], first), min(x_range[1], last)
    if high - low < max(1e-3, (last - first) * 1e-6) or (low <= first and high >= last):
        return None
    return low, high
