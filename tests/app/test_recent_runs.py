"""The monitor while no run is followed: the newest runs, in the real window."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from app.generate.run_models import models_of_runs
from app.monitor.log_reader import _log_files
from app.monitor.recent_runs import _about, loss_outline, read_recent
from app.monitor.run_edits import moved_path
from app.monitor.run_list import RunList
from app.monitor.runs import _figures
from app.runs.control import active_runs, create_run, existing_run
from app.runs.liveness import read_liveness
from app.runs.status import status_of
from modules.run import RunFolder
from modules.run.debug_package import collect_parts
from modules.run.queue.active_run import ActiveRun, resources_in_use
from modules.run.queue.entries import Entry
from modules.run.view.run_view import RunView
from tests.app.driver import Driver
from tests.app.fake_runs import active, make_fake_run
from tests.permissions import modes_respected
from tests.runs import tiny_config


@pytest.mark.slow
def test_without_a_run_the_monitor_offers_the_newest(driver: Driver, home: Path) -> None:
    driver.window.show_section("monitor")
    section = driver.window.sections["monitor"]
    driver.settle()
    assert "Press Train to start a run" in driver.text(section)
    for number in range(6):
        make_fake_run(home / "runs" / f"cats-{number}", steps=200, samples_every=100, started_at=1e9 + 1e5 * number)
    make_fake_run(home / "runs" / "empty", steps=0, started_at=1e9 + 1e6)
    driver.window.show_section("data")
    driver.window.show_section("monitor")
    driver.wait(lambda: section.recent.rows, "the newest runs")
    driver.settle()
    assert [row.name for row in section.recent.rows] == ["empty", "cats-5", "cats-4", "cats-3"]
    none, newest = section.recent.rows[:2]
    assert (none.sample, none.curve.find_all()) == (None, ())
    assert newest.sample.width() == newest.sample.height() > 32
    (line,) = newest.curve.find_all()
    heights = newest.curve.coords(line)[1::2]
    assert len(heights) > 20
    assert heights[0] < heights[-1], "the loss fell, and y grows downwards"
    assert "200 steps" in driver.text(newest)
    driver.click_really(newest.curve)
    assert driver.window.state_.run is not None
    assert driver.window.state_.run.folder.name == "cats-5"
    assert not section.recent.winfo_ismapped()


def test_the_outline_of_a_long_run_is_read_in_parts(tmp_path: Path) -> None:
    run = make_fake_run(tmp_path / "long", steps=4000, ranks=1)
    assert run.events_file.stat().st_size > 500_000
    losses = loss_outline(run.events_file)
    assert 30 <= len(losses) <= 48
    assert losses[0] > 2 * losses[-1] > 0
    with run.events_file.open("a") as file:
        file.write('{"v": 1, "t": 1, "type": "step", "step": "x", "loss": "x"}\n')
    assert loss_outline(run.events_file)
    assert loss_outline(tmp_path / "missing") == ()


def test_run_folders_are_shown_as_they_are_written(tmp_path: Path) -> None:
    """A link to them is followed only to see that two paths lead to the same run."""
    real, link = tmp_path / "disk", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    config = tiny_config(tmp_path / "images", tmp_path, device="cpu", runs_dir=str(link), run_name="cats")
    assert create_run(config).path == link / "cats"
    make_fake_run(link / "cats", steps=2)
    assert existing_run(config) == RunFolder(link / "cats")
    with active(link / "cats"):
        assert active_runs(link) == [link / "cats"]
    assert [run.path for run in RunList().scan_folders([link, real])] == [link / "cats"]
    assert [run.summary.path for run in read_recent(link, 10)] == [link / "cats"]
    for written in (link, real):
        assert moved_path(str(written / "cats" / "model"), link / "cats", link / "dogs") == str(link / "dogs" / "model")


@pytest.mark.parametrize("at", ["1e300", "1e18", "-1e18", f"1{'0' * 400}", "NaN", '"x"'])
def test_a_time_that_no_clock_can_show_is_none(at: str, tmp_path: Path) -> None:
    run = make_fake_run(tmp_path / "cats", steps=1)
    events = (
        '"type": "step", "step": 5, "loss": 1e308',
        '"type": "warning", "message": "w"',
        '"type": "finished", "reason": "finished", "exit_code": 0',
    )
    run.events_file.write_text("".join(f'{{"t": {at}, {event}}}\n' for event in events))
    (shown,) = read_recent(tmp_path, 10)
    assert "5 steps" in _about(shown.summary)
    assert all(abs(loss) < 1e300 for loss in shown.losses)
    started = time.strftime("%d %b %H:%M", time.localtime(run.config_file.stat().st_mtime))
    assert _figures(shown.summary)[1] == started
    entry = Entry(number=1, name="cats", devices=None, added=1.0, started=2.0, state="running")
    assert ActiveRun(entry, run).ended().exit_code is None
    assert "events.jsonl" in {part.name for part in collect_parts(run)}


def test_a_run_that_may_not_be_read_hides_no_other_one(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        run = make_fake_run(tmp_path / name, steps=1)
        (run.model_dir).mkdir()
        (run.model_dir / "tandem.json").touch()
    locked = RunFolder(tmp_path / "b")
    with active(tmp_path / "c"), modes_respected():
        locked.path.chmod(0)
        try:
            assert {run.name for run in RunList().scan(tmp_path)} == {"a", "c"}
            assert {run.name for run, _ in models_of_runs(tmp_path)} == {"a", "c"}
            assert active_runs(tmp_path) == [tmp_path / "c"]
            assert list(resources_in_use(tmp_path, set())) == ["c"]
            assert _log_files(locked) == []
            assert existing_run(tiny_config(tmp_path, tmp_path, runs_dir=str(tmp_path), run_name="b")) is None
            status = status_of(RunView(), read_liveness(locked), time.time())
            assert status.title == "The run folder cannot be read"
            assert status.detail.startswith(str(locked.path))
            assert status.detail.endswith("Permission denied.")
        finally:
            locked.path.chmod(0o700)


def test_a_run_that_a_command_line_starts_is_followed_or_offered(
    driver: Driver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.runs.outside_watch._EVERY_S", 0.1)
    state = driver.window.state_
    first = make_fake_run(home / "runs" / "by-hand", steps=3, ended=None)
    with active(first.path):
        driver.wait(lambda: state.run is not None, "the run")
        assert state.run is not None
        assert state.run.folder.name == "by-hand"
        driver.wait(lambda: state.run is not None and state.run.is_alive, "its processes")
    second = make_fake_run(home / "runs" / "another", steps=3, ended=None)
    with active(second.path):
        driver.wait(lambda: "another was started elsewhere" in driver.window.run_bar._message, "the offer")
        assert state.run.folder.name == "by-hand", "whose end is in sight"
        driver.window.run_bar.press_text()
        assert state.run.folder.name == "another"
