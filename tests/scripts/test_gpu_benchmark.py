"""benchmarks/gpu.py without a GPU: its rows can be trained, and what ends a process costs no more than its row."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_row import Row, Site
from benchmarks.real_sizes import MODELS

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


def test_rows_have_all_models_methods_formats_and_options() -> None:
    trained = [row for row in gpu.ROWS if not row.only_caches]
    for method in ("lora", "fine_tune"):
        assert {row.model for row in trained if row.settings["method"] == method} == set(MODELS)
    configs = [row.config(Site(Path(), "cuda", is_tiny=False)) for row in trained]
    assert {part.weights for config in configs for part in config.parts} >= {"bf16", "fp8", "nf4", "int8"}
    for option in ("gradient_checkpointing", "block_offload", "compile", "channels_last"):
        assert any(getattr(config, option) for config in configs), option
    assert any(row.has_ranks for row in trained)
    assert any(row.backs_up for row in trained)


def test_a_row_shows_all_that_was_measured() -> None:
    beside = {"ratio": 1.0, "images_per_s": 4.0, "flops_per_image": 5e12}
    found = {
        **beside,
        "batch": 2,
        "ratio": 0.97,
        "ratios": [0.9, 1.0],
        "bare_images_per_s": 4.1,
        "waits": 1.5,
        "host_ahead_ms": 30.0,
        "busy_ms": 400.0,
        "synchronize_ms": 0.2,
        "peak_gib": 20.0,
        "bare_peak_gib": 19.0,
        "reserved_gib": 22.0,
        "pinned_gib": 0.5,
        "memory_table": {"phases": {"training": 19.0}},
        "first_backup_stalls_ms": 900.0,
        "second_backup_stalls_ms": 90.0,
        "pinned_with_backup_gib": 3.0,
        "attention": {"aten::_scaled_dot_product_flash_attention": 12, "another": 1},
    }
    row = Row("a row", "sd15", {}, beside="another")
    shown = gpu.cells(row, {"rates": {"matmul_tflops": 100.0}, "another": beside, "a row": found})
    assert shown == {
        "batch": "2",
        "ratio": "0.970 (0.900 to 1.000)",
        "images/s": "4.00",
        "bare": "4.10",
        "beside": "1.00 x another",
        "of the peak": "20%",
        "waits": "1.5",
        "host ahead ms": "30",
        "busy ms": "400 of 500",
        "waits ms": "0.2",
        "peak GiB": "trainer 20.00, bare 19.00, reserved 22.00",
        "table": "-5.0%",
        "pinned GiB": "3.00",
        "backup stalls ms": "900, 90",
        "attention": "12 flash_attention",
        "failed": "",
    }
    caching = Row("a row", "sd15", {}, only_caches=True)
    assert gpu.cells(caching, {"a row": found}) == {name: shown[name] for name in list(shown)[:4]}


def fails(file: Path) -> None:
    raise ValueError("the reason")


def dies(file: Path) -> None:
    file.write_text('{"ratio": 1}')
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_fails_or_dies_says_so_and_keeps_what_it_has_found(tmp_path: Path) -> None:
    bench = bench_in(tmp_path)
    assert bench.work(fails) == {"error": "ValueError: the reason"}
    assert bench.work(dies) == {"ratio": 1, "error": "its process ended with -9"}
