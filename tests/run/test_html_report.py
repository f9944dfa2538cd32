"""The report of a run: one page with everything, that runs nothing and opens nothing, whoever wrote the run."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from modules.config import ConfigError
from modules.files.videos import Clip
from modules.monitoring import save_sample
from modules.run import EventLog, RunFolder
from modules.run.html_report import update_report, write_report
from modules.run.html_report.svg import ticks
from scripts.report import main
from tests.runs import tiny_config, train_alone


def folder_with(path: Path, *events: tuple[str, dict[str, object]]) -> RunFolder:
    folder = RunFolder(path)
    folder.make_directories()
    log = EventLog(folder.events_file)
    for kind, fields in events:
        log.write(kind, **fields)
    log.close()
    return folder


def test_a_run_leaves_its_report(images: Path, tmp_path: Path) -> None:
    samples = {"samples": [{"prompt": "a red disc", "width": 16, "height": 16}], "sample_every": "3 steps"}
    config = tiny_config(images, tmp_path, max_steps=6, learning_rate=0.0125, save_every="4 steps", **samples)
    code, run = train_alone(config)
    assert code == 0
    page = run.folder.report_file.read_text("utf-8")
    assert "Finished: all steps are done and the model is saved." in page
    assert "6 of 6" in page
    assert re.search(r"<td>learning_rate</td><td>0.0125</td>", page), "a setting that was changed"
    assert "41 images" in page, "the summary of the data"
    assert page.count("data:image/png;base64,") == 2, "two samples, inside the page"
    assert page.count("<svg") >= 4, "curves"
    (saved,) = run.events("saved_model")
    assert f'<td class="number">4</td><td class="number">{saved["loss"]:.4g}</td><td>saves/step-000004</td>' in page
    assert re.search(r"<dt>torch</dt><dd>2\.", page), "versions"
    assert "Rank 0: " in page
    assert "Waiting for data" in page, "what the device was measured at"


def test_samples_that_are_videos_move_in_the_report(tmp_path: Path) -> None:
    pytest.importorskip("av")
    folder = RunFolder(tmp_path / "x")
    folder.make_directories()
    file = folder.samples_dir / "step-000001-00.png"
    save_sample(Clip((Image.new("RGB", (32, 32)),) * 3, 8.0), file, {})
    folder_with(folder.path, ("sample", {"file": str(file), "prompt": "a video", "step": 1}))
    page = write_report(folder).read_text("utf-8")
    assert page.count('<video controls loop muted autoplay playsinline poster="data:image/png;base64,') == 1
    assert page.count('src="data:video/mp4;base64,') == 1
    assert "media-src data:" in page


def test_a_failure_is_at_the_top_with_its_advice(tmp_path: Path) -> None:
    error = {
        "rank": 1,
        "host": "beta",
        "kind": "out_of_memory",
        "message": "It is out of memory.",
        "advice": "Use less.",
    }
    folder = folder_with(tmp_path / "x", ("error", error), ("finished", {"reason": "failed", "exit_code": 3}))
    page = write_report(folder).read_text("utf-8")
    assert page.index("Failed on rank 1 on beta.") < page.index("It is out of memory.") < page.index("Use less.")


def test_a_log_from_elsewhere_neither_runs_anything_nor_shows_other_files(tmp_path: Path) -> None:
    outside = tmp_path / "private.png"
    Image.new("RGB", (8, 8), "red").save(outside)
    evil = "<script>alert(1)</script><img src=https://example.org/x>\x1b[31m"
    folder = folder_with(
        tmp_path / "x",
        ("started", {"config": {"family": evil, evil: evil}, "devices": [evil], "versions": {evil: evil}}),
        ("data", {"lines": [evil]}),
        ("step", {"step": 1, "loss": 1e308, "lr": 5e-324}),
        ("step", {"step": 2**61, "loss": -1e308, "grad_norm": 0.0}),
        ("validation", {"set": evil, "loss": 1.0, "step": 2, "metrics": {evil: 0.5}}),
        ("warning", {"message": evil}),
        ("ranks", {"ranks": [{evil: 1.0, "rank": 0}]}),
        ("sample", {"file": str(outside), "prompt": evil, "step": 1}),
        ("sample", {"file": "../../private.png", "prompt": "up", "step": 1}),
        ("finished", {"reason": evil, "exit_code": 0}),
    )
    page = write_report(folder).read_text("utf-8")
    assert "<script" not in page
    assert "<img" not in page, "no picture outside of the run was shown"
    assert "\x1b" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
    assert page.count("cannot be read") == 2
    (folder.samples_dir / "private.png").symlink_to(outside)
    with pytest.raises(ConfigError, match="is a link"):
        write_report(folder)


@pytest.mark.parametrize("deep", [200, 900])
def test_a_config_that_nobody_wrote_is_left_out(tmp_path: Path, deep: int) -> None:
    folder = folder_with(tmp_path / "x")
    nested = '{"a":' * deep + "1" + "}" * deep
    folder.events_file.write_text(f'{{"type":"started","t":1e300,"config":{nested}}}\n')
    assert "Not finished yet" in write_report(folder).read_text("utf-8")


def test_a_long_run_stays_a_small_page(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "x")
    step = '{{"type":"step","t":{0},"step":{0},"loss":{1},"lr":0.1,"grad_norm":1,"samples_per_s":3}}\n'
    folder.events_file.write_text("".join(step.format(number, number % 7) for number in range(1, 40_001)))
    assert write_report(folder).stat().st_size < 200_000


def test_figures_of_a_device_have_their_titles_and_units(tmp_path: Path) -> None:
    row = {
        "rank": 0,
        "step_s": 0.0314,
        "optimizer_s": 0.00088,
        "peak_percent": 0.021,
        "samples_per_s": 563.9,
        "model_tflops": 1.1e-05,
        "ram_used_mib": 5570.0,
        "process_cpu_percent": 42.4,
        "disk_read_mb_s": 0.238,
        "network_sent_mb_s": 0.0,
        "temperature_c": 61.0,
    }
    page = write_report(folder_with(tmp_path / "x", ("ranks", {"ranks": [row]}))).read_text("utf-8")
    cells = re.findall(r"<td>([^<]+)</td><td class=\"number\">([^<]+)</td>", page)
    assert dict(cells) == {
        "Step": "31.4 ms",
        "Optimizer": "0.88 ms",
        "Of the measured peak": "0.021%",
        "Samples per second": "564",
        "Model": "1.1e-05 TFLOP/s",
        "RAM of the machine": "5,570 MiB",
        "CPU of the process": "42.4%",
        "Disk read": "0.238 MB/s",
        "Network sent": "0 MB/s",
        "Temperature": "61 °C",
    }


def test_a_run_that_failed_before_its_first_step_made_none(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "x", ("started", {"total_steps": 250}), ("error", {"message": "Broken."}))
    assert "<dd>0 of 250</dd>" in write_report(folder).read_text("utf-8")


def test_the_program_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "missing")]) == 2
    assert "does not exist" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 2
    assert "has no events.jsonl" in capsys.readouterr().err
    folder = folder_with(tmp_path / "x", ("step", {"step": 1, "loss": 1.0}))
    assert main([str(folder.path), "--output", str(tmp_path / "no" / "r.html")]) == 3
    file = tmp_path / "no" / "r.html"
    assert f"{file} cannot be read or written: No such file or directory" in capsys.readouterr().err
    former = os.umask(0o022)
    try:
        assert main([str(folder.path), "--output", str(tmp_path / "r.html")]) == 0
    finally:
        os.umask(former)
    assert stat.S_IMODE((tmp_path / "r.html").stat().st_mode) == 0o600, "as all files of a run"
    assert (tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_a_disk_without_inodes_is_not_said_to_be_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_with(tmp_path / "x", ("step", {"step": 1, "loss": 1.0}))
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here: it needs root")
    try:
        assert main([str(folder.path), "--output", str(disk / "r.html")]) == 3
        update_report(RunFolder(disk))
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
    assert "all inodes of the disk are in use" in capsys.readouterr().err
    assert "all inodes of the disk are in use" in caplog.text


def test_ticks_are_round_values_inside_the_range() -> None:
    assert ticks(0.0, 1.0, 5) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert ticks(1.0, 1875.0, 6) == [500.0, 1000.0, 1500.0]
    assert ticks(3.0, 3.0, 5) == [3.0]


@pytest.mark.parametrize("value", [2.5e-323, 3e-323])
def test_values_too_small_to_draw_are_drawn_as_zero(value: float, tmp_path: Path) -> None:
    """Differences between them have no logarithm, and their quotients are infinite."""
    folder = folder_with(
        tmp_path / "x",
        ("step", {"step": 1, "loss": 0.0, "lr": value}),
        ("step", {"step": 2, "loss": value, "lr": value}),
    )
    page = write_report(folder).read_text("utf-8")
    assert page.count("<svg") == 2
    assert not re.search(r"[\s,\"](nan|inf)\b", page)


def test_a_damaged_run_cannot_make_a_table_of_any_width(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    metrics = {f"m{number}": 1.0 for number in range(1001)}
    folder = folder_with(tmp_path / "x", ("validation", {"step": 2, "metrics": metrics}))
    assert main([str(folder.path), "--csv", str(tmp_path / "x.csv")]) == 2
    assert f"{folder.events_file} has validations with more than 1000 different metrics" in capfd.readouterr().err
    assert not (tmp_path / "x.csv").exists()


def test_numbers_are_written_for_other_programs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    measured = {"set": "validation", "step": 2, "loss": 0.25, "metrics": {"accuracy": 0.75}}
    folder = folder_with(
        tmp_path / "x",
        ("step", {"step": 1, "epoch": 0, "samples_seen": 4, "loss": 0.5, "lr": 0.1, "grad_norm": float("nan")}),
        ("validation", measured),
        ("validation", {**measured, "set": "test", "loss": 0.125}),
    )
    files = ["--json", str(tmp_path / "x.json"), "--csv", str(tmp_path / "x.csv")]
    assert main([str(folder.path), *files]) == 0
    assert "3 rows are in" in capfd.readouterr().out
    assert not folder.report_file.exists(), "the report is written only where it is asked for"
    rows = json.loads((tmp_path / "x.json").read_text())
    times = [row.pop("time") for row in rows]
    assert rows == [
        {"step": 1, "epoch": 0, "samples_seen": 4, "loss": 0.5, "lr": 0.1},  # without what is no number
        {"step": 2, "validation_loss": 0.25, "validation_accuracy": 0.75},
        {"step": 2, "test_loss": 0.125, "test_accuracy": 0.75},
    ]
    with (tmp_path / "x.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    given = [{name: float(value) for name, value in row.items() if value} for row in table]
    assert given == [{"time": time, **row} for time, row in zip(times, rows, strict=True)]
    for option in ("json", "csv"):
        assert main([str(folder.path), f"--{option}", "-", "--output", str(tmp_path / "x.html")]) == 0
        shown = capfd.readouterr()
        assert shown.out.splitlines() == (tmp_path / f"x.{option}").read_text().splitlines()
        assert "The report is in" in shown.err


def test_numbers_of_a_run_without_steps_and_mistakes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = folder_with(tmp_path / "x", ("started", {}))
    assert main([str(folder.path), "--json", "-"]) == 0
    assert json.loads(capfd.readouterr().out) == []
    missing = tmp_path / "missing" / "x.json"
    assert main([str(folder.path), "--json", str(missing)]) == 3
    assert capfd.readouterr().err == f"{missing} cannot be read or written: No such file or directory.\n"
    with pytest.raises(SystemExit):
        main([str(folder.path), "--json", "-", "--csv", "-"])


@pytest.mark.parametrize("option", ["--output", "--json", "--csv"])
def test_a_folder_is_no_file_to_write(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = folder_with(tmp_path / "x", ("step", {"step": 1, "loss": 1.0}))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main([str(folder.path), option, "."]) == 3, "'.' has no name"
    assert ". cannot be read or written" in capfd.readouterr().err
    assert not list((tmp_path / "here").iterdir())
