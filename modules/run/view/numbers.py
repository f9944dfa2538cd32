"""The numbers of a run as CSV or JSON: a row for each step and each validation."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TextIO, TypeAlias

from modules.config import ConfigError
from modules.files import open_for_writing, printable, replacing
from modules.run.folder.event_reader import EventReader
from modules.run.folder.events import Event
from modules.run.folder.run_folder import RunFolder
from modules.run.view.event_records import parse_float, parse_int, parse_text

WriteRow: TypeAlias = Callable[[Sequence[object] | None], object]  # None at the end
STEP_COLUMNS: Final = ("epoch", "samples_seen", "loss", "lr", "grad_norm", "samples_per_s")
COLUMNS: Final = ("time", "step", *STEP_COLUMNS, "validation_loss", "test_loss")
_SETS: Final = ("validation", "test")
_MOST_METRICS: Final = 1000  # each is a column of every row


def save_numbers(folder: RunFolder, file: Path, *, as_json: bool) -> int:
    """`write_numbers` to a file, which replaces an older one only when it is complete. Raises OSError, ConfigError."""
    with (
        replacing(file) as partial,
        os.fdopen(open_for_writing(partial), "w", newline="", encoding="utf-8") as target,
    ):
        return write_numbers(folder, target, as_json=as_json)


def write_numbers(folder: RunFolder, target: TextIO, *, as_json: bool) -> int:
    """Write every step and validation of a run, with each metric of the validations as validation_NAME and test_NAME:
    as CSV, or as a JSON list of objects without what a row lacks.

    Steps that a resumed run repeats are there twice, in the order of `time`, in seconds since 1970. Memory does not
    grow with the number of rows. Returns that number. Raises OSError, and ConfigError for too many metrics.
    """
    metrics = _metrics_of(folder)
    columns = [*COLUMNS, *(f"{part}_{printable(name)}" for name in metrics for part in _SETS)]
    write = _json_rows(target, columns) if as_json else _csv_rows(target, columns)
    rows = 0
    reader = EventReader(folder.events_file)
    while events := reader.new():
        for event in events:
            row = _row(event, metrics)
            if row is not None:
                write(row)
                rows += 1
    write(None)
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


def _metrics_of(folder: RunFolder) -> list[str]:
    """The names of what the validations of a run measure besides the loss, in the order in which they appear."""
    reader, names = EventReader(folder.events_file), dict[str, None]()
    while events := reader.new():
        for event in events:
            measured = event.get("metrics")
            if event.get("type") == "validation" and isinstance(measured, dict):
                names |= dict.fromkeys(map(str, measured))
                if len(names) > _MOST_METRICS:
                    raise ConfigError(
                        f"{printable(folder.events_file)} has validations with more than {_MOST_METRICS} different "
                        "metrics, each a column of a table",
                        "No run of Tandem measures so many; is the file damaged?",
                    )
    return list(names)


def _row(event: Event, metrics: Sequence[str]) -> list[object] | None:
    step = parse_int(event.get("step"))
    if step is None or event.get("type") not in {"step", "validation"}:
        return None
    time = parse_float(event.get("t"))
    if event["type"] == "step":
        figures = [_number(event.get(name)) for name in STEP_COLUMNS]
        return [time, step, *figures, *[None] * (2 + 2 * len(metrics))]
    given = event.get("metrics")
    found = given if isinstance(given, dict) else {}
    measured = [parse_float(event.get("loss")), *(parse_float(found.get(name)) for name in metrics)]
    is_test = parse_text(event.get("set")) == "test"
    by_set = [(None, value) if is_test else (value, None) for value in measured]
    return [time, step, *(None for _ in STEP_COLUMNS), *(value for pair in by_set for value in pair)]


def _number(value: object) -> float | int | None:
    real = parse_float(value)
    return value if isinstance(value, int) and real is not None else real
