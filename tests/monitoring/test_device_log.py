"""What a device does not offer is said once, and the end of a run has means and maxima."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from rich.console import Console

from app.monitor.rank_stats import rank_stats
from modules.monitoring import RankStepTimes
from modules.monitoring.device_log import DeviceLog
from modules.run.view.run_view import RunView
from modules.run.view.terminal import _steps
from modules.training.step.metrics import _memory_mib

FULL = {"utilization_percent": 90, "memory_used_mib": 2048, "temperature_c": 60, "power_w": 300.0}


def test_what_the_driver_does_not_offer_is_said_once() -> None:
    log = DeviceLog()
    assert log.add(0, {**FULL, "sm_clock_mhz": 1755, "slowdown": ""}) == []
    (text,) = log.add(1, {**FULL, "power_w": None, "slowdown": None})
    assert text == "The driver of rank 1's GPU does not report: power, throttle reasons."
    assert log.add(1, {**FULL, "power_w": None, "slowdown": None}) == []
    assert log.add(2, {"cpu_percent": 3.0}) == [], "no GPU, nothing missing"


def test_a_lost_gpu_is_said_once_and_the_others_go_on() -> None:
    log = DeviceLog()
    (text,) = log.add(1, {"utilization_percent": None, "fault": "GPU is lost"})
    assert "rank 1" in text
    assert "GPU is lost" in text
    assert log.add(1, {"utilization_percent": None, "fault": "GPU is lost"}) == []
    assert log.add(0, FULL) == []
    assert [row["rank"] for row in log.summary()] == [0, 1]


def test_mean_and_maximum_of_each_rank() -> None:
    log = DeviceLog()
    for power_w in (100.0, 200.0, 600.0):
        log.add(0, {**FULL, "power_w": power_w, "rank": 0, "slowdown": ""})
    (row,) = log.summary()
    assert row["mean"] == {**FULL, "power_w": 300.0}
    assert row["max"] == {**FULL, "power_w": 600.0}
    (line,) = log.lines()
    assert "GPU load 90 (max 90)%" in line
    assert "power 300 (max 600) W" in line
    assert "GPU memory 2 (max 2) GiB" in line


def test_a_mean_step_is_that_of_the_steps_and_not_of_the_reports() -> None:
    """A report comes every two seconds: of one slow step, or of many fast ones."""
    log, view = DeviceLog(), RunView()
    for steps, step_s, power_w in ((1, 2.0, 100.0), (199, 0.01, 300.0)):
        row = {"rank": 0, "step_s": step_s, "power_w": power_w, "samples_per_s": 1 / step_s}
        log.add(0, row, steps)
        view.apply([{"type": "ranks", "t": 1.0, "ranks": [row], "steps": steps}])
    mean = (2.0 + 199 * 0.01) / 200
    assert log.summary()[0]["mean"] == {
        "step_s": pytest.approx(mean, abs=0.001),
        "power_w": 200,
        "samples_per_s": 50.25,
    }
    (found,) = view.rank_summaries
    assert found["step_s"].mean == pytest.approx(mean)
    assert found["power_w"].mean == 200


def test_a_share_of_the_peak_above_100_percent_is_shown_nowhere() -> None:
    """The peak is measured at the start; a step that does more, of any rank at any time, shows that it is not known."""
    log, view = DeviceLog(), RunView()
    for share in (90.0, 117.0, 95.0):
        figures = {"step_s": 1.0, "allocated_mib": 100.0, "model_tflops": 2.0}
        rows = [{"rank": rank, **figures, "peak_percent": share + rank} for rank in range(2)]
        for rank, row in enumerate(rows):
            log.add(rank, row)
        view.apply([{"type": "ranks", "t": 1.0, "ranks": rows}])
    assert all("of the measured peak" not in line and "TFLOP/s" in line for line in log.lines())
    summary: list[Any] = log.summary()
    assert all("peak_percent" not in row["mean"] for row in summary)
    assert all("peak_percent" not in each.gauges for each in rank_stats(view))
    assert not [name for rank in view.rank_summaries for name in rank if name == "peak_percent"]
    assert "%" not in _cells(view)


def test_flops_of_a_cpu_are_no_part_of_the_last_line() -> None:
    log = DeviceLog()
    log.add(0, {"rank": 0, "model_tflops": 2.0, "peak_percent": 0.14, "process_ram_mib": 512.0})
    log.add(1, {"rank": 1, "model_tflops": 2.0, "peak_percent": 40.0, "allocated_mib": 512.0})
    assert log.lines() == [
        "Rank 0 on average: RAM of the process 0.5 (max 0.5) GiB.",
        "Rank 1 on average: model 2 (max 2) TFLOP/s, of the measured peak 40 (max 40)%, allocated by torch 0.5 "
        "(max 0.5) GiB.",
    ]


def _cells(view: RunView) -> str:
    """The steps as `scripts/monitor.py` shows them."""
    console = Console(width=200, file=(written := io.StringIO()))
    console.print(_steps(view.ranks, is_narrow=False))
    return written.getvalue().split("\n", 2)[2]


def test_memory_efficiency_is_of_the_peaks_of_torchs_allocator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two steps, when a rank is asked, what the step itself needed is free again."""
    stats = {
        "allocated_bytes": {"all": {"current": 3 << 20, "peak": 6 << 20}},
        "reserved_bytes": {"all": {"current": 8 << 20, "peak": 8 << 20}},
    }
    monkeypatch.setattr("torch.cuda.memory_stats_as_nested_dict", lambda device: stats)
    found = _memory_mib(torch.device("cuda"))
    event = RankStepTimes(0, "alpha", 1.0, 0.1, 0.5, 8, **found).event()
    assert (event["allocated_mib"], event["reserved_mib"], event["memory_efficiency_percent"]) == (3, 8, 75)
    on_cpu = RankStepTimes(0, "alpha", 1.0, 0.1, 0.5, 8, **_memory_mib(torch.device("cpu"))).event()
    assert not [name for name in on_cpu if "mib" in name or "efficiency" in name]


def test_a_rank_without_readings_has_no_line() -> None:
    log = DeviceLog()
    log.add(0, FULL)
    log.add(1, {"rank": 1, "power_w": None, "process_cpu_percent": 0.0})
    assert [line.split(" on")[0] for line in log.lines()] == ["Rank 0"]


def test_a_disk_that_is_hardly_read_is_no_power_of_ten() -> None:
    log = DeviceLog()
    log.add(0, {"rank": 0, "disk_read_mb_s": 9.62e-05})
    log.add(0, {"rank": 0, "disk_read_mb_s": 0.01})
    assert log.lines() == ["Rank 0 on average: disk read 0.005 (max 0.01) MB/s."]
    log = DeviceLog()
    for value in (0.0, 9.62e-05):
        log.add(0, {"rank": 0, "disk_read_mb_s": value})
    assert log.lines() == []
