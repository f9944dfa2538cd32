"""Compares runs: one plot, the settings that differ, and their last samples of each prompt."""

from __future__ import annotations

import time
import tkinter as tk
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from app.form.setting_text import setting_title
from app.monitor.chart import PlotLine
from app.monitor.curves import PLOTS, SPANS
from app.monitor.legend import names_that_fit
from app.monitor.plot import INSET, Plot
from app.monitor.points import Axis, points_of
from app.monitor.run_list import read_view, setting_differences
from app.monitor.run_samples import RunSamples, read_samples
from app.monitor.sample_compare import SampleCompare
from app.monitor.tile_grid import TileGrid
from app.monitor.tile_lines import Block
from app.state import AppState
from app.widgets import icons, theme
from app.widgets.buttons import Button, Menu, Segments, Slider, card, frame, text
from app.widgets.table import table
from app.widgets.text_width import text_width
from app.windows.dialog import Dialog
from modules.config import TrainConfig, find_option
from modules.run import RunFolder
from modules.run.view.event_records import SampleFile
from modules.run.view.run_view import RunView
from modules.run.view.series import Curve

MAX_RUNS: Final = len(theme.SERIES)
_REDRAW_S: Final = 0.5
_FEW_RUNS: Final = 3
_ALL_FROM: Final = 1250  # unscaled pixels of width with room for settings and samples beside the plot
_SETTINGS, _SAMPLES = "Settings", "Samples"
_NO_SAMPLES: Final = "These runs have no samples."
_SETTING: Final = 130  # unscaled pixels of the column of titles
_LEAST_RUN: Final = 60  # and of each run's
_DIALOG: Final = (720, 480)  # of samples, one over the other
_DOT: Final = 12
_BESIDE_NAME: Final = _DOT + 20  # unscaled pixels of the dot in a heading, and around it and the name
METRICS: Final[Mapping[str, str]] = {
    "loss": PLOTS["loss"],
    "validation": "Validation",
    "accuracy": "Validation accuracy",
    **PLOTS,
}


class RunComparison(tk.Frame):
    """Reads each run in a thread when it is first shown and whenever its file has grown.

    `go_back` shows the list of runs again where the comparison has taken its place.
    """

    def __init__(self, parent: tk.Misc, state: AppState, go_back: Callable[[], object]) -> None:
        super().__init__(parent, borderwidth=0, highlightthickness=0)
        theme.paint(self, bg=theme.WINDOW)
        self._state = state
        self.names: Mapping[Path, str] = {}
        self.metric, self.axis, self.span = "loss", "steps", 20.0
        self._plot_share = (3, 2)
        self._arranged: object = None
        self._beside = _SETTINGS  # the plot, where there is no room for both
        self._curves: dict[Path, tuple[int, dict[str, Curve], float]] = {}
        self._samples: dict[Path, RunSamples] = {}
        self._reading: set[Path] = set()
        self._build(go_back)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The folders of the compared runs."""
        return tuple(self.names)

    def show(self, names: Mapping[Path, str]) -> None:
        """Compare the runs in these folders under these names."""
        shown = dict(list(names.items())[:MAX_RUNS])
        if shown != self.names:
            selected = tuple(shown)
            self.pictures.clear()
            # the table of the settings gets most of it once it has many columns
            self._plot_share = (3, 2) if len(selected) <= _FEW_RUNS else (2, 3)
            self._arrange()
            self._body.update_idletasks()  # the names in the headings are as long as there is room
            self.names = shown
            self._state.background.run(
                lambda: setting_differences(list(selected)), lambda rows: self._show_differences(selected, rows)
            )
        self._read()
        self._redraw()
        self._show_samples()

    def refresh(self) -> None:
        """Read runs that have grown, and redraw if due."""
        self._read()
        if self.plot.is_due and time.monotonic() - self.plot.drawn_at > _REDRAW_S:
            self.plot.draw()

    @property
    def is_complete(self) -> bool:
        """Whether every run has been read."""
        return all(path in self._curves for path in self.paths)

    def offer_back(self, offered: bool) -> None:
        """Show the button that leads back to the list, or hide it."""
        if offered:
            self.back.pack(side="right")
        else:
            self.back.pack_forget()

    def _build(self, go_back: Callable[[], object]) -> None:
        bar = frame(self, theme.WINDOW)
        bar.pack(fill="x", padx=theme.px(6), pady=theme.px(6))
        choose = Menu(bar, list(METRICS), self._choose_metric, bg=theme.WINDOW, width=170, titles=dict(METRICS))
        choose.show("loss")
        choose.pack(side="left", padx=(0, theme.px(8)))
        axes = {"Steps": "steps", "Time": "time"}
        segments = Segments(bar, list(axes), lambda title: self._choose_axis(axes[title]))
        segments.set("Steps")
        segments.pack(side="left")
        text(bar, "Smoothing", "small", colour=theme.MUTED, bg=theme.WINDOW).pack(
            side="left", padx=(theme.px(18), theme.px(8))
        )
        last = len(SPANS) - 1
        slider = Slider(bar, 0, last, last, self._smooth, bg=theme.WINDOW, width=110)
        slider.show(SPANS.index(20))
        slider.pack(side="left")
        self.back = Button(bar, "Show list", go_back)
        self.beside = Segments(bar, [_SETTINGS, _SAMPLES], self._choose_beside)
        self.beside.set(_SETTINGS)
        body = frame(self, theme.WINDOW)
        body.pack(fill="both", expand=True)
        self._body = body
        body.rowconfigure(0, weight=1)
        left, right, samples = card(body), card(body), card(body)
        left.grid(row=0, column=0, sticky="nsew", padx=6, pady=(0, 6))
        self._cards = {_SETTINGS: right, _SAMPLES: samples}
        body.bind("<Configure>", lambda event: self._arrange(), add="+")
        self.pictures = TileGrid(samples, self._open_sample, _NO_SAMPLES)
        self.pictures.canvas.configure(width=theme.px(200), height=theme.px(220))  # as the table: see below
        self.pictures.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))
        self.pictures.bind("<Destroy>", lambda event: self.pictures.close(), add="+")
        self.plot = Plot(left, "Comparison", self._zoom, clips=True)
        self.plot.pack(fill="both", expand=True, padx=theme.px(INSET), pady=theme.px(INSET))
        self._table_frame = frame(right)
        # a table asks for the width of its columns, which follow its width: the columns of the grid would never settle
        self._table_frame.configure(width=theme.px(200), height=theme.px(230))
        self._table_frame.pack_propagate(False)
        self._table_frame.pack(fill="both", expand=True, padx=theme.px(4), pady=theme.px(4))

    def _choose_beside(self, shown: str) -> None:
        self._beside = shown
        self._arrange()

    def _arrange(self) -> None:
        """Settings and samples beside the plot, or in a narrow window one of them, which is chosen above."""
        has_room = self._body.winfo_width() >= theme.px(_ALL_FROM)
        shown = (_SETTINGS, _SAMPLES) if has_room else (self._beside,)
        if (shown, self._plot_share) == self._arranged:
            return
        self._arranged = (shown, self._plot_share)
        for column, share in enumerate((*self._plot_share, self._plot_share[1] if has_room else 0)):
            self._body.columnconfigure(column, weight=share, uniform="shares" if share else "", minsize=0)
        for name, each in self._cards.items():
            if name in shown:
                each.grid(row=0, column=1 + shown.index(name), sticky="nsew", padx=6, pady=(0, 6))
            else:
                each.grid_forget()
        if has_room:
            self.beside.pack_forget()
        else:
            self.beside.pack(side="left", padx=theme.px(18))

    def _show_samples(self) -> None:
        """The prompts are the rows, the runs the columns."""
        runs = self._shown_samples()
        prompts = list(dict.fromkeys(prompt for run in runs for prompt in run.of_prompts))
        rows = [[(run, run.of(prompt)[-1]) for run in runs if run.of(prompt)] for prompt in prompts]
        items = [
            (each, f"{run.name}, step {each.step:,}{' (best)' if each.step == run.best_step else ''} · {prompt}")
            for prompt, row in zip(prompts, rows, strict=True)
            for run, each in row
        ]
        self.pictures.show(items, keep_scroll=True, blocks=[Block(len(row), len(runs)) for row in rows])

    def _shown_samples(self) -> list[RunSamples]:
        return [replace(self._samples[path], name=name) for path, name in self.names.items() if path in self._samples]

    def _open_sample(self, sample: SampleFile) -> None:
        """Its run beside the next one, with the line to drag between them."""
        shown = self._shown_samples()
        prompts = [prompt for run in shown for prompt, samples in run.of_prompts.items() if sample in samples]
        prompt = next(iter(prompts), sample.prompt)
        runs = sorted(shown, key=lambda run: sample not in run.of(prompt))
        dialog = Dialog(self, "Compare samples", modal=False)
        compare = SampleCompare(dialog.body, self._state)
        compare.configure(width=theme.px(_DIALOG[0]), height=theme.px(_DIALOG[1]))
        compare.pack_propagate(False)
        compare.pack(fill="both", expand=True)
        compare.show(runs, prompt)
        dialog.button("Close", dialog.close)
        dialog.show()

    def _show_differences(self, paths: tuple[Path, ...], rows: list[tuple[str, list[str]]]) -> None:
        if paths != self.paths:
            return
        for child in self._table_frame.winfo_children():
            child.destroy()
        if not rows:
            text(self._table_frame, "The settings are identical.", colour=theme.FAINT).pack(expand=True)
            return
        width = max(300, self._table_frame.winfo_width() / theme.scale() - 20)
        run_width = max(_LEAST_RUN, round((width - _SETTING) / len(paths)))
        columns = {"setting": ("Setting", _SETTING)}
        share = self._table_frame.winfo_width() * run_width // (_SETTING + run_width * len(paths))
        room, font = share - theme.px(_BESIDE_NAME), theme.tk_font("strong")
        names = names_that_fit(list(self.names.values()), lambda name: text_width(self, f" {name}", font) <= room)
        columns |= {f"run{index}": (f" {name}", run_width) for index, name in enumerate(names)}
        self.difference_table = table(self._table_frame, columns)
        for index, colour in zip(range(len(paths)), theme.SERIES, strict=False):
            icons.show_in_heading(self.difference_table, f"run{index}", "dot", _DOT, colour)
            self.difference_table.widen_heading(f"run{index}", theme.px(_DOT))
        for name, values in rows:
            option = find_option(TrainConfig, name)
            titles = option.titles if option is not None else {}
            shown = [titles.get(value, value) for value in values]
            self.difference_table.insert("", "end", values=(setting_title(name), *shown))

    def _read(self) -> None:
        for path in self.paths:
            size = _size(path)
            cached = self._curves.get(path)
            if path not in self._reading and (cached is None or cached[0] != size):
                self._reading.add(path)
                self._state.background.run(
                    lambda path=path: _read_run(RunFolder(path)),  # type: ignore[misc]
                    lambda found, path=path, size=size: self._show_run(path, size, *found),  # type: ignore[misc]
                )

    def _show_run(self, path: Path, size: int, view: RunView, samples: RunSamples) -> None:
        self._reading.discard(path)
        self._samples[path] = samples
        curves = {
            name: series.curve() for name, series in {**view.eval_metrics, **view.metrics, **view.eval_losses}.items()
        }
        self._curves[path] = size, curves, view.first_time or 0.0
        if self.winfo_exists():
            self._redraw()
            self._show_samples()

    def _redraw(self) -> None:
        lines = []
        for index, (path, name) in enumerate(self.names.items()):
            if path in self._curves:
                _, curves, origin = self._curves[path]
                curve = curves.get(self.metric)
                if curve is not None:
                    points = points_of(curve, cast(Axis, self.axis), origin)
                    lines.append(
                        PlotLine(
                            name,
                            points,
                            theme.SERIES[index],
                            dotted=self.metric in ("validation", "accuracy"),
                            smooth=self.metric == "lr",
                        )
                    )
        self.plot.show(lines, cast(Axis, self.axis), self.span, self.plot.x_range)

    def _choose_metric(self, name: str) -> None:
        self.metric = name
        self._redraw()

    def _choose_axis(self, axis: str) -> None:
        self.axis, self.plot.x_range = axis, None
        self._redraw()

    def _smooth(self, index: float) -> None:
        self.span = float(SPANS[round(index)])
        self._redraw()

    def _zoom(self, x_range: tuple[float, float] | None) -> None:
        self.plot.x_range = x_range
        self._redraw()


def _read_run(folder: RunFolder) -> tuple[RunView, RunSamples]:
    view = read_view(folder)
    return view, read_samples(folder, view)


def _size(path: Path) -> int:
    try:
        return RunFolder(path).events_file.stat().st_size
    except OSError:
        return 0
