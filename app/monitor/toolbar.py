"""The buttons above the curves: show all, export as image or numbers, TensorBoard."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from PIL import Image, ImageDraw, ImageFont

from app.monitor.plot import Plot, Range
from app.monitor.points import Axis
from app.monitor.tensorboard import TensorBoard
from app.runs.control import RunControl
from app.state import AppState
from app.widgets import theme
from app.widgets.buttons import Button, add_tooltip, frame, popup_menu, text
from app.widgets.ellipsis import truncate
from app.windows.chooser import choose_path
from modules.files import replacing
from modules.run.view.numbers import save_numbers

if TYPE_CHECKING:
    from app.monitor.chart import PlotLine


class PlotPage(Protocol):
    """The page whose plots the toolbar exports."""

    plots: dict[str, Plot]
    axis: Axis
    x_range: Range | None


_MAX_MESSAGE: Final = 60  # characters
_LABELS_MIN_WIDTH: Final = 860  # unscaled pixels


class Toolbar(tk.Frame):
    """Buttons, and a line that reports their results."""

    def __init__(self, parent: tk.Misc, state: AppState, page: PlotPage, show_all: Callable[[], object]) -> None:
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
                "window closes."
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
        self._state.background.run(work, lambda _: self._report(f"Saved to {file.name}."), self._report)

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


_SIZE: Final = (1600, 1000)
_TITLE_PX: Final = 34


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
    from app.monitor.chart import Chart

    width, height = _SIZE
    image = Image.new("RGB", (width, height), theme.resolve(theme.CARD))
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(size=20)
    pen.text((24, 16), title, fill=theme.resolve(theme.TEXT), font=font)
    top, upper = 60, round((height - 60) * 0.55)
    below = max(1, len(plots) - 1)
    boxes = [(0, top, width, upper)]
    boxes += [(n * width // below, top + upper, width // below, height - top - upper) for n in range(below)]
    for plot, (x, y, wide, high) in zip(plots, boxes, strict=False):
        pen.text((x + 24, y + 6), plot.title, fill=theme.resolve(theme.MUTED), font=ImageFont.load_default(size=16))
        chart = Chart(log_scale=plot.log_scale)
        chart.show(plot.lines, axis, plot.span, x_range, wide, high - _TITLE_PX)
        image.paste(chart.render().convert("RGB"), (x, y + _TITLE_PX))
    with replacing(file) as partial:
        image.save(partial, format="PNG")
