"""The Curves page: a large loss plot, beside it what a validation measures, such as accuracy; below them learning rate,
gradient norm and speed. All have the same x range."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Final, cast

from PIL import Image, ImageDraw, ImageFont

from app.monitor.chart import Chart, PlotLine, format_number
from app.monitor.page import Page
from app.monitor.plot import INSET, Plot, Range
from app.monitor.points import Axis, Points, points_of
from app.monitor.tensorboard import TensorBoard
from app.runs.control import RunControl
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, Segments, Slider, Switch, add_tooltip, card, frame, popup_menu, text
from app.widgets.ellipsis import truncate
from app.windows.chooser import choose_path
from modules.files import printable, replacing
from modules.run.view.numbers import save_numbers
from modules.run.view.run_view import RunView
from modules.run.view.series import Series

REDRAW_S: Final = 0.5
SPANS: Final = (0, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_DEFAULT_SPAN: Final = 50

# Series of the run view and the title of its plot.
PLOTS: Final[Mapping[str, str]] = {
    "loss": "Loss",
    "lr": "Learning rate",
    "grad_norm": "Gradient norm",
    "samples_per_s": "Samples/s",
}
_SMALL: Final = ("lr", "grad_norm", "samples_per_s")
_LOWEST: Final = 300  # unscaled height of a page whose small plots can still be read
METRICS: Final = "metrics"  # the plot that only runs with such measurements have
_MAX_MESSAGE: Final = 60  # characters
_LABELS_MIN_WIDTH: Final = 860  # unscaled pixels
_SIZE: Final = (1600, 1000)
_TITLE_PX: Final = 34


class CurvesPage(Page):
    """Redraws one plot at a time, each at most twice a second and only if its data has changed.

    `plots` are those in sight.
    """

    def build(self) -> None:
        """Toolbar, the loss card, and three cards below it."""
        self.axis: Axis = "steps"
        preferences = self.state.preferences
        self.span = float(preferences.smoothing if preferences.smoothing in SPANS else _DEFAULT_SPAN)
        self.x_range: Range = None
        self._counts: dict[str, object] = {}
        self._build_toolbar()
        self.plots: dict[str, Plot] = {}
        self.rowconfigure(1, weight=3)
        for column in range(3):
            self.columnconfigure(column, weight=1, uniform="plots")
        gap = 6  # of cards, which scale by themselves
        for index, (name, title) in enumerate(PLOTS.items()):
            holder = card(self)
            if name == "loss":
                self._loss_card = holder
            plot = Plot(holder, title, self._zoom)
            plot.chart.log_scale = name == "loss" and preferences.log_scale
            plot.pack(fill="both", expand=True, padx=theme.px(INSET), pady=theme.px(INSET))
            self.plots[name] = plot
            row, column, wide = (1, 0, 3) if name == "loss" else (2, index - 1, 1)
            holder.grid(row=row, column=column, columnspan=wide, sticky="nsew", padx=gap, pady=gap)
        self._metrics_card = card(self)
        self._metrics_card.grid(row=1, column=2, sticky="nsew", padx=gap, pady=gap)
        self._metrics_card.grid_remove()
        self._metrics_plot = Plot(self._metrics_card, "Validation", self._zoom)
        self._metrics_plot.pack(fill="both", expand=True, padx=theme.px(INSET), pady=theme.px(INSET))
        self._show_small(True)
        self.bind("<Configure>", lambda event: self._show_small(event.height >= theme.px(_LOWEST)), add="+")

    def run_changed(self) -> None:
        """Reset the plots for another run."""
        self.x_range = None
        self._counts.clear()
        self.tools.set_run(self.run)
        self._show_metrics(False)
        for plot in self.plots.values():
            plot.clear()

    def refresh(self) -> None:
        """Update the data, and draw the plot that was drawn longest ago."""
        if self.run is None:
            return
        view, now = self.run.view, time.monotonic()
        if view.eval_metrics and METRICS not in self.plots:
            self._show_metrics(True)
        waiting = sorted(self.plots.items(), key=lambda each: each[1].drawn_at)
        for name, plot in waiting:
            if now - plot.drawn_at < REDRAW_S and not plot.is_due:
                continue
            if self._update_plot(name, plot, view) or plot.is_due:
                plot.draw()
                return

    @property
    def is_unfinished(self) -> bool:
        """Whether a plot waits to be drawn."""
        return self.run is not None and any(plot.is_due for plot in self.plots.values())

    def lines(self, name: str) -> list[PlotLine]:
        """The lines that a plot shows."""
        return list(self.plots[name].lines)

    def _show_metrics(self, shown: bool) -> None:
        """The plot beside the losses, which are as wide as there is room."""
        if shown:
            self.plots[METRICS] = self._metrics_plot
            self._metrics_card.grid()
        elif METRICS in self.plots:
            self.plots.pop(METRICS).clear()
            self._metrics_card.grid_remove()
        self._loss_card.grid_configure(columnspan=2 if shown else 3)

    def _show_small(self, shown: bool) -> None:
        """The plots below the losses; in a low window only their last values."""
        uniform = "plots" if shown else ""
        self.rowconfigure(1, uniform=uniform)
        self.rowconfigure(2, weight=2 if shown else 0, uniform=uniform)
        for name in _SMALL:
            self.plots[name].show_chart(shown)

    def _update_plot(self, name: str, plot: Plot, view: RunView) -> bool:
        """Copy a plot's data if it has changed."""
        with view.lock:
            origin = view.first_time or 0.0
            series = self._series(name, view)
            counts = [(title, each.count) for title, (each, _) in series.items()]
            count = (counts, origin, self.axis, self.span, self.x_range)
            if self._counts.get(name) == count:
                return False
            self._counts[name] = count
            curves = [(title, each.curve(), dotted) for title, (each, dotted) in series.items()]
        lines = [
            PlotLine(title, points_of(curve, self.axis, origin), colour, dotted, smooth=name == "lr")
            for (title, curve, dotted), colour in zip(curves, cycle(theme.SERIES), strict=False)
        ]
        plot.show(lines, self.axis, self.span if name in {"loss", "grad_norm"} else 0.0, self.x_range)
        plot.show_value(_last_value(lines[:1] if name == METRICS else lines, named=len(lines) > 1 or name == METRICS))
        return True

    def _series(self, name: str, view: RunView) -> dict[str, tuple[Series, bool]]:
        """The curves of a plot by their titles, and whether each has a dot at every point, as it has few."""
        if name == METRICS:
            return {title: (each, True) for title, each in view.eval_metrics.items()}
        if name == "loss":
            measured = {title: (each, True) for title, each in view.eval_losses.items()}
            return {"training": (view.metrics[name], False), **measured}
        return {PLOTS[name]: (view.metrics[name], False)}

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
        self.smoothing.show(SPANS.index(round(self.span)))
        self.smoothing.pack(side="left")
        self._span_label = text(bar, _span_label(self.span), "small", bg=theme.WINDOW)
        self._span_label.configure(width=11)
        self._span_label.pack(side="left", padx=(theme.px(8), theme.px(10)))
        text(bar, "Log scale", "small", colour=theme.MUTED, bg=theme.WINDOW).pack(side="left", padx=(0, theme.px(6)))
        self.log_scale = Switch(bar, self._scale, bg=theme.WINDOW)
        self.log_scale.show(self.state.preferences.log_scale)
        self.log_scale.pack(side="left")
        self.tools = Toolbar(bar, self.state, self, lambda: self._zoom(None))
        self.tools.pack(side="right")
        bar.bind("<Configure>", lambda event: self.tools.fit(round(event.width / theme.scale())))

    def _choose_axis(self, axis: Axis) -> None:
        self.axis, self.x_range = axis, None

    def _smooth(self, index: float) -> None:
        self.state.preferences.smoothing = SPANS[round(index)]
        self.span = float(SPANS[round(index)])
        self._span_label.configure(text=_span_label(self.span))

    def _scale(self, is_log: bool) -> None:
        self.state.preferences.log_scale = is_log
        self.plots["loss"].chart.log_scale = is_log
        self.plots["loss"].is_due = True


def _span_label(span: float) -> str:
    return f"{round(span):,} steps" if span else "off"


def _last_value(lines: list[PlotLine], *, named: bool) -> str:
    """The latest value of each line, perhaps with its name."""
    filled = [line for line in lines if len(line.points)]
    values = [(line.name, format_number(float(line.points.mean[-1]))) for line in filled]
    if not named:
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


class Toolbar(tk.Frame):
    """Buttons, and a line that reports their results."""

    def __init__(self, parent: tk.Misc, state: AppState, page: CurvesPage, show_all: Callable[[], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self._page = page
        self._run: RunControl | None = None
        self.message = ""
        self.tensorboard = TensorBoard(self, self._report)
        self._line = text(self, "", "small", colour=theme.MUTED, bg=theme.WINDOW)
        self._line.pack(side="left", padx=(0, theme.px(10)))
        add_tooltip(self._line, lambda: self.message)
        self._line.bind("<Button-1>", lambda event: self.tensorboard.open_browser())
        buttons = frame(self, theme.WINDOW)
        buttons.pack(side="left")
        Button(
            buttons,
            "Show all",
            show_all,
            style="quiet",
            tooltip="Drag in a plot or scroll to zoom, drag with the right button to pan. This resets the view.",
        ).pack(side="left")
        self.export = Button(
            buttons,
            "Export",
            self._offer_exports,
            icon="file",
            style="quiet",
            tooltip="Save the plots as an image, or the numbers as a table.",
        )
        self.export.pack(side="left")
        self.tensorboard_button = Button(
            buttons,
            "TensorBoard",
            self._start_tensorboard,
            icon="chart",
            style="quiet",
            tooltip=(
                "Start TensorBoard for all runs in this folder and open it in the browser. It stops when the "
                "window closes. Of a run on another machine it shows what has come here."
            ),
        )
        self.tensorboard_button.pack(side="left")

    def fit(self, width: int) -> None:
        """Hide the button labels if the toolbar is too narrow; `width` in unscaled pixels."""
        for button, label in ((self.export, "Export"), (self.tensorboard_button, "TensorBoard")):
            shown = label if width >= _LABELS_MIN_WIDTH else ""
            if button.cget("text") != shown:
                button.configure(text=shown, width=30)

    def set_run(self, run: RunControl | None) -> None:
        """Set the run that is shown."""
        self._run = run
        for button in (self.export, self.tensorboard_button):
            button.configure(state="disabled" if run is None else "normal")

    def save_plots(self, file: Path) -> None:
        """Save the shown plots as an image, in a thread."""
        page, run = self._page, self._run
        if run is None:
            return
        plots = [
            PlotSpec(plot.title, tuple(plot.lines), plot.span, plot.chart.log_scale) for plot in page.plots.values()
        ]
        self._write(lambda: save_plots(plots, page.axis, page.x_range, run.folder.name, file), file)

    def save_numbers(self, file: Path) -> None:
        """Save all values as CSV or JSON, by the ending of `file`, in a thread."""
        run = self._run
        if run is not None:
            as_json = file.suffix.lower() == ".json"
            self._write(lambda: save_numbers(run.folder, file, as_json=as_json), file)

    def _write(self, work: Callable[[], object], file: Path) -> None:
        self._state.background.run(work, lambda _: self._report(f"Saved to {printable(file.name)}."), self._report)

    def _offer_exports(self) -> None:
        menu = popup_menu(self)
        menu.add_command(label="Save the plots as PNG…", command=lambda: self._choose("png", self.save_plots))
        menu.add_command(label="Save the numbers as CSV…", command=lambda: self._choose("csv", self.save_numbers))
        menu.add_command(label="Save the numbers as JSON…", command=lambda: self._choose("json", self.save_numbers))
        menu.open_below(self.export)

    def _choose(self, ending: str, save: Callable[[Path], object]) -> None:
        if self._run is None:
            return
        title = f"Save the {'plots' if ending == 'png' else 'numbers'} as {ending.upper()}…"
        name = choose_path(self, "save", title, Path(), (f".{ending}",), f"{self._run.folder.name}.{ending}")
        if name:
            save(Path(name))

    def _start_tensorboard(self) -> None:
        if self._run is not None:
            self.tensorboard.start(self._run.folder)

    def _report(self, message: str) -> None:
        if self.winfo_exists():
            self.message = message
            self._line.configure(text=truncate(message, _MAX_MESSAGE))


@dataclass(frozen=True)
class PlotSpec:
    """One plot of an exported image: title, lines, smoothing span in steps, and scale."""

    title: str
    lines: Sequence[PlotLine]
    span: float
    log_scale: bool = False


def save_plots(
    plots: Sequence[PlotSpec], axis: Axis, x_range: tuple[float, float] | None, title: str, file: Path
) -> None:
    """Write the plots as one PNG, the first above the others, which are side by side. Raises OSError."""
    width, height = _SIZE
    image = Image.new("RGB", (width, height), theme.resolve(theme.CARD))
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=20)
    pen.text((24, 16), printable(title), fill=theme.resolve(theme.TEXT), font=font)
    top, upper = 60, round((height - 60) * 0.55)
    below = max(1, len(plots) - 1)
    boxes = [(0, top, width, upper)]
    boxes += [(n * width // below, top + upper, width // below, height - top - upper) for n in range(below)]
    for plot, (x, y, wide, high) in zip(plots, boxes, strict=False):
        pen.text(
            (x + 24, y + 6),
            printable(plot.title),
            fill=theme.resolve(theme.MUTED),
            font=ImageFont.load_default(size=16),
        )
        chart = Chart(log_scale=plot.log_scale)
        chart.show(plot.lines, axis, plot.span, x_range, wide, high - _TITLE_PX)
        image.paste(chart.render().convert("RGB"), (x, y + _TITLE_PX))
    with replacing(file) as partial:
        image.save(partial, format="PNG")
