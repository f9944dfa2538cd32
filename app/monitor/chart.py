"""A matplotlib plot without a window, for the screen and for files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from app.monitor.points import Axis, Points, extent, outline, smoothed, usual_extent, within
from app.toolkit import ctk
from app.widgets import theme

DPI: Final = 100
_TEXT_PX: Final = 11
_TICK_PX: Final = 80  # of width for each tick at most
_ROUND: Final = (1, 2, 5, 10)  # ticks are multiples of these, times a power of ten
_EDGES: Final = (58, 12, 10, 24)  # left, right, top and bottom, in unscaled pixels
_POINTS_PER_PIXEL: Final = 0.5  # each with its lowest and highest value, so one value per pixel
_UNITS: Final = ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (172_800.0, 3600.0, "h"), (float("inf"), 86_400.0, "d"))


@dataclass(frozen=True)
class PlotLine:
    """One curve of a plot. `dotted`: few points, each marked; `smooth`: does not scatter and is not smoothed."""

    name: str
    points: Points
    colour: theme.Colour
    dotted: bool = False
    smooth: bool = False


@dataclass
class Artists:
    """The matplotlib artists of one line: the raw curve behind, the smoothed one in front."""

    raw: Line2D
    smooth: Line2D


class Chart:
    """Call `show`, then `render`; artists are updated in place, which takes milliseconds."""

    def __init__(self, *, log_scale: bool = False, clips: bool = False) -> None:
        self.figure = Figure(dpi=DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes: Axes = self.figure.add_axes((0.1, 0.1, 0.8, 0.8))
        self.lines: list[PlotLine] = []
        self.smooth: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self.range: tuple[float, float] = (0.0, 1.0)
        self.log_scale = log_scale
        self._extent = usual_extent if clips else extent
        self._artists: list[Artists] = []
        self._size = (0, 0)
        self._axis: Axis = "steps"
        self.axes.yaxis.set_major_locator(_y_ticks(5))
        self.axes.yaxis.set_major_formatter(FuncFormatter(self._y_label))
        self.axes.set_axisbelow(True)
        self.recolour()

    def recolour(self) -> None:
        """Apply the colours of the current appearance mode."""
        self.figure.set_facecolor(theme.resolve(theme.CARD))
        axes = self.axes
        axes.set_facecolor(theme.resolve(theme.CARD))
        for name, spine in axes.spines.items():
            spine.set_visible(name in {"left", "bottom"})
            spine.set_color(theme.resolve(theme.LINE))
        axes.tick_params(colors=theme.resolve(theme.MUTED), length=0, pad=5)
        axes.grid(color=theme.resolve(theme.LINE), linewidth=0.6)
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels()):
            label.set_fontproperties(_font(theme.px(_TEXT_PX)))
        for line, artists in zip(self.lines, self._artists, strict=True):
            _set_colour(artists, line)

    def show(
        self,
        lines: Sequence[PlotLine],
        axis: Axis,
        span: float,
        x_range: tuple[float, float] | None,
        width: int,
        height: int,
    ) -> None:
        """Prepare the lines over `x_range` (None: everything) at this size in pixels; `span`: smoothing in steps."""
        self._resize(width, height)
        self._match_artists(lines)
        self._axis = axis
        self.range = x_range or _full_range(lines)
        limit = max(50, int(width * _POINTS_PER_PIXEL))
        y_ranges: list[tuple[float, float]] = []
        self.smooth = {}
        for line, artists in zip(self.lines, self._artists, strict=True):
            reduced = within(line.points, *self.range, limit)
            artists.raw.set_data(*((reduced.x, reduced.mean) if line.smooth else outline(reduced)))
            x, averages = smoothed(line.points, 0.0 if line.dotted or line.smooth else span)
            self.smooth[line.name] = (x, averages)
            artists.smooth.set_data(x, averages)
            is_point = len(line.points) == 1  # a line through one point is none
            artists.smooth.set_marker("o" if is_point and not line.dotted else "")
            artists.raw.set_marker("o" if line.dotted or (is_point and not len(x)) else "")
            artists.raw.set_alpha((0.55 if theme.is_dark() else 0.32) if len(x) else 1.0)
            artists.raw.set_linewidth(0.8 if len(x) else 1.4)
            if (found := self._extent(line.points, *self.range)) is not None:
                y_ranges.append(found)
        self.axes.set_xlim(*_padded(*self.range, 0.01))
        self._set_y_axis(y_ranges)
        self._set_x_axis()

    def render(self) -> Image.Image:
        """Draw and return the plot as an RGBA image."""
        self.canvas.draw()  # type: ignore[no-untyped-call]
        pixels = self.canvas.buffer_rgba()  # type: ignore[no-untyped-call]
        return Image.frombuffer("RGBA", self._size, pixels, "raw", "RGBA", 0, 1)

    def save(self, file: Path) -> None:
        """Save the plot as PNG. Raises OSError."""
        self.figure.savefig(file, format="png", dpi=DPI * 2)

    def data_x(self, pixel_x: float) -> float:
        """The x value at a pixel counted from the left."""
        left, right = self.axes.get_xlim()
        box = self.axes.get_position()
        return float(left + (pixel_x / self._size[0] - box.x0) / box.width * (right - left))

    def pixel_at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a data point, from the left and from the top."""
        across, up = self.axes.transData.transform((x, y))
        return float(across), self._size[1] - float(up)

    def frame(self) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of the plot area in pixels."""
        box, (width, height) = self.axes.get_position(), self._size
        return box.x0 * width, (1 - box.y1) * height, box.x1 * width, (1 - box.y0) * height

    def _resize(self, width: int, height: int) -> None:
        size = (max(80, width), max(60, height))
        if size == self._size:
            return
        self._size = size
        self.figure.set_size_inches(size[0] / DPI, size[1] / DPI)
        left, right, top, bottom = (theme.px(edge) for edge in _EDGES)
        width, height = size
        self.axes.set_position((left / width, bottom / height, 1 - (left + right) / width, 1 - (top + bottom) / height))
        # two numbers tell the scale; where their texts would touch, one
        least = 2 if height - top - bottom >= theme.px(3 * _TEXT_PX) else 1
        self.axes.yaxis.set_major_locator(_y_ticks(max(least, height // theme.px(42))))

    def _match_artists(self, lines: Sequence[PlotLine]) -> None:
        """Create one pair of artists per line, in its colour."""
        names = [(line.name, line.colour, line.dotted) for line in lines]
        if names != [(line.name, line.colour, line.dotted) for line in self.lines]:
            for artists in self._artists:
                artists.raw.remove()
                artists.smooth.remove()
            self._artists = []
            for line in lines:
                raw, smooth = self.axes.plot([], []), self.axes.plot([], [], linewidth=1.8)
                self._artists.append(Artists(raw[0], smooth[0]))
                _set_colour(self._artists[-1], line)
        self.lines = list(lines)

    def _set_y_axis(self, y_ranges: Sequence[tuple[float, float]]) -> None:
        low = min((each[0] for each in y_ranges), default=0.0)
        high = max((each[1] for each in y_ranges), default=1.0)
        is_log = self.log_scale and low > 0
        scale = "log" if is_log else "linear"
        if self.axes.get_yscale() != scale:
            self.axes.set_yscale(scale)
            if not is_log:
                self.axes.yaxis.set_major_locator(_y_ticks(5))
            self.axes.yaxis.set_major_formatter(FuncFormatter(self._y_label))
        if is_log:
            self.axes.set_ylim(low / 1.1, high * 1.1)
        else:
            is_constant = high - low <= 1e-6 * abs(high)  # what differs is rounding
            self.axes.set_ylim(*_padded(high if is_constant else low, high, 0.06))

    def _y_label(self, value: float, place: int | None) -> str:
        """Of a tick: small numbers all in the same notation."""
        if value == 0 or max(map(abs, self.axes.get_ylim())) >= 1e-3 or self.axes.get_yscale() == "log":
            return format_number(value)
        digits, _, exponent = f"{value:.3e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"

    def _set_x_axis(self) -> None:
        if self._axis == "steps":
            self.axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
            # one tick if there is one step: more would be fractions of it
            self.axes.xaxis.set_major_locator(MaxNLocator(self._x_ticks(), steps=_ROUND, integer=True, min_n_ticks=1))
            return
        divisor, unit = time_unit(self.range[1])
        formatter = FuncFormatter(lambda value, _: f"{value / divisor:.4g} {unit}")
        self.axes.xaxis.set_major_formatter(formatter)
        self.axes.xaxis.set_major_locator(_Multiples(divisor, self._x_ticks()))

    def _x_ticks(self) -> int:
        return max(2, self._size[0] // theme.px(_TICK_PX))


class _Multiples(MaxNLocator):
    """Ticks at round minutes or hours on an axis in seconds."""

    def __init__(self, unit: float, ticks: int) -> None:
        super().__init__(ticks)
        self._unit = unit

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        return [tick * self._unit for tick in super().tick_values(vmin / self._unit, vmax / self._unit)]


def _y_ticks(most: int) -> MaxNLocator:
    return MaxNLocator(most, steps=_ROUND, min_n_ticks=1 if most < 2 else 2)


def time_unit(seconds: float) -> tuple[float, str]:
    """(seconds per unit, symbol) of a unit of time that suits the duration."""
    return next((size, symbol) for limit, size, symbol in _UNITS if seconds < limit)


def format_number(value: float) -> str:
    """A number in few characters: 0.0213, 1.5e-5, 12,400."""
    if value == 0:
        return "0"
    if abs(value) >= 10_000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    return f"{value:.4g}" if abs(value) >= 1e-3 else f"{value:.3g}".replace("e-0", "e-")


def _full_range(lines: Sequence[PlotLine]) -> tuple[float, float]:
    filled = [line.points.x for line in lines if len(line.points)]
    if not filled:
        return 0.0, 1.0
    low, high = min(float(x[0]) for x in filled), max(float(x[-1]) for x in filled)
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def _padded(low: float, high: float, margin: float) -> tuple[float, float]:
    padding = (high - low) * margin or abs(high) * 0.1 or 0.5
    return low - padding, high + padding


def _set_colour(artists: Artists, line: PlotLine) -> None:
    colour = theme.resolve(line.colour)
    artists.raw.set_color(colour)
    artists.smooth.set_color(colour)
    artists.raw.set_marker("o" if line.dotted else "")
    artists.raw.set_markersize(4.0)
    artists.smooth.set_markersize(4.0)


def _font(size_px: int) -> font_manager.FontProperties:
    return font_manager.FontProperties(fname=str(_ROBOTO), size=size_px * 72 / DPI)


_ROBOTO: Final = Path(ctk.__file__).parent / "assets" / "fonts" / "Roboto" / "Roboto-Regular.ttf"
