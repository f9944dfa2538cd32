"""Train with the name of a run that exists: what it asks, what a resume trains; and settings opened from a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.runs.ask_existing import ExistingRun, read_existing
from app.runs.control import create_run
from modules.config import TrainConfig, load_config
from modules.run import RunFolder
from tests.app.driver import Driver
from tests.app.fake_runs import make_fake_run
from tests.app.run_driver import tiny
from tests.runs import train_alone

pytestmark = pytest.mark.slow


@pytest.fixture
def driver(display: str, home: Path) -> Iterator[Driver]:
    make_fake_run(home / "runs" / "cats", steps=20, ended="stopped")
    with Driver.open() as driver:
        yield driver


def test_settings_of_a_run_replace_unsaved_ones_only_when_told(driver: Driver) -> None:
    driver.set("seed", 7)
    driver.window.show_section("monitor")
    section = driver.window.sections["monitor"]
    section.open_page("runs")
    driver.wait(lambda: "runs" in section.pages, "the page")
    page = section.pages["runs"]
    driver.wait(lambda: "cats" in page.runs, "the run")
    page.select(["cats"])
    driver.wait(lambda: len(page.selected) == 1, "the selection")
    driver.click_button("Open settings")
    assert "unsaved changes" in driver.text(*driver.dialogs())
    driver.press("Escape")
    assert driver.draft.get("seed") == "7"
    driver.click_button("Open settings")
    driver.click_button("Discard changes")
    assert driver.draft.get("seed") == 42
    assert driver.draft.get("run_name") == "cats"
    assert "A copy of the settings of cats is open." in driver.text(driver.window.run_bar)


@pytest.mark.parametrize(
    ("changes", "said", "button", "resumed_with"),
    [
        ({"learning_rate": "2e-4"}, "Learning rate 1e-4 → 2e-4", "Resume with these settings", 2e-4),
        ({"learning_rate": "2e-4"}, "differ from those of cats", "Resume with its own settings", None),
        ({"learning_rate": "2e-4"}, "differ from those of cats", "Cancel", "nothing"),
        ({"method": "lora"}, "in Training method, which cannot change", "Resume with its own settings", None),
        ({"base_model": "other/model"}, "", "", None),
        ({}, "", "", None),
    ],
)
def test_resume_asks_where_the_settings_on_screen_differ(
    driver: Driver,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    said: str,
    button: str,
    resumed_with: object,
) -> None:
    """It resumed with the run's own without a word."""
    folder = RunFolder(home / "runs" / "cats")
    driver.draft.open_config(load_config(folder.config_file))
    driver.window.actions.follow(folder.path)
    for path, value in {"run_name": "dogs", **changes}.items():
        driver.draft.set(path, value)
    resumed: list[TrainConfig | None] = []
    monkeypatch.setattr(driver.window.actions, "resume_in", lambda _, config=None: resumed.append(config))
    buttons = driver.window.run_bar.buttons
    driver.wait(lambda: buttons.resume.winfo_viewable(), "the button")
    assert (buttons.train._style, buttons.resume._style) == ("plain", "accent")
    driver.click_really(buttons.resume)
    if said:
        driver.wait(lambda: said in driver.text(*driver.dialogs()[-1:]), "the question")
        driver.click_button(button)
    else:
        driver.wait(lambda: resumed, "the resume")
    driver.settle()
    assert [each and each.learning_rate for each in resumed] == ([] if resumed_with == "nothing" else [resumed_with])
    assert all(each is None or each.run_name == "cats" for each in resumed), "it stays the same run"
    assert driver.dialogs() == []


def of(folder: RunFolder, **changes: object) -> ExistingRun:
    config = load_config(folder.config_file)
    found = read_existing(TrainConfig.model_validate({**config.model_dump(), **changes}))
    assert found is not None
    return found


def test_what_a_resume_would_do_is_said(tmp_path: Path) -> None:
    stopped = make_fake_run(tmp_path / "runs" / "stopped", steps=20, ended="stopped")
    assert of(stopped).answer_to_resume == "own settings"
    longer = of(stopped, epochs=12, learning_rate=2e-4)
    assert longer.answer_to_resume == "current settings"
    assert "current settings: Epochs 10 → 12, Learning rate 1e-4 → 2e-4." in longer.question
    other = of(stopped, epochs=12, method="lora")
    assert other.answer_to_resume == "own settings"
    assert "differ from the current ones in Training method, which cannot change" in other.question
    other = of(stopped, family="flux", method="lora")
    assert "differ from the current ones in Model family and Training method, which" in other.question
    complete = make_fake_run(tmp_path / "runs" / "complete", steps=20)
    for changes in ({}, {"learning_rate": 2e-4}, {"epochs": 12, "method": "lora"}):
        assert of(complete, **changes).answer_to_resume == ""
        assert "It is complete: to train it further, raise" in of(complete, **changes).question
    assert of(complete, epochs=12).answer_to_resume == "current settings"


def test_a_run_that_never_trained_is_started_again_without_a_question(tmp_path: Path) -> None:
    """Its folder, which has only logs, is used again."""
    folder = make_fake_run(tmp_path / "runs" / "cats", steps=1)
    config = load_config(folder.config_file)
    folder.events_file.write_text('{"v":1,"t":1.0,"type":"finished","reason":"data","exit_code":4}\n')
    assert read_existing(config) is None
    assert create_run(config.model_copy(update={"learning_rate": 0.5})).path == folder.path
    assert load_config(folder.config_file).learning_rate == 0.5
    folder.events_file.write_text('{"v":1,"t":1.0,"type":"phase","phase":"loading"}\n')
    assert read_existing(config) is not None, "it may be about to train"


def test_a_complete_run_is_trained_further(display: str, home: Path, images: Path) -> None:
    config = tiny(images, home, run_name="cats", max_steps=3, family_options={})
    code, run = train_alone(config)
    assert (code, run.state.position.step) == (0, 3)
    with Driver.open() as driver:
        driver.draft.open_config(config)
        driver.set("max_steps", 5)
        driver.click_really(driver.window.run_bar.buttons.train)
        driver.wait(lambda: "already a run" in driver.text(*driver.dialogs()[-1:]), "the question")
        assert "Maximum steps 3 → 5" in driver.text(*driver.dialogs())
        driver.click_button("Resume with these settings")
        state = driver.window.state_
        driver.wait(lambda: state.run is not None and state.run.status().kind == "finished", "the end")
        assert state.run is not None
        state.run.detach()
    assert run.state.position.step == 5
    assert load_config(run.folder.config_file).max_steps == 5
    assert not run.folder.resume_config_file.exists()
