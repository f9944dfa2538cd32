"""The monitor and the run bar in the real window: correct values, exported files, and error handling."""

from __future__ import annotations

import csv
import json
import random
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import psutil
import pytest
from PIL import Image, ImageColor, ImageGrab

from app.monitor.curves import SPANS
from app.monitor.run_list import read_view
from app.monitor.sample_compare import SampleCompare
from app.monitor.samples import SampleIndex
from app.preferences import Preferences
from app.runs.liveness import Liveness
from app.widgets import theme
from app.widgets.text_width import text_width
from modules.config import Concept, TrainConfig
from modules.run import RunFolder
from modules.run.folder.pidfile import Launcher
from tests.app.driver import everything
from tests.app.fake_runs import PROMPTS, active, line, make_fake_run, rank_rows, step_event, write_sample
from tests.app.run_driver import Driven


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs: one that was stopped, one that failed, one of a newer version."""
    place = tmp_path_factory.mktemp("runs")
    make_fake_run(place / "cats", steps=400, total=1000, samples_every=100, ended="stopped")
    failed = make_fake_run(place / "dogs", steps=100, total=1000, ended=None, seed=4, batch_size=3, learning_rate=5e-4)
    with failed.events_file.open("a") as file:
        file.write(
            line(
                {"t": time.time(), "type": "error", "rank": 1, "host": "beta", "kind": "error", "message": "It broke."}
            )
        )
        file.write(line({"t": time.time(), "type": "finished", "reason": "failed", "exit_code": 3}))
    future = make_fake_run(place / "future", steps=10)
    data = json.loads(future.config_file.read_text())
    future.config_file.write_text(json.dumps({**data, "version": 999, "unheard_of": True}))
    return place


@pytest.fixture(scope="module")
def driven(display: str, shared_home: Path, runs: Path) -> Iterator[Driven]:
    """One window for all tests here: it takes a second to open."""
    (shared_home / "preferences" / "window.json").write_text('{"welcomed": true, "section": "monitor"}')
    driven = Driven(run_folder=runs / "cats")
    driven.until(lambda: driven.window.state_.run is not None and driven.window.state_.run.is_caught_up, "the run")
    yield driven
    driven.close()


def follow(driven: Driven, path: Path) -> None:
    driven.window.state_.actions.follow(path)
    driven.until(lambda: driven.window.state_.run.is_caught_up, "the run read")
    driven.live(0.3)


def test_run_bar_shows_the_run_and_why_buttons_are_off(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    bar = driven.window.run_bar
    assert bar._title.cget("text") == "Stopped"
    assert bar.figures.labels["step"].cget("text") == "400 of 1,000"
    last = step_of(runs / "cats", 400)
    assert bar.figures.labels["loss"].cget("text") == f"{last['loss']:.4g}"
    assert bar.figures._titles["left"].cget("text") == "Time", "how long it has trained"
    assert bar.figures.labels["left"].cget("text") != "-"
    rates = [step_of(runs / "cats", number)["samples_per_s"] for number in range(1, 401)]
    assert bar.figures._titles["speed"].cget("text") == "Mean rate"
    assert float(bar.figures.labels["speed"].cget("text").removesuffix("/s")) == pytest.approx(
        sum(rates) / len(rates), rel=0.01
    )
    buttons = ("train", "stop", "back_up", "sample", "save")
    assert {name: getattr(bar.buttons, name).cget("state") for name in buttons} == {
        "train": "normal", "stop": "disabled", "back_up": "disabled", "sample": "disabled", "save": "disabled",
    }  # fmt: skip
    assert bar.buttons.tooltip_text(bar.buttons.stop) == "No run is active.  (Shift+F5)"
    assert bar.buttons.resume.winfo_ismapped()
    assert bar._full_detail().startswith("cats: "), "Resume says which run"
    narrow = bar._text_frame.winfo_reqwidth()
    bar._fit(round(1900 * theme.scale()))
    assert bar._text_frame.winfo_reqwidth() > narrow * 1.5, "texts use the free width"
    bar._fit(bar.winfo_width())


def test_the_texts_of_the_run_bar_share_the_free_width_with_its_figures(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    bar = driven.window.run_bar
    figures = bar.figures
    shown = {}
    try:
        for width in (1000, 1280, 1390, 1440, 1660):
            driven.window.geometry(f"{width}x800+0+0")
            driven.until(lambda width=width: bar.winfo_width() == width, "the width")  # type: ignore[misc]
            driven.live(0.1)
            for name, cell in figures.cells.items():
                place = cell.grid_info()
                _, _, room, _ = figures.grid_bbox(place["column"], place["row"])
                assert cell.winfo_reqwidth() <= room, (width, name)
            shown[width] = bar._text_frame.winfo_width(), figures.winfo_width()
    finally:
        driven.window.geometry("1280x800+0+0")
        driven.until(lambda: bar.winfo_width() == 1280, "the window as it was")
    assert shown[1280][0] == theme.px(270)
    assert all(text > 0.7 * middle for text, middle in shown.values()), shown


def test_nothing_measured_before_a_resume_stays(
    driven: Driven, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while the processes start and no event says so, nor after the first one that does."""
    folder = make_fake_run(tmp_path / "again", steps=20, total=1000, ended=None)
    follow(driven, folder.path)
    page, figures = driven.monitor("ranks"), driven.window.run_bar.figures
    run = driven.window.state_.run
    driven.until(lambda: len(page.stats) == 4, "four processes")
    starts = Liveness(launcher=Launcher(psutil.Process(), time.time() + 60))
    monkeypatch.setattr("app.runs.control.read_liveness", lambda folder: starts)
    driven.until(lambda: run.status().kind == "starting", "the next start")
    driven.until(lambda: not page.stats, "no processes")
    driven.until(lambda: figures.labels["loss"].cget("text") == "-", "no loss")
    assert figures.labels["speed"].cget("text") == "-"
    assert figures.labels["step"].cget("text") == "20", "that of the backup; the new settings may have more steps"
    loading = {"t": starts.started + 1, "type": "phase", "phase": "loading"}
    with folder.events_file.open("a") as file:
        file.write(line(loading))
    driven.until(lambda: run.status().kind == "loading", "loading")
    driven.live(0.3)
    assert not page.stats
    with folder.events_file.open("a") as file:
        rows = rank_rows(4, random.Random(0))
        file.write(line({"t": starts.started + 2, "type": "ranks", "ranks": [{**row, "step_s": 0.8} for row in rows]}))
    driven.until(lambda: page.stats, "new statistics")
    assert page.stats[0].mean_step_s == 0.8, "not the mean with those of the earlier start"


@pytest.mark.slow
def test_smoothing_and_scale_of_the_curves_are_remembered(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    driven.click(page.log_scale)
    page.smoothing.focus_force()
    driven.press("Right")
    driven.until(lambda: page.span == 100, "more smoothing")
    driven.window.preferences.save()
    kept = Preferences.load()
    assert (kept.smoothing, kept.log_scale) == (100, True)
    driven.window.set_scale(110)  # builds the page anew, as the next window does
    try:
        anew = driven.monitor("curves")
        assert anew is not page
        driven.until(lambda: anew.plots["loss"].lines and not anew.plots["loss"].is_due, "the plot")
        assert (anew.span, round(anew.smoothing.get())) == (100, SPANS.index(100))
        assert anew.plots["loss"].chart.axes.get_yscale() == "log"
        assert anew.plots["lr"].chart.axes.get_yscale() == "linear"
        driven.click(anew.log_scale)
        assert not driven.window.preferences.log_scale
    finally:
        driven.window.set_scale(100)


def test_another_run_without_values_shows_none_of_the_former(driven: Driven, runs: Path, tmp_path: Path) -> None:
    """Also in the moment after it is followed, before anything is redrawn."""
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    driven.until(lambda: not any(plot.is_due or plot.is_empty for plot in page.plots.values()), "the plots")
    assert page.plots["loss"]._value.cget("text")
    fresh = make_fake_run(tmp_path / "fresh", steps=0, total=100, ended=None)
    driven.window.state_.actions.follow(fresh.path)
    assert all(plot.is_empty for plot in page.plots.values())
    assert not any(plot._value.cget("text") for plot in page.plots.values())
    figures = driven.window.run_bar.figures
    driven.until(lambda: not any(label.cget("text") for label in figures.labels.values()), "no dashes in the run bar")


def step_of(path: Path, step: int) -> dict[str, float]:
    return steps_of(path)[step]


@cache
def steps_of(path: Path) -> dict[int, dict[str, float]]:
    events = [json.loads(text) for text in RunFolder(path).events_file.read_text().splitlines()]
    return {event["step"]: event for event in events if event["type"] == "step"}


def test_the_head_and_the_pages_of_lists_keep_their_places(driven: Driven, tmp_path: Path) -> None:
    """Whatever the run's title is, and when it is complete: its result is no matter of the queue and the other runs."""
    folder = make_fake_run(tmp_path / "short", steps=20, total=100, ended=None)
    with folder.events_file.open("a") as file:
        file.write(line({"t": time.time(), "type": "warning", "message": "Odd images"}))
    follow(driven, folder.path)
    driven.monitor("samples")
    section = driven.window.sections["monitor"]
    driven.until(lambda: section.warnings.cget("text") == "1 warning", "the count")
    driven.window.update()
    place = section.warnings.winfo_rootx()
    with folder.events_file.open("a") as file:
        file.write(line({"t": time.time(), "type": "finished", "reason": "finished", "exit_code": 0}))
    driven.until(section.result.card.winfo_ismapped, "the result")
    assert section.warnings.winfo_rootx() == place
    for name in ("queue", "runs"):
        driven.monitor(name)
        assert not section.result.card.winfo_ismapped()
    driven.monitor("log")
    assert section.result.card.winfo_ismapped()


def test_curves_show_the_numbers_and_zoom(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    # a run is read in chunks and drawn in between
    driven.until(lambda: all(p.lines and len(p.lines[0].points) > 122 for p in page.plots.values()), "the numbers")
    driven.until(lambda: not any(plot.is_due for plot in page.plots.values()), "the plots")
    loss = page.plots["loss"]
    names = [each.name for each in loss.lines]
    assert names == ["training", "validation"]
    wanted = step_of(runs / "cats", 123)
    assert loss.lines[0].points.mean[122] == wanted["loss"]
    words = loss.label_at(123.2)
    assert "step 123" in words
    assert f"{wanted['loss']:.4g}" in words
    assert "smoothed" in words
    assert page.plots["lr"].lines[0].points.mean[122] == wanted["lr"]
    assert loss.chart.range == (1.0, 400.0)

    left, top, right, bottom = loss.chart.frame()
    x, y = loss.surface.winfo_rootx(), loss.surface.winfo_rooty() + int(top + bottom) // 2
    quarter = int(right - left) // 4
    drag = f"mousemove {x + int(left) + quarter} {y} mousedown 1 mousemove_relative {quarter} 0 mouseup 1"
    subprocess.run(["xdotool", *drag.split()], check=True)
    driven.until(lambda: page.x_range is not None and loss.chart.range == page.x_range, "the zoom")
    assert page.x_range[0] == pytest.approx(1 + 399 / 4, rel=0.05)
    assert page.x_range[1] == pytest.approx(1 + 399 / 2, rel=0.05)
    driven.until(lambda: page.plots["lr"].chart.range == page.x_range, "the other plots")
    loss.surface.focus_force()
    driven.press("Home")
    driven.until(lambda: page.x_range is None and loss.chart.range == (1.0, 400.0), "the full range")
    page.axis_choice.buttons["Time"].invoke()
    driven.until(lambda: loss.axis == "time" and not loss.is_due, "the time axis")
    assert loss.chart.range[1] - loss.chart.range[0] == pytest.approx(0.4 * 399, abs=1)
    assert "s, step" in loss.label_at(loss.chart.range[1]) or "min, step" in loss.label_at(loss.chart.range[1])
    page.axis_choice.buttons["Steps"].invoke()


def test_new_values_appear_automatically(driven: Driven, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "live", steps=1, ended=None)
    follow(driven, folder.path)
    page = driven.monitor("samples")
    assert [each.winfo_manager() for each in (page.slider, page.position)] == ["", ""], "there are none to choose from"
    page = driven.monitor("curves")
    loss = page.plots["loss"]
    driven.until(lambda: loss.lines and len(loss.lines[0].points) == 1 and not loss.is_due, "the first step")
    axes = loss.chart.axes
    low, high = axes.get_xlim()
    named = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    assert [label.get_text() for at, label in named if low <= at <= high] == ["1"], "one tick for one step"
    with folder.events_file.open("a") as file:
        file.write(line(step_event(2, time.time(), random.Random(1))))
    driven.until(lambda: loss.lines and len(loss.lines[0].points) == 2, "step 2")
    figure = driven.window.run_bar.figures.labels["step"]
    driven.until(lambda: figure.cget("text").startswith("2"), "step 2 in the run bar")


def test_accuracy_has_a_plot_beside_the_losses_and_a_column(driven: Driven, runs: Path, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "classes", steps=40, ended=None)
    follow(driven, folder.path)
    page = driven.monitor("curves")
    driven.until(lambda: page.plots["loss"].lines, "the losses")
    assert "metrics" not in page.plots
    wide = page.plots["loss"].winfo_width()
    with folder.events_file.open("a") as file:
        for step, accuracy in ((20, 0.5), (40, 0.75)):
            metrics = {"accuracy": accuracy, "top5_accuracy": 0.9}
            event = {"t": time.time(), "type": "validation", "set": "validation", "loss": 0.4, "step": step}
            file.write(line({**event, "metrics": metrics}))
    driven.until(lambda: "metrics" in page.plots and page.plots["metrics"].lines, "the plot")
    driven.until(lambda: not any(plot.is_due for plot in page.plots.values()), "the plots")
    assert [(each.name, list(each.points.mean)) for each in page.lines("metrics")] == [
        ("accuracy", [0.5, 0.75]),
        ("top5 accuracy", [0.9, 0.9]),
    ]
    assert page.plots["metrics"]._value.cget("text") == "accuracy 0.75"
    surface = page.plots["metrics"].surface
    legend = page.plots["metrics"].legend
    driven.window.update()
    assert legend.bbox("all")[2] <= legend.winfo_width(), "every name is seen"
    assert legend.winfo_rooty() + legend.bbox("all")[3] <= surface.winfo_rooty(), "and covers no line"
    assert page.plots["loss"].winfo_width() < 0.7 * wide
    page.tools.save_numbers(tmp_path / "out.csv")
    driven.until((tmp_path / "out.csv").exists, "the table")
    with (tmp_path / "out.csv").open() as file:
        measured = [row for row in csv.DictReader(file) if row["validation_loss"]]
    columns = ("validation_accuracy", "validation_top5_accuracy", "test_accuracy")
    assert [[row[name] for name in columns] for row in measured[-2:]] == [["0.5", "0.9", ""], ["0.75", "0.9", ""]]
    follow(driven, runs / "cats")
    driven.until(lambda: page.plots["loss"].lines and "metrics" not in page.plots, "a run without")


def test_exports_contain_every_value_and_all_plots(driven: Driven, runs: Path, tmp_path: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    driven.until(lambda: page.plots["loss"].lines, "lines")
    page.tools.save_numbers(tmp_path / "out.csv")
    page.tools.save_numbers(tmp_path / "out.json")
    page.tools.save_plots(tmp_path / "out.png")
    driven.until(lambda: all((tmp_path / f"out.{each}").exists() for each in ("csv", "json", "png")), "files")
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    steps = [row for row in rows if row["loss"]]
    assert len(steps) == 400
    wanted = step_of(runs / "cats", 77)
    assert {name: float(steps[76][name]) for name in ("step", "loss", "lr", "grad_norm")} == {
        name: wanted[name] for name in ("step", "loss", "lr", "grad_norm")
    }
    assert len([row for row in rows if row["validation_loss"]]) == 12
    given = [{name: float(value) for name, value in row.items() if value} for row in rows]
    assert json.loads((tmp_path / "out.json").read_text()) == given
    with Image.open(tmp_path / "out.png") as image:
        assert image.size == (1600, 1000)
        assert len(image.convert("RGB").getcolors(1 << 20) or []) > 20
    page.tools.save_numbers(tmp_path / "no such folder" / "out.csv")
    driven.until(lambda: "cannot be" in page.tools.message, "the reason")


def test_legend_of_the_processes_is_not_covered(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("ranks")
    driven.until(lambda: len(page.stats) == 4, "four processes")
    driven.window.geometry("900x800+0+0")
    try:
        driven.until(lambda: page.winfo_width() < 750, "a narrow window")
        driven.until(lambda: page.legend.bbox("all")[0] >= 0, "a legend below the summary")
        assert page.legend.winfo_y() >= page.summary.winfo_y() + page.summary.winfo_height()
        heads = ("GPU load", "GPU memory", "Temperature", "Power")
        driven.until(lambda: page.others.cget("text").startswith("Figures 1 to 1 of 4"), "what has no room")
        assert [each for each in texts_on(page.table) if each in heads] == ["GPU load"]
        driven.click(page.others)
        assert [each for each in texts_on(page.table) if each in heads] == ["GPU memory"]
        page.table.focus_force()
        driven.press("Right", "Right", "Right", "Right")
        assert [each for each in texts_on(page.table) if each in heads] == ["GPU memory"], "round and round"
    finally:
        driven.window.geometry("1280x800+0+0")
        driven.until(lambda: page.winfo_width() > 1000, "the window as it was")
    driven.until(lambda: not page.others.winfo_ismapped(), "all figures")


def test_processes_show_statistics_and_the_straggler(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("ranks")
    driven.until(lambda: len(page.stats) == 4, "four processes")
    assert [each.is_straggler for each in page.stats] == [False, False, True, False]
    assert "Rank 2 on beta is the slowest: its steps, without waits, take" in page.summary.cget("text")
    row = rank_rows(4, random.Random(0))[3]
    stats = page.stats[3]
    assert (stats.host, stats.device) == ("beta", "NVIDIA GeForce RTX 4090")
    assert stats.gauges["temperature_c"].now == row["temperature_c"] == 76
    assert stats.gauges["memory_used_mib"].fill == pytest.approx(17_600 / 24_564)
    assert sum(stats.parts.values()) == pytest.approx(0.44)
    said = texts_on(page.table)
    assert "76 °C" in said
    assert "17.2 GiB" in said
    lines = [page.table.coords(item) for item in page.table.find_all() if page.table.type(item) == "line"]
    across = [(line[0], line[2]) for line in lines if line[2] - line[0] > page.table.winfo_width() / 2]
    assert len(across) == 5, "below the head and each process"
    assert len(set(across)) == 1
    widths = {}
    for name in ("computing", "waiting"):
        x0, _, x1, _ = page.table.coords(page.table.find_withtag(name)[0])
        widths[name] = x1 - x0
    parts = page.stats[0].parts
    assert widths["computing"] / widths["waiting"] == pytest.approx(parts["computing"] / parts["waiting"], rel=0.05)


def test_nothing_said_of_a_step_runs_into_the_next_column(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("ranks")
    driven.until(lambda: len(page.stats) == 4, "four processes")
    held_back = "power limit, temperature of the memory"
    page.stats = [replace(each, data_wait_share=0.28, held_back=held_back) for each in page.stats]
    page.draw()
    items = [item for item in page.table.find_all() if page.table.type(item) == "text"]
    boxes = {item: page.table.bbox(item) for item in items}
    labels = [item for item in items if "per step" in page.table.itemcget(item, "text")]
    assert len(labels) == 4
    for label in labels:
        assert "28 % waiting for data" in page.table.itemcget(label, "text")
        left, top, right, bottom = boxes[label]
        beside = [box for box in boxes.values() if box[0] > left and box[1] < bottom and box[3] > top]
        assert beside
        assert right < min(box[0] for box in beside)


def test_only_visible_of_1000_processes_are_drawn(driven: Driven, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "many", steps=5, ranks=1000, ended=None)
    follow(driven, folder.path)
    page = driven.monitor("ranks")
    driven.until(lambda: len(page.stats) == 1000, "a thousand")
    assert len(page.table.find_all()) < 800
    page._move(10_000)
    assert "Rank 999" in texts_on(page.table)


def test_nothing_of_the_pages_is_cut_off_at_150_percent(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    driven.window.set_scale(150)
    try:
        plots = driven.monitor("curves").plots.values()
        driven.window.geometry("1280x700")  # as low as with the card of a run that has ended
        driven.until(lambda: [plot.surface.winfo_ismapped() for plot in plots] == [1, 0, 0, 0], "the losses alone")
        driven.window.geometry("1280x800")
        driven.until(lambda: all(plot.surface.winfo_ismapped() for plot in plots), "all plots")
        head = driven.window.sections["monitor"]._head
        head.say(f"{'a long name' * 9}-631", ": Terminated", cut="middle")
        assert str(head._line.cget("text")).endswith("631: Terminated"), "the end of the name, and all of the state"
        page = driven.monitor("samples")
        driven.until(lambda: page.position.cget("text"), "the samples")
        driven.live(0.2)
        assert [each.winfo_width() >= each.winfo_reqwidth() for each in (page.custom, page.position)] == [True, True]
        driven.until(page.loss.find_all, "the loss beside the samples")
        page.mode.buttons["By prompt"].invoke()
        driven.live(0.2)
        assert page.menu.winfo_width() >= page.menu.winfo_reqwidth()
        page.mode.buttons["By step"].invoke()
        page = driven.monitor("log")
        driven.live(0.2)
        assert not page.lines.lines
        assert page.lines.bar.itemcget(page.lines.bar._body, "state") == "hidden", "there is nothing to scroll"
        page = driven.monitor("runs")
        page.bar.offer_undo(True)
        driven.until(lambda: page.bar.message.said.startswith("Select a run;"), "the hint")
        driven.live(0.2)
        assert page.bar.message.cget("text") == page.bar.message.said
        assert page.bar.undo.winfo_width() >= page.bar.undo.winfo_reqwidth()
        page.bar.offer_undo(False)
    finally:
        driven.window.set_scale(100)


def test_samples_by_step_and_by_prompt_with_settings(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("samples")
    driven.until(lambda: page.grid_view.drawn == 5, "five images")
    assert page.step == 400
    assert [sample.prompt for sample in page.shown()] == list(PROMPTS)
    page.slider.focus_force()
    driven.press("Left")
    driven.until(lambda: page.step == 300, "the step before")
    driven.press("Home")
    driven.until(lambda: page.step == 100, "the first step")
    driven.until(lambda: "Loss ≈" in page.position.cget("text"), "the loss of this step")
    driven.click(page.loss)  # its middle: step 200, of 400
    assert page.step == 200
    assert page.loss.loss_at(200) == pytest.approx(step_of(runs / "cats", 200)["loss"], rel=0.2)
    page.mode.buttons["By prompt"].invoke()
    page._choose_prompt(PROMPTS[2])
    driven.until(lambda: [sample.step for sample in page.shown()] == [100, 200, 300, 400], "one prompt through time")
    driven.until(lambda: page.grid_view.drawn == 4, "four images")
    page.grid_view.canvas.focus_force()
    driven.press("Right", "Return")
    driven.until(lambda: page._viewer is not None, "the viewer")
    viewer = page._viewer
    values = {name: label.cget("text") for name, label in viewer.values.items()}
    shown = [str(values[name]) for name in ("prompt", "step", "size", "seed", "guidance_scale")]
    assert shown == [PROMPTS[2], "200", "32 × 32", "7", "2.0"]
    viewer._step_by(1)
    assert viewer.sample.step == 300
    viewer._prompt_by(1)
    assert viewer.sample.prompt == PROMPTS[3]
    driven.click(viewer.buttons.winfo_children()[-1])
    assert str(RunFolder(runs / "cats").samples_dir) in driven.window.run_bar._message, "its folder is opened"
    viewer.destroy()
    driven.click(page.mode.buttons["All"])
    assert [sample.step for sample in page.shown()] == [step for step in (400, 300, 200, 100) for _ in PROMPTS]
    assert [sample.prompt for sample in page.shown()] == list(PROMPTS) * 4
    columns = len(PROMPTS)
    assert [(line.first, line.count) for line in page.grid_view.lines] == [(first, columns) for first in (0, 5, 10, 15)]
    driven.until(lambda: page.grid_view.drawn >= columns, "the newest step")
    driven.click(page.loss)
    assert (page.view, page.step) == ("By step", 200), "a step of the curve"


def test_samples_that_are_still_to_come_have_their_places(driven: Driven, runs: Path, tmp_path: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("samples")
    driven.until(lambda: page.menu.value() == PROMPTS[0], "the prompts")
    folder = make_fake_run(tmp_path / "draws", steps=10, ended=None)
    with active(folder.path):
        follow(driven, folder.path)
        driven.until(lambda: driven.window.state_.run.is_caught_up, "the run")
        assert (page.menu.value(), page.slider._enabled, len(page.loss.steps)) == ("", False, 0), "nothing to choose"
        file = folder.samples_dir / "step-000010-00.png"
        write_sample(file, PROMPTS[0], 10)
        with folder.events_file.open("a") as events:
            events.write(line({"t": time.time(), "type": "phase", "phase": "sampling"}))
            event = {"type": "sample", "step": 10, "prompt": PROMPTS[0], "file": str(file)}
            events.write(line({"t": time.time(), **event}))
        driven.until(lambda: page.grid_view.drawn == 1, "the first image")
        assert sum(each.count for each in page.grid_view.lines) == len(PROMPTS)


def test_samples_of_a_new_run_of_the_same_name_are_read_anew(driven: Driven, tmp_path: Path) -> None:
    place = tmp_path / "again"

    def shown(colour: tuple[int, int, int]) -> tuple[int, ...]:
        folder = make_fake_run(place, steps=10, samples_every=10)
        for file in folder.samples_dir.iterdir():
            Image.new("RGB", (32, 32), colour).save(file)
        follow(driven, place)
        page = driven.monitor("samples")
        driven.until(lambda: page.grid_view.drawn == len(PROMPTS), "the samples")
        photo = next(iter(page.grid_view._photos.values()))
        return tuple(driven.window.tk.call(str(photo), "get", 5, 5))

    assert shown((255, 0, 0)) == (255, 0, 0)
    grid = driven.window.sections["monitor"].pages["samples"].grid_view
    boxes = [grid.canvas.bbox(item) for item in grid.canvas.find_withtag("image")]
    assert min(right - left for left, _, right, _ in boxes) > 168, "five fit at a larger size"
    assert max(bottom for *_, bottom in boxes) < grid.canvas.winfo_height(), "all are in sight"
    assert max(right for _, _, right, _ in boxes) > grid.canvas.winfo_width() - 60, "rows fill the width"
    captions = [item for item in grid.canvas.find_all() if grid.canvas.type(item) == "text"]
    assert {grid.canvas.coords(item)[0] for item in captions} == {left for left, *_ in boxes}, "captions below images"
    shutil.rmtree(place)
    assert shown((0, 0, 255)) == (0, 0, 255)


def test_samples_of_a_moved_run_are_found(tmp_path: Path) -> None:
    make_fake_run(tmp_path / "before", steps=10, samples_every=10)
    folder = RunFolder((tmp_path / "before").rename(tmp_path / "after"))
    index = SampleIndex()
    assert index.update(read_view(folder), folder)
    assert [Path(sample.file).is_file() for sample in index.at_step(10)] == [True] * len(PROMPTS)


def test_thousands_of_samples_some_unreadable(driven: Driven, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "much", steps=1000, samples_every=1, images=False, ended=None)
    for step in (998, 999):
        write_sample(folder.samples_dir / f"step-{step:06d}-00.png", PROMPTS[0], step)
    (folder.samples_dir / "step-001000-00.png").write_bytes(b"\x89PNG no")
    follow(driven, folder.path)
    page = driven.monitor("samples")
    driven.until(lambda: page.step == 1000, "the last step")
    page.mode.buttons["By prompt"].invoke()
    page._choose_prompt(PROMPTS[0])
    assert len(page.shown()) == 1000
    canvas = page.grid_view.canvas
    page.grid_view._move_view(10_000)
    driven.until(lambda: page.grid_view.drawn == 2, "the two that can be read")
    assert len(canvas.find_all()) < 150
    assert "unreadable" in texts_on(canvas)
    page.mode.buttons["By step"].invoke()


def test_log_is_filtered_searched_and_survives_a_flood(driven: Driven, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "logs", steps=5, ended=None)
    stamp = "2026-01-02 03:04:0"
    folder.log_file(0).write_text(f"{stamp}1 rank 0 INFO tandem: one\n{stamp}3 rank 0 WARNING tandem: two\n")
    folder.log_file(1).write_text(f"{stamp}2 rank 1 Traceback (most recent call last):\n{stamp}2 rank 1   File x\n")
    follow(driven, folder.path)
    page = driven.monitor("log")
    driven.until(lambda: len(page.found) == 4, "four lines")
    assert [each.source for each in page.found] == ["0", "1", "1", "0"], "sorted by time"
    assert [each.level for each in page.found] == ["info", "error", "error", "warning"]
    page.source.show("1")
    page.filter()
    assert len(page.found) == 2
    page.source.show("all")
    page.level.show("warning")
    page.filter()
    assert len(page.found) == 3
    page.level.show("all")
    page.search.line.focus_force()
    driven.press("t", "w", "o")
    driven.until(lambda: [each.text[-3:] for each in page.found] == ["two"], "the search")
    page.source.choose("0")
    for scale in (110, 100):
        driven.window.set_scale(scale)
        page = driven.monitor("log")
        driven.until(
            lambda page=page: [each.text[-3:] for each in page.found] == ["two"],  # type: ignore[misc]
            "the search once more",
        )
        assert page.source.value() == "0"
    page.source.choose("all")
    page.search.line.focus_force()
    driven.press("z")
    driven.until(lambda: not page.found, "a search without a hit")
    assert "No line fits the source, the level and the search above." in texts_on(page.lines.canvas)
    page.search.show("")
    page.filter()
    with folder.log_file(0).open("a") as file:
        for number in range(300_000):
            file.write(f"{stamp}4 rank 0 INFO tandem: flood {number}\n")
    driven.until(lambda: page.found[-1].text.endswith("flood 299999"), "the end of the flood")
    assert len(page.found) <= 60_000
    assert len(page.lines.canvas.find_all()) < 100
    assert page.lines.follows
    page.lines._move(-500)
    with folder.log_file(0).open("a") as file:
        file.write(f"{stamp}5 rank 0 INFO tandem: later\n")
    seen = page.lines.first
    driven.until(lambda: page.found[-1].text.endswith("later"), "the last line")
    assert page.lines.first == seen, "the view stays while scrolled up"
    page.lines.scroll_to_end()
    assert not page.problems.winfo_manager()
    with folder.log_file(0).open("a") as file:
        file.write(f"{stamp}6 rank 0 WARNING tandem: 2 files have problems. All are listed in log/problems.txt.\n")
    driven.until(page.problems.winfo_ismapped, "the way to the images at fault")
    driven.click(page.problems)
    driven.until(lambda: driven.window.section == "data", "the Data section")
    assert driven.window.sections["data"].page == "problems"


def test_runs_table_and_setting_differences(driven: Driven, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("runs")
    driven.until(lambda: set(page.runs) >= {"cats", "dogs", "future"}, "the runs")
    rows = {name: page.table.item(name, "values") for name in page.runs}
    assert page.bar.message.cget("text") == "Select a run; select two or more to compare them."
    assert rows["cats"][1] == "Stopped"
    assert rows["cats"][3] == "400 of 1,000"
    assert rows["dogs"][1] == "Failed"
    assert rows["future"][1] == "Finished"
    page.select(["cats"])
    driven.until(lambda: page.bar.message.said.endswith(str(runs / "cats")), "where the selected run is")
    page.select(["cats", "dogs"])
    driven.until(lambda: page.comparison is not None and page.comparison.is_complete, "both runs read")
    comparison = page.comparison
    driven.until(lambda: len(comparison.plot.lines) == 2, "two lines")
    assert comparison.plot.lines[0].points.mean[99] == step_of(runs / comparison.plot.lines[0].name, 100)["loss"]
    driven.until(lambda: hasattr(comparison, "difference_table"), "the differences")
    table = comparison.difference_table
    found = {values[0]: values[1:] for item in table.get_children() if (values := table.item(item, "values"))}
    assert set(found) == {"Batch size per GPU", "Learning rate"}
    names = [path.name for path in comparison.paths]
    assert dict(zip(names, found["Learning rate"], strict=True)) == {"cats": "1e-4", "dogs": "5e-4"}
    page.select(["future"])
    driven.until(lambda: len(page.selected) == 1, "one selected")
    page.open_settings()
    assert "999" in page.bar.message.said, "a config of a newer version is reported, not opened"
    page.select(["dogs"])
    driven.until(lambda: "It broke." in page.bar.message.cget("text"), "why it failed")
    monkeypatch.setenv("PATH", "")  # no browser
    page.bar.report.invoke()
    driven.until(lambda: f"open {runs / 'dogs' / 'report.html'} yourself" in page.bar.message.said, "the report")
    assert "It broke." in (runs / "dogs" / "report.html").read_text("utf-8")
    monkeypatch.undo()
    page.open_settings()
    assert driven.window.state_.draft.get("batch_size") == 3
    page.follow_selected()
    driven.until(lambda: driven.window.state_.run.folder.name == "dogs", "the chosen run")
    section = driven.window.sections["monitor"]
    driven.live(0.2)
    assert not section.banner.winfo_ismapped(), "the list is of all runs"
    driven.monitor("curves")
    driven.until(section.banner.winfo_ismapped, "the banner")
    assert "rank 1 on beta" in section._banner_title.cget("text")


def test_long_names_of_compared_runs_have_chips_and_the_end_that_differs(driven: Driven, tmp_path: Path) -> None:
    """In the heading of the differences as in the legend; the table of runs is as wide as its card, the plot is not."""
    names = [f"stable-diffusion-portraits-of-my-cat-rank-{rank}" for rank in (8, 16)]
    short = ["lora-one-3", "first-lora"]
    for rank, name in zip((8, 16, 8, 16), [*names, *short], strict=True):
        run = make_fake_run(tmp_path / name, steps=20, samples_every=20, lora_rank=rank, method="lora")
        again = {"type": "sample", "t": time.time(), "prompt": PROMPTS[0], "step": 20}
        write_sample(drawn := run.samples_dir / "step-000020-09.png", PROMPTS[0], 20)  # with another seed
        with run.events_file.open("a") as file:
            file.write(line({**again, "file": str(drawn)}))
    follow(driven, run.path)
    page = driven.monitor("runs")
    driven.until(lambda: set(page.runs) >= set(names), "the runs")
    driven.click_row(page.table, names[0])
    subprocess.run(["xdotool", "keydown", "shift"], check=True)
    driven.click_row(page.table, names[1])
    subprocess.run(["xdotool", "keyup", "shift"], check=True)
    driven.until(
        lambda: page.comparison is not None and hasattr(page.comparison, "difference_table"), "the differences"
    )
    comparison = page.comparison
    driven.until(lambda: len(comparison.plot.lines) == 2 and not comparison.plot.is_due, "the plot")
    driven.live(0.2)
    screen = ImageGrab.grab(xdisplay=driven.window.winfo_screen()).convert("RGB")
    table, order = comparison.difference_table, [path.name for path in comparison.paths]
    left = table.winfo_rootx() + int(table.column("setting", "width"))
    for number, name in enumerate(order):
        ending = f"-{name.rpartition('-')[2]}"
        heading = str(table.heading(f"run{number}", "text"))
        assert heading.endswith(ending)
        needed = text_width(table, heading, theme.tk_font("strong")) + theme.px(12 + 6)  # with the chip
        assert needed <= int(table.column(f"run{number}", "width"))
        assert any(words.endswith(ending) for words in texts_on(comparison.plot.legend))
        right = left + int(table.column(f"run{number}", "width"))
        head = screen.crop((left, table.winfo_rooty(), right, table.winfo_rooty() + theme.px(24)))
        chip = ImageColor.getrgb(theme.resolve(theme.SERIES[number]))
        at = [x for x in range(head.width) for y in range(head.height) if head.getpixel((x, y)) == chip]
        assert at, "the chip in the line's colour"
        assert max(at) < theme.px(12 + 12), "which stands before the name"
        left = right
    assert sum(int(page.table.column(each, "width")) for each in page.table["columns"]) >= page.table.winfo_width() - 2
    card = page.table.master.master
    assert page.table.winfo_width() >= card.winfo_width() - theme.px(16)
    check_corners(screen, comparison.plot.master)
    opened = comparison._shown_samples()[1].of(f"{PROMPTS[0]} (2)")[-1]
    comparison._open_sample(opened)
    (compare,) = (each for each in everything(driven.window) if isinstance(each, SampleCompare))
    assert compare.prompt.value() == f"{PROMPTS[0]} (2)"
    assert compare.left.value() == f"{comparison.paths[1].name}, step 20, best"
    driven.press("Escape")
    driven.until(lambda: not dialogs(driven), "no dialog")
    page.select(short)
    driven.until(
        lambda: (
            {str(comparison.difference_table.heading(f"run{number}", "text")).strip() for number in (0, 1)}
            == set(short)
        ),
        "whole names where there is room",
    )


def check_corners(screen: Image.Image, card: Any) -> None:
    """A card is round at its corners if nothing in it covers them."""
    left, top = card.winfo_rootx() + 1, card.winfo_rooty() + 1  # inside the border, which nothing covers
    right, bottom = left + card.winfo_width() - 3, top + card.winfo_height() - 3
    around = ImageColor.getrgb(theme.resolve(theme.WINDOW))
    assert {screen.getpixel(place) for place in ((left, top), (right, top), (left, bottom), (right, bottom))} == {
        around
    }


def test_plots_leave_the_corners_of_their_cards_round(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    driven.until(lambda: not any(plot.is_due or plot.is_empty for plot in page.plots.values()), "the plots")
    driven.live(0.2)
    screen = ImageGrab.grab(xdisplay=driven.window.winfo_screen()).convert("RGB")
    for plot in page.plots.values():
        check_corners(screen, plot.master)


def test_a_click_on_the_error_shows_it_whole(driven: Driven, tmp_path: Path) -> None:
    message = f"batch_size is 64, and an image takes {'much ' * 90}memory. The end."
    error = {"t": time.time(), "type": "error", "rank": 0, "host": "alpha", "kind": "memory", "message": message}
    folder = make_fake_run(tmp_path / "large", steps=5, ended=None)
    with folder.events_file.open("a") as file:
        file.write(line({**error, "advice": "Try gradient_checkpointing."}))
    follow(driven, folder.path)
    driven.window.show_section("data")
    bar = driven.window.run_bar
    driven.until(lambda: "“Batch size per GPU”" in bar._detail.cget("text").replace("\n", " "), "the error")
    driven.click(bar._detail)
    shown = bar.details
    text = shown.text.get("1.0", "end")
    shown_whole = message.replace("batch_size", "“Batch size per GPU”")
    assert shown_whole in text
    assert "Try “Gradient checkpointing (saves memory)”." in text
    driven.click(shown.copy)
    assert driven.window.clipboard_get() == text.strip()
    driven.click(shown.show_setting)
    assert driven.window.section == "training"
    field = driven.window.sections["training"].find("batch_size")
    driven.until(lambda: field.holds(driven.window.focus_get()), "the focus")
    assert not shown.dialog.window.winfo_exists()
    driven.monitor("curves")
    driven.until(lambda: driven.window.sections["monitor"]._banner_title.winfo_viewable(), "the banner")
    driven.click(driven.window.sections["monitor"]._banner_title)
    assert shown_whole in bar.details.text.get("1.0", "end"), "the banner's is cut off"
    driven.click(bar.details.show_log)
    assert driven.window.sections["monitor"].page == "log"


def test_run_folder_deleted_while_pages_show_it(driven: Driven, tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "gone", steps=50, samples_every=25, ended=None)
    (folder.log_file(0)).write_text("x\n")
    follow(driven, folder.path)
    for page in ("curves", "ranks", "samples", "log", "runs"):
        driven.monitor(page)
        driven.live(0.2)
    shutil.rmtree(folder.path.parent / "gone")
    driven.until(lambda: driven.status() == "missing", "notice")
    for page in ("curves", "ranks", "samples", "log", "runs"):
        driven.monitor(page)
        driven.live(0.3)
    bar = driven.window.run_bar
    assert bar._title.cget("text") == "The run folder is gone"
    assert not bar.buttons.resume.winfo_ismapped()


def test_train_reports_invalid_settings_and_a_full_disk(driven: Driven, runs: Path, tmp_path: Path) -> None:
    draft = driven.window.state_.draft
    draft.new()
    draft.set("batch_size", "-4")
    driven.click(driven.window.run_bar.buttons.train)
    driven.until(lambda: dialogs(driven), "the list of faults")
    assert any("invalid" in title for title in dialogs(driven))
    driven.press("Escape")
    driven.until(lambda: not dialogs(driven), "no dialog")
    draft.open_config(TrainConfig(concepts=(one_image(tmp_path),)))
    full = tmp_path / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(full)], capture_output=True).returncode:
        pytest.skip("mounting takes root")
    try:
        (full / "filler").write_bytes(b"x" * 4096)
        for number in range(20):
            try:
                (full / f"filler{number}").write_bytes(b"x" * 4096)
            except OSError:
                break
        draft.set("runs_dir", str(full))
        driven.click(driven.window.run_bar.buttons.train)
        driven.until(lambda: "Training did not start" in dialogs(driven), "the reason")
        driven.press("Return")
        driven.until(lambda: not dialogs(driven), "no dialog")
    finally:
        subprocess.run(["umount", str(full)], check=True)


def one_image(place: Path) -> Concept:
    folder = place / "one image"
    folder.mkdir()
    Image.new("RGB", (64, 64)).save(folder / "0.png")
    return Concept(path=str(folder))


def test_existing_run_name_asks(driven: Driven, runs: Path, tmp_path: Path) -> None:
    draft = driven.window.state_.draft
    draft.open_config(TrainConfig(runs_dir=str(runs), run_name="cats", concepts=(one_image(tmp_path),)))
    driven.click(driven.window.run_bar.buttons.train)
    driven.until(lambda: "This run already exists" in dialogs(driven), "the question")
    driven.press("Escape")
    driven.until(lambda: not dialogs(driven), "no dialog")
    assert not list(runs.glob("cats-*"))


def texts_on(canvas: Any) -> list[str]:
    return [canvas.itemcget(item, "text") for item in canvas.find_all() if canvas.type(item) == "text"]


def dialogs(driven: Driven) -> list[str]:
    return [child.title() for child in driven.window.winfo_children() if child.winfo_class() == "Toplevel"]


def test_tensorboard_starts_and_stops(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    opened: list[str] = []
    page.tools.tensorboard._browse = opened.append
    page.tools.tensorboard_button.invoke()
    driven.until(lambda: opened, "TensorBoard", 120)
    with urllib.request.urlopen(opened[0], timeout=20) as answer:
        assert answer.status == 200
    server = page.tools.tensorboard.server
    page.tools.tensorboard.stop()
    assert not server.runs


def test_monitor_follows_colour_mode_and_scale(driven: Driven, runs: Path) -> None:
    follow(driven, runs / "cats")
    page = driven.monitor("curves")
    driven.window.set_mode("light")
    driven.until(lambda: not page.plots["loss"].is_due, "the plots in light colours")
    driven.window.set_scale(150)
    driven.live(0.5)
    page = driven.monitor("curves")
    driven.until(lambda: page.plots["loss"].lines and not page.plots["loss"].is_due, "the plots at 150 %")
    driven.window.set_scale(100)
    driven.window.set_mode("dark")
    driven.live(0.3)
