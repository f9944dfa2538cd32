"""Plots and numbers of a run as files."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from PIL import Image, ImageDraw, ImageFont

from app import look
from app.run_facts import number, text, whole
from modules.run import EventReader, RunFolder

if TYPE_CHECKING:
    from app.monitor.chart import Line
    from app.monitor.points import Axis

FIGURES: Final = ("epoch", "samples_seen", "loss", "lr", "grad_norm", "samples_per_s")
COLUMNS: Final = ("time", "step", *FIGURES, "validation_loss", "test_loss")
_SHEET: Final = (1600, 1000)
_TITLE_PX: Final = 34


@dataclass(frozen=True)
class Sheet:
    """One plot of an exported picture: its title, its lines, and how they are smoothed and scaled."""

    title: str
    lines: Sequence[Line]
    span: float
    log_scale: bool = False


def save_numbers(folder: RunFolder, file: Path) -> int:
    """Write every step and validation of a run as CSV, not thinned out; returns the number of rows. Raises OSError."""
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    rows = 0
    reader = EventReader(folder.events_file)
    try:
        with partial.open("w", newline="", encoding="utf-8") as target:
            writer = csv.writer(target)
            writer.writerow(COLUMNS)
            while events := reader.new():
                for event in events:
                    row = _row(event)
                    if row is not None:
                        writer.writerow(["" if value is None else value for value in row])
                        rows += 1
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)
    return rows


def save_plots(sheets: Sequence[Sheet], axis: Axis, wanted: tuple[float, float] | None, title: str, file: Path) -> None:
    """Write the plots as one PNG: the first above, the others side by side below it. Raises OSError."""
    from app.monitor.chart import Chart

    width, height = _SHEET
    picture = Image.new("RGB", (width, height), look.now(look.CARD))
    pen = ImageDraw.Draw(picture)
    font = ImageFont.load_default(size=20)
    pen.text((24, 16), title, fill=look.now(look.TEXT), font=font)
    top, upper = 60, round((height - 60) * 0.55)
    below = max(1, len(sheets) - 1)
    places = [(0, top, width, upper)]
    places += [(n * width // below, top + upper, width // below, height - top - upper) for n in range(below)]
    for sheet, (x, y, wide, high) in zip(sheets, places, strict=False):
        pen.text((x + 24, y + 6), sheet.title, fill=look.now(look.MUTED), font=ImageFont.load_default(size=16))
        chart = Chart(log_scale=sheet.log_scale)
        chart.show(sheet.lines, axis, sheet.span, wanted, wide, high - _TITLE_PX)
        picture.paste(chart.render().convert("RGB"), (x, y + _TITLE_PX))
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    try:
        picture.save(partial, format="PNG")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def _row(event: dict[str, object]) -> list[object] | None:
    step = whole(event.get("step"))
    if step is None or event.get("type") not in {"step", "validation"}:
        return None
    time = number(event.get("t"))
    if event["type"] == "step":
        return [time, step, *(_plain(event.get(name)) for name in FIGURES), None, None]
    loss = number(event.get("loss"))
    is_test = text(event.get("set")) == "test"
    return [time, step, *(None for _ in FIGURES), None if is_test else loss, loss if is_test else None]


def _plain(value: object) -> float | int | None:
    real = number(value)
    return value if isinstance(value, int) and real is not None else real
