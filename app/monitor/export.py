"""Export of a run's plots to a file; modules/run/view/numbers.py has the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image, ImageDraw, ImageFont

from app.widgets import theme
from modules.files import replacing

if TYPE_CHECKING:
    from app.monitor.chart import PlotLine
    from app.monitor.points import Axis

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
