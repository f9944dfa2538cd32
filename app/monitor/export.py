"""Export of a run's plots and data to files."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

from PIL import Image, ImageDraw, ImageFont

from app.widgets import theme
from modules.run import EventReader, RunFolder
from modules.run.view.event_records import parse_float, parse_int, parse_text

if TYPE_CHECKING:
    from app.monitor.chart import PlotLine
    from app.monitor.points import Axis

WriteRow: TypeAlias = "Callable[[Sequence[object] | None], object]"  # None at the end
STEP_METRICS: Final = ("epoch", "samples_seen", "loss", "lr", "grad_norm", "samples_per_s")
COLUMNS: Final = ("time", "step", *STEP_METRICS, "validation_loss", "test_loss")
_SETS: Final = ("validation", "test")
_SIZE: Final = (1600, 1000)
_TITLE_PX: Final = 34


@dataclass(frozen=True)
class PlotSpec:
    """One plot of an exported image: title, lines, smoothing span in steps, and scale."""

    title: str
    lines: Sequence[PlotLine]
    span: float
    log_scale: bool = False


def save_numbers(folder: RunFolder, file: Path) -> int:
    """Write every step and validation of a run, with each metric of the validations as validation_NAME and test_NAME:
    as CSV, or if `file` ends in .json as a list of objects without what a row lacks.

    Returns the number of rows. Raises OSError.
    """
    metrics = _metrics_of(folder)
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    rows = 0
    reader = EventReader(folder.events_file)
    try:
        with partial.open("w", newline="", encoding="utf-8") as target:
            columns = [*COLUMNS, *(f"{part}_{name}" for name in metrics for part in _SETS)]
            write = _json_rows(target, columns) if file.suffix.lower() == ".json" else _csv_rows(target, columns)
            while events := reader.new():
                for event in events:
                    row = _row(event, metrics)
                    if row is not None:
                        write(row)
                        rows += 1
            write(None)
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def _csv_rows(target: TextIO, columns: Sequence[str]) -> WriteRow:
    writer = csv.writer(target)
    writer.writerow(columns)
    return lambda row: row is not None and writer.writerow(["" if value is None else value for value in row])


def _json_rows(target: TextIO, columns: Sequence[str]) -> WriteRow:
    """A row a line, so that nothing is kept in memory."""
    before = "["

    def write(row: Sequence[object] | None) -> None:
        nonlocal before
        if row is None:
            target.write("[]\n" if before == "[" else "\n]\n")
            return
        given = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
        target.write(f"{before}\n{json.dumps(given)}")
        before = ","

    return write


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
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    try:
        image.save(partial, format="PNG")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _metrics_of(folder: RunFolder) -> list[str]:
    """The names of what the validations of a run measure besides the loss, in the order in which they appear."""
    reader, names = EventReader(folder.events_file), dict[str, None]()
    while events := reader.new():
        for event in events:
            measured = event.get("metrics")
            if event.get("type") == "validation" and isinstance(measured, dict):
                names |= dict.fromkeys(map(str, measured))
    return list(names)


def _row(event: dict[str, object], metrics: Sequence[str]) -> list[object] | None:
    step = parse_int(event.get("step"))
    if step is None or event.get("type") not in {"step", "validation"}:
        return None
    time = parse_float(event.get("t"))
    if event["type"] == "step":
        figures = [_number(event.get(name)) for name in STEP_METRICS]
        return [time, step, *figures, *[None] * (2 + 2 * len(metrics))]
    given = event.get("metrics")
    found = given if isinstance(given, dict) else {}
    measured = [parse_float(event.get("loss")), *(parse_float(found.get(name)) for name in metrics)]
    is_test = parse_text(event.get("set")) == "test"
    by_set = [(None, value) if is_test else (value, None) for value in measured]
    return [time, step, *(None for _ in STEP_METRICS), *(value for pair in by_set for value in pair)]


def _number(value: object) -> float | int | None:
    real = parse_float(value)
    return value if isinstance(value, int) and real is not None else real
