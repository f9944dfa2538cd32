"""One plot as matplotlib draws it, without a window: for the screen and for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import customtkinter as ctk
import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from app import look
from app.monitor.points import Axis, Points, extent, outline, smoothed, within

DPI: Final = 100
_TEXT_PX: Final = 11
_EDGES: Final = (58, 12, 10, 24)  # left, right, top and bottom, in unscaled pixels
_POINTS_PER_PIXEL: Final = 0.5  # lowest and highest each, which is one value a pixel
_UNITS: Final = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"), (float("inf"), 86_400.0, "d"))


@dataclass(frozen=True)
class Line:
    """One curve of a plot. `dotted` ones have few points, each of which is marked; `smooth` ones do not scatter."""

    name: str
    points: Points
    colour: look.Colour
    dotted: bool = False
    smooth: bool = False


@dataclass
class Artists:
    """What matplotlib holds for one line: the raw curve behind, the smoothed one in front."""

    raw: Line2D
    smooth: Line2D


class Chart:
    """Set the lines and the range, then render; lines are changed in place, so that this costs milliseconds."""

    def __init__(self, *, log_scale: bool = False) -> None:
        self.figure = Figure(dpi=DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes: Axes = self.figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.lines: list[Line] = []
        self.smooth: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.range: tuple[float, float] = (0.0, 1.0)
        self.log_scale = log_scale
        self._artists: list[Artists] = []
        self._size = (0, 0)
        self._axis: Axis = "steps"
        self.axes.yaxis.set_major_locator(MaxNLocator(5))
        self.axes.xaxis.set_major_locator(MaxNLocator(7))
        self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_words(value)))
        self.axes.set_axisbelow(True)
        self.recolour()

    def recolour(self) -> None:
        """Take the colours of the present mode."""
        self.figure.set_facecolor(look.now(look.CARD))
        axes = self.axes
        axes.set_facecolor(look.now(look.CARD))
        for name, spine in axes.spines.items():
            spine.set_visible(name in {"left", "bottom"})
            spine.set_color(look.now(look.LINE))
        axes.tick_params(colors=look.now(look.MUTED), length=0, pad=5)
        axes.grid(color=look.now(look.LINE), linewidth=0.6)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontproperties(_font(self._text_px()))
        for line, artists in zip(self.lines, self._artists, strict=True):
            _colour(artists, line)

    def show(
        self,
        lines: Sequence[Line],
        axis: Axis,
        span: float,
        wanted: tuple[float, float] | None,
        width: int,
        height: int,
    ) -> None:
        """Prepare these lines over `wanted` (None: all of it) for a picture of this size."""
        self._resize(width, height)
        self._match(lines)
        self._axis = axis
        self.range = wanted or _whole_range(lines)
        room = max(50, int(width * _POINTS_PER_PIXEL))
        tops: list[tuple[float, float]] = []
        self.smooth = {}
        for line, artists in zip(self.lines, self._artists, strict=True):
            few = within(line.points, *self.range, room)
            artists.raw.set_data(*((few.x, few.mean) if line.smooth else outline(few)))
            x, averages = smoothed(line.points, 0.0 if line.dotted or line.smooth else span)
            self.smooth[line.name] = (x, averages)
            artists.smooth.set_data(x, averages)
            artists.raw.set_alpha(0.32 if len(x) else 1.0)
            artists.raw.set_linewidth(0.8 if len(x) else 1.4)
            if (found := extent(line.points, *self.range)) is not None:
                tops.append(found)
        self.axes.set_xlim(*_padded(*self.range, 0.01))
        self._set_heights(tops)
        self._set_x_format()

    def render(self) -> Image.Image:
        """The picture."""
        self.canvas.draw()  # type: ignore[no-untyped-call]
        pixels = self.canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        return Image.frombuffer("RGBA", self._size, pixels, "raw", "RGBA", 0, 1)

    def save(self, file: Path) -> None:
        """Write it as PNG. Raises OSError."""
        self.figure.savefig(file, format="png", dpi=DPI * 2)

    def place_of(self, pixel_x: float) -> float:
        """What stands at a pixel from the left, along the x axis."""
        left, right = self.axes.get_xlim()
        box = self.axes.get_position()
        return float(left + (pixel_x / self._size[0] - box.x0) / box.width * (right - left))

    def pixel_of(self, x: float, y: float) -> tuple[float, float]:
        """Where a point of the plot is, from the left and from the top."""
        across, up = self.axes.transData.transform((x, y))
        return float(across), self._size[1] - float(up)

    def frame(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the plotted area in pixels."""
        box, (width, height) = self.axes.get_position(), self._size
        return box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height

    def _resize(self, width: int, height: int) -> None:
        size = (max(80, width), max(60, height))
        if size == self._size:
            return
        self._size = size
        self.figure.set_size_inches(size[0] / DPI, size[1] / DPI)
        left, right, top, bottom = (look.px(edge) for edge in _EDGES)
        width, height = size
        self.axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
        self.axes.xaxis.set_major_locator(MaxNLocator(max(2, width // look.px(110)), integer=True))
        self.axes.yaxis.set_major_locator(MaxNLocator(max(2, height // look.px(42))))

    def _match(self, lines: Sequence[Line]) -> None:
        """As many artists as lines, in their colours."""
        names = [(line.name, line.colour, line.dotted) for line in lines]
        if names != [(line.name, line.colour, line.dotted) for line in self.lines]:
            for artists in self._artists:
                artists.raw.remove()
                artists.smooth.remove()
            self._artists = []
            for line in lines:
                raw, smooth = self.axes.plot([], []), self.axes.plot([], [], linewidth=1.8)
                self._artists.append(Artists(raw[0], smooth[0]))
                _colour(self._artists[-1], line)
        self.lines = list(lines)

    def _set_heights(self, tops: Sequence[tuple[float, float]]) -> None:
        low = min((each[0] for each in tops), default=0.0)
        high = max((each[1] for each in tops), default=1.0)
        is_log = self.log_scale and low > 0
        scale = "log" if is_log else "linear"
        if self.axes.get_yscale() != scale:
            self.axes.set_yscale(scale)
            if not is_log:
                self.axes.yaxis.set_major_locator(MaxNLocator(5))
            self.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number_words(value)))
        if is_log:
            self.axes.set_ylim(low / 1.1, high * 1.1)
        else:
            self.axes.set_ylim(*_padded(low, high, 0.06))

    def _set_x_format(self) -> None:
        if self._axis == "steps":
            self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            return
        divisor, unit = unit_for(self.range[1])
        form = FuncFormatter(lambda value, _: f"{value / divisor:.4g} {unit}")
        self.axes.xaxis.set_major_formatter(form)
        self.axes.xaxis.set_major_locator(_Multiples(divisor, max(2, self._size[0] // look.px(110))))

    def _text_px(self) -> int:
        return look.px(_TEXT_PX)


class _Multiples(MaxNLocator):
    """Ticks at round numbers of minutes or hours, though the axis counts seconds."""

    def __init__(self, unit: float, most: int) -> None:
        super().__init__(most)
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        return [tick * self._unit for tick in super().tick_values(vmin / self._unit, vmax / self._unit)]


def unit_for(seconds: float) -> tuple[float, str]:
    """How many seconds the fitting unit of time has, and its sign."""
    return next((size, sign) for most, size, sign in _UNITS if seconds < most)


def number_words(value: float) -> str:
    """A short number: 0.0213, 1.5e-05, 12,400."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.3g}".replace("e-0", "e-")


def _whole_range(lines: Sequence[Line]) -> tuple[float, float]:
    filled = [line.points.x for line in lines if len(line.points)]
    if not filled:
        return 0.0, 1.0
    low, high = min(float(x[0]) for x in filled), max(float(x[-1]) for x in filled)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    room = (high - low) * share or abs(high) * 0.1 or 0.5
    return low - room, high + room


def _colour(artists: Artists, line: Line) -> None:
    colour = look.now(line.colour)
    artists.raw.set_color(colour)
    artists.smooth.set_color(colour)
    artists.raw.set_marker("o" if line.dotted else "")
    artists.raw.set_markersize(4.0)


def _font(size_px: int) -> font_manager.FontProperties:
    return font_manager.FontProperties(fname=str(_ROBOTO), size=size_px * 72 / DPI)


_ROBOTO: Final = Path(ctk.__file__).parent / "assets" / "fonts" / "Roboto" / "Roboto-Regular.ttf"
