"""scripts/monitor.py shows a run's folder, whatever is in it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from modules.run import EventLog, RunFolder
from scripts.monitor import main
from tests.runs import ROOT, environment

GPU = {
    "utilization_percent": 97,
    "memory_used_mib": 20_480,
    "memory_total_mib": 81_559,
    "power_w": 652.3,
    "power_limit_w": 700.0,
    "slowdown": "power limit",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.setenv("COLUMNS", "200")
    folder = RunFolder(tmp_path / "cats")
    folder.path.mkdir()
    log = EventLog(folder.events_file)
    log.write("started", total_steps=100, host="alpha", devices=[])
    log.write("step", step=7, loss=0.5, samples_per_s=80.0, eta_s=60.0)
    times = {"step_s": 0.2, "data_s": 0.05, "forward_s": 0.05, "backward_s": 0.1, "samples_per_s": 40.0}
    rows = [{"rank": 0, "host": "alpha", **times, **GPU}, {"rank": 1, "host": "alpha", **times, "fault": "GPU is lost"}]
    log.write("ranks", ranks=rows)
    log.write("warning", message="[red]Training is limited\x1b[2J by data loading")
    log.close()
    return folder


def test_steps_devices_and_warnings(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "step 7 of 100, loss 0.5, 80.0 samples/s (40.0 per device), 0:01:00 left" in shown
    assert "50  25%" in shown
    assert "20.0/79.6 GiB" in shown
    assert "652/700 W" in shown
    assert "does not answer: GPU is lost" in shown
    assert "Warning: [red]Training is limited" in shown, "texts of others are no markup"
    assert "\x1b[2J" not in shown


def test_the_name_of_a_host_is_no_markup(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("[/red]", "[link=https://example.org]:key:[/link]\x1b[2J")
    log = EventLog(folder.events_file)
    log.write("ranks", ranks=[{"rank": rank, "host": name, "step_s": 0.2} for rank, name in enumerate(names)])
    log.close()
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert names[0] in shown
    assert names[1].replace("\x1b", "\\x1b") in shown


def test_eighty_columns_cut_no_title(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    times = {"step_s": 0.2324, "data_s": 0.0967, "forward_s": 0.0809, "backward_s": 0.0354, "sync_s": 0.026}
    rest = {"optimizer_s": 0.0018, "logging_s": 0.0236, "samples_per_s": 1068.8, "model_tflops": 1.32e-5}
    log = EventLog(folder.events_file)
    log.write("ranks", ranks=[{"rank": 0, "host": "alpha", **times, **rest, "peak_percent": 0.001}])
    log.close()
    assert main([str(folder.path)]) == 0
    table = capsys.readouterr().out.partition("Step, ms")[2].partition("Warning")[0]
    assert "…" not in table
    for text in ("forward", "backward", "optimizer", "logging", "samples/s", "1068.8", "42%", "TFLOP/s", "1.32e-05"):
        assert text in table


def test_eighty_columns_cut_no_figure_of_a_gpu(
    folder: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    gpu = {"allocated_mib": 30_000, "reserved_mib": 40_000, "temperature_c": 76, "sm_clock_mhz": 1980}
    process = {"process_cpu_percent": 103, "process_ram_mib": 12_345, "disk_read_mb_s": 123.4, "disk_write_mb_s": 0.5}
    network = {"network_sent_mb_s": 1123.4, "network_received_mb_s": 1123.4, "sm_clock_max_mhz": 1980}
    log = EventLog(folder.events_file)
    log.write("ranks", ranks=[{"rank": 0, "host": "alpha", "step_s": 0.2, **GPU, **gpu, **process, **network}])
    log.close()
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    figures = ("97%", "20.0/79.6 GiB", "29.3/39.1 GiB", "76 °C", "652/700 W", "1980/1980 MHz", "103%", "12.1 GiB")
    for text in (*figures, "123.4/0.5 MB/s", "1123.4/1123.4 MB/s", "held back by", "power limit", "net sent/received"):
        assert text in shown, text
    assert max(map(len, shown.splitlines())) <= 80


def test_without_a_reading_there_is_no_table_of_devices(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(folder.events_file)
    log.write("ranks", ranks=[{"rank": 0, "host": "alpha", "step_s": 0.2}])
    log.close()
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "Step, ms" in shown
    assert "held back by" not in shown


def test_it_follows_a_run_on_a_terminal_until_its_end(folder: RunFolder) -> None:
    program = "import pty, sys; sys.exit(pty.spawn([sys.executable, *sys.argv[1:]]) >> 8)"
    command = [sys.executable, "-c", program, str(ROOT / "scripts/monitor.py"), str(folder.path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**environment(), "TERM": "xterm"})
    assert process.stdout is not None
    shown = ""
    while "step 7" not in shown:
        shown += process.stdout.read(1)
    log = EventLog(folder.events_file)
    log.write("step", step=8, loss=0.25)
    log.write("finished", reason="finished", exit_code=0)
    log.close()
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "step 8 of 100" in rest


@pytest.mark.parametrize("number", ["1e300", "-1e300", "1e14", "-1e14", "1e999", "NaN"])
def test_numbers_that_are_no_time(number: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with folder.events_file.open("a") as file:
        file.write(f'{{"type": "step", "t": {number}, "step": 8, "loss": {number}, "eta_s": {number}}}\n')
    assert main([str(folder.path)]) == 0
    assert "step 8 of 100" in capsys.readouterr().out


@pytest.mark.parametrize("value", ["0", "5e-324", "-1", "1e300", "-1e300", "1e999", "NaN", '"0.2"', "null", "[]"])
def test_figures_that_are_none_are_dashes(value: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"step_s": 0.2, "data_s": 0.05, "forward_s": 0.05, "samples_per_s": 40, "model_tflops": 1, **GPU}
    rows = [json.dumps({**given, name: "VALUE"}).replace('"VALUE"', value) for name in given]
    with folder.events_file.open("a") as file:
        file.write(f'{{"type": "ranks", "ranks": [{", ".join(rows)}, {{}}, 5, {{"step_s": {value}}}]}}\n')
        file.write(f'{{"type": "step", "step": 9, "samples_per_s": {value}}}\n')
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert not re.search(r"\b(inf|nan|None)\b|\d{12}", shown), shown
    assert max(map(len, shown.splitlines())) <= 200
    steps, _ = shown.partition("Step, ms")[2].split("Device")
    assert len(steps.splitlines()) == 2 + len(rows) + 3, "a line for each rank"
    assert steps.splitlines()[-2].split() == [str(len(rows) + 1), *"-----"], "a row that is no row"


def test_an_error_without_a_rank(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(folder.events_file)
    log.write("error", message="the disk is full")
    log.close()
    assert main([str(folder.path)]) == 0
    shown = capsys.readouterr().out
    assert "the disk is full" in shown
    assert "None" not in shown


def test_a_folder_that_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--once"]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
