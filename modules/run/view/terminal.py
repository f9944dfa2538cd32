"""A run as tables for the terminal: progress, where each rank's steps spend their time, and what its device does."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from modules.files import printable
from modules.run.format_progress import format_progress
from modules.run.view.event_records import MAX_FIGURE
from modules.run.view.run_view import RunView

Row = Mapping[str, float | str]
Columns = tuple[tuple[str, tuple[str, ...], str, float], ...]

PHASES: Final[Mapping[str, str]] = {
    "data_s": "data",
    "forward_s": "forward",
    "backward_s": "backward",
    "sync_s": "sync",
    "optimizer_s": "optimizer",
    "logging_s": "logging",
}
# Title, fields that are shown with a slash between them, unit, factor.
_DEVICE: Final[Columns] = (
    ("GPU load", ("utilization_percent",), "%", 1.0),
    ("GPU memory", ("memory_used_mib", "memory_total_mib"), " GiB", 1 / 1024),
    ("torch", ("allocated_mib", "reserved_mib"), " GiB", 1 / 1024),
    ("temp.", ("temperature_c",), " °C", 1.0),
    ("power", ("power_w", "power_limit_w"), " W", 1.0),
    ("clock", ("sm_clock_mhz", "sm_clock_max_mhz"), " MHz", 1.0),
    ("CPU", ("process_cpu_percent",), "%", 1.0),
    ("RAM", ("process_ram_mib",), " GiB", 1 / 1024),
    ("disk read/write", ("disk_read_mb_s", "disk_write_mb_s"), " MB/s", 1.0),
    ("net sent/received", ("network_sent_mb_s", "network_received_mb_s"), " MB/s", 1.0),
)
_OF_GPU: Final = 6  # of these columns, the first ones
_READINGS: Final = frozenset({"fault", "slowdown"}.union(*(fields for _, fields, _, _ in _DEVICE)))
_WARNINGS: Final = 5
_WIDE: Final = 100  # columns
_MAX_TEXT: Final = 300
_MAX_SECONDS: Final = 1e12  # 30,000 years
_MAX_SHARE: Final = 10.0


def render(view: RunView, name: str, *, max_ranks: int = 32, width: int = 120) -> RenderableType:
    """The tables of a run, on `width` columns; the first `max_ranks` ranks. Takes the view's lock."""
    with view.lock:
        rows = [dict(row) for row in view.ranks]
        parts: list[RenderableType] = [_progress(view, name, rows)]
        warnings = [each.text for each in view.warnings][-_WARNINGS:]
        error = view.error
    if rows:
        parts.append(_steps(rows[:max_ranks], is_narrow=width < _WIDE))
        if any(key in row for row in rows for key in _READINGS):
            is_narrow = width < _WIDE
            halves = (_DEVICE[:_OF_GPU], _DEVICE[_OF_GPU:]) if is_narrow else (_DEVICE,)
            parts += [
                _devices(rows[:max_ranks], each, is_last=each is halves[-1], is_narrow=is_narrow) for each in halves
            ]
    else:
        parts.append(Text("Times and devices of each rank appear here once training has started.", style="dim"))
    if len(rows) > max_ranks:
        parts.append(Text(f"and {len(rows) - max_ranks} more ranks", style="dim"))
    parts += [Text(f"Warning: {_shown(text)}", style="yellow") for text in warnings]
    if error is not None:
        origin = f"R{_shown(error.origin)[1:]}: " if error.origin else ""
        parts.append(Text(f"{origin}{_shown(error.text)}", style="bold red"))
    return Group(*parts)


def _progress(view: RunView, name: str, rows: list[dict[str, float | str]]) -> Text:
    text = Text(printable(name, _MAX_TEXT), style="bold")
    phase, step, info = view.phase, view.step, view.run_info
    if view.finished is not None:
        text.append(f"  {_shown(view.finished.reason)}", style="bold")
    elif phase is not None:
        done = format_progress(phase.done or 0, phase.total, phase.unit) if phase.total else ""
        text.append(f"  {_shown(phase.name)} {done}".rstrip())
        if view.backing_up is not None:
            text.append(f", backing up step {view.backing_up:,}")
    if step is not None:
        total = f" of {info.total_steps:,}" if info is not None and info.total_steps else ""
        text.append(f"\nstep {step.step:,}{total}", style="not bold")
        if step.loss is not None:
            text.append(f", loss {step.loss:.4g}", style="not bold")
        if step.samples_per_s and abs(step.samples_per_s) < MAX_FIGURE:
            each = f" ({step.samples_per_s / len(rows):.1f} per device)" if len(rows) > 1 else ""
            text.append(f", {step.samples_per_s:.1f} samples/s{each}", style="not bold")
        if step.eta_s is not None and view.finished is None:
            text.append(f", {_clock(step.eta_s)} left", style="not bold")
    if view.time and view.finished is None and (silent_s := time.time() - view.time) > 30:
        text.append(f"\nno event for {_clock(silent_s)}", style="yellow")
    return text


def _clock(seconds: float) -> str:
    """Hours, minutes and seconds; the run folder may hold any number, and timedelta does not take every one."""
    return str(timedelta(seconds=round(min(max(seconds, 0.0), _MAX_SECONDS))))


def _steps(rows: list[dict[str, float | str]], *, is_narrow: bool) -> Table:
    """Milliseconds of each phase and its share of the step; hosts only if there are several."""
    gap, between = (1, "\n") if is_narrow else (2, " ")
    table = Table(title="Step, ms", title_justify="left", title_style="dim", box=None, padding=(0, gap, 0, 0))
    hosts = ["host"] if len({row.get("host") for row in rows}) > 1 else []
    shown = [key for key in PHASES if any(_number(row, key) for row in rows)]
    for title in ("rank", *hosts, "step", *(PHASES[key] for key in shown), "samples/s", f"TFLOP/s{between}of peak"):
        table.add_column(title, justify="left" if title in ("rank", "host") else "right")
    for number, row in enumerate(rows):
        step_s = _number(row, "step_s") or 0.0
        cells = [f"{1000 * step_s:.4g}" if step_s else "-"]
        cells += [_part(_number(row, key), step_s, between) for key in shown]
        speed = _number(row, "samples_per_s")
        cells.append("-" if speed is None else f"{speed:.1f}")
        flops = (("model_tflops", "{:.3g}"), ("peak_percent", "{:3.0f}%"))
        found = [form.format(value) for name, form in flops if (value := _number(row, name)) is not None]
        cells.append(between.join(found) or "-")
        table.add_row(str(number), *([_shown(str(row.get("host", "")))] if hosts else []), *cells)
    return table


def _part(seconds: float | None, step_s: float, between: str) -> str:
    """Milliseconds and share of the step; a dash for what is none."""
    if seconds is None or step_s <= 0 or not 0 <= seconds / step_s < _MAX_SHARE:
        return "-"
    return f"{1000 * seconds:.3g}{between}{seconds / step_s:4.0%}"


def _devices(rows: list[dict[str, float | str]], columns: Columns, *, is_last: bool, is_narrow: bool) -> RenderableType:
    """What is offered of `columns`; the last table says what holds a device back. Nothing if there is nothing."""
    offered = [each for each in columns if any(_number(row, each[1][0]) is not None for row in rows)]
    if not offered and not is_last:
        return Group()
    gap = 1 if is_narrow else 2
    title = "Device" if is_last and not is_narrow else "Process and device" if is_last else "GPU"
    table = Table(title=title, title_justify="left", title_style="dim", box=None, padding=(0, gap, 0, 0))
    table.add_column("rank")
    for title, *_ in offered:
        table.add_column(title, justify="right")
    if is_last:
        table.add_column("held back by")
    for number, row in enumerate(rows):
        fault, slowdown = str(row.get("fault") or ""), str(row.get("slowdown") or "")
        held = Text(_shown(f"does not answer: {fault}"), style="red") if fault else Text(_shown(slowdown))
        table.add_row(str(number), *(_cell(row, *each[1:]) for each in offered), *([held] if is_last else []))
    return table


def _cell(row: Row, names: tuple[str, ...], unit: str, factor: float) -> str:
    values = [value for name in names if (value := _number(row, name)) is not None]
    if not values:
        return "-"
    decimals = 1 if factor < 1 or "/s" in unit else 0
    return "/".join(f"{value * factor:.{decimals}f}" for value in values) + unit


def _number(row: Row, name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, float) else None


def _shown(text: str) -> str:
    return printable(text, _MAX_TEXT)
