"""The life of a run as its user sees it: real processes, started, stopped and resumed by the buttons of the run bar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runs.control import RunControl
from modules.config import save_config
from tests.app.driver import Driver
from tests.app.run_driver import rank_0, tiny

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver(shared_driver: Driver, shared_home: Path, images: Path) -> Iterator[Driver]:
    """A window with settings that train for minutes; it leaves no process."""
    options = {"slow_step_s": 0.05, "slow_encode_s": 0.1}
    file = shared_home / "cats.json"
    save_config(tiny(images, shared_home, run_name="cats", family_options=options, sample_every="never"), file)
    shared_driver.window.files.open(file)
    yield shared_driver
    if (run := shared_driver.window.state_.run) is not None:
        run.force_stop()
        shared_driver.wait(lambda: not run.is_alive, "the end")


def followed(driver: Driver) -> RunControl:
    run = driver.window.state_.run
    assert run is not None
    return run


def train(driver: Driver) -> None:
    """Train, or go on: until there is a backup of a step."""
    state, buttons = driver.window.state_, driver.window.run_bar.buttons
    if state.run is None or not state.run.is_alive:
        driver.click_really(buttons.train if state.run is None else buttons.resume)
        driver.wait(lambda: driver.window.section == "monitor", "the place where it is seen")
    driver.wait(lambda: buttons.back_up.cget("state") == "normal", "the first step")
    driver.click_really(buttons.back_up)
    driver.wait(lambda: followed(driver).view.backup_step, "the backup")
    driver.wait(lambda: "is backed up." in said(driver), "that it is done")
    driver.click_really(buttons.save)
    driver.wait(lambda: "is saved: click to see it." in said(driver), "that it is done")
    assert followed(driver).folder.model_dir.is_dir()


def stop(driver: Driver) -> None:
    if driver.window.state_.run is None:
        train(driver)
    buttons = driver.window.run_bar.buttons
    if followed(driver).is_alive:
        driver.click_really(buttons.stop)
    driver.wait(buttons.resume.winfo_viewable, "the end")


def said(driver: Driver) -> str:
    """The words of the run bar, whose lines are broken to its width."""
    return " ".join(driver.text(driver.window.run_bar).split())


def step_shown(driver: Driver) -> str:
    return str(driver.window.run_bar.figures.labels["step"].cget("text"))


def test_question_to_force_a_stop_ends_with_the_run_and_keeps_the_keyboard(driver: Driver) -> None:
    train(driver)
    bar, search = driver.window.run_bar, driver.window.header.search.entry
    worker = rank_0(followed(driver).folder)
    worker.suspend()  # it hangs: the stop takes as long as the user needs to get impatient
    driver.click_really(bar.buttons.stop)
    driver.wait(lambda: bar.buttons.stop.cget("text") == "Force stop", "the other label")
    driver.click_really(bar.buttons.stop)
    assert "Force the run to stop?" in driver.text(driver.dialogs()[0])
    driver.click_really(search)  # behind the question
    driver.press("Escape")
    assert driver.dialogs() == []
    driver.click_really(bar.buttons.stop)
    bar.actions.stop()
    assert len(driver.dialogs()) == 1, "the question is asked once"
    worker.resume()
    driver.wait(lambda: not driver.dialogs(), "the question's own end")
    driver.wait(lambda: not followed(driver).is_alive, "the run's end")
    driver.press("ctrl+k")
    driver.type("seed")
    assert search.get() == "seed"
    driver.press("Escape")
    driver.wait(lambda: f"from the backup of step {followed(driver).view.backup_step}." in said(driver), "the backup")


def test_resumed_run_shows_its_step_from_the_first_moment(driver: Driver) -> None:
    stop(driver)
    before, bar = followed(driver), driver.window.run_bar
    backup = before.view.backup_step
    assert backup
    shown = []

    def trains() -> bool:
        shown.append(step_shown(driver))
        run = followed(driver)
        return run is not before and run.status().kind == "training" and int(shown[-1].split()[0]) > backup

    driver.click_really(bar.buttons.resume)
    driver.wait(trains, "the next step")
    numbers = [int(words.split()[0]) for words in shown]
    assert numbers[0] == backup
    assert numbers == sorted(numbers)


def test_new_run_shows_nothing_of_the_former_and_claims_no_backup(driver: Driver) -> None:
    stop(driver)
    former, bar = followed(driver), driver.window.run_bar
    pages = driver.go_to("monitor", "Curves").pages
    driver.wait(lambda: "curves" in pages, "the page")
    page = pages["curves"]
    driver.wait(lambda: not any(plot.is_due or plot.is_empty for plot in page.plots.values()), "the former's plots")
    driver.search_and_type("resolution", "32")  # the images are encoded anew, which takes seconds
    driver.go_to("monitor")
    driver.click_really(bar.buttons.train)
    driver.wait(driver.dialogs, "the question about its name")
    driver.click_button("Start as cats-2")
    driver.wait(lambda: followed(driver) is not former, "the new run")
    assert all(plot.is_empty for plot in page.plots.values())
    assert not any(plot._value.cget("text") for plot in page.plots.values())
    assert step_shown(driver) == "-"
    driver.wait(lambda: followed(driver).status().kind == "caching", "the images")
    driver.click_really(bar.buttons.stop)
    driver.wait(lambda: not followed(driver).is_alive, "the end")
    driver.wait(lambda: "There is no backup yet: Resume starts at the first step." in said(driver), "what to do")
