"""benchmarks/gpu.py without a GPU: its rows can be trained, and what ends a process costs no more than its row."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_row import Row, Site

ROW = Row("a row", "sd15", {})


def bench_in(place: Path, minutes: float = 1) -> gpu.Bench:
    return gpu.Bench(Site(place, "cpu", is_tiny=True), place, minutes)


@pytest.mark.parametrize("row", gpu.ROWS, ids=lambda row: row.name)
def test_a_row_is_a_config_and_is_beside_one_of_the_same_batch(row: Row, tmp_path: Path) -> None:
    config = row.config(Site(tmp_path, "cuda", is_tiny=False))
    if row.beside:
        (beside,) = (each for each in gpu.ROWS if each.name == row.beside)
        other = beside.config(Site(tmp_path, "cuda", is_tiny=False))
        assert (other.family, other.method, other.batch_size) == (config.family, config.method, config.batch_size)


def test_no_row_is_started_once_the_minutes_are_over(tmp_path: Path) -> None:
    bench = bench_in(tmp_path, minutes=0)
    bench.row(ROW)
    (kept,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert kept == {"name": "a row", "error": "not started: the minutes are over"}
    assert "the minutes are over" in gpu.table_of([ROW], bench.found)
    assert bench_in(tmp_path).found == bench.found  # a later call with the same folder knows it


def fails(file: Path) -> None:
    raise ValueError("the reason")


def dies(file: Path) -> None:
    file.write_text('{"ratio": 1}')
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_fails_or_dies_says_so_and_keeps_what_it_has_found(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    assert bench.work(fails) == {"error": "ValueError: the reason"}
    assert bench.work(dies) == {"ratio": 1, "error": "its process ended with -9"}
